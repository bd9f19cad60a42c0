"""Changes the fields of a launch whose settings are keys of a file and options of a command, wherever each stands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from attncheck.core.errors import BadUsage
from attncheck.core.launch import NOWHERE, Edit, Launch, Setting, Source
from attncheck.lint.files import editing
from attncheck.lint.files.configuration import Entry
from attncheck.lint.files.edit_text import quoted

Spelled = Callable[[str, str], str]  # a field and its value -> an option of the command, ready to paste


@dataclass
class Changes:
    """What is to become of settings: another name or value, or nothing; and what is to be added."""

    settings: dict[Setting, tuple[str, str] | None] = field(default_factory=dict)
    added: dict[str, str] = field(default_factory=dict)

    def set(self, written: Mapping[str, Setting], name: str, value: str | None) -> None:
        """Give a field a value where it is written, or add it; with None take it out."""
        setting = written.get(name)
        if setting is None and value is not None:
            self.added[name] = value
        elif setting is not None:
            self.settings[setting] = (name, value) if value is not None else None


def edits(launch: Launch, changes: Changes, spelled: Spelled) -> tuple[Edit, ...]:
    """Return the edits; a setting that is put together from several places is left as it is."""
    found: list[Edit] = []
    for setting, change in changes.settings.items():
        found += _safely(lambda s=setting, c=change: _changed(launch, s, c, spelled))  # type: ignore[misc]
    for name, value in changes.added.items():
        found += _safely(lambda n=name, v=value: _added(launch, n, v, spelled))  # type: ignore[misc]
    return _apart(found)


def _safely(make: Callable[[], Iterable[Edit]]) -> list[Edit]:
    try:
        return list(make())
    except (ValueError, BadUsage):
        return []


def _source(launch: Launch, setting: Setting) -> Source:
    file = launch.file
    return file if file is not None and setting.location.source == file.name else launch.source


def _changed(launch: Launch, setting: Setting, change: tuple[str, str] | None, spelled: Spelled) -> Iterator[Edit]:
    source = _source(launch, setting)
    if change is None:
        yield editing.dropped(source, setting.span)
    elif isinstance(setting, Entry):
        yield from _changed_entry(source, setting, *change)
    elif setting.span != NOWHERE:
        text = spelled(*change)
        if source.text[slice(*setting.span)] != text:
            yield Edit(source.name, setting.span, text)


def _changed_entry(source: Source, entry: Entry, name: str, value: str) -> Iterator[Edit]:
    """Yield the edits of a key: its name and its value each where it stands, so that comments stay."""
    key = entry.name.rsplit(".", 1)[-1]
    begin = entry.span[0] + (source.text[entry.span[0] : entry.span[0] + 1] in ("'", '"'))
    if entry.span == NOWHERE or source.text[begin : begin + len(key)] != key:
        raise ValueError(f"{entry.name} does not stand where it was read")
    new = name.rsplit(".", 1)[-1]
    if new != key:
        yield Edit(source.name, (begin, begin + len(key)), new)
    if value != entry.value:
        if entry.value_span == NOWHERE or entry.value_span[0] < begin + len(key):
            raise ValueError(f"the value of {entry.name} stands nowhere")
        blank = " " if entry.value_span[0] == entry.value_span[1] else ""
        yield Edit(source.name, entry.value_span, blank + quoted(value, entry.kind))


def _added(launch: Launch, name: str, value: str, spelled: Spelled) -> Iterator[Edit]:
    if launch.file is not None:
        yield editing.added(launch.file, name, value)
    elif launch.words:
        yield editing.appended(launch, spelled(name, value))


def _apart(found: Iterable[Edit]) -> tuple[Edit, ...]:
    """Return the edits with those joined that take out text together; of others that overlap the first stays."""
    kept: list[Edit] = []
    for edit in sorted(found, key=lambda one: (one.source, one.span)):
        last = kept[-1] if kept else None
        if last is None or last.source != edit.source or edit.span[0] >= last.span[1]:
            kept.append(edit)
        elif not last.text and not edit.text:
            kept[-1] = Edit(last.source, (last.span[0], max(last.span[1], edit.span[1])), "")
    return tuple(kept)
