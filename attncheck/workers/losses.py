"""What the items that crashed a worker have in common, so that no more of that kind are tried and all others are.

An item is known by its features, in the order in which they explain best ("head_dim 160", "dtype bf16", …); what they
mean is the business of whoever makes the job. A feature explains a loss if at least two lost items have it and no
item that has it survived; if no single one does, two together are looked for. Several may explain the same losses:
then only an item that has them all is held back, and what happens to the others decides between them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

Features = tuple[str, ...]

MAX_LOSSES = 3  # the number after which remaining items are given up if none survived, or nothing is known about them
# A worker that dies costs another start (some seconds), and one that hangs its whole deadline. Two losses show a
# feature, so three features may be found before a backend that dies often is given up.
COST_OF_DEATH, COST_OF_HANG, MAX_COST = 1, 2, 6
MIN_LOST = 2  # number of items that must be lost to a shared feature: one alone proves nothing


@dataclass(frozen=True)
class SharedFeature:
    """What `lost` items share and no survivor has: `name` in words, and every feature that could be the reason."""

    name: str
    features: frozenset[str]
    lost: int


def explain_losses(lost: Sequence[Features], survived: Sequence[Features]) -> tuple[SharedFeature, ...]:
    """Return what explains the losses, the feature of the most losses first; nothing before an item survived."""
    survivors = [frozenset(features) for features in survived]
    unexplained = list(lost)
    shared: list[SharedFeature] = []
    while survivors and len(unexplained) >= MIN_LOST:
        best = _find_shared(unexplained, survivors)
        if best is None:
            break
        shared.append(best)
        unexplained = [features for features in unexplained if not best.features <= set(features)]
    return tuple(shared)


def _find_shared(lost: Sequence[Features], survivors: Sequence[frozenset[str]]) -> SharedFeature | None:
    """Return what the most of the lost share and no survivor has: one feature, else two."""
    for size in (1, 2):
        counts: dict[frozenset[str], int] = {}
        names: dict[frozenset[str], str] = {}
        for features in lost:
            for combination in combinations(features, size):
                key = frozenset(combination)
                counts[key] = counts.get(key, 0) + 1
                names.setdefault(key, " with ".join(combination))
        candidates = {
            key: count
            for key, count in counts.items()
            if count >= MIN_LOST and not any(key <= survivor for survivor in survivors)
        }
        if candidates:
            most = max(candidates.values())
            # Those of the first one's losses only: another one's may be other items altogether.
            first = next(key for key in names if candidates.get(key) == most)
            group = [frozenset(features) for features in lost if first <= set(features)]
            equal = [key for key in candidates if all(key <= features for features in group)]
            return SharedFeature(names[first], frozenset().union(*equal), most)
    return None


@dataclass
class Losses:
    """Lost and surviving items of all jobs of one name; `features` are those of their items."""

    features: dict[str, Features] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)  # how: "died", "hung"
    survived: list[str] = field(default_factory=list)
    workers: int = 0  # lost ones
    cost: int = 0
    shared: tuple[SharedFeature, ...] = ()

    def add_job(self, features: Mapping[str, Features]) -> None:
        """Take in a job's items."""
        self.features.update(features)

    def record_loss(self, item: str, how: str) -> None:
        """Take in that a worker was lost, with the item it worked on, if any."""
        self.workers += 1
        self.cost += COST_OF_HANG if how == "hung" else COST_OF_DEATH
        if item:
            self.lost[item] = how
        self.update()

    def forgive(self) -> None:
        """Start counting again: the following items run alone, without the cause of the delays."""
        self.workers = self.cost = 0

    def update(self) -> None:
        """Explain the losses again, by all that is known by now."""
        self.shared = explain_losses(
            [self.features.get(item, ()) for item in self.lost], [self.features.get(item, ()) for item in self.survived]
        )

    @property
    def is_over(self) -> bool:
        """Whether too much was lost to go on."""
        is_hopeless = not self.survived or not any(self.features.values())
        return self.workers >= MAX_LOSSES if is_hopeless else self.cost >= MAX_COST

    def reason_to_skip(self, item: str) -> str:
        """Return why an item is not to be tried, "" if it is."""
        for shared in self.shared:
            if shared.features <= set(self.features.get(item, ())):
                how = self._describe_how(shared)
                times = "twice" if shared.lost == 2 else f"{shared.lost} times"
                return f"{shared.name} {how} {times} before, and nothing that has it survived"
        return ""

    def _describe_how(self, shared: SharedFeature) -> str:
        hows = {how for item, how in self.lost.items() if shared.features <= set(self.features.get(item, ()))}
        return hows.pop() if len(hows) == 1 else "was lost"

    def order(self, items: Iterable[str]) -> list[str]:
        """Return items in the order to try them: where all were lost so far, the ones that are least like them first.

        So that an item may survive that has the features of the lost ones, however many of those come first.
        """
        items = list(items)
        if self.survived or not self.lost:
            return items
        common = [
            feature
            for feature in self.features.get(next(iter(self.lost)), ())
            if all(feature in self.features.get(item, ()) for item in self.lost)
        ]
        return sorted(items, key=lambda item: [feature in self.features.get(item, ()) for feature in common])
