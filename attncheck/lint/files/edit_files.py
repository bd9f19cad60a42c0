"""Builds the edits that remove keys of configuration files and add new ones, in the existing layout."""

import re
from collections.abc import Sequence

from attncheck.core.launch import NOWHERE, Edit, Setting, Source, Span
from attncheck.lint.files import configuration, python
from attncheck.lint.files.edit_text import find_line_bounds, quote_value

DOCUMENT_MARKER = re.compile(r"^(?:---|\.\.\.)(?=\s|\Z)", re.MULTILINE)
TRAILING_COMMENT = re.compile(r"[ \t]*(#.*)?")


def remove_key(source: Source, span: Span) -> Edit:
    """Return the edit that removes a key with its value: its lines, or its part of a `{…}` with one comma."""
    text = source.text
    line_start, line_end = find_line_bounds(text, span)
    before, after = text[line_start : span[0]], text[span[1] : line_end]
    if source.kind != "json" and not before.strip() and TRAILING_COMMENT.fullmatch(after):
        return Edit(source.name, (line_start, min(line_end + 1, len(text))), "")
    list_item = re.fullmatch(r"[ \t]*(?:-[ \t]+)+", before)
    if source.kind == "yaml" and list_item and TRAILING_COMMENT.fullmatch(after):
        return _remove_first_of_item(source, span, line_end, len(before))
    comma = re.compile(r"\s*,[ \t]*(?:\r?\n[ \t]*)?").match(text, span[1])
    if comma:
        return Edit(source.name, (span[0], comma.end()), "")
    comma_before = re.search(r",\s*$", text[: span[0]])
    return Edit(source.name, (comma_before.start() if comma_before else span[0], span[1]), "")


def _remove_first_of_item(source: Source, span: Span, line_end: int, indent: int) -> Edit:
    """Return the edit that removes the first key of `- key: value`; the next key or `{}` replaces it."""
    next_key = re.compile(rf"\n {{{indent}}}(?=[^\s#-])").match(source.text, line_end)
    if next_key:
        return Edit(source.name, (span[0], next_key.end()), "")
    return Edit(source.name, span, "{}")


def add_key(source: Source, name: str, value: str) -> Edit:
    """Return the edit that adds a key to a file, in its innermost existing table.

    Raises `ValueError` if nothing can be added to that table, and `BadUsage` for a file that does not parse.
    """
    if source.kind == "python":
        return python.add_argument(source, name, value)
    entries = configuration.parse_entries(source)
    path = name.split(".")
    if source.kind == "json":
        return _add_to_json(source, entries, path, value)
    if source.kind == "toml":
        return _add_to_toml(source, entries, path, value)
    return _add_to_yaml(source, entries, path, value)


def _find_sibling(entries: Sequence[Setting], path: Sequence[str]) -> tuple[Setting | None, int]:
    """Return the last key in the innermost existing table of `path`, and the depth of that table."""
    for depth in range(len(path) - 1, 0, -1):
        prefix = ".".join(path[:depth]) + "."
        entries_below = [entry for entry in entries if entry.name.startswith(prefix) and entry.span != NOWHERE]
        if entries_below:
            direct_keys = [entry for entry in entries_below if "." not in entry.name[len(prefix) :]]
            return (direct_keys or entries_below)[-1], depth
    return None, 0


def _add_to_yaml(source: Source, entries: Sequence[Setting], path: Sequence[str], value: str) -> Edit:
    sibling, depth = _find_sibling(entries, path)
    text = source.text
    if sibling is None:
        end, newline = _find_document_end(text)
        return Edit(source.name, (end, end), newline + _format_nested_key(path, value, "") + "\n")
    line_start, _ = find_line_bounds(text, sibling.span)
    _, line_end = find_line_bounds(text, (sibling.span[0], sibling.span[1]))
    before = text[line_start : sibling.span[0]]
    if sibling.name.count(".") != depth or before.strip():
        if sibling.name.count(".") == depth and re.search(r"[{,]\s*$", before):
            pair = ": ".join([path[depth], quote_value(value, "yaml")]) if depth == len(path) - 1 else ""
            if pair:
                return Edit(source.name, (sibling.span[1], sibling.span[1]), f", {pair}")
        raise ValueError(f"{'.'.join(path)}: cannot be added next to {sibling.name}")
    newline = "\n" + _format_nested_key(path[depth:], value, before)
    return Edit(source.name, (line_end, line_end), newline)


