"""Hides the values of a launch's environment in report text: a command, a diff, or a program's output.

The variables that a launch exports are private: passwords among them have names and forms that no list covers. Only
variables that a snapshot may show keep their values, as do references to other variables. For the others only the name
is shown: `PGPASSWORD=… torchrun train.py`.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from attncheck.core.io.secrets import MASK
from attncheck.core.launch import Span
from attncheck.lint.shell.exports import Value, find_values

REFERENCE = '"${}"'  # replaces a value in a command to paste: the shell holds the variable
_NAMED = re.compile(r"""(?<![\w.])([A-Za-z_]\w*)\\?["']?\s{0,2}[=:,]\s{0,2}\\?["']?""")
_HUNK = re.compile(r"^(?:@@ |--- |\+\+\+ )")
_SHELL_LINE = re.compile(r"[\s#]*(?:export|declare|typeset|env)\b")
_ONLY_REFERENCES = re.compile(r"""["']?(?:[:/]|\$\w+|\$\{\w+(?::?[-+?=])?\}|\$[\d@*#?])*["']?""")


def hide_exports(script: str, hidden: str = MASK) -> str:
    """Return a shell command or script with the values of its environment variables hidden.

    `hidden` is the replacement for a value; a "{}" in it becomes the variable's name (`REFERENCE`).
    """
    for value in sorted(_find_hidden(script), key=lambda value: value.span, reverse=True):
        start, end = value.span
        script = script[:start] + hidden.format(value.name) + script[end:]
    return script


def hide_exports_in_diff(diff: str, exported: Collection[str] = ()) -> str:
    """Return a unified diff of launch scripts with the values of their environment variables hidden.

    `exported` are names in the launch's environment, whose export the diff may not show.
    """
    lines = dict(enumerate(re.findall(r"[^\n]*\n|[^\n]+", diff)))
    spans: dict[int, set[Span]] = {}
    for hunk in _iter_hunks(lines):
        for removed in "-+":  # the script before and after
            side = [number for number in hunk if not lines[number].startswith(removed)]
            _collect_spans(lines, side, exported, spans)
        for number in hunk:  # a hunk may begin inside quotes, where nothing is found
            if _SHELL_LINE.match(lines[number][1:]):
                code = re.sub(r"\A[\s#]+", lambda blank: blank[0].replace("#", " "), lines[number][1:])
                _collect_spans({number: lines[number][:1] + code}, [number], (), spans)
    return "".join(_hide_spans(line, spans.get(number, set())) for number, line in lines.items())


def hide_environment(printed: str, environ: Mapping[str, str]) -> str:
    """Return a program's output with the values of its environment hidden if they follow their names.

    An error that prints `os.environ` shows all of it: `{'PGPASSWORD': '…', …}`.
    """
    parts: list[str] = []
    done = 0
    for match in _NAMED.finditer(printed):
        value = environ.get(match[1], "") if match.start() >= done and not _may_be_shown(match[1]) else ""
        spellings = (value, repr(value)[1:-1], json.dumps(value)[1:-1])
        seen = max((text for text in spellings if printed.startswith(text, match.end())), key=len, default="")
        if seen:
            parts += (printed[done : match.end()], MASK)
            done = match.end() + len(seen)
    return "".join(parts) + printed[done:]


def _may_be_shown(name: str) -> bool:
    from attncheck.doctor.probes.payload.environ import ALLOWED_VARIABLES

    return name in ALLOWED_VARIABLES


def _iter_hunks(lines: Mapping[int, str]) -> Iterator[list[int]]:
    """Yield the line numbers of each hunk."""
    hunk: list[int] = []
    for number, line in lines.items():
        if _HUNK.match(line):
            yield hunk
            hunk = []
        elif not line.startswith("\\"):
            hunk.append(number)
    yield hunk


def _collect_spans(
    lines: Mapping[int, str], numbers: Sequence[int], exported: Collection[str], spans: dict[int, set[Span]]
) -> None:
    """Add, for each line of the script formed by these lines of a diff, the spans of values."""
    texts = {number: lines[number][1:] or "\n" for number in numbers}
    values = [value.span for value in _find_hidden("".join(texts.values()), exported)]
    start = 0
    for number, text in texts.items():
        end = start + len(text.rstrip("\r\n"))
        for first, last in values:
            if first < end and last > start:
                spans.setdefault(number, set()).add((max(first, start) - start + 1, min(last, end) - start + 1))
        start += len(text)


def _hide_spans(line: str, spans: set[Span]) -> str:
    parts, done = [], 0
    for start, end in sorted(spans):
        if start >= done:
            parts.append(line[done:start] + MASK)
        done = max(done, end)
    return "".join(parts) + line[done:]


def _find_hidden(script: str, exported: Collection[str] = ()) -> list[Value]:
    """Return the values of a script that must not be shown, except those inside another value."""
    hidden: list[Value] = []
    for value in sorted(set(find_values(script, exported)), key=lambda value: (value.span[0], -value.span[1])):
        is_shown = _may_be_shown(value.name) or _ONLY_REFERENCES.fullmatch(script[slice(*value.span)])
        if not is_shown and (not hidden or value.span[0] >= hidden[-1].span[1]):
            hidden.append(value)
    return hidden
