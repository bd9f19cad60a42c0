"""Describes what a backend's wrong cases have in common.

Some of them were reduced to what they need to be wrong, which is proof: they are right without a named feature. If no
case was reduced, there is a fit over the features of all cases that could show the error. A feature, or two together,
that all wrong cases have explains them if few others have it: fewer than chance would let happen once in a hundred such
fits (hypergeometric, times the number of features that were tried). A size's limits are those of the wrong cases. The
chance that all wrong ones are beyond such a limit is the same. Cases of one shape count as one.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

from attncheck.core.verdicts import Run, budget_ratio
from attncheck.measure.case_features import (
    AGAIN,
    EXPLAINED,
    NEEDED,
    OR,
    PLAIN,
    STALE,
    UNREPEATED,
    group_by_shape,
    list_details,
    list_sizes,
)

MAX_CHANCE = 0.01
MIN_WRONG = 2
MAX_NAMED = 3  # features of different kinds that fit equally well
MAX_REDUCED = 2  # different lines on reduced cases


def describe_shared(wrong: Sequence[Run], right: Sequence[Run]) -> tuple[str, ...]:
    """Return lines on what reduced cases among the `wrong` runs need, and on the feature that all of them have."""
    # Chance decides which tensor and token change.
    lines = [
        tuple(re.sub(".* changes when the same call is made again", AGAIN, x) for x in (*run.violations, *run.pattern))
        for run in wrong
    ]
    counts = Counter(x for own in lines for x in own if x.startswith((AGAIN, NEEDED, PLAIN, STALE, UNREPEATED)))
    reduced = tuple(line for line, _ in counts.most_common(MAX_REDUCED))
    return _find_explanation([own for own in lines if counts.keys() & own]) + (reduced or _fit_features(wrong, right))


def _find_explanation(reduced: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the line on the known mistakes that explain every reduced case, () if there is no such mistake."""
    mistakes = [
        {name: None for line in own if line.startswith(EXPLAINED) for name in line.removeprefix(EXPLAINED).split(OR)}
        for own in reduced
    ]
    shared = [name for name in mistakes[0] if all(name in own for own in mistakes)] if mistakes else []
    return (EXPLAINED + OR.join(shared),) if shared else ()


def _fit_features(wrong: Sequence[Run], right: Sequence[Run]) -> tuple[str, ...]:
    """Return a line on the feature that all `wrong` runs have, with the number of `right` runs that have it too."""
    errors = [_list_errors(run) for run in wrong if run.scores]
    common = frozenset.intersection(*errors) if errors else frozenset()
    probes = {run.case.probe for run in wrong if not run.scores}
    able = [
        run
        for run in right
        if (
            run.case.probe in probes
            if run.case.probe
            else common <= frozenset((score.tensor, score.mode) for score in run.scores)
        )
    ]
    wrong_count, shapes = len(group_by_shape(run.case for run in wrong)), group_by_shape(run.case for run in able)
    if wrong_count < MIN_WRONG or not able:
        return ()
    shape_of = {case: index for index, group in enumerate(shapes) for case in group}
    right_shapes = [shape_of[run.case] for run in able]
    shared = [name for name in list_details(wrong[0].case) if all(name in list_details(run.case) for run in wrong[1:])]
    details = [frozenset(list_details(run.case)) for run in able]
    having = {name: frozenset(i for i, own in enumerate(details) if name in own) for name in shared}
    right_sizes = [list_sizes(run.case) for run in able]
    for name in list_sizes(wrong[0].case):
        sizes = [list_sizes(run.case)[name] for run in wrong]
        least, most = min(sizes), max(sizes)
        having[f"{name} of at least {least}"] = frozenset(i for i, own in enumerate(right_sizes) if own[name] >= least)
        having[f"{name} of at most {most}"] = frozenset(i for i, own in enumerate(right_sizes) if own[name] <= most)
    having = {name: also for name, also in having.items() if len(also) < len(able)}  # what every case has says nothing
    all_ways = math.comb(wrong_count + len(shapes), wrong_count)
    best: tuple[float, frozenset[int]] = (MAX_CHANCE, frozenset())
    named: list[str] = []
    for groups in (list(combinations(having, size)) for size in (1, 2)):
        for group in groups:
            also = frozenset.intersection(*(having[name] for name in group))
            shape_count = wrong_count + len({right_shapes[index] for index in also})
            chance = len(groups) * math.comb(shape_count, wrong_count) / all_ways
            if chance < best[0]:
                best, named = (chance, also), []
            if (chance, also) == best:
                named.append(" with ".join(group))
    if not named:
        return ()
    named.sort(key=lambda name: " at most " in name)  # kernels break beyond a limit, seldom below one
    kinds = {re.sub(r"\d+", "", name): name for name in reversed(named)}  # the first threshold of each quantity
    named = [name for name in named if name in kinds.values()]
    others = f" (or {', or '.join(named[1:MAX_NAMED])})" if len(named) > 1 else ""
    count = f"{len(best[1])} of {len(able)} right ones" if best[1] else f"none of {len(able)} right ones"
    return (f"{named[0]}{others}: in all {len(wrong)} wrong cases and in {count} that could show the error",)


def _list_errors(run: Run) -> frozenset[tuple[str, str]]:
    scores = (score for score in run.scores if budget_ratio(run.case, score, run.class_factor) > 1.0)
    return frozenset((score.tensor, score.mode) for score in scores)
