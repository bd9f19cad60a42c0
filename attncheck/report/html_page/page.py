"""Puts the page together: the verdict, the findings, what was measured, the environment, a text for a bug report.

The page loads nothing and runs one script, its own: the policy in its head names both the script and the style by
their digests, and forbids the rest. No data of the report stands in the script.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from attncheck import __version__
from attncheck.core.findings import SEVERITIES
from attncheck.core.report import Report
from attncheck.core.verdicts import ANSWERS
from attncheck.report.bug_report import write_bug_report
from attncheck.report.finding_lines import (
    count_severities,
    describe_allowed,
    describe_no_findings,
    list_skips,
    measured_questions,
)
from attncheck.report.html_page.elements import Markup, bullet_list, copy_button, element, fold, mark_style
from attncheck.report.html_page.environment import environment_section
from attncheck.report.html_page.findings import findings_section
from attncheck.report.html_page.panels import load_panel
from attncheck.report.html_page.room import BUG_REPORT_BYTES, PANELS_BYTES, byte_size, clip, take_blocks
from attncheck.report.interpreter_line import describe_interpreter

SIGNS = {"error": "✕", "warning": "!", "note": "i", "open": "?", "ok": "✓"}
MAX_REPORTED = 20  # findings in the text for an issue
MAX_LISTED = 200  # lines of what was allowed, and of rules that could not judge


def make_page(report: Report, verbose: bool) -> str:
    """Return the page; `verbose` lists what could not be judged too."""
    sections = list(_iter_sections(report, verbose))
    links = [element("a", title, href=f"#{name}") for name, title, _ in sections]
    body = element(
        "body",
        element("a", "Skip to the findings", href="#findings", class_="skip"),
        _make_header(report),
        element("nav", *links, aria_label="Sections"),
        element("main", *(content for _, _, content in sections)),
        element("footer", element("p", f"written by attncheck {__version__}; this page loads nothing")),
        element("p", id="announced", class_="unseen", role="status", aria_live="polite"),
        element("script", Markup(_read_file("page.js"))),
    )
    return f"<!doctype html>\n{element('html', _make_head(report), body, lang='en')}\n"


def _make_head(report: Report) -> Markup:
    script, style = _read_file("page.js"), _read_file("page.css")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"attncheck {clip(report.command)}: {describe_verdict(report)[1]}"),
        element("link", rel="icon", href="data:,"),
        element("style", Markup(style)),
    )


def _digest(text: str) -> str:
    """Return the digest by which the page's policy names a script or a style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _read_file(name: str) -> str:
    """Return the style or the script; both are ASCII, and have no markup, so that no encoding changes their digest."""
    return Path(__file__).with_name(name).read_text(encoding="ascii")


def describe_verdict(report: Report) -> tuple[str, str]:
    """Return the gravest thing to say ("error", "warning", "note", "open", "ok"), and the verdict in a few words."""
    counts = list(count_severities(report.findings))
    if counts:
        severity = report.worst_severity() or "note"
        return (severity if severity in SEVERITIES else "note"), ", ".join(counts)
    if report.unanswered:
        return "open", f"{describe_no_findings(report)}, but not everything was answered"
    return "ok", describe_no_findings(report)


def _make_header(report: Report) -> Markup:
    mark, verdict = describe_verdict(report)
    sign = element("span", SIGNS[mark], class_="sign", aria_hidden="true")
    lines = [describe_interpreter(report), " · ".join(_describe_measured(report)), " · ".join(_describe_counts(report))]
    return element(
        "header",
        element("p", f"attncheck {report.command}", class_="command"),
        element("h1", sign, " ", verdict[:1].upper() + verdict[1:]),
        *(element("p", clip(line)) for line in lines if line),
        class_=f"verdict {'open' if mark == 'open' else mark_style(mark)}",
    )


def _describe_measured(report: Report) -> Iterator[str]:
    device = report.device
    if device.device:
        yield device.name or device.device
        yield f"torch {device.torch}"
    yield f"taken {report.snapshot.taken} by attncheck {report.snapshot.attncheck}"


def _describe_counts(report: Report) -> Iterator[str]:
    answers = [verdict.answer for verdict in report.verdicts]
    yield from (f"{answers.count(answer)} {answer}" for answer in ANSWERS if answer in answers)
    if report.passed:
        yield f"{len(report.passed)} rules passed"
    if report.skips:
        yield f"{len(report.skips)} could not judge"
    if allowed := len(report.baselined) + len(report.allowed):
        yield f"{allowed} allowed"


def _iter_sections(report: Report, verbose: bool) -> Iterator[tuple[str, str, Markup]]:
    """Yield the sections of the page: id, title and content."""
    if measured_questions(report):
        lines = [clip(f"{question.name}: {question.reason}") for question in measured_questions(report)]
        content = element("section", element("h2", "Unanswered", id="unanswered"), bullet_list(lines))
        yield "unanswered", "Unanswered", content
    yield "findings", "Findings", findings_section(report)
    left = PANELS_BYTES
    for number, (name, section) in enumerate(report.sections.items()):
        panel = load_panel(name)
        content = take_blocks(panel.show(report, section), left // (len(report.sections) - number))
        left -= byte_size(content)
        if content:
            heading = element("h2", panel.title, id=f"section-{name}")
            yield f"section-{name}", panel.title, element("section", heading, content)
    yield "environment", "Environment", environment_section(report)
    if report.passed or report.skips or report.suppressed or report.baselined or report.allowed:
        yield "rest", "Rules", _list_rules(report, verbose)
    yield "bug-report", "Bug report", _make_bug_report(report)


def _list_rules(report: Report, verbose: bool) -> Markup:
    allowed = [clip(line) for line in describe_allowed(report)]
    skips = [clip(f"{skip.code} {skip.name}: {skip.reason}") for skip in list_skips(report, verbose)]
    parts = [element("h2", "Rules", id="rest")]
    numbers = [f"{len(report.passed)} passed", f"{len(report.skips)} could not judge"]
    numbers += [f"{len(report.suppressed)} switched off"] * bool(report.suppressed)
    parts.append(element("p", " · ".join(numbers)))
    for title, lines in (("allowed", allowed), ("could not judge", skips)):
        if lines:
            more = [f"… and {len(lines) - MAX_LISTED} more"] * (len(lines) > MAX_LISTED)
            parts.append(fold(f"{len(lines)} {title}", bullet_list([*lines[:MAX_LISTED], *more])))
    return element("section", *parts)


def _make_bug_report(report: Report) -> Markup:
    return element(
        "section",
        element("h2", "Bug report", id="bug-report"),
        element("p", "Markdown for an issue: versions, the machine, the findings. Read it before you post it."),
        element("figure", _make_text_field(report), copy_button("Copy the Markdown"), class_="code"),
    )


def _make_text_field(report: Report) -> Markup:
    """Return the text of an issue in a field, with as many findings, the gravest first, as there is room for."""
    for max_findings in (MAX_REPORTED, 3, 1, 0):
        text = write_bug_report(report, max_findings=max_findings)
        field = element("textarea", text, readonly=True, rows=12, aria_label="Bug report")
        if byte_size(field) <= BUG_REPORT_BYTES:
            return field
    return element("textarea", text[:4000], readonly=True, rows=12, aria_label="Bug report")
