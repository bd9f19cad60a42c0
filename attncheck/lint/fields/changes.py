"""How settings of a program with HfArgumentParser are renamed and set, in the text that they were read from.

A name is changed where it stands and its value left as it was written; a setting that stands nowhere is added at the
end of the file that configures the program, else of its command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace

from attncheck.core.errors import AttncheckError
from attncheck.core.job import DROP, UnknownSetting
from attncheck.core.launch import NOWHERE, Edit, Launch, Span
from attncheck.lint.fields.values import Given, Settings, joined
from attncheck.lint.files import editing


def edits(
    launch: Launch, found: Settings, unknown: tuple[UnknownSetting, ...], wanted: Mapping[str, str], form: str = "--"
) -> tuple[Edit, ...]:
    """Return the edits that rename what is in `unknown` and give fields the values `wanted` (DROP: take out).

    What stands nowhere is added to the configuration file where there is one, else to the command in the `form` of
    its arguments: "--" for options, "=" for name=value.
    """
    asked = {(each.name, each.location): each for each in unknown}
    every = [_as_asked(one, asked.get((one.setting.name, one.setting.location))) for one in found.every]
    found = joined(found.names, every)
    made: dict[tuple[str, Span], Edit] = {}
    standing: set[str] = set()
    for one in found.every:
        field = _field(one)
        counts = field in found.given and found.given[field].setting == one.setting
        renamed = (one.setting.name, one.setting.location) in asked
        if field in wanted and (counts or one.known):
            standing.add(field)
        try:
            for edit in _edits(launch, found, one, renamed, counts, wanted.get(field)):
                made[edit.source, edit.span] = edit
        except ValueError:
            continue  # it stands in several places at once
    added = {name: value for name, value in wanted.items() if name not in standing and value != DROP}
    return _apart([*made.values(), *_added(launch, found, added, form)])


def _apart(edits: list[Edit]) -> tuple[Edit, ...]:
    """Return the edits without overlaps: what is taken out beside a neighbour takes less of its blanks along."""
    kept: list[Edit] = []
    for edit in sorted(edits, key=lambda one: (one.source, one.span)):
        last = kept[-1] if kept and kept[-1].source == edit.source else None
        if last is not None and edit.span[0] < last.span[1]:
            if not edit.text:
                edit = replace(edit, span=(last.span[1], max(edit.span[1], last.span[1])))
            elif not last.text:
                kept[-1] = replace(last, span=(last.span[0], max(edit.span[0], last.span[0])))
            else:
                continue
        kept.append(edit)
    return tuple(kept)


def _as_asked(one: Given, unknown: UnknownSetting | None) -> Given:
    """Return a setting as the `Unknown` has it that was made of it."""
    if unknown is None:
        return one if one.known or not one.now else replace(one, now="")
    first = unknown.now[0] if unknown.now else unknown.near
    parts = re.split(r": | ", first.removeprefix("--"), maxsplit=1)
    return replace(one, known=False, now="=".join(parts))


def _field(one: Given) -> str:
    return one.now.partition("=")[0] or one.name.split(".")[0]


def _edits(
    launch: Launch, found: Settings, one: Given, renamed: bool, counts: bool, value: str | None
) -> Iterator[Edit]:
    """Yield the edit that one setting needs, if any. Raises `ValueError` where it stands nowhere."""
    now, _, changed = one.now.partition("=")
    concerned = one.known or renamed
    if (renamed and not (now and counts)) or (value is not None and concerned and (value == DROP or not counts)):
        yield _gone(launch, one)
    elif value is not None and concerned:
        yield _put(launch, found, one, now, value)
    elif renamed and changed:
        yield _put(launch, found, one, now, changed)
    elif renamed:
        yield _named(launch, one, now)


def _gone(launch: Launch, one: Given) -> Edit:
    """Return the edit that takes a setting out, a table with all that is in it."""
    source = launch.file if launch.file and one.setting.location.source == launch.file.name else launch.source
    top, dot, _ = one.setting.name.partition(".")
    parent = re.search(rf"^{re.escape(top)}(?=\s*:)", source.text, re.MULTILINE) if dot and not one.option else None
    if parent is None or one.known or source.kind != "yaml":
        return editing.dropped(source, one.setting.span)
    inner = [entry.span[1] for entry in launch.entries if entry.name.startswith(f"{top}.")]
    return Edit(source.name, (parent.start(), _end_of_line(source.text, max(inner))), "")


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end + 1


def _named(launch: Launch, one: Given, name: str) -> Edit:
    """Return the edit that changes the name of a setting. Raises `ValueError` where the name is not to be found."""
    source = launch.file if launch.file and one.setting.location.source == launch.file.name else launch.source
    start, end = one.setting.span
    written = one.setting.name if one.option else one.setting.name.split(".")[-1]
    at = source.text.find(written, start, end) if start >= 0 else -1
    if not start <= at <= start + 1:
        raise ValueError(f"{written} is put together from several places")
    return Edit(source.name, (at, at + len(written)), f"--{name}" if one.option else name)


def _put(launch: Launch, found: Settings, one: Given, name: str, value: str) -> Edit:
    """Return the edit that gives a setting a value, under another name where `name` is not ""."""
    negated = one.option and one.setting.name.lstrip("-").startswith(("no_", "no-"))
    if not name and not negated:
        return editing.replaced(one.setting, value)
    if one.setting.span == NOWHERE:
        raise ValueError(f"{one.setting.name} is put together from several places")
    own = name or one.name
    if one.option:
        return Edit(one.setting.location.source, one.setting.span, _option(found, own, value))
    kind = launch.file.kind if launch.file and one.setting.location.source == launch.file.name else "command"
    text = f'"{own}": "{value}"' if kind == "json" else f"{own}: {value}" if kind == "yaml" else f"{own}={value}"
    return Edit(one.setting.location.source, one.setting.span, text)


def _option(found: Settings, name: str, value: str) -> str:
    """Return an option as text; a switch that is on has no value."""
    option = found.names.option(name)
    switch = option is not None and option.kind == "bool" and value == "true"
    return f"--{name}" if switch else f"--{name} {shlex.quote(value)}"


def _added(launch: Launch, found: Settings, added: Mapping[str, str], form: str) -> Iterator[Edit]:
    for name, value in added.items():
        try:
            if launch.file is not None:
                yield editing.added(launch.file, name, value)
            elif launch.words:
                text = _option(found, name, value) if form == "--" else shlex.quote(f"{name}={value}")
                yield editing.appended(launch, text)
        except (ValueError, AttncheckError):
            continue  # no argument, or no table, stands in the source as it is
