"""How settings of an OpenRLHF launch are renamed and set, in the text that they were read from.

A name is changed where it stands and its value left as it was written, quotes, variables and all; only a value that
changes with its name is written anew.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from attncheck.core.job import DROP
from attncheck.core.launch import NOWHERE, Edit, Launch, SourceLocation, Span
from attncheck.lint.files import editing
from attncheck.lint.frameworks.openrlhf import names
from attncheck.lint.frameworks.openrlhf import tables as renamed
from attncheck.lint.frameworks.openrlhf.names import Named
from attncheck.lint.frameworks.openrlhf.values import Given

BETWEEN = re.compile(r"(?:[ \t]|\\?\r?\n)*")  # blanks and continued lines
OFF = ("off", DROP)


@dataclass(frozen=True)
class Entry:
    """One option as it was written, and what is to stand in its place."""

    given: Given
    now: tuple[Named, ...]
    changed: bool = False

    def has(self, name: str) -> bool:
        """Say whether an option of this name stands here in the end."""
        return any(each == name for each, _ in self.now)


def edits(
    launch: Launch,
    trainer: str,
    version: str,
    written: tuple[Given, ...],
    unknown: Collection[tuple[str, SourceLocation]],
    sets: Mapping[str, str],
) -> tuple[Edit, ...]:
    """Return the edits that rename the settings in `unknown` and set `sets` (newest names, or the release's own)."""
    all_ = {each.name: each.values for each in written if each.name}
    entries = _renamed(trainer, version, written, unknown, all_)
    added: list[Named] = []
    for name, value in sets.items():
        wanted, others = _wanted(trainer, version, name, value, all_)
        if wanted is not None:
            entries, more = _set(entries, wanted, others)
            added += more
    if added and entries and entries[-1].changed and not entries[-1].now:
        entries[-1] = replace(entries[-1], now=tuple(added))
        added = []
    found = [edit for entry in entries if entry.changed and entry.now for edit in _edit(launch, entry)]
    return (*found, *_dropped(launch, entries), *_appended(launch, added))


def _renamed(
    trainer: str,
    version: str,
    written: tuple[Given, ...],
    unknown: Collection[tuple[str, SourceLocation]],
    all_: Mapping[str, tuple[str, ...]],
) -> list[Entry]:
    """Return the options with those in `unknown` renamed, each name once: what stood there already stays."""
    asked = [(each.setting.name, each.setting.location) in unknown for each in written]
    placed = {each.name for each, new in zip(written, asked) if not new}
    found = []
    for each, new in zip(written, asked):
        if not new:
            found.append(Entry(each, ((each.name, each.values),)))
            continue
        now = names.translated(trainer, version, (each.name, each.values), all_) if each.name else ()
        now = tuple(one for one in now if one[0] not in placed)
        placed |= {name for name, _ in now}
        found.append(Entry(each, now, changed=True))
    return found


def _wanted(
    trainer: str, version: str, name: str, value: str, all_: Mapping[str, tuple[str, ...]]
) -> tuple[Named | None, tuple[str, ...]]:
    """Return the option to set, and those that it takes the place of; (None, ()) where this release has none."""
    here = names.options(trainer, version)
    own = [each for each in (name, *renamed.flat(trainer).get(name, ())) if each in here]
    older = {"ds.attn_implementation": "flash_attn", "ds.param_dtype": "bf16", "data.max_len": "prompt_max_len"}
    others = (*own, *([older[name]] if older.get(name) in here else []))
    if not others:
        return None, ()
    if value in OFF or (value == "eager" and others == ("flash_attn",)):
        return ("", ()), others
    if name in here:
        return (name, () if here[name].takes == 0 else tuple(value.split())), others
    found = names.local(trainer, version, name, () if value == "on" else (value,), all_)
    return (found[0], others) if found else (None, ())


def _set(entries: list[Entry], wanted: Named, others: tuple[str, ...]) -> tuple[list[Entry], list[Named]]:
    """Return the options with one set, and it itself where it stands nowhere yet. The name "" takes them all out."""
    name, _ = wanted
    last = max((index for index, entry in enumerate(entries) if name and entry.has(name)), default=-1)
    found = []
    for index, entry in enumerate(entries):
        gone = () if index == last else others
        now = tuple(wanted if each == name and index == last else (each, values)
                    for each, values in entry.now if each not in gone or (each == name and name))  # fmt: skip
        same = now == entry.now
        found.append(entry if same else replace(entry, now=now, changed=True))
    return found, [wanted] if name and last < 0 else []


def _edit(launch: Launch, entry: Entry) -> list[Edit]:
    """Return the edits that put what is to stand in the place of an option."""
    source, given = launch.source.name, entry.given
    (name, values), rest = entry.now[0], entry.now[1:]
    if values == given.values and not rest:
        span = _named(launch, given)
        return (
            [] if name == given.name and given.known else [Edit(source, span, f"--{name}")] if span != NOWHERE else []
        )
    if name == given.name and given.known and values and not rest and given.setting.value_span != NOWHERE:
        return [editing.replaced(given.setting, " ".join(values))]
    if not _editable(launch, given):
        return []
    return [Edit(source, given.setting.span, " ".join(_option(launch, given, each) for each in entry.now))]


def _editable(launch: Launch, given: Given) -> bool:
    """Say whether an option stands somewhere by itself: not in a variable that stands for several words."""
    spans = Counter(word.span for word in launch.words)
    return given.setting.span != NOWHERE and all(spans[word.span] == 1 for word in given.words)


def _named(launch: Launch, given: Given) -> Span:
    """Return where the name of an option stands, `NOWHERE` where it is put together."""
    start, end = given.words[0].span
    name = given.setting.name
    there = launch.source.text[start : start + len(name)] == name and start + len(name) <= end
    return (start, start + len(name)) if there else NOWHERE


def _option(launch: Launch, given: Given, now: Named) -> str:
    """Return an option as text: values that stay are as they were written."""
    name, values = now
    span = given.setting.value_span
    if values and values == given.values and span != NOWHERE:
        return f"--{name} {launch.source.text[slice(*span)]}"
    return " ".join([f"--{name}", *map(shlex.quote, values)])


def _dropped(launch: Launch, entries: list[Entry]) -> list[Edit]:
    """Return the edits that take options out, neighbours together: each alone would cut into the other's line."""
    spans: list[Span] = []
    joined = False
    for entry in entries:
        out = entry.changed and not entry.now and _editable(launch, entry.given)
        if out:
            span = entry.given.setting.span
            if joined and BETWEEN.fullmatch(launch.source.text, spans[-1][1], max(span[0], spans[-1][1])):
                spans[-1] = (spans[-1][0], span[1])
            else:
                spans.append(span)
        joined = out
    return [editing.dropped(launch.source, span) for span in spans]


def _appended(launch: Launch, added: list[Named]) -> list[Edit]:
    """Return the edits that put options at the end of the command."""
    if all(word.span == NOWHERE for word in launch.words):
        return []
    return [editing.appended(launch, " ".join([f"--{name}", *map(shlex.quote, values)])) for name, values in added]
