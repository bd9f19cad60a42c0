"""Renames and sets options of an OpenRLHF launch, in the text that they were read from.

A name is changed in place. Its value keeps its written form, including quotes and variables, unless it changes with the
name.
"""

import re
import shlex
from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from attncheck.lint.fields import DROP, NOWHERE, Edit, Launch, SourceLocation, Span
from attncheck.lint.files import editing
from attncheck.lint.frameworks.openrlhf import names, tables
from attncheck.lint.frameworks.openrlhf.names import AllOptions, NamedValues
from attncheck.lint.frameworks.openrlhf.values import ParsedOption

BLANKS = re.compile(r"(?:[ \t]|\\?\r?\n)*")  # blanks and line continuations
OFF_VALUES = ("off", DROP)


class OptionChange(NamedTuple):
    """A written option and its replacement; () removes it."""

    option: ParsedOption
    replacement: tuple[NamedValues, ...]
    is_changed: bool = False

    def has_name(self, name: str) -> bool:
        """Return whether the replacement has an option of this name."""
        return any(new_name == name for new_name, _ in self.replacement)


def build_edits(
    launch: Launch,
    trainer: str,
    version: str,
    parsed_options: tuple[ParsedOption, ...],
    unknown_options: Collection[tuple[str, SourceLocation]],
    sets: Mapping[str, str],
) -> tuple[Edit, ...]:
    """Return the edits that rename `unknown_options` and set `sets` (in the newest names, or the release's own)."""
    all_options = {option.name: option.values for option in parsed_options if option.name}
    changes = _rename_options(trainer, version, parsed_options, unknown_options, all_options)
    added: list[NamedValues] = []
    for name, value in sets.items():
        option_to_set, replaced_names = _resolve_setting(trainer, version, name, value, all_options)
        if option_to_set is not None:
            changes, missing = _set_option(changes, option_to_set, replaced_names)
            added += missing
    if added and changes and changes[-1].is_changed and not changes[-1].replacement:
        changes[-1] = changes[-1]._replace(replacement=tuple(added))
        added = []
    to_replace = (change for change in changes if change.is_changed and change.replacement)
    edits = [edit for change in to_replace for edit in _edit_option(launch, change)]
    return (*edits, *_remove_options(launch, changes), *_append_options(launch, added))


def _rename_options(
    trainer: str,
    version: str,
    parsed_options: tuple[ParsedOption, ...],
    unknown_options: Collection[tuple[str, SourceLocation]],
    all_options: AllOptions,
) -> list[OptionChange]:
    """Return the options with `unknown_options` renamed; a new name that the launch already has is omitted.

    An option that is written twice remains so: argparse accepts that and uses the last one.
    """
    are_unknown = [(option.setting.name, option.setting.location) in unknown_options for option in parsed_options]
    used_names = {option.name: "" for option, is_unknown in zip(parsed_options, are_unknown) if not is_unknown}
    changes = []
    for option, is_unknown in zip(parsed_options, are_unknown):
        if not is_unknown:
            changes.append(OptionChange(option, ((option.name, option.values),)))
            continue
        named_values = (option.name, all_options.get(option.name, option.values))
        new_options = names.translate_option(trainer, version, named_values, all_options) if option.name else ()
        new_options = tuple(
            (name, values) for name, values in new_options if used_names.get(name, option.name) == option.name
        )
        used_names |= {name: option.name for name, _ in new_options}
        changes.append(OptionChange(option, new_options, is_changed=True))
    return changes


def _resolve_setting(
    trainer: str, version: str, name: str, value: str, all_options: AllOptions
) -> tuple[NamedValues | None, tuple[str, ...]]:
    """Return the option to set and the options that it replaces; (None, ()) if this release has none for it."""
    release_options = names.parser_options(trainer, version)
    candidates = (name, *tables.flat_names(trainer).get(name, ()))
    older = {"ds.attn_implementation": "flash_attn", "ds.param_dtype": "bf16", "data.max_len": "prompt_max_len"}
    replaced_names = tuple(
        candidate for candidate in (*candidates, older.get(name, "")) if candidate in release_options
    )
    if not replaced_names:
        return None, ()
    if value in OFF_VALUES or (value == "eager" and replaced_names == ("flash_attn",)):
        return ("", ()), replaced_names
    if name in release_options:
        return (name, () if release_options[name].nargs == 0 else tuple(value.split())), replaced_names
    new_options = names.from_newest_name(trainer, version, (name, () if value == "on" else (value,)), all_options)
    return (new_options[0], replaced_names) if new_options else (None, ())


