"""Finds the features that crashed items share, so that similar items are skipped and all others are run.

An item has features, in the order in which they explain best ("head_dim 160", "dtype bf16", …); only the job's author
knows their meaning. A feature explains a loss if at least two lost items and no survivor have it. If no single feature
does, pairs of features are tried. If several explain the same losses, only an item with all of them is skipped, and the
results of the others decide between them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

Features = tuple[str, ...]

MAX_LOSSES = 3  # after this many losses, remaining items are given up if none survived or their features are unknown
# A dead worker costs another start (some seconds), and a hung one its whole deadline. Two losses show a feature, so
# four features may be found before a backend that dies often is given up: eight deaths, or three hangs.
COST_OF_DEATH, COST_OF_HANG, MAX_COST = 3, 8, 24
MIN_LOST = 2  # the fewest items lost to a shared feature: one alone proves nothing


@dataclass(frozen=True)
class SharedFeature:
    """Features that `lost` items share and no survivor has; `name` describes them in words."""

    name: str
    features: frozenset[str]
    lost: int


def explain_losses(lost: Sequence[Features], survived: Sequence[Features]) -> tuple[SharedFeature, ...]:
    """Return the explanations of the losses, the feature of most losses first; nothing before an item survived."""
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
    """Return the feature that most lost items share and no survivor has, otherwise such a pair of features."""
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
            # Only those of the first item's losses: another loss may concern entirely different items.
            first = next(key for key in names if candidates.get(key) == most)
            group = [frozenset(features) for features in lost if first <= set(features)]
            equal = [key for key in candidates if all(key <= features for features in group)]
            return SharedFeature(names[first], frozenset().union(*equal), most)
    return None


@dataclass
class Losses:
    """Lost and surviving items of all jobs with one name; `features` are the features of their items."""

    features: dict[str, Features] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)  # how each was lost: "died", "hung"
    survived: list[str] = field(default_factory=list)
    workers: int = 0  # number of lost workers
    cost: int = 0
    shared: tuple[SharedFeature, ...] = ()

    def add_job(self, features: Mapping[str, Features]) -> None:
        """Add a job's items."""
        self.features.update(features)

    def record_loss(self, item: str, how: str) -> None:
        """Add a lost worker, with the item that it was running, if any."""
        self.workers += 1
        self.cost += COST_OF_HANG if how == "hung" else COST_OF_DEATH
        if item:
            self.lost[item] = how
        self.update()

    def forgive(self) -> None:
        """Reset the count of losses, because the next items run alone, without the cause of the delays."""
        self.workers = self.cost = 0

    def update(self) -> None:
        """Explain the losses again, from all results so far."""
        self.shared = explain_losses(
            [self.features.get(item, ()) for item in self.lost], [self.features.get(item, ()) for item in self.survived]
        )

    @property
    def is_over(self) -> bool:
        """Return whether too many items were lost to continue."""
        is_hopeless = not self.survived or not any(self.features.values())
        return self.workers >= MAX_LOSSES if is_hopeless else self.cost >= MAX_COST

    def reason_to_skip(self, item: str) -> str:
        """Return why an item must be skipped, "" if it need not."""
        for shared in self.shared:
            if shared.features <= set(self.features.get(item, ())):
                how = self._describe_how(shared)
                times = "twice" if shared.lost == 2 else f"{shared.lost} times"
                return f"{shared.name} {how} {times} before, and no case with it survived"
        return ""

    def _describe_how(self, shared: SharedFeature) -> str:
        hows = {how for item, how in self.lost.items() if shared.features <= set(self.features.get(item, ()))}
        return hows.pop() if len(hows) == 1 else "was lost"

    def order(self, items: Iterable[str]) -> list[str]:
        """Return items in the order to run them: if all were lost so far, the items least similar to them come first.

        An item may thus survive that has the features of lost ones, even if many lost ones come first.
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
