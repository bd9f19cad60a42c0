"""The report as SARIF 2.1.0, for code scanning and editors.

It has the rules that took part, each with its page, and one result per finding, with the line of the user's files that
causes it and a fingerprint that survives edits around it. Findings that the baseline or the policy allows are included
as suppressed. Inconclusive rules are notifications. Columns and offsets count Unicode code points. In messages "{0}"
would be a placeholder (2.1.0, 3.11.5), so it is written "{{0}}"; other braces stay unchanged, and every reader shows
them correctly.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from attncheck import __version__
from attncheck.core.io.visible import indent_continuation
from attncheck.core.job import LintedLaunch
from attncheck.core.launch import COMMAND, Edit, SourceLocation
from attncheck.core.report import Finding, Report, Severity
from attncheck.core.results.lint import launches_of
from attncheck.doctor.rules import Rule
from attncheck.report.finding_lines import INDENT, find_allowance, fix_label
from attncheck.report.fingerprints import RECIPE_VERSION, compute_fingerprint
from attncheck.report.formats import Format
from attncheck.report.locations import add_locations, path_in_checkout, working_directory

JsonObject = dict[str, Any]
SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
PROJECT_URL = "https://github.com/attncheck/attncheck"
CHECKOUT_BASE_ID = "%SRCROOT%"
LEVELS: Mapping[Severity, str] = {"error": "error", "warning": "warning", "note": "note"}


def render(report: Report, verbose: bool) -> str:
    """Return the report as a SARIF log; it always contains everything, so `verbose` changes nothing."""
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [_make_run(add_locations(report, working_directory()))]}
    return json.dumps(_escape_surrogates(log), indent=2, ensure_ascii=False) + "\n"


def _escape_surrogates(value: Any) -> Any:
    """Return a document with lone surrogates escaped, because UTF-8 cannot represent them."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {key: _escape_surrogates(item) for key, item in value.items()}
    return [_escape_surrogates(item) for item in value] if isinstance(value, list) else value


def _make_run(report: Report) -> JsonObject:
    rules = _make_rules(report)
    rule_indices = {rule["id"]: index for index, rule in enumerate(rules)}
    driver = {
        "name": "attncheck",
        "version": __version__,
        "semanticVersion": __version__,
        "informationUri": PROJECT_URL,
    }
    return {
        "tool": {"driver": {**driver, "rules": rules}},
        "automationDetails": {"id": f"attncheck/{report.command}/"},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {CHECKOUT_BASE_ID: {"description": {"text": "The top of the checkout."}}},
        "invocations": [_make_invocation(report, rule_indices)],
        "results": list(_make_results(report, rule_indices)),
    }


def _make_rules(report: Report) -> list[JsonObject]:
    """Return every rule that took part, by code; a rule that no longer exists has only its name."""
    from attncheck.doctor.engine import all_rules

    known_rules = {rule.code: rule for rule in all_rules()[0]}
    names = {skip.code: skip.name for skip in report.skips}
    findings = (*report.findings, *report.baselined, *report.allowed)
    names.update({finding.code: finding.name for finding in findings})
    codes = sorted({*names, *report.passed})
    return [
        _make_rule(known_rules[code]) if code in known_rules else {"id": code, "name": names.get(code, code)}
        for code in codes
    ]


def _make_rule(rule: Rule) -> JsonObject:
    """Return a rule as a reporting descriptor. `name` is in Pascal case, as 3.49.7 requires."""
    summary, _, details = rule.page.partition("\n\n")
    summary = " ".join(summary.split()) or rule.name
    help_text = rule.page or rule.name
    return {
        "id": rule.code,
        "name": "".join(part.capitalize() for part in rule.name.split("-")),
        "shortDescription": _make_message(summary),
        "fullDescription": _make_message(" ".join(details.partition("\n\n")[0].split()) or summary),
        "help": {**_make_message(help_text), "markdown": _escape_message(f"# {rule.code} {rule.name}\n\n{help_text}")},
        "defaultConfiguration": {"level": LEVELS[rule.severity]},
    }


def _make_message(text: str) -> JsonObject:
    return {"text": _escape_message(text)}


def _escape_message(text: str) -> str:
    """Return text that contains no placeholder, "{0}", or link, "[a](b)"."""
    return re.sub(r"\{(\d+)\}", r"{{\1}}", text).replace("](", "] (")


def _make_invocation(report: Report, rule_indices: Mapping[str, int]) -> JsonObject:
    """Return the outcome of the run: unsuccessful if a check was lost, regardless of the answers."""
    is_incomplete = any(question.outcome == "unanswered" for question in report.unanswered) or any(
        verdict.answer == "lost" for verdict in report.verdicts
    )
    skips = [
        {
            "message": _make_message(f"{skip.code} {skip.name} could not judge: {skip.reason}"),
            "level": "note",
            "associatedRule": {"id": skip.code, "index": rule_indices[skip.code]},
        }
        for skip in report.skips
    ]
    unanswered = [
        {
            "message": _make_message(f"{question.name}: {question.outcome}. {question.reason}".strip()),
            "level": "warning",
        }
        for question in report.unanswered
    ]
    return {"executionSuccessful": not is_incomplete, "toolExecutionNotifications": [*unanswered, *skips]}


def _make_results(report: Report, rule_indices: Mapping[str, int]) -> Iterator[JsonObject]:
    for finding in report.findings:
        yield _make_result(finding, report, rule_indices)
    for finding in report.baselined:
        yield {
            **_make_result(finding, report, rule_indices),
            "suppressions": [_make_suppression("it is in the baseline")],
        }
    for finding in report.allowed:
        yield {
            **_make_result(finding, report, rule_indices),
            "suppressions": [_make_suppression(_describe_allowance(finding, report))],
        }


