"""Lists the questions that decide whether a launch is right and that no check answered.

Tables of releases describe known faults. Only a measurement of the installed release shows that the batch's keys and
the gradients of this launch are right: `doctor --deep` measures them, and lint uses its cached results. `lint --labels`
measures which tokens are learned.
"""

import re
from collections.abc import Iterator

from attncheck.core.facts import Known
from attncheck.core.job import Job
from attncheck.core.results.lint import LABELS, MEASURED
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.knowledge.frameworks import TRAINER_FRAMEWORKS
from attncheck.doctor.queries.launch import describe_layout, effective_attn_implementation, name_settings

# Settings of another loss than the trainer's default, which is measured.
OTHER_LOSS = re.compile(
    r"(loss_type|pref_loss|task_type|\w+_loss_func)=(?!(nll|sigmoid|causal_lm|none|)$)", re.IGNORECASE
)


def list_unchecked(job: Job, snapshot: Snapshot, knows_release: bool) -> tuple[str, ...]:
    """Return the questions about a launch that were not answered, in a few words each."""
    return tuple(_iter_unchecked(job, snapshot, knows_release))


def _iter_unchecked(job: Job, snapshot: Snapshot, knows_release: bool) -> Iterator[str]:
    if not isinstance(snapshot.model, Known):
        yield "the model"
    if not knows_release:
        yield f"the release of {job.framework}"
    if not _measured_batch(job, snapshot):
        yield MEASURED[0]
    if not _measured_gradients(job, snapshot):
        yield MEASURED[1]
    if job.trainer == "sft":
        yield LABELS


def _measured_batch(job: Job, snapshot: Snapshot) -> bool:
    """Return whether the keys of this launch's batches were measured with the installed trainer."""
    wanted = (job.framework, describe_layout(job), effective_attn_implementation(job))
    measured = (item for item in snapshot.measurements.batches if not item.error)
    return job.trainer == "sft" and wanted in {(item.trainer, item.layout, item.attention) for item in measured}


def _measured_gradients(job: Job, snapshot: Snapshot) -> bool:
    """Return whether gradients were measured for this objective, and for the ways in which the batch is divided."""
    is_other = any(OTHER_LOSS.match(f"{name}={item.value}") for name, item in name_settings(job).items())
    if is_other or job.framework not in TRAINER_FRAMEWORKS or job.plan.ring_size > 1 or job.deepspeed != Known(False):
        return False
    objective = "" if job.trainer == "sft" else job.trainer
    uses = {"two micro-batches": job.plan.accumulation > 1, "two ranks": job.world_size != Known(1)}
    needed = {(objective, division) for division, used in {"one batch": True, **uses}.items() if used}
    variants = {"liger": job.plan.liger, "tensor parallel": job.tensor_parallel > 1}
    own = [item for item in snapshot.measurements.gradients if item.trainer == job.framework and not item.error]
    measured_variants = {item.variant for item in own}
    return needed <= {(item.variant, item.division) for item in own} and all(
        name in measured_variants for name, used in variants.items() if used
    )