def _find_document_end(text: str) -> tuple[int, str]:
    """Return the offset for a new last line, before the marker of another document, and the newline it needs."""
    next_marker = DOCUMENT_MARKER.search(text, 1) if text.strip() else None
    first_marker = re.match(r"(?:[ \t]*(?:#.*)?\n|%.*\n)*---.*\n", text)
    if first_marker:
        next_marker = DOCUMENT_MARKER.search(text, first_marker.end())
    end = next_marker.start() if next_marker else len(text)
    return end, "" if end == 0 or text[end - 1] == "\n" else "\n"


def _format_nested_key(path: Sequence[str], value: str, indent: str) -> str:
    lines = [f"{indent}{'  ' * depth}{key}:" for depth, key in enumerate(path)]
    return "\n".join(lines) + f" {quote_value(value, 'yaml')}"


def _add_to_json(source: Source, entries: Sequence[Setting], path: Sequence[str], value: str) -> Edit:
    sibling, depth = _find_sibling(entries, path)
    if sibling is None:
        top_level = [entry for entry in entries if "." not in entry.name]
        sibling = top_level[-1] if top_level else None
    nested = quote_value(value, "json")
    for key in reversed(path[depth + 1 :]):
        nested = f"{{{quote_json_key(key)}: {nested}}}"
    pair = f"{quote_json_key(path[depth])}: {nested}"
    if sibling is None or sibling.name.count(".") != depth:
        brace = source.text.find("{") + 1
        if depth or not brace:
            raise ValueError(f"{'.'.join(path)}: cannot be added to {source.name}")
        comma = "," if entries else ""
        return Edit(source.name, (brace, brace), f"{pair}{comma}")
    line_start, _ = find_line_bounds(source.text, sibling.span)
    before = source.text[line_start : sibling.span[0]]
    separator = f"\n{before}" if line_start and not before.strip() else " "
    return Edit(source.name, (sibling.span[1], sibling.span[1]), f",{separator}{pair}")


def quote_json_key(key: str) -> str:
    """Return a key in JSON syntax, with its quotes."""
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _add_to_toml(source: Source, entries: Sequence[Setting], path: Sequence[str], value: str) -> Edit:
    sibling, depth = _find_sibling(entries, path)
    if sibling is None:
        top_level = [entry for entry in entries if "." not in entry.name and entry.span != NOWHERE]
        if not top_level:
            return Edit(source.name, (0, 0), f"{'.'.join(path)} = {quote_value(value, 'toml')}\n")
        sibling, depth = top_level[-1], 0
    line_start, line_end = find_line_bounds(source.text, sibling.span)
    before = source.text[line_start : sibling.span[0]]
    written_key = source.text[sibling.span[0] :].partition("=")[0].strip()
    if before.strip() or not sibling.name.endswith(written_key) or sibling.name.count(".") < depth:
        raise ValueError(f"{'.'.join(path)}: cannot be added next to {sibling.name}")
    prefix = sibling.name[: len(sibling.name) - len(written_key)]
    if not ".".join(path).startswith(prefix):
        raise ValueError(f"{'.'.join(path)}: cannot be added next to {sibling.name}")
    return Edit(
        source.name, (line_end, line_end), f"\n{before}{'.'.join(path)[len(prefix) :]} = {quote_value(value, 'toml')}"
    )


def find_changed_keys(source: Source, corrected: str) -> tuple[str, ...]:
    """Return the names of the keys whose values differ in `corrected`. Raises `BadUsage` if that does not parse."""
    before = _parse_values(source)
    after = _parse_values(Source(source.name, corrected, source.kind))
    names = sorted(before.keys() | after.keys())
    return tuple(name for name in names if before.get(name) != after.get(name))


def _parse_values(source: Source) -> dict[str, str]:
    return {entry.name: entry.value for entry in configuration.parse_entries(source)}