def _make_suppression(justification: str) -> JsonObject:
    return {"kind": "external", "status": "accepted", "justification": justification}


def _describe_allowance(finding: Finding, report: Report) -> str:
    allowance = find_allowance(finding, report)
    return f"{allowance.reason} (until {allowance.until})" if allowance else "the policy allows it"


def _make_result(finding: Finding, report: Report, rule_indices: Mapping[str, int]) -> JsonObject:
    result: JsonObject = {
        "ruleId": finding.code,
        "ruleIndex": rule_indices[finding.code],
        "level": LEVELS[finding.severity],
        "message": _make_message(_describe_finding(finding)),
        "locations": _make_locations(finding),
        "partialFingerprints": {f"attncheck/v{RECIPE_VERSION}": compute_fingerprint(finding)},
    }
    fixes = list(_make_fixes(finding, launches_of(report)))
    properties = {"subject": finding.subject} if finding.subject else {}
    return {**result, **({"fixes": fixes} if fixes else {}), **({"properties": properties} if properties else {})}


def _describe_finding(finding: Finding) -> str:
    """Return a finding in paragraphs; the first is its message, which a list of results shows."""
    parts = [
        indent_continuation(text, INDENT) for text in (finding.message, *map("Because: {}".format, finding.evidence))
    ]
    for fix in finding.fixes:
        proven = f" (proven: {fix.proven})" if fix.proven else ""
        title = f"{fix_label(fix).capitalize()}: {fix.title}{proven}"
        parts.append("\n".join(filter(None, (indent_continuation(title, INDENT) + ":" * bool(fix.text), fix.text))))
    return "\n\n".join(parts)


def _make_locations(finding: Finding) -> list[JsonObject]:
    """Return a finding's locations; one without a file also has a logical location: its subject.

    Code scanning refuses a whole log if one result has no physical location (github/codeql-action#1738).
    """
    locations = [
        _make_physical_location(location) for location in finding.locations if location.source not in ("", "-", COMMAND)
    ]
    if locations:
        return locations
    sources = (location.source for location in finding.locations if location.source)
    name = next(sources, finding.subject or "environment")
    return [
        {
            **_make_physical_location(SourceLocation(_find_checking_file())),
            "logicalLocations": [{"name": name, "kind": "resource"}],
        }
    ]


def _find_checking_file() -> str:
    """Return the file that starts the check: the workflow's under GitHub Actions, otherwise the usual policy file."""
    match = re.match(r"[^/]+/[^/]+/(.+)@", os.environ.get("GITHUB_WORKFLOW_REF", ""))  # owner/name/PATH@refs/heads/main
    if match and os.environ.get("GITHUB_WORKSPACE"):
        return os.path.join(os.environ["GITHUB_WORKSPACE"], match.group(1))
    return next((name for name in ("attncheck.toml", "pyproject.toml") if os.path.exists(name)), "attncheck.toml")


def _make_physical_location(location: SourceLocation) -> JsonObject:
    region = {"startLine": max(location.line, 1), "startColumn": max(location.column, 1)}
    if location.end_line:
        region |= {"endLine": location.end_line, "endColumn": location.end_column}
    return {"physicalLocation": {"artifactLocation": _make_artifact_location(location.source), "region": region}}


def _make_artifact_location(source: str) -> JsonObject:
    """Return a file as a relative URI below the top of the checkout, or an absolute one if it is outside."""
    path = path_in_checkout(source)
    if path:
        return {"uri": quote(_escape_surrogates(path)), "uriBaseId": CHECKOUT_BASE_ID}
    return {"uri": (working_directory() / _escape_surrogates(source)).as_uri()}


def _make_fixes(finding: Finding, launches: Iterable[LintedLaunch]) -> Iterator[JsonObject]:
    """Yield one SARIF fix for each launch: the edits of files that fix a finding."""
    setting_fix = next((fix for fix in finding.fixes if fix.sets), None)
    if setting_fix is None:
        return
    for launch in launches:
        edits = [edit for edit in _edits_of_finding(finding, launch) if edit.source not in ("", "-", COMMAND)]
        if edits:
            sources = dict.fromkeys(edit.source for edit in edits)
            changes = [
                _make_artifact_change(source, [edit for edit in edits if edit.source == source]) for source in sources
            ]
            yield {"description": _make_message(setting_fix.title), "artifactChanges": changes}


def _edits_of_finding(finding: Finding, launch: LintedLaunch) -> Sequence[Edit]:
    """Return the edits of a launch in the lines where a finding is located.

    A setting that is added has no line yet: it is omitted here, and is in the corrected command.
    """
    lines = {(location.source, location.line) for location in finding.locations}
    settings = [setting for setting in launch.job.settings if (setting.location.source, setting.location.line) in lines]
    spans = [(setting.location.source, setting.span) for setting in settings]
    return [edit for edit in launch.edits if any(_is_overlapping(edit, source, span) for source, span in spans)]


def _is_overlapping(edit: Edit, source: str, span: tuple[int, int]) -> bool:
    return edit.source == source and edit.span[0] <= span[1] and span[0] <= edit.span[1] and span[0] >= 0


def _make_artifact_change(source: str, edits: Sequence[Edit]) -> JsonObject:
    replacements = [
        {
            "deletedRegion": {"charOffset": edit.span[0], "charLength": edit.span[1] - edit.span[0]},
            "insertedContent": {"text": edit.text},
        }
        for edit in sorted(edits, key=lambda edit: edit.span)
    ]
    return {"artifactLocation": _make_artifact_location(source), "replacements": replacements}


FORMAT = Format(render, "json")
