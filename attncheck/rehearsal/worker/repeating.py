"""The task that compares two runs of a launch with reproducible training: they must be bitwise identical."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attncheck.core import codec
from attncheck.core.results.smoke import CheckResult
from attncheck.rehearsal.worker import records
from attncheck.rehearsal.worker.records import RankRecord, StepRecord

NAMED = 3  # the most tensors in a message


def compare(message: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
    """Handle a job of one item: compare the records of two runs in `message["folders"]`."""
    (item,) = message["items"]
    send({"started": item})
    first, second = (Path(folder) for folder in message["folders"])
    result = compare_runs(
        (records.read_ranks(first), records.read_steps(records.read_documents(first), join_rows)),
        (records.read_ranks(second), records.read_steps(records.read_documents(second), join_rows)),
    )
    send({"item": item, "answer": codec.to_plain(result)})


def join_rows(rows: Sequence[Sequence[Sequence[int]]]) -> list[Sequence[int]]:
    """Return the rows of all ranks, rank by rank."""
    return [row for own in rows for row in own]


Run = tuple[Sequence[RankRecord], Sequence[StepRecord]]


def compare_runs(first: Run, second: Run) -> CheckResult:
    """Return whether two runs are identical, and where they first differ: data, weights, forward, loss or gradients."""
    ranks, steps = zip(first[0], second[0]), zip(first[1], second[1])
    if len(first[0]) != len(second[0]) or not first[0]:
        return CheckResult(
            "repeat", "skipped", f"{len(first[0])} ranks took a step in the first run, {len(second[0])} in the second"
        )
    violation = next((text for own, other in ranks for text in _find_difference(own, other)), "")
    count = min(len(first[1]), len(second[1]))
    if not violation:
        number = next((number for number, (own, other) in enumerate(steps) if own != other), None)
        if number is not None:
            part = _describe_step(first[1][number], second[1][number])
            violation = f"the first step is identical in both runs, but step {number + 1} is not: {part}"
    gradients = sum(len(record.gradients) for record in first[0])
    notes = (
        () if violation else (f"bitwise identical: {gradients} gradients of the first step, losses of {count} steps",)
    )
    return CheckResult("repeat", violations=(violation,) if violation else (), notes=notes)


def _describe_step(own: StepRecord, other: StepRecord) -> str:
    if own.rows != other.rows:
        return "the input tokens differ"
    rank = next((rank for rank, pair in enumerate(zip(own.losses, other.losses)) if pair[0] != pair[1]), 0)
    losses = (", ".join(f"{loss:.9g}" for loss in step.losses[rank]) for step in (own, other))
    return f"losses of {' and then '.join(losses)}{f' on rank {rank}' if rank else ''}"


def _find_difference(own: RankRecord, other: RankRecord) -> Iterator[str]:
    """Yield the differences between two runs of a rank in its first step, the earliest first."""
    place = f" of rank {own.rank}" if own.rank else ""
    if not _are_equal(*[[call.input_ids for call in record.calls] for record in (own, other)]):
        yield f"the first step gets different tokens{place}: the data's order does not depend on the seed alone"
    weights = _list_different(own.weights, other.weights)
    if weights:
        yield f"training starts from different weights{place}: {_name(weights, own.weights)}"
    if not _are_equal(*[[call.hidden for call in record.calls if call.hidden is not None] for record in (own, other)]):
        yield f"the same tokens and weights give different hidden states{place}: the forward pass is not reproducible"
    if own.losses != other.losses:
        yield f"the same hidden states give different losses{place}: {own.losses} and {other.losses}"
    gradients = _list_different(own.gradients, other.gradients)
    if gradients:
        names = _name(gradients, own.gradients)
        yield f"the same losses give different gradients{place}: the backward pass is not reproducible, in {names}"


def _are_equal(own: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return len(own) == len(other) and all(map(torch.equal, own, other))


def _list_different(own: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> list[str]:
    return [name for name, tensor in own.items() if name not in other or not torch.equal(tensor, other[name])]


def _name(different: Sequence[str], tensors: Mapping[str, Tensor]) -> str:
    more = " and others" if len(different) > NAMED else ""
    return f"{len(different)} of {len(tensors)} parameters, {', '.join(different[:NAMED])}{more}"
