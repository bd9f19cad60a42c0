"""The corrected launch: the settings of fixes are written back, and what they lead to is read and judged again.

A fix counts as proven if the corrected launch no longer has its finding.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from attncheck.core.findings import Finding, Fix
from attncheck.core.job import KEYS, Job, LintedLaunch
from attncheck.core.launch import Edit, Launch, ReadFile, Source
from attncheck.core.records import replace
from attncheck.core.report import Report
from attncheck.core.results.lint import LintSection
from attncheck.doctor.profile import needs_of_job
from attncheck.doctor.queries.launch import SAFE_KEYS
from attncheck.lint import launches, variables
from attncheck.lint.ends import add_ends
from attncheck.lint.files import editing
from attncheck.lint.judging import LaunchJudge, locate_in_host
from attncheck.lint.pasting import PastedCommand, format_command
from attncheck.lint.recognition import FoundLaunch, starts_training
from attncheck.lint.unchecked import list_unchecked
from attncheck.lint.unknown_values import make_key

MAX_ROUNDS = 4  # a corrected launch may need correction again, such as a renamed flag with an invalid value
NEEDS_QUOTES = re.compile(r"['\"`$]|\\(?!\n)")  # would end or change a string that holds a script
PROOF = "linting the corrected launch no longer reports it"
SPELLED_OUT = {"ring_size": "the size of context or sequence parallelism", "attn_implementation": "the attention"}
FindingKey = tuple[str, str, str, str]


class Correction(NamedTuple):
    """A launch after edits: the settings that they make, and the report on it; as written if there are no edits."""

    sets: Mapping[str, str]
    edits: tuple[Edit, ...]
    launch: Launch
    report: Report


def lint_launch(judge: LaunchJudge, reported: Collection[FindingKey]) -> Report:
    """Return the report on one launch, with fixes that cause no other problem, and the corrected launch.

    `reported`: findings of earlier launches, whose fixes are not repeated.
    """
    recognised, launch = judge.recognised, judge.recognised.launch
    job, report = judge.judge(launch)
    corrector = Corrector(judge, job, report)
    correction = corrector.correct()
    are_new = [identify(finding) not in reported for finding in report.findings]
    vets = [is_new and corrector.is_editable for is_new in are_new]
    vetted = [
        corrector.vet_fixes(finding, bool(correction.edits)) if vet else finding
        for finding, vet in zip(report.findings, vets)
    ]
    is_needed = bool(corrector.renamed.unknown_settings) or any(fix.sets for item in vetted for fix in item.fixes)
    edits = correction.edits if is_needed else ()
    findings = (
        _complete_fixes(finding, recognised, job, correction.report if edits else None) if is_new else finding
        for finding, is_new in zip(vetted, are_new)
    )
    safe_sets: dict[str, str] = {key: value for key, value in correction.sets.items() if key in SAFE_KEYS}
    pasted = format_command(correction.launch) if edits else PastedCommand("")
    linted_launch = LintedLaunch(
        locate_in_host(job, launch),
        format_launch_diff(launch, edits),
        pasted.text,
        edits,
        corrector.write(safe_sets) if edits else (),
        pasted.variables,
        list_unchecked(job, judge.model_snapshot, judge.release.is_known),
    )
    section = LintSection((linted_launch,), tuple(sorted(needs_of_job(job))))
    lost = {name: section for name, section in report.sections.items() if section.unanswered}
    ends = add_ends(findings, launch, job)
    return replace(report, command="lint", findings=ends, sections={**lost, "lint": section})


@dataclass(frozen=True)
class Corrector:
    """Writes settings into a launch, and judges what they lead to; `job` and `report` are those of the launch."""

    judge: LaunchJudge
    job: Job
    report: Report

    @property
    def is_editable(self) -> bool:
        """Return whether every source of the launch can be edited."""
        return all(source.editable for source in self.judge.recognised.launch.sources.values())

    @cached_property
    def renamed(self) -> Job:
        """Return the job with only the unknown settings that have a new name; all others stay unchanged."""
        renamed = tuple(unknown for unknown in self.job.unknown_settings if unknown.now and unknown.proof)
        return replace(self.job, unknown_settings=renamed)

    @cached_property
    def as_written(self) -> Correction:
        """Return the launch without edits."""
        return Correction({}, (), self.judge.recognised.launch, self.report)

    def correct(self) -> Correction:
        """Return the launch with the first fixes of its errors and its safe ones, and with those of the result."""
        correction = self.as_written
        for _ in range(MAX_ROUNDS if self.is_editable else 0):
            needed = _collect_sets(correction.report.findings, correction.sets)
            if needed == correction.sets and (correction.edits or not self.renamed.unknown_settings):
                break
            tried = self.try_sets(tuple(needed.items()))
            is_nested = self.judge.recognised.launch.is_nested
            if tried is None or (is_nested and any(NEEDS_QUOTES.search(edit.text) for edit in tried.edits)):
                return self.as_written
            correction = tried
        return correction

    def write(self, sets: Mapping[str, str]) -> tuple[Edit, ...]:
        """Return the edits that make these settings and rename the settings that have a new name."""
        return self.judge.recognised.framework.write(self.judge.recognised.launch, self.renamed, dict(sets))

    @cached_property
    def try_sets(self) -> Callable[[tuple[tuple[str, str], ...]], Correction | None]:
        """Return what judges the launch with these settings; it returns None if the launch trains no more."""
        return cache(self._try_sets)

    def _try_sets(self, sets: tuple[tuple[str, str], ...]) -> Correction | None:
        edits = self.write(dict(sets))
        edited = reread_launch(self.judge.recognised, edits, self.judge.read_file)
        if edited is None or not self.judge.recognised.framework.trainer(edited):
            return None
        return Correction(dict(sets), edits, edited, self.judge.judge(edited)[1])

    def vet_fixes(self, finding: Finding, first_is_tried: bool) -> Finding:
        """Return the finding without fixes that cause another problem; a fix that removes the finding is proven.

        Each fix is tried without the others. The first fixes of errors may have been tried together.
        """
        kept = []
        for number, fix in enumerate(finding.fixes):
            is_tried = finding.severity == "error" and first_is_tried and number == 0
            tried = self.try_sets(tuple(fix.sets.items())) if fix.sets and not is_tried else None
            if tried is not None and _adds_problem(self.report.findings, tried.report.findings):
                continue
            is_proven = tried is not None and _is_gone(finding, tried.report)
            kept.append(replace(fix, proven=PROOF) if is_proven else fix)
        return replace(finding, fixes=tuple(kept))


def _collect_sets(findings: Iterable[Finding], settled: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that fix the findings; settled values are kept, and the most severe finding decides.

    Only the first fix of a finding is used, and for a warning only if it does not change what is trained.
    """
    sets = dict(settled)
    for finding in findings:
        fix = finding.fixes[0] if finding.fixes else None
        if fix is None or not fix.sets or (finding.severity != "error" and fix.safety != "safe"):
            continue
        if not any(sets.get(key, value) != value for key, value in fix.sets.items()):
            sets.update(fix.sets)
    return sets


