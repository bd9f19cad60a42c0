"""How many GPUs the job uses on each node: from the option, the policy's launch files, or torchrun's ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attncheck.core.job import Job
from attncheck.core.launch import Source
from attncheck.core.results.lint import launches_of
from attncheck.core.snapshot import Known, Snapshot
from attncheck.gate.inputs import Inputs

PACKED = "openrlhf"  # its placement groups distribute GPUs over any nodes (openrlhf 0.11.2 cli/train_ppo_ray.py)


@dataclass(frozen=True)
class Placement:
    """The GPUs that a job uses on each node and on all nodes (0: not known), and what uses them, as a clause."""

    gpus_per_node: int = 0
    gpus: int = 0
    wanted_by: str = ""


@dataclass(frozen=True)
class PlacementRequest:
    """Sources for the number of GPUs that the job uses: --gpus-per-node, launch files, ranks per node; 0: not given."""

    gpus_per_node: int = 0
    sources: Sequence[Source] = ()
    local_size: int = 0


NOTHING_REQUESTED = PlacementRequest()


def choose_placement(request: PlacementRequest, snapshot: Snapshot, counts: Mapping[int, int]) -> Placement:
    """Return the placement to apply. `counts` are the GPUs of the nodes; if there are none, ranks run on CPUs."""
    if request.gpus_per_node:
        return Placement(request.gpus_per_node, 0, "--gpus-per-node names")
    if request.sources:
        placements = [_read_job(job) for job in _read_jobs(request.sources, snapshot)]
        if placements:
            return max(placements, key=lambda placement: (placement.gpus_per_node, placement.gpus))
    if request.local_size > 1 and any(counts.values()):
        return Placement(request.local_size, 0, f"{request.local_size} ranks per node need")
    return Placement()


def _read_jobs(sources: Sequence[Source], snapshot: Snapshot) -> list[Job]:
    """Return the launches in `sources` with a known number of GPUs; nothing is run."""
    from attncheck.lint import run as lint

    inputs = Inputs(sources)
    report = lint.run(snapshot, lint.Request(tuple(sources), skip_unknown=True), inputs.read_model, inputs.read_file)
    return [linted.job for linted in launches_of(report) if isinstance(linted.job.gpus, Known)]


def _read_job(job: Job) -> Placement:
    assert isinstance(job.gpus, Known)
    gpus, source = job.gpus.value, job.location.source
    wanted_by = f"{source} takes" if source else f"{job.framework} takes"
    is_packed = job.reinforcement and job.framework == PACKED
    return Placement(0 if is_packed else -(-gpus // max(1, job.nodes)), gpus, wanted_by)
