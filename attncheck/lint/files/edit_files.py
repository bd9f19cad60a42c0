"""Takes keys out of configuration files and puts new ones in, with the layout they have."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attncheck.core.errors import BadUsage
from attncheck.core.launch import NOWHERE, Edit, Setting, Source, Span
from attncheck.lint.files import configuration
from attncheck.lint.files.edit_text import line_of, quoted

TRAILING = re.compile(r"[ \t]*(#.*)?")


def without(source: Source, span: Span) -> Edit:
    """Return the edit that takes a key with its value out: its lines, or its part of a `{…}` with one comma."""
    text = source.text
    first, last = line_of(text, span)
    before, after = text[first : span[0]], text[span[1] : last]
    if source.kind != "json" and not before.strip() and TRAILING.fullmatch(after):
        return Edit(source.name, (first, min(last + 1, len(text))), "")
    listed = re.fullmatch(r"[ \t]*(?:-[ \t]+)+", before)
    if source.kind == "yaml" and listed and TRAILING.fullmatch(after):
        return _first_of_item(source, span, last, len(before))
    comma = re.compile(r"\s*,[ \t]*(?:\r?\n[ \t]*)?").match(text, span[1])
    if comma:
        return Edit(source.name, (span[0], comma.end()), "")
    ahead = re.search(r",\s*$", text[: span[0]])
    return Edit(source.name, (ahead.start() if ahead else span[0], span[1]), "")


def _first_of_item(source: Source, span: Span, last: int, indent: int) -> Edit:
    """Take the first key of `- key: value` out: the next one moves behind the dash, or `{}` stands there."""
    following = re.compile(rf"\n {{{indent}}}(?=[^\s#-])").match(source.text, last)
    if following:
        return Edit(source.name, (span[0], following.end()), "")
    return Edit(source.name, span, "{}")


def added(source: Source, name: str, value: str) -> Edit:
    """Return the edit that gives a file one more key, in the innermost table that it has already.

    Raises `ValueError` where that table has no place, and `BadUsage` for a file that does not parse.
    """
    entries = configuration.entries(source)
    path = name.split(".")
    if source.kind == "json":
        return _in_object(source, entries, path, value)
    if source.kind == "toml":
        return _in_toml(source, entries, path, value)
    return _in_yaml(source, entries, path, value)


def _sibling(entries: Sequence[Setting], path: Sequence[str]) -> tuple[Setting | None, int]:
    """Return the last key that stands in the innermost table of `path` that exists, and how deep that table is."""
    for depth in range(len(path) - 1, 0, -1):
        prefix = ".".join(path[:depth]) + "."
        inside = [one for one in entries if one.name.startswith(prefix) and one.span != NOWHERE]
        if inside:
            direct = [one for one in inside if "." not in one.name[len(prefix) :]]
            return (direct or inside)[-1], depth
    return None, 0


def _in_yaml(source: Source, entries: Sequence[Setting], path: Sequence[str], value: str) -> Edit:
    sibling, depth = _sibling(entries, path)
    text = source.text
    if sibling is None:
        end, newline = _end(text)
        return Edit(source.name, (end, end), newline + _nested(path, value, "") + "\n")
    first, _ = line_of(text, sibling.span)
    _, last = line_of(text, (sibling.span[0], sibling.span[1]))
    before = text[first : sibling.span[0]]
    if sibling.name.count(".") != depth or before.strip():
        if sibling.name.count(".") == depth and re.search(r"[{,]\s*$", before):
            inner = ": ".join([path[depth], quoted(value, "yaml")]) if depth == len(path) - 1 else ""
            if inner:
                return Edit(source.name, (sibling.span[1], sibling.span[1]), f", {inner}")
        raise ValueError(f"{'.'.join(path)}: no place for it beside {sibling.name}")
    newline = "\n" + _nested(path[depth:], value, before)
    return Edit(source.name, (last, last), newline)


def _end(text: str) -> tuple[int, str]:
    """Return where a new last line goes, before the marker of another document, and the newline it needs."""
    another = re.search(r"^(?:---|\.\.\.)", text[1:], re.MULTILINE) if text.strip() else None
    lead = re.match(r"(?:[ \t]*(?:#.*)?\n|%.*\n)*---.*\n", text)
    if lead:
        another = re.compile(r"^(?:---|\.\.\.)", re.MULTILINE).search(text, lead.end())
        end = another.start() if another else len(text)
    else:
        end = another.start() + 1 if another else len(text)
    return end, "" if end == 0 or text[end - 1] == "\n" else "\n"


def _nested(path: Sequence[str], value: str, indent: str) -> str:
    lines = [f"{indent}{'  ' * depth}{key}:" for depth, key in enumerate(path)]
    return "\n".join(lines) + f" {quoted(value, 'yaml')}"


def _in_object(source: Source, entries: Sequence[Setting], path: Sequence[str], value: str) -> Edit:
    sibling, depth = _sibling(entries, path)
    if sibling is None:
        top = [one for one in entries if "." not in one.name]
        sibling = top[-1] if top else None
    inner = quoted(value, "json")
    for key in reversed(path[depth + 1 :]):
        inner = f"{{{quoted_key(key)}: {inner}}}"
    text = f"{quoted_key(path[depth])}: {inner}"
    if sibling is None or sibling.name.count(".") != depth:
        brace = source.text.find("{") + 1
        if depth or not brace:
            raise ValueError(f"{'.'.join(path)}: no place for it in {source.name}")
        comma = "," if entries else ""
        return Edit(source.name, (brace, brace), f"{text}{comma}")
    first, _ = line_of(source.text, sibling.span)
    before = source.text[first : sibling.span[0]]
    blank = f"\n{before}" if first and not before.strip() else " "
    return Edit(source.name, (sibling.span[1], sibling.span[1]), f",{blank}{text}")


def quoted_key(key: str) -> str:
    """Return a key as JSON writes it."""
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _in_toml(source: Source, entries: Sequence[Setting], path: Sequence[str], value: str) -> Edit:
    sibling, depth = _sibling(entries, path)
    if sibling is None:
        top = [one for one in entries if "." not in one.name and one.span != NOWHERE]
        if not top:
            return Edit(source.name, (0, 0), f"{'.'.join(path)} = {quoted(value, 'toml')}\n")
        sibling, depth = top[-1], 0
    first, last = line_of(source.text, sibling.span)
    before = source.text[first : sibling.span[0]]
    own = source.text[sibling.span[0] :].partition("=")[0].strip()
    if before.strip() or not sibling.name.endswith(own) or sibling.name.count(".") < depth:
        raise ValueError(f"{'.'.join(path)}: no place for it beside {sibling.name}")
    table = sibling.name[: len(sibling.name) - len(own)]
    if not ".".join(path).startswith(table):
        raise ValueError(f"{'.'.join(path)}: no place for it beside {sibling.name}")
    return Edit(source.name, (last, last), f"\n{before}{'.'.join(path)[len(table) :]} = {quoted(value, 'toml')}")


def changed(source: Source, corrected: str) -> tuple[str, ...]:
    """Return the names of the keys whose values differ in `corrected`. Raises `BadUsage` where that does not parse."""
    before = _values(source)
    after = _values(Source(source.name, corrected, source.kind))
    names = sorted(before.keys() | after.keys())
    return tuple(name for name in names if before.get(name) != after.get(name))


def _values(source: Source) -> dict[str, str]:
    return {one.name: one.value for one in configuration.entries(source)}


def checked(source: Source, corrected: str, intended: Sequence[str] | None) -> None:
    """Raise `BadUsage` where `corrected` does not parse, or where other keys than `intended` change."""
    others = [name for name in changed(source, corrected) if intended is not None and name not in intended]
    if others:
        raise BadUsage(f"{source.name}: not written: the change would touch {', '.join(others[:5])} too")
