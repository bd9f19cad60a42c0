"""Foreign text in every place of every format: nothing acts, nothing hides, nothing is taken for ours, nothing is lost.

Reports are made with one hostile string in each place at once, and written as the command line writes them; then real
commands meet hostile files, packages, variables, policies and words. What an output may not hold is judged by Unicode's
own categories, by the rules of GitHub's runner, and by each format's own parser.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import unicodedata
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from attncheck.core.facts import Known
from attncheck.core.findings import Fix
from attncheck.core.io import streams, visible
from attncheck.core.io.outgoing import clean, map_texts
from attncheck.core.job import DROP
from attncheck.core.report import Report
from attncheck.lint.shell import quoting
from attncheck.report import document, markdown_text
from attncheck.report.finding_lines import INDENT, RULES_URL
from attncheck.report.formats import github, load_format
from tests.adversary import hostile_text as hostile
from tests.adversary.hostile_text import HARMLESS, HOSTILE, find_invisible, find_runner_commands
from tests.report import reports

FORMATS = ("text", "markdown", "html", "json", "junit", "sarif", "github")
EACH_HOSTILE = pytest.mark.parametrize("name", HOSTILE)
THOROUGH = pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=pytest.mark.nightly)])
# What GitHub links, shows as a picture or notifies people of, wherever it is outside code.
REFERENCE = re.compile(
    r"https?://|ftp://|www\.|\w@\w|(?<!\w)@\w|#\d|\bgh-\d|:(?:tada|warning|\+1):|\b[0-9a-f]{40}\b", re.I
)

OWN_PAGE = re.compile(rf"Page: {re.escape(RULES_URL)}#atn\d{{3}}")  # the link below a finding, the report's own


@pytest.fixture(autouse=True)
def under_github_actions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)


def write(report: Report, format_name: str, encoding: str = "utf-8") -> str:
    """Return a report as the command line writes it to standard output."""
    record = load_format(format_name)
    return streams.fit_text(record.render(clean(report), True), encoding, record.syntax)


WAYS = ("alone", "before", "after")


def plant_text(text: str, report: Report, way: str) -> Report:
    """Return a report with `text` for each foreign string, or before or after it."""
    return hostile.plant(report, lambda own: {"alone": text, "before": text + own, "after": own + text}[way])


def list_places(name: str, thorough: bool) -> list[tuple[Report, str]]:
    """Return all reports with all ways to plant, or one of them, another one for each hostile string."""
    places = [(report, way) for report in hostile.make_reports() for way in WAYS]
    return places if thorough else [places[list(HOSTILE).index(name) % len(places)]]


# What judges: each hostile string, written as it is, is noticed.

UNNOTICED = {
    "percent",
    "json",
    "xml",
    "rich",
    "md-math",
    "md-columns",
    "md-underline",
    "md-task",
    "md-table",
    "md-fence",
}


@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in UNNOTICED])
def test_what_is_written_as_it_is_would_be_noticed(name: str) -> None:
    text = HOSTILE[name]
    if find_invisible(text) or find_runner_commands(text):
        return
    for before in ("", "- ", "## ", "Fix: "):
        tokens = parse_markdown(f"{before}{text}\n")
        if block_types(tokens) != block_types(parse_markdown(f"{before}{HARMLESS}\n")):
            return
        try:
            assert_only_text(tokens)
        except AssertionError:
            return
        if flat_text(next(token for token in tokens if token.type == "inline")) != text:
            return
    pytest.fail("nothing notices it")


# The functions.


def test_every_character_that_acts_or_hides_is_shown_and_every_other_stays() -> None:
    counts = {True: 0, False: 0}
    ranges = (range(0x3200), range(0xD7F0, 0x11100), range(0x13000, 0x1D200), range(0xE0000, 0xE1000))
    for code in (code for codes in ranges for code in codes):
        character = chr(code)
        shown = visible.show_control_characters(f"a{character}b")
        is_changed = shown != f"a{character}b"
        category = unicodedata.category(character)
        counts[is_changed] += 1
        if character not in "\n\t" and category in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            assert is_changed, hex(code)
        elif category not in ("Cn", "Lo", "Mn") or 0xFE00 <= code <= 0xFE0F:
            assert not is_changed, hex(code)
        assert shown.isascii() or not is_changed
    print(f"{counts[True]} characters are shown as escapes, {counts[False]} stay")
    ordinary = "· … × → 注意 é ñ 🦊 ⚠️ ▁▂▃ naïve\tfile\n"
    assert visible.show_control_characters(ordinary) == ordinary


@EACH_HOSTILE
def test_what_is_shown_once_is_not_shown_twice(name: str) -> None:
    shown = visible.show_control_characters(HOSTILE[name])
    assert visible.show_control_characters(shown) == shown and not find_invisible(shown, "\n\t\r")
    assert "\n" not in visible.show_on_one_line(HOSTILE[name])


def test_a_line_end_of_windows_is_one_and_a_bare_return_is_shown() -> None:
    assert visible.show_control_characters("a\r\nb\rc\r") == "a\r\nb\\rc\\r"
    assert visible.show_on_one_line("a\r\nb\nc") == "a\\nb\\nc"


@dataclass(frozen=True)
class Tree:
    """Something of every kind that reports are made of."""

    text: str = "a\x1b"
    number: float = 1.5
    nested: tuple[Any, ...] = (Known("b\x1b"), ["c\x1b"], frozenset({"d\x1b"}))
    mapping: Any = None


def test_every_string_of_a_tree_is_mapped_and_an_unchanged_tree_is_the_same_object() -> None:
    mapped = map_texts(Tree(mapping={"k\x1b": {"l\x1b": Tree(nested=())}}), visible.show_control_characters)
    assert "\x1b" not in repr(mapped).replace("\\x1b", "") and repr(mapped).count("\\\\x1b") == 7
    assert map_texts(mapped, visible.show_control_characters) is mapped
    report = reports.make_gate_report()
    assert clean(report) is report
    fix = Fix("t", "setting", "x", sets={"packing": DROP})
    kept = clean(reports.make_doctor_report(findings=(reports.make_finding(message="\x1b", fixes=(fix,)),)))
    assert kept.findings[0].message == "\\x1b" and kept.findings[0].fixes[0].sets == {"packing": DROP}


@pytest.mark.parametrize("syntax", ["text", "json", "xml"])
def test_a_line_for_the_runner_is_broken_and_only_there(syntax: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "##[error]a ###[b] \ufe0f#\ufe0f#\ufe0f[c]"
    broken = streams.fit_text(text, "utf-8", syntax)
    assert find_runner_commands(text) and not find_runner_commands(broken)
    assert streams.fit_text("# a ## b [c] a::b #[d]", "utf-8", syntax) == "# a ## b [c] a::b #[d]"
    if syntax == "text":
        assert streams.fit_text(" ::stop::\n::x") == " \\::stop::\n\\::x"
    if syntax == "xml":
        root = ET.fromstring(streams.fit_text(f"<a b='{text}'>\n::stop::{text}</a>", "utf-8", "xml"))
        assert (root.get("b"), root.text) == (text, f"\n::stop::{text}")
    if syntax == "json":
        assert json.loads(streams.fit_text(json.dumps([text, "\\" + text]), "utf-8", "json")) == [text, "\\" + text]
    monkeypatch.delenv("GITHUB_ACTIONS")
    assert streams.fit_text(text, "utf-8", syntax) == text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_no_encoding_loses_anything(encoding: str) -> None:
    text = 'é · 注 🦊 \\ "'
    fitted = streams.fit_text(json.dumps([text + "\x80\u202e\udc80"], ensure_ascii=False), encoding, "json")
    assert json.loads(fitted.encode(encoding).decode("utf-8")) == [text + "\x80\u202e\udc80"]
    fitted = streams.fit_text(f"<a>{text}</a>", encoding, "xml")
    assert ET.fromstring(fitted.encode(encoding).decode("utf-8")).text == text
    fitted = streams.fit_text(text + "\udc80", encoding)
    fitted.encode(encoding)
    assert "\\udc80" in fitted and (encoding == "utf-8" or "\\u6ce8" in fitted)


# Reports with hostile text in every place.


@THOROUGH
@EACH_HOSTILE
def test_no_format_writes_what_acts_or_hides_or_what_the_runner_obeys(name: str, thorough: bool) -> None:
    written = 0
    for report, way in list_places(name, thorough):
        planted = plant_text(HOSTILE[name], report, way)
        for format_name in FORMATS:
            text = write(planted, format_name)
            text.encode("utf-8")
            assert not find_invisible(text), format_name
            commands = find_runner_commands(text)
            own = [{"note": "notice"}.get(finding.severity, finding.severity) for finding in planted.findings]
            assert sorted(commands) == (sorted(own) if format_name == "github" else []), format_name
            written += 1
    print(f"{name}: {written} documents")


@THOROUGH
@EACH_HOSTILE
def test_documents_give_back_what_was_planted(name: str, thorough: bool) -> None:
    shown = visible.show_control_characters(HOSTILE[name])
    indented = visible.indent_continuation(shown, INDENT)
    on_one_line = " ".join(shown.split())
    for place, way in list_places(name, thorough):
        report = plant_text(HOSTILE[name], place, way)
        assert document.loads(write(report, "json")) == clean(report)
        log = json.loads(write(report, "sarif"))
        assert indented.replace("](", "] (") in log["runs"][0]["results"][0]["message"]["text"]
        elements = list(ET.fromstring(write(report, "junit").encode()).iter())
        attributes = [" ".join(value.split()) for element in elements for value in element.attrib.values()]
        assert any(on_one_line in value for value in attributes)
        assert any(on_one_line in " ".join((element.text or "").split()) for element in elements)
        command = next(line for line in write(report, "github").splitlines() if line.startswith("::"))
        data = command.split("::", 2)[2]
        assert indented in data.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")
        assert shown.split("\n")[0].rstrip("\r") in write_unbroken(report)


def write_unbroken(report: Report) -> str:
    """Return a report as text, as it is written if no runner reads it."""
    return load_format("text").render(clean(report), True)


@THOROUGH
@EACH_HOSTILE
def test_no_line_of_the_text_begins_like_one_of_ours(name: str, thorough: bool) -> None:
    """A line that foreign text begins is to the right: at the left are no more than its first line alone gives."""
    first = HOSTILE[name].split("\n")[0].rstrip("\r")
    for report, way in list_places(name, thorough):
        lines = left_lines(write_unbroken(plant_text(HOSTILE[name], report, way)))
        assert len(lines) <= len(left_lines(write_unbroken(plant_text(first or HARMLESS, report, way))))


def left_lines(text: str) -> list[str]:
    """Return the lines that begin in the first four columns."""
    return [line for line in text.split("\n") if line[:4].strip()]


def parse_markdown(text: str) -> list[Token]:
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)


def block_types(tokens: list[Token]) -> list[tuple[str, str, int]]:
    return [(token.type, token.tag, token.level) for token in tokens]


@THOROUGH
@EACH_HOSTILE
def test_markdown_shows_the_text_and_nothing_else(name: str, thorough: bool) -> None:
    words = " ".join(visible.show_control_characters(HOSTILE[name]).split())
    for report, way in list_places(name, thorough):
        tokens = parse_markdown(write(plant_text(HOSTILE[name], report, way), "markdown"))
        plain_tokens = parse_markdown(write(plant_text(HARMLESS, report, way), "markdown"))
        assert block_types(tokens) == block_types(plain_tokens)
        assert_only_text(tokens)
        shown = [" ".join(flat_text(token).split()) for token in tokens if token.type == "inline"]
        assert any(words in line for line in shown)


def assert_only_text(tokens: list[Token]) -> None:
    """Assert that no inline part is anything but text or code, and that GitHub sees no reference in the text."""
    for token in tokens:
        if OWN_PAGE.fullmatch(token.content):
            continue
        for child in token.children or ():
            assert child.type in ("text", "text_special", "code_inline", "softbreak", "hardbreak"), token.content
        assert not any(REFERENCE.search(part) for part in merge_texts(token)), token.content


def merge_texts(token: Token) -> list[str]:
    """Return the texts between the code spans of a line, as GitHub sees them: backslashes no longer exist."""
    parts = [""]
    for child in token.children or ():
        if child.type == "code_inline":
            parts.append("")
        else:
            parts[-1] += child.content or " "
    return parts


def flat_text(token: Token) -> str:
    return "".join(child.content or " " for child in token.children or ())


SMALL = (
    "[a]: /b", "[a]:/b", "[a](/b)", "[a](<b>)", "![a](/b)", "[a][b]", "# a #", "a #", "a ##", "#", "##", "####### a",
    "- a", "-", "--", "+ a", "1. a", "1) a", "123456789. a", "> a", ">a", ">", "---", "- - -", "***", "___", "===",
    "=", ":-:", "-:", "|-|", "~~~", "```", "[ ] a", "[x] a", "~~a~~", "~a~", "a~b~", "~/a ~/b", "x~~", "*a*", "a*b*c",
    "_a_", "__a__", "a__b__c", "_a_b_", "(_a_)", "__init__.py", "&lt;", "&#1;", "&#x41;", "&a", "<a>", "<!--", "</a>",
    "<?a", "<a@b.c>", "http://a.b", "(http://a.b)", "a:http://a.b", "@a", "(@a)", "a@b.c", "@a/b", "#1", "a/b#1",
    "GH-1", ":tada:", "a\\", "\\*a*", "\\[a]: /b", "`a`", "``", "`@a`", "`a`@b`c`", "|@a|@b|", "@a`@b", "a`", "$a$",
    "$$", "$a b$", "1.", "a\n# b", "a\n\n- b", "    a", "\ta",
)  # fmt: skip


@pytest.mark.parametrize("text", SMALL)
def test_markdown_of_one_word_in_each_place(text: str) -> None:
    words, line, inline = " ".join(text.split()), markdown_text.escape_line(text), markdown_text.escape_markdown(text)
    table = "\n".join(markdown_text.format_table((text, "x"), [(text, text)]))
    for template, escaped, times in (
        ("{}\n\n[a] ![a] [a][]\n", line, 1), ("above  \n{}  \nbelow\n", line, 1), ("- {}\n- [a]\n", line, 1),
        ("## {}\n\n[a]\n", inline, 1), ("Fix: {} (proven: {})\n", inline, 2), ("{}\n\n[a]\n", table, 3),
    ):  # fmt: skip
        plain = "\n".join(markdown_text.format_table(("w", "x"), [("w", "w")])) if escaped == table else "w"
        tokens = parse_markdown(template.replace("{}", escaped))
        assert block_types(tokens) == block_types(parse_markdown(template.replace("{}", plain))), template
        assert_only_text(tokens)
        assert "\n".join(flat_text(t) for t in tokens if t.type == "inline").count(words) >= times, template


def test_what_is_seen_begins_no_fix_of_its_own() -> None:
    text = "x\nfix: evil\nbecause: evil\r\nATN999 error"
    fix = Fix(text, "command", "y\nz", proven=text)
    finding = reports.make_finding(message=text, evidence=(text,), fixes=(fix,))
    report = reports.make_doctor_report(findings=(finding,))
    junit = next(ET.fromstring(write(report, "junit")).iter("failure")).text or ""
    (annotation,) = [line for line in write(report, "github").splitlines() if line.startswith("::")]
    sarif = json.loads(write(report, "sarif"))["runs"][0]["results"][0]["message"]["text"].replace("Because", "because")
    for shown in (
        junit,
        annotation.split("::", 2)[2].replace("%0A", "\n").replace("%0D", "\r"),
        sarif.replace("Fix", "fix"),
    ):
        starts = [line[:5] for line in shown.splitlines() if line[:1].strip()]
        assert starts.count("fix: ") == starts.count("becau") == 1 and "ATN99" not in starts


@pytest.mark.parametrize("name", ["lines", "md-fence", "md-tick", "md-multi"])
def test_a_summary_of_any_length_ends_its_code_block(name: str) -> None:
    report = hostile.plant(reports.make_gate_report(), lambda own: HOSTILE[name])
    whole = github.format_job_summary(clean(report)).encode()
    for room in range(len(github.CUT_NOTE) + 1, len(whole), max(1, len(whole) // 5)):
        text = github.format_job_summary(clean(report), room)
        assert len(text.encode()) <= room
        assert any("does not fit" in flat_text(token) for token in parse_markdown(text)), text


@EACH_HOSTILE
def test_a_code_block_gives_the_text_back(name: str) -> None:
    words = " ".join(visible.show_control_characters(HOSTILE[name]).split())
    block = "\n".join(markdown_text.format_code_block(visible.show_control_characters(HOSTILE[name])))
    (fence,) = parse_markdown(block)
    assert " ".join(fence.content.split()) == words


def test_bash_reads_the_very_word_from_one_line() -> None:
    words = [text.replace("\x00", "").replace("\ud800", "") for text in HOSTILE.values()]
    line = " ".join(map(quoting.quote_on_one_line, words))
    assert "\n" not in line and not find_invisible(line)
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    command = ["bash", "-c", f"printf '%s\\0' {line}"]
    process = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert [os.fsdecode(word) for word in process.stdout.split(b"\0")[:-1]] == words


def test_harmless_words_stay_as_they_are() -> None:
    for text in (
        "flash_attention_2 at ~/env/bin/python · 3.25 ms", "run.sh:12:5", "cuda:0 [1, 2] (x) a > b #x C# 100%",
        "$HOME/data $OUT", "torch<=2.13 & x"[:5], "1.5 is 3. of 4", "see: a@ b", "2 × 3 = 6 - 1 + 2",
    ):  # fmt: skip
        assert markdown_text.escape_line(text) == text
        assert markdown_text.escape_markdown(text) == text


def test_a_long_line_costs_no_more_than_its_length() -> None:
    start = time.process_time()
    for unit in (
        "$a ",
        ":",
        ":a",
        "#",
        "[",
        "]",
        "~",
        "_",
        "@",
        "`",
        "\\",
        "&#1",
        "0",
        "0123456789abcdef",
        "-",
        "gh-",
        "w",
    ):
        text = unit * (50_000 // len(unit))
        markdown_text.escape_line(text)
        streams.break_workflow_commands(text.replace("-", "\n "), "text")
        visible.show_on_one_line(text + "\x1b")
    assert time.process_time() - start < 60, "it is quadratic"
