"""Edits the user's text: removes settings, adds others, and leaves every other character unchanged."""

import difflib
import os
import re
import shlex
from collections.abc import Iterable, Sequence

from attncheck.core.io.errors import BadUsage
from attncheck.core.io.files import CannotRead, make_write_error, read_bounded, replace_file
from attncheck.core.io.visible import show_on_one_line
from attncheck.core.launch import COMMAND, NOWHERE, Edit, Launch, Setting, Source, Span, Word
from attncheck.lint.files import edit_files
from attncheck.lint.files.configuration import Entry
from attncheck.lint.files.edit_text import find_line_bounds
from attncheck.lint.sources import MAX_BYTES

CLOSING_CHARACTERS = ('"', "'", ")", "`", ";", "&", "|")
CONTINUATION = re.compile(r"[ \t]*\\[ \t]*$")


def apply_edits(source: Source, edits: Iterable[Edit]) -> str:
    """Return the text after `edits`. Raises `ValueError` if two of them overlap or one belongs to another text."""
    parts: list[str] = []
    copied_end = 0
    # At the same offset insertions come first; otherwise the order of `edits` is kept.
    for edit in sorted(edits, key=lambda edit: edit.span):
        start, end = edit.span
        if edit.source != source.name or not 0 <= start <= end <= len(source.text):
            raise ValueError(f"an edit at {edit.span} of {edit.source} is not one of {source.name}")
        if start < copied_end:
            raise ValueError(f"two edits overlap at {source.location(start)}")
        parts += [source.text[copied_end:start], edit.text]
        copied_end = end
    return "".join([*parts, source.text[copied_end:]])


def format_diff(source: Source, corrected: str) -> str:
    """Return the change as a unified diff; "" if nothing changes."""
    if source.text == corrected:
        return ""
    name = source.name if source.name not in ("-", COMMAND) else "command" if source.name == COMMAND else "stdin"
    name = show_on_one_line(name)  # a line end in a file's name would break the diff's header
    lines = difflib.unified_diff(
        source.text.splitlines(), corrected.splitlines(), f"a/{name.lstrip('/')}", f"b/{name.lstrip('/')}", lineterm=""
    )
    return "".join(f"{line}\n" for line in lines)


def replace_value(setting: Setting, value: str | Sequence[str]) -> Edit:
    """Return the edit that gives a setting another value, quoted as its source needs; several values for a list option.

    Raises `ValueError` for a setting without a place (`span` is `NOWHERE`).
    """
    joined = value if isinstance(value, str) else " ".join(value)
    if isinstance(setting, Entry):
        return setting.replace_value(joined)
    if setting.span == NOWHERE:
        raise ValueError(f"{setting.name} is assembled from several places")
    text = shlex.quote(value) if isinstance(value, str) else shlex.join(value)
    if setting.value_span != NOWHERE:
        return Edit(setting.location.source, setting.value_span, text)
    assignment = f"{setting.name} {text}" if setting.name.startswith("-") else shlex.quote(f"{setting.name}={joined}")
    return Edit(setting.location.source, setting.span, assignment)


def remove_setting(source: Source, span: Span) -> Edit:
    """Return the edit that removes a setting with its separator: its space, its continued line, or its comma.

    Raises `ValueError` for `NOWHERE`.
    """
    if span == NOWHERE:
        raise ValueError("a setting that is assembled from several places cannot be removed")
    if source.kind in ("command", "shell"):
        return Edit(source.name, _find_removal_span(source.text, span), "")
    return edit_files.remove_key(source, span)


def _find_removal_span(text: str, span: Span) -> Span:
    """Return the span to remove from a script so that the words at `span` disappear."""
    line_start, line_end = find_line_bounds(text, span)
    before, after = text[line_start : span[0]], text[span[1] : line_end]
    alone_on_line = not before.strip() and re.fullmatch(r"[ \t]*\\?[ \t]*(#.*)?", after) is not None
    if alone_on_line and line_start > 0:
        return _find_line_span(text, line_start, line_end, span)
    if not before.strip() and after[:1] in CLOSING_CHARACTERS:  # the last line of a command in quotes or brackets
        previous = CONTINUATION.search(text[text.rfind("\n", 0, max(line_start - 1, 0)) + 1 : max(line_start - 1, 0)])
        return (line_start - 1 - len(previous[0]), span[1]) if previous else span
    blank_count = len(before) - len(before.rstrip(" \t"))
    if before.strip() and blank_count:
        return (span[0] - blank_count, span[1])
    blank_after = re.match(r"[ \t]*", after)
    return (span[0], span[1] + (blank_after.end() if blank_after else 0))