def _set_option(
    changes: list[OptionChange], option_to_set: NamedValues, replaced_names: tuple[str, ...]
) -> tuple[list[OptionChange], list[NamedValues]]:
    """Return the options with one set, and that option itself if none has its name. The name "" removes all."""
    name, _ = option_to_set
    last = max((index for index, change in enumerate(changes) if name and change.has_name(name)), default=-1)
    updated = []
    for index, change in enumerate(changes):
        removed_names = () if index == last else replaced_names
        kept = (
            (old, values) for old, values in change.replacement if old not in removed_names or (old == name and name)
        )
        replacement = tuple(option_to_set if old == name and index == last else (old, values) for old, values in kept)
        is_same = replacement == change.replacement
        updated.append(change if is_same else change._replace(replacement=replacement, is_changed=True))
    return updated, [option_to_set] if name and last < 0 else []


def _edit_option(launch: Launch, change: OptionChange) -> list[Edit]:
    """Return the edits that replace an option."""
    source, option = launch.source.name, change.option
    (name, values), others = change.replacement[0], change.replacement[1:]
    if values == option.values and not others:
        span = _find_name_span(launch, option)
        is_same = name == option.name and option.known
        return [Edit(source, span, f"--{name}")] if not is_same and span != NOWHERE else []
    if name == option.name and option.known and values and not others and option.setting.value_span != NOWHERE:
        return [editing.replace_value(option.setting, " ".join(values))]
    if not _is_editable(launch, option):
        return []
    text = " ".join(_format_option(launch, option, named_values) for named_values in change.replacement)
    return [Edit(source, option.setting.span, text)]


def _is_editable(launch: Launch, option: ParsedOption) -> bool:
    """Return whether an option can be edited in the text, rather than being part of a variable with several words."""
    spans = Counter(word.span for word in launch.words)
    return option.setting.span != NOWHERE and all(spans[word.span] == 1 for word in option.words)


def _find_name_span(launch: Launch, option: ParsedOption) -> Span:
    """Return the span of an option's name; `NOWHERE` if the name is assembled from several places."""
    start, end = option.words[0].span
    name = option.setting.name
    is_there = launch.source.text[start : start + len(name)] == name and start + len(name) <= end
    return (start, start + len(name)) if is_there else NOWHERE


def _format_option(launch: Launch, option: ParsedOption, named_values: NamedValues) -> str:
    """Return an option as text; unchanged values keep their written form."""
    name, values = named_values
    span = option.setting.value_span
    if values and values == option.values and span != NOWHERE:
        return f"--{name} {launch.source.text[slice(*span)]}"
    return " ".join([f"--{name}", *map(shlex.quote, values)])


def _remove_options(launch: Launch, changes: list[OptionChange]) -> list[Edit]:
    """Return the edits that remove options; neighbours are removed together, because single removals would overlap."""
    spans: list[Span] = []
    follows_removed = False
    for change in changes:
        is_removed = change.is_changed and not change.replacement and _is_editable(launch, change.option)
        if is_removed:
            span = change.option.setting.span
            # Text from a variable may come earlier.
            is_behind = follows_removed and spans[-1][1] <= span[0]
            if is_behind and BLANKS.fullmatch(launch.source.text, spans[-1][1], span[0]):
                spans[-1] = (spans[-1][0], span[1])
            else:
                spans.append(span)
        follows_removed = is_removed
    return [editing.remove_setting(launch.source, span) for span in spans]


def _append_options(launch: Launch, added: list[NamedValues]) -> list[Edit]:
    """Return the edits that add options at the end of the command."""
    if all(word.span == NOWHERE for word in launch.words):
        return []
    return [
        editing.append_argument(launch, " ".join([f"--{name}", *map(shlex.quote, values)])) for name, values in added
    ]