def reread_launch(found_launch: FoundLaunch, edits: tuple[Edit, ...], read_file: ReadFile) -> Launch | None:
    """Return the launch as read after the edits; None if nothing remains or nothing was edited."""
    if not edits:
        return None
    texts = _edited_texts(found_launch.launch, edits)

    def read(path: str) -> Source | None:
        source = read_file(path)
        return replace(source, text=texts.get(source.name, source.text)) if source is not None else None

    given = found_launch.given
    corrected = replace(given, text=texts.get(given.name, given.text))
    reread_launches = launches.find_launches(corrected, read, starts_training)
    return reread_launches[found_launch.number] if found_launch.number < len(reread_launches) else None


def _edited_texts(launch: Launch, edits: tuple[Edit, ...]) -> dict[str, str]:
    """Return the text of each source of a launch after the edits."""
    return {
        name: editing.apply_edits(source, [edit for edit in edits if edit.source == name])
        for name, source in launch.sources.items()
    }


def format_launch_diff(launch: Launch, edits: tuple[Edit, ...]) -> str:
    """Return the changes of the edits to the sources of a launch, as unified diffs."""
    texts = _edited_texts(launch, edits)
    return "".join(editing.format_diff(source, texts[name]) for name, source in launch.sources.items())


def _complete_fixes(finding: Finding, found_launch: FoundLaunch, job: Job, corrected_report: Report | None) -> Finding:
    """Return the finding with fixes in the framework's option names, marked proven if the corrected launch lost it."""
    is_gone = corrected_report is not None and _is_gone(finding, corrected_report)
    fixes = []
    for number, fix in enumerate(finding.fixes):
        fix = variables.place_fix(fix, job)
        if fix.sets and not fix.text:
            fix = replace(fix, text=_format_fix(fix, found_launch, job))
        elif not fix.sets and finding.code == "ATN440" and is_gone:
            fix = replace(fix, proven=PROOF)
        if is_gone and fix.sets and number == 0:
            fix = replace(fix, proven=PROOF)
        fixes.append(fix)
    return replace(finding, fixes=tuple(fixes))