def _find_line_span(text: str, line_start: int, line_end: int, span: Span) -> Span:
    """Return the span of the whole line; in a continued command it includes one backslash.

    That is the backslash of the previous line if the result is the same, so that text inserted after the span is kept.
    """
    previous = text[: line_start - 1]
    before = CONTINUATION.search(previous[previous.rfind("\n") + 1 :])
    after = CONTINUATION.fullmatch(text[span[1] : line_end])
    if before and (after is None or after[0] == before[0]):
        return (line_start - 1 - len(before[0]), span[1])
    return (line_start, min(line_end + 1, len(text))) if after else (line_start - 1, line_end)


def append_argument(launch: Launch, text: str) -> Edit:
    """Return the edit that appends an argument to the program's command, laid out like its last one.

    The argument gets its own line if the last one has its own: continued in a command or a heredoc, plain in an array.
    For a configuration file, `text` is a line ("packing: true") added at its end; for nested keys see `add_key`. Raises
    `ValueError` if no argument is in the source.
    """
    source = launch.source
    if not launch.words:
        end = len(source.text)
        newline = "" if not source.text or source.text.endswith("\n") else "\n"
        return Edit(source.name, (end, end), f"{newline}{text}\n")
    last_argument = _find_last_argument(launch.words)
    line_start, line_end = find_line_bounds(source.text, last_argument.span)
    line = source.text[line_start : last_argument.span[1]]
    indent = line[: len(line) - len(line.lstrip(" \t"))]
    previous = source.text[: max(line_start - 1, 0)]
    previous = previous[previous.rfind("\n") + 1 :]
    after = source.text[last_argument.span[1] : line_end]
    has_own_line = line_start > 0 and _starts_line(launch.words, line_start, line_start + len(indent), last_argument)
    if has_own_line and (CONTINUATION.search(previous) or CONTINUATION.fullmatch(after)):
        return Edit(source.name, (last_argument.span[1], last_argument.span[1]), f" \\\n{indent}{text}")
    if has_own_line and _is_in_array(source.text, line_start) and re.fullmatch(r"[ \t]*(#.*)?", after):
        return Edit(source.name, (line_end, line_end), f"\n{indent}{text}")
    return Edit(source.name, (last_argument.span[1], last_argument.span[1]), f" {text}")


def _find_last_argument(words: Sequence[Word]) -> Word:
    argument = next((word for word in reversed(words) if word.span != NOWHERE), None)
    if argument is None:
        raise ValueError("no argument of the command appears literally in the source")
    return argument


def _starts_line(words: Sequence[Word], line_start: int, text_start: int, last_argument: Word) -> bool:
    """Return whether the line of the last argument begins with an argument rather than the program."""
    begins_with_program = words[0].span != NOWHERE and line_start <= words[0].span[0] <= last_argument.span[0]
    return not begins_with_program and any(word.span[0] == text_start for word in words[1:])


def _is_in_array(text: str, line_start: int) -> bool:
    """Return whether the previous line opens or continues an array `NAME=( …`, where a newline ends no command."""
    opening = text.rfind("=(", 0, line_start)
    return opening >= 0 and not re.search(r"^\s*\)", text[opening:line_start], re.MULTILINE)


def add_key(source: Source, name: str, value: str) -> Edit:
    """Return the edit that adds a key to a configuration file, in its innermost existing table.

    Raises `ValueError` if nothing can be added to that table, and `BadUsage` for a file that does not parse.
    """
    return edit_files.add_key(source, name, value)


def write_corrected(source: Source, path: str, corrected: str) -> None:
    """Replace the file at `path` by `corrected` atomically, keeping its mode, newlines and byte order mark.

    Raises `BadUsage`, and writes nothing, if the file has changed since it was read, cannot be written, or would no
    longer parse.
    """
    if source.kind in ("yaml", "json", "toml"):
        edit_files.find_changed_keys(source, corrected)  # raises if `corrected` does not parse
    target = os.path.realpath(path)
    try:
        previous = read_bounded(target, MAX_BYTES)
        byte_order_mark = b"\xef\xbb\xbf" if previous.startswith(b"\xef\xbb\xbf") else b""
        crlf = b"\r\n" in previous and "\r\n" not in source.text
        if previous != byte_order_mark + _encode_text(source.text, crlf):
            raise BadUsage(f"{path}: changed since it was read; nothing is written")
        replace_file(target, byte_order_mark + _encode_text(corrected, crlf))
    except CannotRead as error:
        raise BadUsage(f"cannot write {path}: {error.reason}") from None
    except OSError as error:
        raise make_write_error(path, error) from None


def _encode_text(text: str, crlf: bool) -> bytes:
    return (text.replace("\n", "\r\n") if crlf else text).encode("utf-8")
