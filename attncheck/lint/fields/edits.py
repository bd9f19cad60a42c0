"""Edits of a launch whose settings are keys of a configuration file and options of its command."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from attncheck.core.io.errors import BadUsage
from attncheck.core.launch import NOWHERE, Edit, Launch, Setting, Source, Word
from attncheck.lint.files import editing
from attncheck.lint.files.configuration import Entry

OptionFormatter = Callable[[str, str], str]  # (field, value) -> an option of the command, ready to paste
PACKING_SWITCHES = ("packing", "use_packing", "enable_packing", "pack_sequences")  # these take no value


@dataclass
class Changes:
    """Changes to make: per setting a new name and value, or None to remove it; and fields to add."""

    settings: dict[Setting, tuple[str, str] | None] = field(default_factory=dict)
    added: dict[str, str] = field(default_factory=dict)

    def set_field(self, by_field: Mapping[str, Setting], name: str, value: str | None) -> None:
        """Give a field a new value in place, or add it; None removes it, or all keys of the table."""
        if value is None:
            self.settings |= {own: None for field, own in by_field.items() if f"{field}.".startswith(f"{name}.")}
        elif name in by_field:
            self.settings[by_field[name]] = (name, value)
        else:
            self.added[name] = value


def changes_to_edits(launch: Launch, changes: Changes, format_option: OptionFormatter) -> tuple[Edit, ...]:
    """Return the edits that make `changes`; a setting assembled from several places is left unchanged."""
    edits: list[Edit] = []
    for setting, change in changes.settings.items():
        edits += _collect_edits(lambda s=setting, c=change: _edit_setting(launch, s, c, format_option))  # type: ignore[misc]
    for name, value in changes.added.items():
        edits += _collect_edits(lambda n=name, v=value: _add_field(launch, n, v, format_option))  # type: ignore[misc]
    return _merge_overlaps(edits)


def _collect_edits(make_edits: Callable[[], Iterable[Edit]]) -> list[Edit]:
    try:
        return list(make_edits())
    except (ValueError, BadUsage):
        return []


def _find_source(launch: Launch, setting: Setting) -> Source:
    file = launch.file
    return file if file is not None and setting.location.source == file.name else launch.source


def _edit_setting(
    launch: Launch, setting: Setting, change: tuple[str, str] | None, format_option: OptionFormatter
) -> Iterator[Edit]:
    source = _find_source(launch, setting)
    if change is None:
        yield editing.remove_setting(source, setting.span)
    elif isinstance(setting, Entry):
        yield from _edit_entry(source, setting, *change)
    elif setting.span != NOWHERE:
        yield from _edit_option(source, setting, *change, format_option)


def _edit_option(
    source: Source, setting: Setting, name: str, value: str, format_option: OptionFormatter
) -> Iterator[Edit]:
    """Yield the edit of an option; if its value is kept, only its name is edited, which keeps variables and quotes."""
    text = source.text[slice(*setting.span)]
    name_in_text = re.match(r"--[\w.-]+", text)
    new_text = format_option(name, value)
    new_name = re.match(r"--[\w.-]+", new_text)
    if value == setting.value and name_in_text and new_name:
        new_text = new_name[0] + text[name_in_text.end() :]
    if text != new_text:
        yield Edit(source.name, setting.span, new_text)


def _edit_entry(source: Source, entry: Entry, name: str, value: str) -> Iterator[Edit]:
    """Yield the edits of a key's name and value, each in place, so that comments are kept."""
    key = entry.name.rsplit(".", 1)[-1]
    start = entry.span[0] + (source.text[entry.span[0] : entry.span[0] + 1] in ("'", '"'))
    if entry.span == NOWHERE or source.text[start : start + len(key)] != key:
        raise ValueError(f"{entry.name} is no longer where it was")
    new_key = name.rsplit(".", 1)[-1]
    if new_key != key:
        yield Edit(source.name, (start, start + len(key)), new_key)
    if value != entry.value:
        yield entry.replace_value(value)


def _add_field(launch: Launch, name: str, value: str, format_option: OptionFormatter) -> Iterator[Edit]:
    if launch.file is not None:
        yield editing.add_key(launch.file, name, value)
    elif launch.words:
        yield editing.append_argument(launch, format_option(name, value))


def _merge_overlaps(edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """Return the edits without overlaps: overlapping removals are joined; of other edits the first is kept."""
    kept: list[Edit] = []
    for edit in sorted(edits, key=lambda edit: (edit.source, edit.span)):
        last = kept[-1] if kept else None
        if last is None or last.source != edit.source or edit.span[0] >= last.span[1]:
            kept.append(edit)
        elif not last.text and not edit.text:
            kept[-1] = Edit(last.source, (last.span[0], max(last.span[1], edit.span[1])), "")
    return tuple(kept)


def find_switches(launch: Launch, names: Sequence[str]) -> list[tuple[str, Word]]:
    """Return the options with these names that a launch's command gives without a value, each with its word."""
    switches = []
    for word, following in zip(launch.words, (*launch.words[1:], None)):
        name = word.text.lstrip("-").replace("-", "_")
        is_bare = following is None or following.text.startswith("-")
        if word.text.startswith("--") and name in names and is_bare:
            switches.append((name, word))
    return switches


def drop_switches(launch: Launch, names: Sequence[str]) -> Iterator[Edit]:
    """Yield the edits that remove these switches from a launch's command."""
    for _, word in find_switches(launch, names):
        if word.span[0] >= 0:
            yield Edit(word.location.source or launch.source.name, word.span, "")
