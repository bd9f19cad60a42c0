"""Covering arrays: few rows that contain every pair of values of all dimensions, and every triple of some.

Each row begins with a tuple that is in no row yet. Every other dimension then takes the value that completes most
missing tuples. Of several such rows, the one that completes most is taken. A case with a `coarse` value is judged
coarsely, so its row only covers tuples that contain this value. Sets of values are integers, one bit per value.
"""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]
TRIES = 16  # attempts to begin a row with a tuple before the tuple counts as excluded
CANDIDATES = 8  # rows of which the best is taken


class Coverage:
    """The pairs and triples of values that no row has yet."""

    def __init__(
        self,
        dimensions: Mapping[str, Sequence[Any]],
        interacting: Sequence[str],
        is_allowed: Callable[[Row], bool],
        usually_plain: Sequence[str] = (),
        coarse: str = "",
    ) -> None:
        """`is_allowed` judges a row in which some dimensions have no value yet.

        Dimensions in `usually_plain` take their first value if no other completes a tuple; the others take any value.
        Values of the dimension `coarse`, except for the first one, are coarse.
        """
        self.dimensions, self.interacting = dimensions, interacting
        self.is_allowed, self.usually_plain = is_allowed, usually_plain
        names = list(dimensions)
        self.values = [(name, value) for name in names for value in dimensions[name]]
        bits = range(len(self.values))
        self.of_dimension = {name: [bit for bit in bits if self.values[bit][0] == name] for name in names}
        self.coarse = sum(1 << bit for bit in self.of_dimension.get(coarse, ())[1:])
        self.excluded = {2: 0, 3: 0}
        self.total = {2: 0, 3: 0}
        self.pairs = [0] * len(self.values)  # for each value: the values that are in no row with it yet
        for first, second in itertools.combinations(names, 2):
            for pair in itertools.product(self.of_dimension[first], self.of_dimension[second]):
                if self._count_allowed(pair):
                    self.pairs[pair[0]] |= 1 << pair[1]
                    self.pairs[pair[1]] |= 1 << pair[0]
        allowed = list(self.pairs)
        self.triples: dict[
            tuple[int, int], int
        ] = {}  # for each pair of values: the third values that are in no row with it yet
        for group in itertools.combinations(interacting, 3):
            for triple in itertools.product(*(self.of_dimension[name] for name in group)):
                a, b, c = triple
                if allowed[a] >> b & allowed[a] >> c & allowed[b] >> c & 1 and self._count_allowed(triple):
                    for x, y, z in itertools.permutations(triple):
                        self.triples[x, y] = self.triples.get((x, y), 0) | 1 << z

    def _count_allowed(self, bits: tuple[int, ...]) -> bool:
        allowed = self.is_allowed(dict(self.values[bit] for bit in bits))
        self.total[len(bits)] += allowed
        self.excluded[len(bits)] += not allowed
        return allowed

    def gain(self, bit: int, chosen: Sequence[int], mask: int) -> int:
        """Return the number of tuples that `bit` completes with the values of `mask`, whose bits are `chosen`."""
        triples, coarse = self.triples, mask & self.coarse
        others = [coarse.bit_length() - 1] if coarse else chosen
        return 2 * (self.pairs[bit] & (coarse or mask)).bit_count() + sum(
            (triples[bit, other] & mask).bit_count() for other in others if (bit, other) in triples
        )

    def next_tuple(self) -> tuple[int, ...]:
        """Return a tuple that is in no row, () if there is none."""
        for (first, second), thirds in self.triples.items():
            if thirds:
                return first, second, thirds.bit_length() - 1
        return next(((bit, others.bit_length() - 1) for bit, others in enumerate(self.pairs) if others), ())

    def count_left(self) -> dict[int, int]:
        """Return the number of pairs and triples that are in no row."""
        return {
            2: sum(others.bit_count() for others in self.pairs) // 2,
            3: sum(thirds.bit_count() for thirds in self.triples.values()) // 6,
        }

    def remove(self, bits: Sequence[int]) -> None:
        """Remove the tuples of a row, or of part of one, from the missing ones."""
        mask = sum(1 << bit for bit in bits)
        coarse = mask & self.coarse
        for bit in bits:
            self.pairs[bit] &= ~(mask if 1 << bit & coarse else coarse or mask)
        for pair in itertools.permutations(bits, 2):
            if pair in self.triples:
                has_coarse = any(1 << bit & coarse for bit in pair)
                self.triples[pair] &= ~(mask if has_coarse else coarse or mask)

    def exclude(self, bits: tuple[int, ...]) -> None:
        """Give up a tuple that no allowed row contains, although it is allowed itself."""
        self.total[len(bits)] -= 1
        self.excluded[len(bits)] += 1
        for x, *others in itertools.permutations(bits):
            if len(bits) == 2:
                self.pairs[x] &= ~(1 << others[0])
            else:
                self.triples[x, others[0]] &= ~(1 << others[1])


def make_rows(coverage: Coverage, seed: int | str) -> list[Row]:
    """Return rows with every allowed tuple of `coverage`; another seed gives other rows with the same coverage."""
    rng = random.Random(seed)
    rows: list[Row] = []
    while begun := coverage.next_tuple():
        candidates = filter(None, (_complete_row(coverage, begun, rng) for _ in range(TRIES)))
        _, bits = max(itertools.islice(candidates, CANDIDATES), default=(0, ()))
        if not bits:
            coverage.exclude(begun)
            continue
        coverage.remove(bits)
        rows.append(dict(coverage.values[bit] for bit in bits))
    return rows


def _complete_row(coverage: Coverage, begun: tuple[int, ...], rng: random.Random) -> tuple[int, tuple[int, ...]] | None:
    """Return the tuples that a row extending `begun` completes, and its values.

    Return None if a dimension has no allowed value left.
    """
    row = dict(coverage.values[bit] for bit in begun)
    chosen, mask = list(begun), sum(1 << bit for bit in begun)
    gained, coarse = 0, 0 if mask & coverage.coarse else coverage.coarse
    names = [name for name in coverage.dimensions if name not in row]
    rng.shuffle(names)
    for name in names:
        bits = [bit for bit in coverage.of_dimension[name] if not 1 << bit & coarse]
        plain = bits[0] if name in coverage.usually_plain else -1
        gains = {bit: coverage.gain(bit, chosen, mask) for bit in bits}
        ranked = sorted(bits, key=lambda bit: (-gains[bit], bit != plain, rng.random()))
        bit = next((b for b in ranked if coverage.is_allowed({**row, name: coverage.values[b][1]})), None)
        if bit is None:
            return None
        row[name] = coverage.values[bit][1]
        gained += gains[bit]
        chosen.append(bit)
        mask |= 1 << bit
    return gained, tuple(chosen)
