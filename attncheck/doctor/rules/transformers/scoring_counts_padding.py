"""A trainer scores padded rows differently from the same rows without padding.

What it checks: `doctor --deep` lets TRL's trainers that generate their rows take two steps with a tiny GPT-2, whose
positions are learned, on prompts of two lengths. What the model computes for a padded row is compared with the row
alone. If only the positions are shifted, models that compute positions from distances (RoPE) are not concerned, and
the finding needs a launch of a model with learned positions.

Why it matters: the error is silent. Rows are generated at one set of positions, and scored at another. The policy's
and the reference model's log-probabilities are those of other rows.

What to do: give the model positions that the mask counts, or train a model with rotary positions.

Source: the measurement (attncheck/doctor/experiments/worker/scoring.py): TRL 0.22.1, 1.9.0 and 1.16.0 give no
position_ids in GRPO, RLOO and OnlineDPO. Faults of this kind: huggingface/trl#6800.
"""

import re

from attncheck.doctor.rules import Fix, Job, Known, Problem, Problems, Rule, Snapshot

LEARNED = {"gpt2", "gpt_neo", "gpt_bigcode"}  # transformers 5.17.0: their positions are learned, and start at column 0
HOOK = (
    'model.register_forward_pre_hook(lambda _, args, given: (args, {"position_ids": '
    '(given["attention_mask"].cumsum(-1) - 1).clamp(min=0), **given}), with_kwargs=True)  # and of ref_model'
)
NAMES = re.compile(r"gpt-?2|gpt-neo-\d|starcoder(?!2)", re.IGNORECASE)  # of models whose files are not here


def check(snapshot: Snapshot) -> Problems:
    job = snapshot.job.value if isinstance(snapshot.job, Known) else None
    for item in snapshot.measurements.scorings:
        is_concerned = job is None or (job.framework, job.trainer) == (item.trainer, item.variant)
        shifts = item.counts_padding and job is not None and _has_learned_positions(snapshot, job)
        if is_concerned and (item.sees_padding or shifts):
            what = "with its padding" if item.sees_padding else "at positions that count the padding"
            yield Problem(
                message=f"{item.trainer} {item.variant} scores padded rows {what}",
                evidence=(f"measured: a padded row's results change by {item.change:.0%} of their size",),
                fixes=(Fix("give the model positions from the mask", "edit", HOOK),) if shifts else (),
                subject=f"{item.trainer} {item.variant}",
            )


def _has_learned_positions(snapshot: Snapshot, job: Job) -> bool:
    if isinstance(snapshot.model, Known):
        return snapshot.model.value.model_type in LEARNED
    return NAMES.search(job.model) is not None


RULE = Rule("ATN468", "error", check)
