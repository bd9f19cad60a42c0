"""Data that say whose they are: what ranks send to each other, and what a wrong element turns out to be.

A parcel's every four bytes hold the sender, the turn (1 or 2) and their own place, modulo a prime so that no chunk of a
round size bears the marks of another. No mark begins with a byte of all zeros or all ones: memory that was cleared, or
never written, is told from data. Summed data are integers up to 185, exact in bfloat16 and in a byte; two ranks give to
each element, so that a missing one, a doubled one, and the largest in place of the sum show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attncheck.core.results.collectives import WrongPlace

TURNS = (1, 2)
PLACES = 1048573  # a prime below 2**20
FILLER = 0xFF
STEPS = 61  # a prime too
SAMPLED = 64  # wrong sums that one explanation must fit


@dataclass(frozen=True)
class Compared:
    """How many elements were compared and wrong, and the first wrong one."""

    elements: int
    wrong: int
    place: WrongPlace | None = None


def parcel(sender: int, turn: int, length: int, dtype: torch.dtype, device: str) -> Tensor:
    """Return what `sender` sends: `(length,)` of `dtype`, to be taken as bytes."""
    size = length * dtype.itemsize
    places = torch.arange(-(-size // 4), dtype=torch.int64, device=device) % PLACES
    marks = places * 4096 + sender * 4 + turn
    return marks.to(torch.int32).view(torch.uint8)[:size].view(dtype)


def unwritten(length: int, dtype: torch.dtype, device: str) -> Tensor:
    """Return memory to receive into, `(length,)` of `dtype`, that holds nobody's data."""
    return torch.full((length * dtype.itemsize,), FILLER, dtype=torch.uint8, device=device).view(dtype)


def compare(got: Tensor, sender: int, turn: int, rank: int, world_size: int) -> Compared:
    """Compare what `rank` got, `(length,)`, with what `sender` sent, byte by byte."""
    expected = parcel(sender, turn, got.numel(), got.dtype, got.device.type).view(torch.uint8)
    raw, size = got.contiguous().view(torch.uint8), got.dtype.itemsize
    differing = raw != expected
    elements = differing.view(-1, size).any(1)
    wrong = int(elements.sum())
    if not wrong:
        return Compared(got.numel(), 0)
    first = int(differing.to(torch.uint8).argmax())
    start = -(-first // 4) * 4  # a whole word tells more than one that is right in part
    if not bool(differing[start : start + 4].any()):
        start -= 4
    words = told(bytes(raw[start : start + 8].tolist()), start // 4, turn, world_size)
    name = str(got.dtype).removeprefix("torch.")
    place = WrongPlace(rank, sender, first // size, got.numel(), name, words, f"rank {sender}'s data")
    return Compared(got.numel(), wrong, place)


def told(raw: bytes, place: int, turn: int, world_size: int) -> str:
    """Return whose the one or two words from the word `place` on are, in words."""
    if not any(raw):
        return "zeros"
    if all(byte == FILLER for byte in raw):
        return "nothing: it was never written"
    whole = raw[: len(raw) // 4 * 4] or raw
    stories = {_story(whole[at : at + 4], place + at // 4, turn, world_size) for at in range(0, len(whole), 4)}
    return stories.pop() if len(stories) == 1 and all(stories) else f"bytes {raw[:4].hex()} that nobody sent"


def _story(raw: bytes, place: int, turn: int, world_size: int) -> str:
    """Return whose one word, or the first bytes of one, is; "" where it bears no mark."""
    mark = int.from_bytes(raw, "little")
    sender = mark % 4096 >> 2
    if mark & 3 not in TURNS or sender >= world_size:
        return ""
    words = f"rank {sender}'s data"
    if mark & 3 != turn:
        words += " of the exchange before"
    moved = abs((mark >> 12) - place % PLACES) * 4 if len(raw) == 4 else 0
    return words + (f" {moved} bytes from where they belong" if moved else "")


def share(rank: int, world_size: int, turn: int, length: int, dtype: torch.dtype, device: str) -> Tensor:
    """Return what `rank` gives to the sums: `(world_size * length,)` of `dtype`."""
    index = torch.arange(world_size * length, dtype=torch.int32, device=device)
    step = (index + 29 * turn) % STEPS
    first, second = (index + turn) % world_size == rank, (index + turn + 1) % world_size == rank
    return ((1 + step) * first + (64 + step) * second).to(dtype)


def compare_sums(got: Tensor, rank: int, world_size: int, turn: int) -> Compared:
    """Compare `rank`'s part of the sums, `(length,)`, with what the shares of all ranks add up to."""
    length = got.numel()
    index = torch.arange(rank * length, (rank + 1) * length, dtype=torch.int32, device=got.device)
    differing = got.to(torch.float64) != (65 + 2 * ((index + 29 * turn) % STEPS)).to(torch.float64)
    wrong = int(differing.sum())
    if not wrong:
        return Compared(length, 0)
    at = differing.nonzero().flatten()[:SAMPLED]
    places, values = (at + rank * length).tolist(), got[at].to(torch.float64).tolist()
    words = _explained(places, values, world_size, turn) or f"{values[0]:g}"
    whole = _sum(places[0], turn)
    name = str(got.dtype).removeprefix("torch.")
    return Compared(length, wrong, WrongPlace(rank, -1, int(at[0]), length, name, words, f"the sum of all, {whole}"))


def _sum(index: int, turn: int) -> int:
    return 65 + 2 * ((index + 29 * turn) % STEPS)


def _given(index: int, rank: int, world_size: int, turn: int) -> int:
    step = (index + 29 * turn) % STEPS
    first, second = (index + turn) % world_size == rank, (index + turn + 1) % world_size == rank
    return (1 + step) * first + (64 + step) * second


def _explained(places: Sequence[int], values: Sequence[float], world_size: int, turn: int) -> str:
    """Return the one explanation that fits all these wrong sums, "" where none does."""
    if all(found in (FILLER, -1) or found != found for found in values):
        return "nothing: it was never written"
    found = list(values)
    return next((words for words, would in _mistakes(places, world_size, turn) if would == found), "")


def _mistakes(places: Sequence[int], world_size: int, turn: int) -> Iterator[tuple[str, list[int]]]:
    """Yield what the sums at `places` would be after each known kind of mistake, with its words."""
    right = [_sum(place, turn) for place in places]
    yield "zeros", [0] * len(places)
    yield "the sum of the exchange before", [_sum(place, 3 - turn) for place in places]
    for rank in range(world_size):
        given = [_given(place, rank, world_size, turn) for place in places]
        yield f"the sum without rank {rank}", [whole - part for whole, part in zip(right, given)]
        yield f"the sum with rank {rank} twice", [whole + part for whole, part in zip(right, given)]
