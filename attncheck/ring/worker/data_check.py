"""Data that identify their sender: the pattern that ranks send, and explanations of wrong elements.

Every four bytes of a fill pattern are a mark: the sender, the turn (1 or 2) and the mark's position modulo a prime, so
that chunks of a round size carry different marks. No mark begins with a byte of all zeros or all ones: this
distinguishes data from memory that was cleared or never written. Summed data are integers up to 185, exact in bfloat16
and in a byte. Two ranks contribute to each element, so that a missing summand, a doubled one and a maximum instead of a
sum are detected.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attncheck.core.results.collectives import WrongPlace

TURNS = (1, 2)
POSITIONS = 1048573  # a prime below 2**20
UNWRITTEN_BYTE = 0xFF
STEP_PERIOD = 61  # also a prime
MAX_SAMPLES = 64  # the most wrong sums that one explanation must fit


@dataclass(frozen=True)
class Comparison:
    """The numbers of compared and of wrong elements, and the first wrong one."""

    elements: int
    wrong: int
    first_wrong: WrongPlace | None = None


def fill_pattern(sender: int, turn: int, length: int, dtype: torch.dtype, device: str) -> Tensor:
    """Return the data that `sender` sends: `(length,)` of `dtype`, every four bytes marked, to be compared as bytes."""
    size = length * dtype.itemsize
    positions = torch.arange(-(-size // 4), dtype=torch.int64, device=device) % POSITIONS
    marks = positions * 4096 + sender * 4 + turn
    return marks.to(torch.int32).view(torch.uint8)[:size].view(dtype)


def make_unwritten(length: int, dtype: torch.dtype, device: str) -> Tensor:
    """Return a receive buffer, `(length,)` of `dtype`, filled with a byte that starts no sender's data."""
    return torch.full((length * dtype.itemsize,), UNWRITTEN_BYTE, dtype=torch.uint8, device=device).view(dtype)


def compare_pattern(received: Tensor, sender: int, turn: int, rank: int, world_size: int) -> Comparison:
    """Compare the data that `rank` received, `(length,)`, with the fill pattern of `sender`, byte by byte."""
    expected = fill_pattern(sender, turn, received.numel(), received.dtype, received.device.type).view(torch.uint8)
    raw, size = received.contiguous().view(torch.uint8), received.dtype.itemsize
    differing = raw != expected
    elements = differing.view(-1, size).any(1)
    wrong = int(elements.sum())
    if not wrong:
        return Comparison(received.numel(), 0)
    first = int(differing.to(torch.uint8).argmax())
    start = -(-first // 4) * 4  # a mark that is wrong from its first byte identifies more than one that is partly right
    if not bool(differing[start : start + 4].any()):
        start -= 4
    description = describe_bytes(bytes(raw[start : start + 8].tolist()), start // 4, turn, world_size)
    name = str(received.dtype).removeprefix("torch.")
    first_wrong = WrongPlace(rank, sender, first // size, received.numel(), name, description, f"rank {sender}'s data")
    return Comparison(received.numel(), wrong, first_wrong)


def describe_bytes(raw: bytes, position: int, turn: int, world_size: int) -> str:
    """Return which rank's fill pattern these bytes carry, from one or two marks starting at `position`."""
    if not any(raw):
        return "zeros"
    if all(byte == UNWRITTEN_BYTE for byte in raw):
        return "unwritten memory"
    marked = raw[: len(raw) // 4 * 4] or raw
    marks = [(marked[start : start + 4], position + start // 4) for start in range(0, len(marked), 4)]
    descriptions = {_describe_mark(mark, index, turn, world_size) for mark, index in marks}
    if len(descriptions) == 1 and all(descriptions):
        return descriptions.pop()
    return f"bytes {raw[:4].hex()} that no rank sent"


def _describe_mark(raw: bytes, position: int, turn: int, world_size: int) -> str:
    """Return which rank's fill pattern one mark, or its first bytes, carries; "" if it is not a mark."""
    mark = int.from_bytes(raw, "little")
    sender = mark % 4096 >> 2
    if mark & 3 not in TURNS or sender >= world_size:
        return ""
    description = f"rank {sender}'s data"
    if mark & 3 != turn:
        description += " of the previous exchange"
    moved = abs((mark >> 12) - position % POSITIONS) * 4 if len(raw) == 4 else 0
    return description + (f" {moved} bytes from their correct place" if moved else "")


def sum_contribution(rank: int, world_size: int, turn: int, length: int, dtype: torch.dtype, device: str) -> Tensor:
    """Return the contribution of `rank` to the sums: `(world_size * length,)` of `dtype`."""
    index = torch.arange(world_size * length, dtype=torch.int32, device=device)
    step = (index + 29 * turn) % STEP_PERIOD
    first, second = (index + turn) % world_size == rank, (index + turn + 1) % world_size == rank
    return ((1 + step) * first + (64 + step) * second).to(dtype)


def compare_sums(received: Tensor, rank: int, world_size: int, turn: int) -> Comparison:
    """Compare `rank`'s part of the sums, `(length,)`, with the sum of all ranks' contributions."""
    length = received.numel()
    index = torch.arange(rank * length, (rank + 1) * length, dtype=torch.int32, device=received.device)
    differing = received.to(torch.float64) != (65 + 2 * ((index + 29 * turn) % STEP_PERIOD)).to(torch.float64)
    wrong = int(differing.sum())
    if not wrong:
        return Comparison(length, 0)
    wrong_indices = differing.nonzero().flatten()[:MAX_SAMPLES]
    positions, values = (wrong_indices + rank * length).tolist(), received[wrong_indices].to(torch.float64).tolist()
    description = _explain_sums(positions, values, world_size, turn) or f"{values[0]:g}"
    expected = _expected_sum(positions[0], turn)
    name = str(received.dtype).removeprefix("torch.")
    first = int(wrong_indices[0])
    first_wrong = WrongPlace(rank, -1, first, length, name, description, f"the sum of all, {expected}")
    return Comparison(length, wrong, first_wrong)


def _expected_sum(index: int, turn: int) -> int:
    return 65 + 2 * ((index + 29 * turn) % STEP_PERIOD)


def _contribution_at(index: int, rank: int, world_size: int, turn: int) -> int:
    step = (index + 29 * turn) % STEP_PERIOD
    first, second = (index + turn) % world_size == rank, (index + turn + 1) % world_size == rank
    return (1 + step) * first + (64 + step) * second


def _explain_sums(positions: Sequence[int], values: Sequence[float], world_size: int, turn: int) -> str:
    """Return the one mistake that explains all these wrong sums, "" if none does."""
    if all(value in (UNWRITTEN_BYTE, -1) or value != value for value in values):
        return "unwritten memory"
    wrong_sums = list(values)
    mistakes = _iter_mistakes(positions, world_size, turn)
    return next((description for description, sums in mistakes if sums == wrong_sums), "")


def _iter_mistakes(positions: Sequence[int], world_size: int, turn: int) -> Iterator[tuple[str, list[int]]]:
    """Yield each known kind of mistake, described, and the sums at `positions` that it would give."""
    expected = [_expected_sum(position, turn) for position in positions]
    yield "zeros", [0] * len(positions)
    yield "the sum of the previous exchange", [_expected_sum(position, 3 - turn) for position in positions]
    for rank in range(world_size):
        contributions = [_contribution_at(position, rank, world_size, turn) for position in positions]
        yield f"the sum without rank {rank}", [total - part for total, part in zip(expected, contributions)]
        yield f"the sum with rank {rank} twice", [total + part for total, part in zip(expected, contributions)]