def _is_gone(finding: Finding, corrected_report: Report) -> bool:
    """Return whether the report of a corrected launch no longer has the finding."""
    return make_key(finding) not in map(make_key, corrected_report.findings)


def _adds_problem(before: Iterable[Finding], after: Iterable[Finding]) -> bool:
    """Return whether any rule has more errors and warnings after the change than before."""
    counts = Counter(finding.code for finding in before)
    added = Counter(finding.code for finding in after if finding.severity != "note")
    return any(count > counts[code] for code, count in added.items())


def _format_fix(fix: Fix, found_launch: FoundLaunch, job: Job) -> str:
    """Return the settings of a fix as this version of the framework writes them."""
    launch = found_launch.launch
    edits = found_launch.framework.write(launch, replace(job, unknown_settings=()), fix.sets)
    texts = [" ".join(_edited_setting_text(edit, launch, job).replace("\\\n", " ").split()) for edit in edits]
    removals = [edit for edit in edits if not edit.text.strip()]
    lines = [*(text for text in texts if text), *_removal_comments(launch, removals)]
    return "\n".join(lines) or "\n".join(_format_unwritten(launch, key, value) for key, value in fix.sets.items())


def _edited_setting_text(edit: Edit, launch: Launch, job: Job) -> str:
    """Return the text of an edit; if it replaces a value, the setting with its new value."""
    source = launch.sources.get(edit.source, launch.source)
    for setting in (*job.settings, *launch.entries):
        if setting.location.source == edit.source and setting.value_span == edit.span and edit.text:
            text = source.text
            before, after = text[setting.span[0] : edit.span[0]], text[edit.span[1] : setting.span[1]]
            return before + edit.text + after
    return edit.text


def _removal_comments(launch: Launch, edits: Iterable[Edit]) -> Iterator[str]:
    sources = launch.sources
    for edit in edits:
        text = sources[edit.source].text if edit.source in sources else ""
        removed = " ".join(text[slice(*edit.span)].replace("\\\n", " ").split())
        if removed:
            yield f"# without {removed}"


def _format_unwritten(launch: Launch, key: str, value: str) -> str:
    """Return a setting that the launch's sources do not contain, in the syntax of accelerate's file or as text."""
    for entry in launch.launcher_entries if key == "ring_size" else ():
        name = entry.name.rpartition(".")[2]
        if name.endswith(("cp_size", "sp_size")):
            return f"{name}: {value}  # in {entry.location.source}"
    words = SPELLED_OUT.get(key, key.replace("_", " ") if key in KEYS else "")
    return f"{words}: {value}, as the job sets it" if words else f"{key}={value}"


def identify(finding: Finding) -> FindingKey:
    """Return what equal findings of several launches have in common."""
    return finding.severity, *make_key(finding)
