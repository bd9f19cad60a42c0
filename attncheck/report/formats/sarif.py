"""The report as SARIF 2.1.0, for code scanning and editors.

Rules that took part, each with its page; one result a finding, with the place in the user's files that causes it, and
a fingerprint that survives edits around it. Findings of the baseline and allowed ones are there, suppressed. What could
not be judged is a notification. Columns and offsets count Unicode code points. In messages "{0}" would be a placeholder
(2.1.0, 3.11.5) and is written "{{0}}"; other braces are left as they are, which every reader shows right.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from attncheck import __version__
from attncheck.core.findings import Finding, Severity
from attncheck.core.job import LintedLaunch
from attncheck.core.launch import COMMAND, Edit, SourceLocation
from attncheck.core.report import Report
from attncheck.core.results.lint import launches_of
from attncheck.doctor.rules import Rule
from attncheck.report.finding_lines import allowance_for
from attncheck.report.fingerprints import VERSION, fingerprint
from attncheck.report.formats import Format
from attncheck.report.locations import add_locations, in_checkout, working_directory

Json = dict[str, Any]
SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
HOME = "https://github.com/attncheck/attncheck"
ROOT = "%SRCROOT%"
LEVELS: Mapping[Severity, str] = {"error": "error", "warning": "warning", "note": "note"}


def render(report: Report, verbose: bool) -> str:
    """Return the report as a SARIF log; it always holds everything, so `verbose` changes nothing."""
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(add_locations(report, working_directory()))]}
    return json.dumps(_sound(log), indent=2, ensure_ascii=False) + "\n"


def _sound(value: Any) -> Any:
    """Return a document without halves of surrogate pairs, which no UTF-8 file can hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {key: _sound(item) for key, item in value.items()}
    return [_sound(item) for item in value] if isinstance(value, list) else value


def _run(report: Report) -> Json:
    rules = _rules(report)
    index = {rule["id"]: number for number, rule in enumerate(rules)}
    driver = {"name": "attncheck", "version": __version__, "semanticVersion": __version__, "informationUri": HOME}
    return {
        "tool": {"driver": {**driver, "rules": rules}},
        "automationDetails": {"id": f"attncheck/{report.command}/"},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {ROOT: {"description": {"text": "The top of the checkout."}}},
        "invocations": [_invocation(report, index)],
        "results": list(_results(report, index)),
    }


def _rules(report: Report) -> list[Json]:
    """Return every rule that took part, by code; one that is no longer known has its name alone."""
    from attncheck.doctor.engine import all_rules

    known = {rule.code: rule for rule in all_rules()[0]}
    named = {skip.code: skip.name for skip in report.skips}
    named.update({each.code: each.name for each in (*report.findings, *report.baselined, *report.allowed)})
    codes = sorted({*named, *report.passed})
    return [_rule(known[code]) if code in known else {"id": code, "name": named.get(code, code)} for code in codes]


def _rule(rule: Rule) -> Json:
    """Return a rule as a reporting descriptor. `name` is Pascal case, as 3.49.7 asks for."""
    short, _, rest = rule.page.partition("\n\n")
    short = " ".join(short.split()) or rule.name
    help_text = rule.page or rule.name
    return {
        "id": rule.code,
        "name": "".join(part.capitalize() for part in rule.name.split("-")),
        "shortDescription": _message(short),
        "fullDescription": _message(" ".join(rest.partition("\n\n")[0].split()) or short),
        "help": {**_message(help_text), "markdown": _escaped(f"# {rule.code} {rule.name}\n\n{help_text}")},
        "defaultConfiguration": {"level": LEVELS[rule.severity]},
    }


def _message(text: str) -> Json:
    return {"text": _escaped(text)}


def _escaped(text: str) -> str:
    """Return text in which nothing is taken for a placeholder, "{0}", or a link, "[a](b)"."""
    return re.sub(r"\{(\d+)\}", r"{{\1}}", text).replace("](", "] (")


def _invocation(report: Report, index: Mapping[str, int]) -> Json:
    """Return how the run went. Unsuccessful is one that lost a question on the way, whatever the answers are."""
    questions = [question for section in report.sections.values() for question in section.unanswered]
    lost = any(question.outcome == "unanswered" for question in questions) or any(
        verdict.answer == "lost" for verdict in report.verdicts
    )
    skips = [
        {
            "message": _message(f"{skip.code} {skip.name} could not judge: {skip.reason}"),
            "level": "note",
            "associatedRule": {"id": skip.code, "index": index[skip.code]},
        }
        for skip in report.skips
    ]
    unanswered = [
        {"message": _message(f"{question.name}: {question.outcome}. {question.reason}".strip()), "level": "warning"}
        for question in questions
    ]
    return {"executionSuccessful": not lost, "toolExecutionNotifications": [*unanswered, *skips]}


def _results(report: Report, index: Mapping[str, int]) -> Iterator[Json]:
    for finding in report.findings:
        yield _result(finding, report, index)
    for finding in report.baselined:
        yield {**_result(finding, report, index), "suppressions": [_suppression("it is in the baseline")]}
    for finding in report.allowed:
        yield {**_result(finding, report, index), "suppressions": [_suppression(_why(finding, report))]}


