"""Runs the relevant rules on a snapshot and turns the problems that they yield into findings."""

import difflib
import functools
import itertools
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from attncheck.core import registry
from attncheck.core.io.errors import BadUsage
from attncheck.core.io.failures import is_out_of_resources
from attncheck.core.records import replace
from attncheck.core.report import Finding, Fix, Problem, Report, Severity, Skip, by_severity, is_selected
from attncheck.core.results.doctor import DoctorSection
from attncheck.core.snapshot import MissingFact, PackageGaps, Snapshot
from attncheck.doctor import rules
from attncheck.doctor.memory import RecordedSnapshot, RuleMemory, note_ranges, record_snapshot, without_recording
from attncheck.doctor.needs import Need
from attncheck.doctor.ranges import list_versions
from attncheck.doctor.rules import Rule
from attncheck.doctor.target import NOT_IN_FILES, with_version

CRASH = "ATN901"  # a rule raised an exception
GAPS = "ATN905"  # some or all package versions are unknown
MAX_TRIES = 500  # of one rule, with versions that ranges allow
MAX_TOGETHER = 2  # packages whose versions are tried in all combinations
LoadedRules = tuple[tuple[Rule, ...], tuple[registry.Broken, ...]]
Versions = tuple[tuple[str, str], ...]  # ("torch", "2.9.1"), … that replace ranges
Variants = dict[Versions, Snapshot]


@cache
def all_rules() -> LoadedRules:
    """Return every rule, sorted by code, with name and page filled in, and the rules that could not be loaded."""
    extensions, broken = registry.load(rules, "attncheck.rules", families=True)
    rules_by_code = dict(_read_pages())
    for extension in extensions:
        rule = getattr(extension.module, "RULE", None)
        if not isinstance(rule, Rule):
            broken.append(registry.Broken(extension.module.__name__, "it has no RULE"))
        elif rule.code in rules_by_code:
            broken.append(
                registry.Broken(extension.module.__name__, f"{rule.code} is {rules_by_code[rule.code].name}'s")
            )
        else:
            page = (extension.module.__doc__ or "").strip()
            rules_by_code[rule.code] = replace(rule, name=extension.name.replace("_", "-"), page=page)
    return tuple(rules_by_code[code] for code in sorted(rules_by_code)), tuple(broken)


@cache
def _read_pages() -> dict[str, Rule]:
    """Return the rules that are only pages, by code: they are read without importing the others."""
    return {rule.code: rule for rule in map(_read_page, Path(rules.__path__[0]).glob("*/*.md"))}


def _read_page(path: Path) -> Rule:
    """Return the rule that a page describes; the page's front matter holds the code and the severity."""
    front_matter, _, page = path.read_text(encoding="utf-8").removeprefix("---\n").partition("---\n")
    fields: dict[str, Any] = dict(line.split(": ", 1) for line in front_matter.splitlines())
    return Rule(
        **fields, check=lambda snapshot: (), by_engine=True, name=path.stem.replace("_", "-"), page=page.strip()
    )


def check_codes(codes: Iterable[str]) -> None:
    """Raise `BadUsage` for a code or prefix that matches no rule."""
    for code in codes:
        if not any(rule.code.startswith(code) for rule in all_rules()[0]):
            prefix = code.rstrip("X")  # pages write a range as "ATN1xx"
            hint = f"write a range as {prefix}" if prefix != code else "`attncheck rules` lists them"
            raise BadUsage(f"no rule's code starts with {code!r}; {hint}")


def render_rule_page(code: str) -> str:
    """Return the page of the rule with this code or name, as text. Raises `BadUsage` for an unknown one."""
    loaded = all_rules()[0]
    for rule in loaded:
        if code.upper() == rule.code or code.lower() == rule.name:
            return f"{rule.code} {rule.name} ({rule.severity})\n\n{rule.page}\n"
    similar = difflib.get_close_matches(code, [*(r.code for r in loaded), *(r.name for r in loaded)], n=300, cutoff=0.5)
    closest = max(similar, key=lambda candidate: _common_prefix_length(candidate.lower(), code.lower()), default="")
    raise BadUsage(f"no rule {code!r}; " + (f"did you mean {closest}?" if closest else "`attncheck rules` lists them"))


def _common_prefix_length(first: str, second: str) -> int:
    return sum(1 for _ in itertools.takewhile(lambda characters: characters[0] == characters[1], zip(first, second)))


