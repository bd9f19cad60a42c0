"""Assembles the page: the verdict, the findings, the measurements, the environment, a text for a bug report.

The page loads nothing and runs one script, its own: the policy in its head identifies the script and the style by their
digests, and forbids everything else. The script contains no data of the report.
"""

import base64
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from attncheck import __version__
from attncheck.core.facts import Known
from attncheck.core.results.diff import DiffSection
from attncheck.core.results.labels import LabelsSection
from attncheck.core.results.lint import launches_of
from attncheck.core.results.rehearsal import RehearsalSection
from attncheck.report.bug_report import write_bug_report
from attncheck.report.finding_lines import describe_allowed, describe_skips, measured_questions
from attncheck.report.html_page.blocks import write_blocks
from attncheck.report.html_page.elements import Markup, bullet_list, copy_button, element, flow, fold, mark_style
from attncheck.report.html_page.environment import environment_section
from attncheck.report.html_page.findings import findings_section
from attncheck.report.html_page.room import BUG_REPORT_BYTES, PANELS_BYTES, byte_size, clip, take_blocks
from attncheck.report.interpreter_line import describe_interpreter
from attncheck.report.sections import Report, load_view
from attncheck.report.verdict import describe_verdict, judge_report, write_sentence

SIGNS = {"error": "✕", "warning": "!", "note": "i", "open": "?", "ok": "✓"}
MAX_REPORTED = 20  # findings in the text for an issue
MAX_SOURCES, MAX_TITLE = 3, 200
MAX_LISTED = 200  # lines listing allowed findings and inconclusive rules


def make_page(report: Report, verbose: bool) -> str:
    """Return the page; `verbose` also lists the inconclusive rules."""
    sections = list(_iter_sections(report, verbose))
    links = [element("a", title, href=f"#{name}") for name, title, _ in sections]
    body = element(
        "body",
        element("a", "Skip to the findings", href="#findings", class_="skip"),
        _make_header(report),
        element("nav", *links, aria_label="Sections"),
        element("main", *(content for _, _, content in sections)),
        element("footer", element("p", f"written by attncheck {__version__}; this page loads no external files")),
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
        element("title", f"attncheck {clip(report.command)}: {clip(describe_verdict(report), MAX_TITLE)}"),
        element("link", rel="icon", href="data:,"),
        element("style", Markup(style)),
    )


