"""The loss depends on how a batch is divided, because this Trainer averages the micro-batches' means.

What it checks: transformers before 4.46 in a launch that accumulates gradients with transformers' Trainer or a
trainer based on it. A newer Trainer does the same for a program's own model whose `forward` takes no `**kwargs`. A
program whose own class replaces `compute_loss` is not judged: its mean may not be over tokens.
Neither is TRL's packing of that time: all its rows have the same number of labels (trl 0.14.0 trainer/utils.py,
ConstantLengthDataset), nor are blocks of one length whose labels are all their tokens (transformers 4.40.2
examples/pytorch/language-modeling/run_clm.py, group_texts).

Why it matters: the error is silent. Each micro-batch's loss is the mean over its own tokens, and the means are
averaged, so tokens of short micro-batches get more weight. Accumulating 16 × 1 trains a different objective from 1 ×
16. The difference is largest with answers of unequal length.

What to do: install transformers 4.46 or newer, whose Trainer divides by the tokens of the whole batch
(`num_items_in_batch`), and let the model's `forward` take `**kwargs`; or do not accumulate.

Source: transformers 4.45.2 (trainer.py has no `num_items_in_batch`) and 4.46.3 (it has it); 4.57.3 trainer.py:636-641
and 4061-4064, 4.51.3 trainer.py:3797 (a forward without `**kwargs`); huggingface/trl#3910.
"""

from dataclasses import replace

from attncheck.doctor.fixes.model import change_transformers
from attncheck.doctor.knowledge.frameworks import TRAINER_FRAMEWORKS
from attncheck.doctor.queries import describe_job, is_older, locate_settings
from attncheck.doctor.rules import Fix, Job, Problem, Problems, Rule, Snapshot, about_job, need

COUNTS_TOKENS = "4.46.0"
PLAIN_FORWARD = (
    "transformers 4.51.3 trainer.py:3797 divides by the tokens of the whole batch only if the model's forward takes"
    " **kwargs; not so: {0}"
)
OWN_LOSS = ("grpo", "ppo", "rloo", "online_dpo", "dpo", "kto", "orpo", "rm", "reward", "loop")


@about_job
def check(snapshot: Snapshot, job: Job) -> Problems:
    version = snapshot.version("transformers")
    has_own_loss = job.trainer in OWN_LOSS or job.trainer.endswith("own loss")
    has_equal_rows = job.has_equal_rows or (job.framework == "trl" and job.plan.packing == "mask_2d")
    is_old = job.framework in TRAINER_FRAMEWORKS and is_older(version, COUNTS_TOKENS)
    if has_own_loss or not (is_old or (job.framework == "transformers" and job.has_plain_forward)):
        return
    if has_equal_rows or job.plan.accumulation < 2 or "global_batch" not in job.locations:
        return
    places = ", ".join(map(str, job.plain_forwards))
    fixes = () if places else change_transformers(snapshot, f">={COUNTS_TOKENS},<5")
    fixes = tuple(
        replace(fix, title=f"{fix.title}, which helps if the model's forward takes **kwargs")
        if job.framework == "transformers"
        else fix
        for fix in fixes
    )
    release = f"use transformers>={COUNTS_TOKENS}, " if is_old else ""
    advice = f"do not accumulate; or {release}let forward take **kwargs, and divide by num_items_in_batch: {places}"
    reason = PLAIN_FORWARD.format(places) if places else "no transformers 4.46 to 4.57 fits the other pins and options"
    yield Problem(
        message=(
            f"transformers {need(version, 'transformers')} averages over {job.plan.accumulation} "
            "micro-batches instead of over their tokens"
        ),
        evidence=(
            f"num_items_in_batch was added in {COUNTS_TOKENS}",
            *(() if fixes else (reason,)),
            describe_job(job),
        ),
        fixes=fixes or (Fix("what to do", "manual", advice if places else "do not accumulate"),),
        subject=describe_job(job),
        locations=locate_settings(job, "global_batch"),
    )


RULE = Rule("ATN429", "warning", check, needs=frozenset({"job"}))
