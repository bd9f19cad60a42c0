"""Describes the features that a backend's lost cases share, from all runs at the end."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attncheck.core.verdicts import BackendState, Run, judge_run
from attncheck.measure import discovery
from attncheck.measure.case_features import list_features
from attncheck.workers.losses import SharedFeature, explain_losses

VERBS = {"died": "died", "timed_out": "hung", "raised": "raised"}


@dataclass(frozen=True)
class LostCases:
    """Lines of evidence; `remedy` is "" unless one part missing from a build may explain every loss."""

    lines: tuple[str, ...]
    missing_feature: str = ""


def describe(state: BackendState, runs: Sequence[Run]) -> LostCases:
    """Return the features that the lost cases among all `runs` of a backend share."""
    lost = [run for run in runs if run.outcome in VERBS]
    survivors = [run for run in runs if run.outcome == "ok"]
    features = {run.case.name: frozenset(list_features(run.case)) for run in runs}
    shared = explain_losses(*([list_features(run.case) for run in group] for group in (lost, survivors)))
    lines = tuple(_describe_shared(feature, runs, features) for feature in shared)
    explained = all(any(feature.features <= features[run.case.name] for feature in shared) for run in lost)
    raises = any(run.outcome == "raised" for run in lost)  # and reports missing parts itself
    if not shared or not explained or raises or not _is_built(state):
        return LostCases(lines)
    names = " and ".join(feature.name for feature in shared)
    return LostCases(lines, f"rebuild {state.package} with {names}, in case this build omits it")


def _is_built(state: BackendState) -> bool:
    """Return whether the backend's package is compiled in advance, from parts that a build may omit."""
    backend = discovery.find_backend(state.name)
    return state.package not in ("", "torch") and backend is not None and not backend.compiles


def _describe_shared(shared: SharedFeature, runs: Sequence[Run], features: dict[str, frozenset[str]]) -> str:
    """Return one line: "died at head_dim 160 in both cases of it that ran; the rest passes"."""
    has_it = [run for run in runs if shared.features <= features[run.case.name]]
    lost = [run for run in has_it if run.outcome in VERBS]
    verbs = {VERBS[run.outcome] for run in lost}
    verb = verbs.pop() if len(verbs) == 1 else "was lost"
    skipped = sum(run.outcome == "skipped" for run in has_it)
    count = "both cases" if len(lost) == 2 else f"all {len(lost)} cases"
    ran = f" that ran; {skipped} more {'was' if skipped == 1 else 'were'} skipped" if skipped else ""
    return f"{verb} at {shared.name} in {count} of it{ran}; {'; '.join(_describe_rest(has_it, runs))}"


def _describe_rest(has_it: Sequence[Run], runs: Sequence[Run]) -> Iterator[str]:
    names = {run.case.name for run in has_it}
    answers = [judge_run(run).answer for run in runs if run.case.name not in names]
    passed = answers.count("pass")
    judged = passed + sum(answers.count(answer) for answer in ("warn", "fail", "lost"))
    yield "the rest passes" if passed == judged else f"{passed} of the other {judged} pass"
