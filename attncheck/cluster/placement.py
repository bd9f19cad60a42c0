"""How many GPUs the job uses on each node, and the finding ATN581: a node has fewer.

The number is that of the option, the policy's launch files, or torchrun's ranks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from attncheck.core.findings import Finding, Fix, Problem
from attncheck.core.job import Job
from attncheck.core.launch import Source
from attncheck.core.lists import group_values
from attncheck.core.node_ranges import format_nodes, name_nodes
from attncheck.core.results.lint import launches_of
from attncheck.core.snapshot import NOT_ASKED, Absent, Known, Snapshot
from attncheck.doctor import engine
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
    from attncheck.lint.context import Request

    inputs = Inputs(sources)
    report = lint.run(snapshot, Request(tuple(sources), skip_unknown=True), inputs.read_model, inputs.read_file)
    return [linted.job for linted in launches_of(report) if isinstance(linted.job.gpus, Known)]


def _read_job(job: Job) -> Placement:
    assert isinstance(job.gpus, Known)
    gpus, source = job.gpus.value, job.location.source
    wanted_by = f"{source} takes" if source else f"{job.framework} takes"
    is_packed = job.reinforcement and job.framework == PACKED
    return Placement(0 if is_packed else -(-gpus // max(1, job.nodes)), gpus, wanted_by)


CODE = "ATN581"


def count_gpus(snapshot: Snapshot) -> int | None:
    """Return how many GPUs a job on this node would see; None if that could not be examined."""
    if isinstance(snapshot.devices, Known):
        return len(snapshot.visible_devices())
    return 0 if isinstance(snapshot.devices, Absent) and snapshot.devices.reason != NOT_ASKED else None


def find_lacking_nodes(counts: Mapping[int, int], placement: Placement, knows_all: bool) -> Iterator[Finding]:
    """Yield a finding if some nodes have fewer GPUs than the job uses there, or all nodes have fewer than it needs.

    `counts` are the GPUs of each node; `knows_all` is whether it covers every node.
    """
    required, total = placement.gpus_per_node, sum(counts.values())
    lacking = {node: count for node, count in counts.items() if count < required}
    if lacking:
        yield engine.make_finding_by_code(CODE, _describe_lacking(lacking, counts, placement))
    elif knows_all and total < placement.gpus:
        message = f"the nodes have {total} GPUs in total, fewer than the {placement.gpus} that {placement.wanted_by}"
        fix = Fix("add nodes, or request fewer GPUs", "manual", f"{placement.gpus - total} GPUs are missing")
        evidence = _list_counts(counts)
        yield engine.make_finding_by_code(CODE, Problem(message, evidence, (fix,), "GPUs of nodes"))


def _describe_lacking(lacking: Mapping[int, int], counts: Mapping[int, int], placement: Placement) -> Problem:
    required, is_one = placement.gpus_per_node, len(lacking) == 1
    total = f"{sum(counts.values())} GPUs on {len(counts)} nodes; {required * len(counts)} are needed"
    have = f"{len(counts) - len(lacking)} of {len(counts)} nodes have {required} or more"
    return Problem(
        message=f"{name_nodes(format_nodes(lacking))} {'has' if is_one else 'have'} fewer than the {required} "
        f"GPU{'s' * (required > 1)} that {placement.wanted_by}",
        evidence=(*_list_counts(lacking), total),
        fixes=(
            Fix("list the remaining GPUs there", "advice", "nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES"),
            Fix(f"exclude {'that node' if is_one else 'those nodes'}, or request fewer", "manual", have),
        ),
        subject="GPUs of nodes",
    )


def _list_counts(counts: Mapping[int, int]) -> tuple[str, ...]:
    nodes_by_count = group_values((count, node) for node, count in counts.items())
    return tuple(
        f"{'no GPU' if count == 0 else '1 GPU' if count == 1 else f'{count} GPUs'} on {name_nodes(format_nodes(nodes))}"
        for count, nodes in sorted(nodes_by_count.items())
    )
