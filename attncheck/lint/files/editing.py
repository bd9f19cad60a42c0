"""Changes what a user wrote: takes settings out, puts others in, and leaves every other character as it is."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import stat
import tempfile
from collections.abc import Iterable, Sequence

from attncheck.core.errors import BadUsage
from attncheck.core.launch import COMMAND, NOWHERE, Edit, Launch, Setting, Source, Span, Word
from attncheck.lint.files import edit_files
from attncheck.lint.files.configuration import Entry
from attncheck.lint.files.edit_text import line_of, quoted

ENDING = ('"', "'", ")", "`", ";", "&", "|")
CONTINUED = re.compile(r"[ \t]*\\[ \t]*$")


def applied(source: Source, edits: Iterable[Edit]) -> str:
    """Return the text with `edits` made. Raises `ValueError` where two of them overlap or one is not of the text."""
    found: list[str] = []
    at = 0
    # Of several at one place an insertion comes first, and they stay in the order in which they are given.
    for edit in sorted(edits, key=lambda one: one.span):
        start, end = edit.span
        if edit.source != source.name or not 0 <= start <= end <= len(source.text):
            raise ValueError(f"an edit at {edit.span} of {edit.source} is not one of {source.name}")
        if start < at:
            raise ValueError(f"two edits overlap at {source.location(start)}")
        found += [source.text[at:start], edit.text]
        at = end
    return "".join([*found, source.text[at:]])


def diff(source: Source, corrected: str) -> str:
    """Return what changes as a unified diff, "" where nothing does."""
    if source.text == corrected:
        return ""
    name = source.name if source.name not in ("-", COMMAND) else "command" if source.name == COMMAND else "stdin"
    lines = difflib.unified_diff(
        source.text.splitlines(), corrected.splitlines(), f"a/{name.lstrip('/')}", f"b/{name.lstrip('/')}", lineterm=""
    )
    return "".join(f"{line}\n" for line in lines)


def replaced(setting: Setting, value: str | Sequence[str]) -> Edit:
    """Return the edit that gives a setting another value, quoted as its place asks for; several for an option of many.

    Raises `ValueError` for a setting that stands nowhere (`span` is `NOWHERE`).
    """
    if setting.span == NOWHERE or (isinstance(setting, Entry) and setting.value_span == NOWHERE):
        raise ValueError(f"{setting.name} is put together from several places")
    one = value if isinstance(value, str) else " ".join(value)
    if isinstance(setting, Entry):
        blank = " " if setting.value_span[0] == setting.value_span[1] else ""
        return Edit(setting.location.source, setting.value_span, blank + quoted(one, setting.kind))
    text = shlex.quote(value) if isinstance(value, str) else shlex.join(value)
    if setting.value_span != NOWHERE:
        return Edit(setting.location.source, setting.value_span, text)
    written_whole = f"{setting.name} {text}" if setting.name.startswith("-") else _override(setting.name, one)
    return Edit(setting.location.source, setting.span, written_whole)


def _override(name: str, value: str) -> str:
    return shlex.quote(f"{name}={value}")


def dropped(source: Source, span: Span) -> Edit:
    """Return the edit that takes a setting out with what held it: its blank, its continued line, its comma.

    Raises `ValueError` for `NOWHERE`.
    """
    if span == NOWHERE:
        raise ValueError("a setting that is put together from several places cannot be taken out")
    if source.kind in ("command", "shell"):
        return Edit(source.name, _word(source.text, span), "")
    return edit_files.without(source, span)


def _word(text: str, span: Span) -> Span:
    """Return what to take out of a script for words to be gone."""
    first, last = line_of(text, span)
    before, after = text[first : span[0]], text[span[1] : last]
    alone = not before.strip() and re.fullmatch(r"[ \t]*\\?[ \t]*(#.*)?", after) is not None
    if alone and first > 0:
        return _line(text, first, last, span)
    if not before.strip() and after[:1] in ENDING:  # the last line of a command in quotes or brackets
        previous = CONTINUED.search(text[text.rfind("\n", 0, max(first - 1, 0)) + 1 : max(first - 1, 0)])
        return (first - 1 - len(previous[0]), span[1]) if previous else span
    blanks = len(before) - len(before.rstrip(" \t"))
    if before.strip() and blanks:
        return (span[0] - blanks, span[1])
    rest = re.match(r"[ \t]*", after)
    return (span[0], span[1] + (rest.end() if rest else 0))


def _line(text: str, first: int, last: int, span: Span) -> Span:
    """Return the whole line; of a continued command one backslash goes with it.

    That is the one of the line before, wherever that gives the same text: what is put behind the span then stays.
    """
    previous = text[: first - 1]
    before = CONTINUED.search(previous[previous.rfind("\n") + 1 :])
    after = CONTINUED.fullmatch(text[span[1] : last])
    if before and (after is None or after[0] == before[0]):
        return (first - 1 - len(before[0]), span[1])
    return (first, min(last + 1, len(text))) if after else (first - 1, last)


def appended(launch: Launch, text: str, dropping: Sequence[Span] = ()) -> Edit:
    """Return the edit that gives the program one more argument, behind its last one and laid out as that is.

    On a line of its own where the last argument has one: continued in a command or a heredoc, plain in an array.
    `dropping` are spans that are taken out at the same time: what goes is not written behind.
    For a configuration file `text` is a line ("packing: true") put at its end; `added` knows nested keys.
    Raises `ValueError` where no argument stands in the source.
    """
    source = launch.source
    if not launch.words:
        end = len(source.text)
        newline = "" if not source.text or source.text.endswith("\n") else "\n"
        return Edit(source.name, (end, end), f"{newline}{text}\n")
    word = _last([one for one in launch.words if not any(_within(one.span, span) for span in dropping)])
    first, last = line_of(source.text, word.span)
    line = source.text[first : word.span[1]]
    indent = line[: len(line) - len(line.lstrip(" \t"))]
    previous = source.text[: max(first - 1, 0)]
    previous = previous[previous.rfind("\n") + 1 :]
    after = source.text[word.span[1] : last]
    own_line = first > 0 and _begins_line(launch.words, first, first + len(indent), word)
    if own_line and (CONTINUED.search(previous) or CONTINUED.fullmatch(after)):
        return Edit(source.name, (word.span[1], word.span[1]), f" \\\n{indent}{text}")
    if own_line and _in_array(source.text, first) and re.fullmatch(r"[ \t]*(#.*)?", after):
        return Edit(source.name, (last, last), f"\n{indent}{text}")
    return Edit(source.name, (word.span[1], word.span[1]), f" {text}")


def _within(inner: Span, outer: Span) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _last(words: Sequence[Word]) -> Word:
    found = next((word for word in reversed(words) if word.span != NOWHERE), None)
    if found is None:
        raise ValueError("no argument of the command stands in the source as it is")
    return found


def _begins_line(words: Sequence[Word], first: int, begin: int, last: Word) -> bool:
    """Say whether the line of the last argument begins with an argument, and not with the program."""
    program = words[0].span != NOWHERE and first <= words[0].span[0] <= last.span[0]
    return not program and any(word.span[0] == begin for word in words[1:])


def _in_array(text: str, first: int) -> bool:
    """Say whether the line before is no command that a newline would end: it opens or goes on with `NAME=( …`."""
    opened = text.rfind("=(", 0, first)
    return opened >= 0 and not re.search(r"^\s*\)", text[opened:first], re.MULTILINE)


def added(source: Source, name: str, value: str) -> Edit:
    """Return the edit that gives a configuration file one more key, in the innermost table that it has already.

    Raises `ValueError` where that table has no place of its own, and `BadUsage` for a file that does not parse.
    """
    return edit_files.added(source, name, value)


def written(source: Source, path: str, corrected: str, intended: Sequence[str] | None = None) -> None:
    """Put `corrected` in the place of the file at `path`, at once, with its mode, its newlines and its byte order mark.

    Raises `BadUsage`, and writes nothing, where the file is no longer what was read, cannot be written, or would no
    longer parse; with `intended`, the names of the keys that may change, also where another one would.
    """
    if source.kind in ("yaml", "json", "toml"):
        edit_files.checked(source, corrected, intended)
    target = os.path.realpath(path)
    try:
        with open(target, "rb") as stream:
            before, mode = stream.read(), stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
        mark = b"\xef\xbb\xbf" if before.startswith(b"\xef\xbb\xbf") else b""
        crlf = b"\r\n" in before and "\r\n" not in source.text
        if before != mark + _bytes(source.text, crlf):
            raise BadUsage(f"{path}: changed since it was read; nothing is written")
        _replace(target, mark + _bytes(corrected, crlf), mode)
    except OSError as error:
        raise BadUsage(f"cannot write {path}: {error.strerror or error}") from None


def _bytes(text: str, crlf: bool) -> bytes:
    return (text.replace("\n", "\r\n") if crlf else text).encode("utf-8")


def _replace(target: str, data: bytes, mode: int) -> None:
    descriptor, name = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".attncheck-")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
