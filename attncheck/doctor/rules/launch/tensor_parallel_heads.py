"""The launch's tensor parallelism does not divide the model's number of heads.

What it checks: the query and key/value heads of the model against the tensor parallelism of the launch.

Why it matters: a rank gets no heads, or only part of one. transformers' flash attention raises "Tensor query has shape
with a zero dimension", an assertion of the framework fails, or a reshape does.

What to do: use a size that divides the number of heads.

Source: transformers 5.23.0, integrations/flash_attention.py (the message, without its shape). The corrected launch is
judged again: the size is a divisor of both.
"""

from math import gcd

from attncheck.doctor.queries.launch import change_settings, describe_job, locate_settings
from attncheck.doctor.rules import Job, Problem, Problems, Rule, Snapshot, about_job, need, value_or


@about_job
def check(snapshot: Snapshot, job: Job) -> Problems:
    size = job.tensor_parallel
    if size < 2:
        return
    model = need(snapshot.model, "the model's configuration")
    heads = need(model.num_heads, "the number of heads")
    if heads % size == 0:
        return
    fitting = max(n for n in range(1, size + 1) if gcd(heads, value_or(model.num_kv_heads, heads)) % n == 0)
    yield Problem(
        message=f"tensor parallelism over {size} ranks cannot divide the {heads} query heads of {model.model_type}",
        evidence=(f"{heads} = {heads // size} × {size} + {heads % size}",),
        fixes=(change_settings("use a size that divides them", {"tensor_parallel": str(fitting)}),),
        subject=describe_job(job),
        locations=locate_settings(job, "tensor_parallel"),
    )


RULE = Rule("ATN427", "error", check, needs=frozenset({"job"}))
