"""Lists the questions that decide whether a launch is right and that no check answered.

Tables of releases describe known faults. Only a measurement of the installed release shows that the batch's keys and
the gradients of this launch are right: `doctor --deep` measures them, and lint uses its cached results.
"""

from collections.abc import Iterator

from attncheck.core.facts import Known
from attncheck.core.job import Job
from attncheck.core.results.lint import MEASURED
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.knowledge.frameworks import TRAINER_FRAMEWORKS
from attncheck.doctor.queries.launch import describe_layout, effective_attn_implementation


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


def _measured_batch(job: Job, snapshot: Snapshot) -> bool:
    """Return whether the keys of this launch's batches were measured with the installed trainer."""
    wanted = (job.framework, describe_layout(job), effective_attn_implementation(job))
    measured = (item for item in snapshot.measurements.batches if not item.error)
    return job.trainer == "sft" and wanted in {(item.trainer, item.layout, item.attention) for item in measured}


def _measured_gradients(job: Job, snapshot: Snapshot) -> bool:
    """Return whether gradients were measured for this objective, and for the way in which the batch is divided."""
    variant = "" if job.trainer == "sft" else job.trainer
    own = {
        item.division
        for item in snapshot.measurements.gradients
        if (item.trainer, item.variant) == (job.framework, variant) and not item.error
    }
    needed = {"one batch"}
    if job.plan.accumulation > 1:
        needed.add("two micro-batches")
    if job.world_size != Known(1):
        needed.add("two ranks")
    return job.framework in TRAINER_FRAMEWORKS and needed <= own
