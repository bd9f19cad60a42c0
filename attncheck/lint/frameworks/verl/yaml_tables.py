"""Puts keys into the tables of a YAML file, several of one new table together."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from attncheck.core.launch import Edit, Setting, Source
from attncheck.lint.files.edit_text import quoted


def added(source: Source, entries: Sequence[Setting], wanted: Mapping[str, str]) -> Iterator[Edit]:
    """Yield the edits that give a file the keys `wanted`, each below the head of the innermost table that exists.

    Raises `ValueError` for a table whose head stands on no line of its own (`a: {b: 1}`).
    """
    by_table: dict[str, dict[str, str]] = {}
    for key, value in wanted.items():
        table = _table(entries, key)
        by_table.setdefault(table, {})[key[len(table) :].lstrip(".")] = value
    for table, keys in by_table.items():
        at, indent = _head(source, entries, table)
        yield Edit(source.name, (at, at), "".join(_lines(_tree(keys), indent)))


def emptied(source: Source, entries: Sequence[Setting], gone: Collection[str]) -> Iterator[tuple[str, Edit]]:
    """Yield the tables that hold nothing but keys that go, the outermost of each, with the edit that takes it out."""
    found: list[str] = []
    for name in gone:
        parts = name.split(".")
        for stop in range(1, len(parts)):
            table = ".".join(parts[:stop])
            inside = [one for one in entries if one.name.startswith(f"{table}.")]
            if all(one.name in gone for one in inside) and not table.startswith(tuple(f"{each}." for each in found)):
                if table not in found:
                    found.append(table)
                    yield table, _without(source, entries, table, inside)
                break


def _without(source: Source, entries: Sequence[Setting], table: str, inside: Sequence[Setting]) -> Edit:
    after, _ = _head(source, entries, table)
    start = source.text.rfind("\n", 0, after - 1) + 1
    end = source.text.find("\n", max(one.span[1] for one in inside))
    return Edit(source.name, (start, len(source.text) if end < 0 else end + 1), "")


def _table(entries: Sequence[Setting], key: str) -> str:
    parts = key.split(".")
    tables = (".".join(parts[:stop]) for stop in range(len(parts) - 1, 0, -1))
    return next((table for table in tables if any(one.name.startswith(f"{table}.") for one in entries)), "")


def _head(source: Source, entries: Sequence[Setting], table: str) -> tuple[int, str]:
    """Return where the line after a table's head begins, and how far its keys are indented."""
    text = source.text
    if not table:
        return len(text), ""
    inside = min(one.span[0] for one in entries if one.name.startswith(f"{table}."))
    head = re.compile(rf"^(?P<indent> *){re.escape(table.rpartition('.')[2])}:[ \t]*(#.*)?\n", re.MULTILINE)
    heads = [found for found in head.finditer(text, 0, inside) if len(found["indent"]) >= table.count(".")]
    if not heads:
        raise ValueError(f"{table}: its head has no line of its own")
    below = re.compile(r"(?:[ \t]*(?:#.*)?\n)*(?P<indent> +)").match(text, heads[-1].end())
    return heads[-1].end(), below["indent"] if below else heads[-1]["indent"] + "  "


def _tree(keys: Mapping[str, str]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in keys.items():
        *tables, name = key.split(".")
        inner = tree
        for table in tables:
            inner = inner.setdefault(table, {})
        inner[name] = value
    return tree


def _lines(tree: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield f"{indent}{name}:\n"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{name}: {quoted(value, 'yaml')}\n"
