"""The model's number of heads is incompatible with the launch's sequence parallelism.

What it checks: llama3's head stride against the model's key/value heads (it must divide them), and Ulysses' size
against query heads (it must divide them) and key/value heads (one must divide the other).

Why it matters: the first forward of ring-flash-attn raises an AssertionError without a message, after the model was
loaded. Help texts mention "number of heads", but a model with 2 key/value heads allows only strides 1 and 2.

What to do: use the stride or size that the finding names.

Source: ring_flash_attn 0.1.8 llama3_flash_attn_varlen.py:86 (`assert nheads_k % heads_k_stride == 0`);
verl 0.9.1 models/transformers/monkey_patch.py:343; deepspeed 0.19.6 runtime/sequence_parallel/ulysses_sp.py:145.
"""

from attncheck.core.arithmetic import MAX_COUNT, largest_divisor
from attncheck.doctor.queries.launch import change_settings, describe_job, locate_settings
from attncheck.doctor.rules import Job, Problem, Problems, Rule, Snapshot, about_job, need, value_or


@about_job
def check(snapshot: Snapshot, job: Job) -> Problems:
    if job.plan.ring_size < 2 or job.scheme not in ("llama3", "ulysses"):
        return
    model = need(snapshot.model, "the model's configuration")
    heads = need(model.num_heads, "the number of heads")
    kv_heads = value_or(model.num_kv_heads, heads)
    shared = f"{model.model_type}: {heads} query heads, {kv_heads} key/value heads"
    if job.scheme == "llama3" and kv_heads % job.plan.heads_k_stride:
        best_stride = largest_divisor(kv_heads, job.plan.heads_k_stride)
        yield Problem(
            message=f"head stride {job.plan.heads_k_stride} does not divide the model's {kv_heads} key/value heads",
            evidence=(shared, "the first forward raises an AssertionError without a message"),
            fixes=(change_settings("use a stride that divides them", {"heads_k_stride": str(best_stride)}),),
            subject=describe_job(job),
            locations=locate_settings(job, "heads_k_stride"),
        )
    size = job.plan.ring_size
    if job.scheme == "ulysses" and not _divides_heads(size, heads, kv_heads):
        best_size = max(n for n in range(1, min(size, heads, MAX_COUNT) + 1) if _divides_heads(n, heads, kv_heads))
        yield Problem(
            message=f"Ulysses over {size} ranks cannot divide {heads} query heads and {kv_heads} key/value heads",
            evidence=(shared,),
            fixes=(change_settings("use a size that divides both", {"ring_size": str(best_size)}),),
            subject=describe_job(job),
            locations=locate_settings(job, "ring_size"),
        )


def _divides_heads(size: int, heads: int, kv_heads: int) -> bool:
    return heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)


RULE = Rule("ATN572", "error", check, needs=frozenset({"job"}))
