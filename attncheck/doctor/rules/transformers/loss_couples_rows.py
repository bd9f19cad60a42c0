"""The loss of a row depends on the other rows of its micro-batch, so that accumulation changes what is trained.

What it checks: `doctor --deep` lets a trainer take the same step as one batch and as two micro-batches of as many rows
and tokens. Their gradients differ, and by no factor. This is reported of a launch that accumulates with this trainer
and loss.

Why it matters: four micro-batches of four rows do not train what one batch of sixteen does. Some losses are defined
like this: KTO's estimate of the KL divergence, a sorted batch (AOT), or a running baseline (BCO).

What to do: compare runs of one micro-batch size only. If memory allows, use larger micro-batches and fewer of them.

Source: the measurement (attncheck/doctor/experiments/worker/twins.py). Measured: TRL 1.9.0, BCO, KTO, and DPO with
`loss_type` aot and aot_unpaired. huggingface/trl#7265.
"""

from attncheck.doctor.queries.launch import locate_settings
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot
from attncheck.doctor.rules.transformers.neutral_change_trains_otherwise import iter_reported


def check(snapshot: Snapshot) -> Problems:
    if not isinstance(snapshot.job, Known):
        return
    job = snapshot.job.value
    for item in iter_reported([item for item in snapshot.measurements.twins if item.is_coupled], job):
        yield Problem(
            message=f"{item.name}: a row's gradient depends on the other rows of its micro-batch",
            evidence=(
                f"measured: two micro-batches have {item.ratio:.3g} times the gradient of one batch of their rows, "
                f"at a cosine of {item.cosine:.4f}",
                item.place,
            ),
            fixes=(Fix("use one micro-batch a step", "setting", "gradient_accumulation_steps: 1"),),
            subject=f"{item.trainer} {item.variant}",
            locations=locate_settings(job, "global_batch"),
        )


RULE = Rule("ATN471", "note", check)
