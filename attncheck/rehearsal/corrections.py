"""Possible fixes of a launch that trains wrongly: settings of its framework, the likeliest first."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from attncheck.core.io.errors import Unanswered
from attncheck.core.job import DROP, KEYS
from attncheck.core.rehearsal import JobCut
from attncheck.core.results.rehearsal import CACHE_IS_ON, RehearsedLaunch
from attncheck.lint.rewriting import ReadLaunch, rewrite

MAX_CORRECTIONS = 4  # each is a run of the launch


@dataclass(frozen=True)
class Correction:
    """A possible fix: settings in the form of `Framework.write`, or a line for the user's own code.

    The watcher applies the line if `environ` is set.
    """

    sets: Mapping[str, str] = field(default_factory=dict)
    title: str = ""  # the line's title
    line: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)


NO_CACHE = Correction(
    title="turn the cache off in training",
    line="model.config.use_cache = False",
    environ={"ATTNCHECK_NO_CACHE": "1"},
)


def propose(read: ReadLaunch, cut: JobCut, failed: Sequence[str], first: RehearsedLaunch) -> list[Correction]:
    """Return the settings to try; each changes the job."""
    said = [line for result in first.results for line in (*result.violations, *result.notes)]
    unique = [NO_CACHE] if any(CACHE_IS_ON in line for line in said) else []
    for sets in _iter_proposals(read, cut, failed, first.ranks):
        correction = Correction(sets)
        if correction not in unique and _changes_something(read, sets):
            unique.append(correction)
    return unique[:MAX_CORRECTIONS]


def _iter_proposals(read: ReadLaunch, cut: JobCut, failed: Sequence[str], ranks: int) -> Iterator[dict[str, str]]:
    plan = read.job.plan
    for problem in read.job.problems:  # errors that lint reports, in the launch's own settings
        if problem.sets and problem.consequence == ("refuses" if "run" in failed else "wrong"):
            yield dict(problem.sets)
    if "documents" in failed or (cut.driver and "gradients" in failed):
        yield from map(dict, cut.corrections)
    if "documents" in failed or "gradients" in failed:
        if plan.packed or plan.packing == "mask_2d":
            yield {"packing": "off"}
        for name in ("sdpa", "eager"):
            if name != plan.attn_implementation:
                yield {"attn_implementation": name}
    if {"loss", "gradients"} & set(failed) and ranks > 1:
        yield from map(dict, cut.rank_corrections)
    if {"loss", "gradients"} & set(failed) and plan.liger:
        yield {"liger": "off"}
    if "gradients" in failed and plan.gradient_checkpointing:
        yield {"gradient_checkpointing": "off"}


def _changes_something(read: ReadLaunch, sets: Mapping[str, str]) -> bool:
    try:
        return bool(rewrite(read, sets).diff)
    except Unanswered:
        return False


def describe(read: ReadLaunch, correction: Correction) -> str:
    """Return a fix's line, or its settings in the form of the launch's framework: the new lines, joined."""
    if correction.line:
        return correction.line
    sets = correction.sets
    lines = rewrite(read, sets).diff.splitlines()
    before = {word for line in lines if line.startswith("-") for word in line[1:].split()}
    added = [line[1:].split() for line in lines if line.startswith("+") and not line.startswith("+++")]
    new = [text for words in added for text in _iter_new_settings(words, before)]
    written = {word.lstrip("+-").partition("=")[0]: word.partition("=")[0] for word in before}
    names = ", ".join(
        f"no {written.get(key, f'--{key}')}" if value == DROP else f"{key}={value}"
        for key, value in sets.items()
        if key in KEYS or value == DROP
    )
    return " ".join(new) or names or "other settings"


def _iter_new_settings(words: Sequence[str], before: set[str]) -> Iterator[str]:
    """Yield the words of a line that are new; a value comes with its name."""
    for index, word in enumerate(words):
        if word == "\\" or word in before:
            continue
        previous = words[index - 1] if index else ""
        belongs = not word.startswith("-") and (previous.startswith("--") or previous.endswith(":"))
        yield f"{previous} {word}" if belongs and previous in before else word