def _suppression(justification: str) -> Json:
    return {"kind": "external", "status": "accepted", "justification": justification}


def _why(finding: Finding, report: Report) -> str:
    allowance = allowance_for(finding, report)
    return f"{allowance.reason} (until {allowance.until})" if allowance else "the policy allows it"


def _result(finding: Finding, report: Report, index: Mapping[str, int]) -> Json:
    result: Json = {
        "ruleId": finding.code,
        "ruleIndex": index[finding.code],
        "level": LEVELS[finding.severity],
        "message": _message(_text(finding)),
        "locations": _locations(finding),
        "partialFingerprints": {f"attncheck/v{VERSION}": fingerprint(finding)},
    }
    fixes = list(_fixes(finding, launches_of(report)))
    properties = {"subject": finding.subject} if finding.subject else {}
    return {**result, **({"fixes": fixes} if fixes else {}), **({"properties": properties} if properties else {})}


def _text(finding: Finding) -> str:
    """Return a finding in paragraphs; the first is its message, which is what a list of results shows."""
    parts = [finding.message, *(f"Seen: {line}" for line in finding.evidence)]
    for fix in finding.fixes:
        proven = f" (proven: {fix.proven})" if fix.proven else ""
        parts.append(f"Fix: {fix.title}{proven}:\n{fix.text}")
    return "\n\n".join(parts)


def _locations(finding: Finding) -> list[Json]:
    """Return where a finding stands; one that no file causes has a logical place too, what it is about.

    Code scanning refuses a whole log for one result without a physical place (github/codeql-action#1738).
    """
    found = [_physical(place) for place in finding.locations if place.source not in ("", "-", COMMAND)]
    if found:
        return found
    name = next((place.source for place in finding.locations if place.source), finding.subject or "environment")
    return [{**_physical(SourceLocation(_checked_by())), "logicalLocations": [{"name": name, "kind": "resource"}]}]


def _checked_by() -> str:
    """Return the file that has us look: the workflow's under GitHub Actions, else the one for a policy."""
    named = re.match(r"[^/]+/[^/]+/(.+)@", os.environ.get("GITHUB_WORKFLOW_REF", ""))  # owner/name/PATH@refs/heads/main
    if named and os.environ.get("GITHUB_WORKSPACE"):
        return os.path.join(os.environ["GITHUB_WORKSPACE"], named.group(1))
    return next((name for name in ("attncheck.toml", "pyproject.toml") if os.path.exists(name)), "attncheck.toml")


def _physical(place: SourceLocation) -> Json:
    region = {"startLine": max(place.line, 1), "startColumn": max(place.column, 1)}
    return {"physicalLocation": {"artifactLocation": _artifact(place.source), "region": region}}


def _artifact(source: str) -> Json:
    """Return a file as a relative URI below the top of the checkout, an absolute one where it lies elsewhere."""
    inside = in_checkout(source)
    if inside:
        return {"uri": quote(_sound(inside)), "uriBaseId": ROOT}
    return {"uri": (working_directory() / _sound(source)).as_uri()}


def _fixes(finding: Finding, linted: Iterable[LintedLaunch]) -> Iterator[Json]:
    """Yield the edits of files that mend a finding, as one fix."""
    wanting = next((fix for fix in finding.fixes if fix.sets), None)
    if wanting is None:
        return
    for each in linted:
        edits = [edit for edit in _edits(finding, each) if edit.source not in ("", "-", COMMAND)]
        if edits:
            sources = dict.fromkeys(edit.source for edit in edits)
            changes = [_change(source, [edit for edit in edits if edit.source == source]) for source in sources]
            yield {"description": _message(wanting.title), "artifactChanges": changes}


def _edits(finding: Finding, linted: LintedLaunch) -> Sequence[Edit]:
    """Return the edits of a launch in the lines where a finding stands.

    A setting that is put in stands in nobody's line and is left to the corrected command, which is whole.
    """
    lines = {(place.source, place.line) for place in finding.locations}
    here = [each for each in linted.job.settings if (each.location.source, each.location.line) in lines]
    spans = [(each.location.source, each.span) for each in here]
    return [edit for edit in linted.edits if any(_overlap(edit, source, span) for source, span in spans)]


def _overlap(edit: Edit, source: str, span: tuple[int, int]) -> bool:
    return edit.source == source and edit.span[0] <= span[1] and span[0] <= edit.span[1] and span[0] >= 0


def _change(source: str, edits: Sequence[Edit]) -> Json:
    replacements = [
        {
            "deletedRegion": {"charOffset": edit.span[0], "charLength": edit.span[1] - edit.span[0]},
            "insertedContent": {"text": edit.text},
        }
        for edit in sorted(edits, key=lambda edit: edit.span)
    ]
    return {"artifactLocation": _artifact(source), "replacements": replacements}


FORMAT = Format(render)