def _digest(text: str) -> str:
    """Return the digest by which the page's policy names a script or a style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _read_file(name: str) -> str:
    """Return the style or the script; both are ASCII without markup, so that no encoding changes their digest."""
    return Path(__file__).with_name(name).read_text(encoding="ascii")


def _make_header(report: Report) -> Markup:
    mark, verdict = judge_report(report), describe_verdict(report)
    sign = element("span", SIGNS[mark], class_="sign", aria_hidden="true")
    return element(
        "header",
        element("p", f"attncheck {report.command}", class_="command"),
        element("h1", sign, " ", flow(clip(write_sentence(verdict)))),
        element("p", flow(clip(" · ".join(_describe_examined(report))))),
        class_=f"verdict {'open' if mark == 'open' else mark_style(mark)}",
    )


def _describe_examined(report: Report) -> Iterator[str]:
    """Yield what was examined: the interpreter, torch, the GPUs or the device, the launches, and the date."""
    snapshot, device = report.snapshot, report.device
    if compared := report.section(DiffSection):
        yield f"A {compared.a.source} · B {compared.b.source} · compared by attncheck {snapshot.attncheck}"
        return
    yield describe_interpreter(report) or f"Python {snapshot.host.python_version} at {snapshot.host.executable}"
    if isinstance(snapshot.torch, Known):
        yield f"torch {snapshot.torch.value.version}"
    gpus = [gpu.name for gpu in snapshot.devices.value] if isinstance(snapshot.devices, Known) else []
    if device.device:
        yield f"measured on {device.name or device.device}"
    elif gpus:
        yield f"{len(gpus)} × {gpus[0]}"
    ran = (report.section(RehearsalSection), report.section(LabelsSection))
    locations = [launch.location for section in ran if section for launch in section.launches]
    names = [launch.job.location.source for launch in launches_of(report)]
    sources = dict.fromkeys((*names, *(location.rsplit(":", 2)[0] for location in locations)))
    if sources:
        yield ", ".join(list(sources)[:MAX_SOURCES])
    yield f"created {snapshot.taken} by attncheck {snapshot.attncheck}"


def _iter_sections(report: Report, verbose: bool) -> Iterator[tuple[str, str, Markup]]:
    """Yield the sections of the page: id, title and content. The repair is directly under the findings."""
    names = [name for name in report.sections if name != "doctor"]  # shown as the page's environment
    panels = list(_iter_panels(report, sorted(names, key=lambda name: name != "repair")))
    yield from (panel for leads, panel in panels if leads)
    if measured_questions(report):
        lines = [clip(f"{question.name}: {question.reason}") for question in measured_questions(report)]
        content = element("section", element("h2", "Unanswered", id="unanswered"), bullet_list(lines))
        yield "unanswered", "Unanswered", content
    yield "findings", "Findings", findings_section(report)
    yield from (panel for leads, panel in panels if not leads)
    yield "environment", "Environment", environment_section(report)
    if report.passed or report.skips or report.suppressed or report.baselined or report.allowed:
        yield "rest", "Rules", _list_rules(report, verbose)
    yield "bug-report", "Bug report", _make_bug_report(report)


def _iter_panels(report: Report, names: list[str]) -> Iterator[tuple[bool, tuple[str, str, Markup]]]:
    """Yield the sections of results, and whether each leads the page; together they fit in their room."""
    left = PANELS_BYTES
    for number, name in enumerate(names):
        view, section = load_view(name), report.sections[name]
        blocks = write_blocks((*view.blocks(report, section), *view.below(report, section)))
        content = take_blocks(blocks, left // (len(names) - number))
        left -= byte_size(content)
        if content:
            heading = element("h2", view.title, id=f"section-{name}")
            yield view.leads, (f"section-{name}", view.title, element("section", heading, content))


def _list_rules(report: Report, verbose: bool) -> Markup:
    allowed = [clip(line) for line in describe_allowed(report)]
    skips = [clip(line) for line in describe_skips(report, verbose)]
    parts = [element("h2", "Rules", id="rest")]
    numbers = [f"{len(report.passed)} passed", f"{len(report.skips)} inconclusive"]
    numbers += [f"{len(report.suppressed)} switched off"] * bool(report.suppressed)
    parts.append(element("p", " · ".join(numbers)))
    for title, lines in ((f"{len(allowed)} allowed", allowed), ("Why rules are inconclusive", skips)):
        if lines:
            more = [f"… and {len(lines) - MAX_LISTED} more"] * (len(lines) > MAX_LISTED)
            parts.append(fold(title, bullet_list([*lines[:MAX_LISTED], *more])))
    return element("section", *parts)


def _make_bug_report(report: Report) -> Markup:
    return element(
        "section",
        element("h2", "Bug report", id="bug-report"),
        element("p", "Markdown for an issue: versions, the machine, the findings. Read it before you post it."),
        element("figure", _make_text_field(report), copy_button("Copy the Markdown"), class_="code"),
    )


def _make_text_field(report: Report) -> Markup:
    """Return the text of an issue in a field, with as many findings as fit, the most severe first."""
    for max_findings in (MAX_REPORTED, 3, 1, 0):
        text = write_bug_report(report, max_findings=max_findings)
        field = element("textarea", text, readonly=True, rows=12, aria_label="Bug report")
        if byte_size(field) <= BUG_REPORT_BYTES:
            return field
    return element("textarea", text[:4000], readonly=True, rows=12, aria_label="Bug report")
