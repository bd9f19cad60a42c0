"""The report in Markdown, for an issue or a pull request: tables of timings, verdicts, findings with their fixes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from attncheck.core.findings import Finding
from attncheck.core.report import Report
from attncheck.core.results.smoke import answer
from attncheck.core.results.verdicts import ANSWERS
from attncheck.report.formats import Renderer

MARKUP = r"[\\|`*<]|(?<!\w)_|_(?!\w)"  # an underscore within a word is shown as it is


def render(report: Report, verbose: bool) -> str:
    """Return the report as Markdown; `verbose` lists what could not be judged too."""
    return "\n".join(_lines(report, verbose)).rstrip() + "\n"


def _lines(report: Report, verbose: bool) -> Iterator[str]:
    yield f"# attncheck {report.command}"
    yield ""
    if report.attempts:
        yield from _attempts(report)
    elif report.timings:
        yield from _timings(report)
    elif report.ring_timings:
        yield from _ring(report)
    elif report.verdicts:
        yield from _verdicts(report)
    elif report.command == "doctor":
        yield from _overview(report)
    elif report.launches:
        yield from _launches(report)
    if report.stages:
        from attncheck.report.sections import gate as stages

        yield from table(("", "check", ""), list(stages.rows(report)))
        yield ""
    yield "## Findings"
    yield ""
    if not report.findings:
        yield "None."
    for finding in report.findings:
        yield from _finding(finding)
    if report.baselined or report.allowed:
        from attncheck.report.sections import gate as stages

        yield from ("## Let pass", "", *(f"- {escaped(line)}" for line in stages.passing(report)), "")
    for each in report.settings:
        yield from ("", f"## Settings for {each.framework}", "", "```", each.text.rstrip(), "```")
    if verbose and report.skips:
        yield "## Not judged"
        yield ""
        yield from (f"- {skip.code} {skip.name}: {escaped(skip.reason)}" for skip in report.skips)


def _launches(report: Report) -> Iterator[str]:
    from attncheck.report.sections import lint

    yield from table(("", "launch"), list(lint.rows(report)))
    yield ""
    for heading, text in lint.corrected(report):
        yield from (f"## {heading[0].upper()}{heading[1:]}", "", "```diff" if "corrected" in heading else "```")
        yield from (*text.splitlines(), "```", "")


def _attempts(report: Report) -> Iterator[str]:
    from attncheck.report.sections import smoke

    for attempt in report.attempts:
        title = f"{attempt.model}, mended: {attempt.reason}" if attempt.reason else attempt.model
        yield from (f"## {escaped(title)}", "", escaped(smoke.plan(attempt.plan)), "")
        found = [(smoke.name(proof), answer(proof), smoke.told(proof)) for proof in attempt.results]
        yield from table(("question", "answer", "because"), found)
        yield ""


def _timings(report: Report) -> Iterator[str]:
    from attncheck.report.sections import bench

    for line in bench.heading(report):
        yield f"{escaped(line)}  "
    for title, found in bench.tables(report):
        yield ""
        yield f"## {title[0].upper()}{title[1:]}"
        yield ""
        yield from table(
            ("backend", *(column.title for column in bench.COLUMNS)),
            [(bench.who(t), *_cells(bench.cells(t) if t.outcome == "ok" else (), t.reason)) for t in found],
        )
    yield ""
    yield from (f"{escaped(note)}  " for note in bench.notes(report))
    yield "## Recommended"
    yield ""
    for item in report.recommendations:
        yield f"- {escaped(bench.recommended(item))}"
        yield from (f"  - `{line}`" for line in item.setting.splitlines())
    yield ""


def _ring(report: Report) -> Iterator[str]:
    from attncheck.core.results.ring_timings import PASSES, TABLES
    from attncheck.report.sections import ring_bench

    on = report.measured_on
    yield f"{on.ring_size} × {on.name or on.device} · torch {on.torch}"
    for api in TABLES:
        for passes in PASSES:
            mine = ring_bench.shown(report, api, passes)
            if mine:
                yield ""
                yield f"## {api} API, {passes.replace('_', ' + ')}"
                yield ""
                yield from table(
                    ("scheme", "tokens a rank", *ring_bench.COLUMNS),
                    [
                        (
                            t.title,
                            str(t.seqlen),
                            *_cells(ring_bench.figures(t) if t.outcome == "ok" else (), t.reason),
                        )
                        for t in mine
                    ],
                )
    yield ""
    yield from (f"- {escaped(line)}" for line in report.conclusions)
    yield ""


def _cells(cells: Sequence[str], reason: str) -> Sequence[str]:
    """Return the cells of a row, or why it has none."""
    return cells or (reason,)


def _verdicts(report: Report) -> Iterator[str]:
    """Each backend's verdicts, counted."""
    yield f"{report.measured_on.name or report.measured_on.device} · torch {report.measured_on.torch}"
    yield ""
    used = [answer for answer in ANSWERS if any(verdict.answer == answer for verdict in report.verdicts)]
    names = dict.fromkeys(verdict.backend for verdict in report.verdicts)
    counts = [
        [str(sum(v.backend == name and v.answer == answer for v in report.verdicts)) for answer in used]
        for name in names
    ]
    yield from table(("backend", *used), [(name, *row) for name, row in zip(names, counts)])
    yield ""


def _overview(report: Report) -> Iterator[str]:
    from attncheck.report.sections.doctor import rows

    yield from table(("", "", ""), [(row.mark, row.title, row.text) for row in rows(report)])
    yield ""


def _finding(finding: Finding) -> Iterator[str]:
    yield f"### {finding.code} {finding.severity}: {escaped(finding.message)}"
    yield ""
    yield from (f"- {escaped(line.strip())}" for line in finding.evidence)
    for fix in finding.fixes:
        proven = f" (proven: {escaped(fix.proven)})" if fix.proven else ""
        yield ""
        yield f"Fix: {escaped(fix.title)}{proven}"
        yield ""
        fence = "```"
        while fence in fix.text:
            fence += "`"
        yield from (fence, *fix.text.splitlines(), fence)
    yield ""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a Markdown table; a row with fewer cells is filled up."""
    yield "| " + " | ".join(map(escaped, heads)) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        cells = [escaped(cell) for cell in row] + [""] * (len(heads) - len(row))
        yield "| " + " | ".join(cells) + " |"


def escaped(text: str) -> str:
    """Return `text` on one line, with what Markdown would take for markup written so that it is shown."""
    return re.sub(MARKUP, r"\\\g<0>", " ".join(text.split()))


RENDERER = Renderer("markdown", render)