def run_rules(
    snapshot: Snapshot,
    needs: frozenset[Need],
    select: Collection[str] = (),
    ignore: Collection[str] = (),
    memory: "RuleMemory[RuleAnswer] | None" = None,
) -> Report:
    """Run the rules that matter for `needs` on `snapshot` and return the report.

    `select` and `ignore` are codes or prefixes ("ATN1"); `ignore` wins. With a `memory`, a rule is not run again if
    everything that it read in an earlier run is unchanged.
    """
    findings: list[Finding] = []
    skips: list[Skip] = []
    passed: list[str] = []
    relevant, suppressed = _list_relevant(all_rules, needs, tuple(select), tuple(ignore))
    has_ranges = any(item.allowed and not item.version for item in snapshot.distributions)
    check = functools.partial(_check_for_all_versions, {}) if has_ranges else _check_once
    for rule in relevant:
        if memory is None:
            answer = check(rule, snapshot)
        else:
            answer = memory.recall(rule.code, snapshot, functools.partial(check, rule))
        findings += answer.findings
        skips += [answer.skip] if answer.skip is not None else []
        if not answer.findings and answer.skip is None:
            passed.append(rule.code)
    lost = [*snapshot.lost, *(finding.message for finding in findings if finding.code == CRASH)]
    findings += [_describe_load_failure(extension) for extension in all_rules()[1]]
    if snapshot.gaps.reason and is_selected(GAPS, select, ignore):
        findings.append(make_finding_by_code(GAPS, _describe_gaps(snapshot.gaps)))
    found_codes = {finding.code for finding in findings}
    return Report(
        "doctor",
        snapshot,
        by_severity(findings),
        tuple(_name_covering_findings(skip, found_codes) for skip in skips),
        tuple(passed),
        suppressed,
        sections={"doctor": DoctorSection(tuple(sorted(needs)), tuple(lost))},
    )


@lru_cache(maxsize=1024)
def _list_relevant(
    load_rules: Callable[[], LoadedRules], needs: frozenset[Need], select: tuple[str, ...], ignore: tuple[str, ...]
) -> tuple[tuple[Rule, ...], tuple[str, ...]]:
    """Return the rules that matter for `needs`, and the codes of those that --select and --ignore leave out."""
    relevant = [
        rule
        for rule in load_rules()[0]
        if not rule.by_engine
        and (not rule.needs or not rule.needs.isdisjoint(needs))
        and not (rule.general and "job" in needs)
        and rule.unless.isdisjoint(needs)
    ]
    chosen = {rule.code: rule for rule in relevant if is_selected(rule.code, select, ignore)}
    return tuple(chosen.values()), tuple(rule.code for rule in relevant if rule.code not in chosen)


class RuleAnswer(NamedTuple):
    """The result of one rule on one snapshot: its findings, or why it was skipped; neither if the rule passed."""

    findings: tuple[Finding, ...] = ()
    skip: Skip | None = None


def _check_for_all_versions(variants: Variants, rule: Rule, snapshot: Snapshot) -> RuleAnswer:
    """Return the answer of a rule that holds for all versions in the ranges that a target gives.

    `variants` keeps the snapshots with these versions for other rules. The ends of the ranges are tried first, because
    two answers that differ are enough.
    """
    if () not in variants:
        variants[()] = snapshot if isinstance(snapshot, RecordedSnapshot) else record_snapshot(snapshot)
    ends = _check_in_ranges(rule, variants, (), itertools.count(), limit=2)
    return ends if ends.skip is not None else _check_in_ranges(rule, variants, (), itertools.count())


def _check_in_ranges(
    rule: Rule,
    variants: Variants,
    versions: Versions,
    tries: Iterator[int],
    alone: Collection[str] = (),
    limit: int = 2 * MAX_TRIES,
) -> RuleAnswer:
    """Return the answer that a rule gives for each version in the ranges that it reads; a skip if they differ.

    At most `limit` versions of each package are tried. Versions of two packages are tried together. Those of more are
    tried one package at a time: the others are `alone`.
    """
    if versions not in variants:
        variants[versions] = without_recording(lambda: with_version(variants[versions[:-1]], *versions[-1]))
    unknown, ranges = note_ranges(functools.partial(_check_once, rule, variants[versions]))
    names = sorted(ranges.keys() - set(alone))
    if not names:
        return unknown
    alone = names if len(names) > MAX_TOGETHER else alone
    names = names if len(names) > MAX_TOGETHER else names[:1]
    answers = [
        _try_versions(rule, variants, versions, unknown, name, ranges[name], tries, alone, limit) for name in names
    ]
    skipped = next((answer for answer in answers if answer.skip is not None), None)
    if skipped is not None:
        return skipped
    if unknown.findings:
        return min(answers, key=lambda answer: len(answer.findings))
    return RuleAnswer(tuple(item for answer in answers for item in answer.findings))


