"""Adds keys to the tables of a YAML file, joins the keys of each new table, and removes emptied tables."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from attncheck.core.launch import Edit, Setting, Source
from attncheck.lint.files.edit_text import quote_value


def add_keys(source: Source, entries: Sequence[Setting], new_values: Mapping[str, str]) -> Iterator[Edit]:
    """Yield the edits that add `new_values` to a file, each below the head of the innermost existing table.

    Raises `ValueError` for a table that shares its line (`a: {b: 1}`).
    """
    by_table: dict[str, dict[str, str]] = {}
    for key, value in new_values.items():
        table = _find_innermost_table(entries, key)
        by_table.setdefault(table, {})[key[len(table) :].lstrip(".")] = value
    for table, keys in by_table.items():
        offset, indent = _find_table_head(source, entries, table)
        yield Edit(source.name, (offset, offset), "".join(_format_tree(_nest_keys(keys), indent)))


def remove_emptied_tables(
    source: Source, entries: Sequence[Setting], removed_keys: Collection[str]
) -> Iterator[tuple[str, Edit]]:
    """Yield the outermost tables that contain only `removed_keys`, each with the edit that removes it."""
    emptied_tables: list[str] = []
    for name in removed_keys:
        parts = name.split(".")
        for depth in range(1, len(parts)):
            table = ".".join(parts[:depth])
            table_entries = [entry for entry in entries if entry.name.startswith(f"{table}.")]
            is_emptied = all(entry.name in removed_keys for entry in table_entries)
            if is_emptied and not table.startswith(tuple(f"{outer}." for outer in emptied_tables)):
                if table not in emptied_tables:
                    emptied_tables.append(table)
                    yield table, _remove_table(source, entries, table, table_entries)
                break


def _remove_table(source: Source, entries: Sequence[Setting], table: str, table_entries: Sequence[Setting]) -> Edit:
    body_start, _ = _find_table_head(source, entries, table)
    start = source.text.rfind("\n", 0, body_start - 1) + 1
    end = source.text.find("\n", max(entry.span[1] for entry in table_entries))
    return Edit(source.name, (start, len(source.text) if end < 0 else end + 1), "")


def _find_innermost_table(entries: Sequence[Setting], key: str) -> str:
    parts = key.split(".")
    tables = (".".join(parts[:depth]) for depth in range(len(parts) - 1, 0, -1))
    return next((table for table in tables if any(entry.name.startswith(f"{table}.") for entry in entries)), "")


def _find_table_head(source: Source, entries: Sequence[Setting], table: str) -> tuple[int, str]:
    """Return the offset of the line after a table's head, and the indentation of its keys."""
    text = source.text
    if not table:
        return len(text), ""
    body_start = min(entry.span[0] for entry in entries if entry.name.startswith(f"{table}."))
    head = re.compile(rf"^(?P<indent> *){re.escape(table.rpartition('.')[2])}:[ \t]*(#.*)?\n", re.MULTILINE)
    heads = [match for match in head.finditer(text, 0, body_start) if len(match["indent"]) >= table.count(".")]
    if not heads:
        raise ValueError(f"{table}: its first line is shared with another key")
    body = re.compile(r"(?:[ \t]*(?:#.*)?\n)*(?P<indent> +)").match(text, heads[-1].end())
    return heads[-1].end(), body["indent"] if body else heads[-1]["indent"] + "  "


def _nest_keys(keys: Mapping[str, str]) -> dict[str, Any]:
    """Return dotted keys as nested tables."""
    tree: dict[str, Any] = {}
    for key, value in keys.items():
        *tables, name = key.split(".")
        subtree = tree
        for table in tables:
            subtree = subtree.setdefault(table, {})
        subtree[name] = value
    return tree


def _format_tree(tree: Mapping[str, Any], indent: str) -> Iterator[str]:
    """Yield the lines of nested tables in YAML."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield f"{indent}{name}:\n"
            yield from _format_tree(value, indent + "  ")
        else:
            yield f"{indent}{name}: {quote_value(value, 'yaml')}\n"