def _try_versions(
    rule: Rule,
    variants: Variants,
    before: Versions,
    unknown: RuleAnswer,
    name: str,
    allowed: str,
    tries: Iterator[int],
    alone: Collection[str],
    limit: int,
) -> RuleAnswer:
    """Return the common answer of a rule for the versions of one package; only the range's ends for a known finding."""
    findings: dict[str, Finding] | None = None
    versions = list_versions(name, allowed)
    for version in versions[: min(limit, 4) if unknown.findings else limit]:
        if next(tries) > MAX_TRIES:
            return unknown if unknown.findings else _skip(rule, f"{name} {allowed}: too many versions are possible")
        answer = _check_in_ranges(rule, variants, (*before, (name, version)), tries, alone, limit)
        if answer.skip is not None:
            return answer
        here = {item.subject: item for item in (_name_range(item, name, version, allowed) for item in answer.findings)}
        common = here if findings is None else {subject: item for subject, item in findings.items() if subject in here}
        if not common and (findings or here):
            return _skip(rule, f"{name} {allowed}: some of these releases have the fault")
        findings = common
    kept = [item for item in unknown.findings if item.subject in (findings or {})]
    return RuleAnswer(tuple(kept or (findings or {}).values()))


def _skip(rule: Rule, reason: str) -> RuleAnswer:
    return RuleAnswer(skip=Skip(rule.code, rule.name, reason))


def _name_range(finding: Finding, name: str, version: str, allowed: str) -> Finding:
    """Return a finding about one version as one about each version in a range."""
    is_open = allowed[:1].isalpha()  # the reason why it is not known
    evidence = (*finding.evidence, f"each release{'' if is_open else f' that {name} {allowed} allows'} has this fault")
    message, subject = (
        text.replace(f"{name} {version}", name if is_open else f"{name} {allowed}")
        for text in (finding.message, finding.subject)
    )
    return replace(finding, message=message, subject=subject, evidence=evidence)


def _check_once(rule: Rule, snapshot: Snapshot) -> RuleAnswer:
    """Return the findings of a rule; an exception in a rule becomes a finding, so that the other rules still run."""
    problems: list[Problem] = []
    try:
        problems.extend(rule.check(snapshot))
    except MissingFact as missing:  # earlier findings of the rule are based on known facts, so they stay
        if not problems:
            return RuleAnswer(skip=Skip(rule.code, rule.name, str(missing), missing.covered_by))
    except (Exception, SystemExit) as error:
        if is_out_of_resources(error):
            raise
        return RuleAnswer((_describe_crash(rule, error),))
    return RuleAnswer(tuple(make_finding(rule, problem) for problem in problems))


def _name_covering_findings(skip: Skip, found_codes: Collection[str]) -> Skip:
    """Return `skip` with only the covering codes that were found, and name them in its reason."""
    if not skip.covered_by:
        return skip
    covered_by = tuple(code for code in skip.covered_by if code in found_codes)
    reason = f"{skip.reason}; fix {' and '.join(covered_by)} first" if covered_by else skip.reason
    return Skip(skip.code, skip.name, reason, covered_by)


def add_findings(
    report: Report, findings: Iterable[Finding], select: Collection[str] = (), ignore: Collection[str] = ()
) -> Report:
    """Return `report` with further findings, sorted by severity and filtered by --select and --ignore."""
    kept = [finding for finding in findings if is_selected(finding.code, select, ignore)]
    return replace(report, findings=by_severity((*report.findings, *kept)))


def make_finding(rule: Rule, problem: Problem) -> Finding:
    """Return `problem` as a finding of `rule`; its severity is one step lower if the problem is only predicted."""
    severity: Severity = rule.severity
    if problem.predicted and severity == "error":
        severity = "warning"
    return Finding(
        rule.code,
        rule.name,
        severity,
        problem.message,
        problem.subject,
        problem.evidence,
        problem.fixes,
        problem.locations,
    )


def _describe_crash(rule: Rule, error: BaseException) -> Finding:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return make_finding_by_code(
        CRASH,
        Problem(
            message=f"attncheck's own rule {rule.code} {rule.name} crashed; the other rules ran",
            evidence=(f"{type(error).__name__}: {error}", f"at {last.name}, line {last.lineno}"),
            subject=rule.code,
        ),
    )


def _describe_load_failure(extension: registry.Broken) -> Finding:
    return make_finding_by_code(
        "ATN902",
        Problem(
            message=f"the extension {extension.name} cannot be loaded",
            evidence=(extension.reason,),
            subject=extension.name,
        ),
    )


def _describe_gaps(gaps: PackageGaps) -> Problem:
    return Problem(
        message=f"some packages of the job are unknown: {gaps.reason}",
        evidence=gaps.remarks,
        fixes=(
            Fix(
                "name the job's packages",
                "manual",
                f"--target h100x8,requirements.txt{',PACKAGE=VERSION' * (gaps.reason == NOT_IN_FILES)}",
            ),
            Fix("or name the environment that trains", "manual", "--python /path/to/env/bin/python"),
        ),
        subject="packages",
    )


def make_finding_by_code(code: str, problem: Problem) -> Finding:
    """Return `problem` as a finding of the rule `code`, for findings that the engine itself raises."""
    rule = _read_pages().get(code) or next(rule for rule in all_rules()[0] if rule.code == code)
    return make_finding(rule, problem)
