"""Edits that rename and set the settings of a program with HfArgumentParser, in the text that they were read from.

A name is changed in place and its value is kept. A setting that is not in the text is added at the end of the program's
configuration file, or else of its command.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace

from attncheck.core.io.errors import AttncheckError
from attncheck.core.job import DROP, UnknownSetting
from attncheck.core.launch import NOWHERE, Edit, Launch, Span
from attncheck.lint.fields.values import ParsedSetting, ParsedSettings, join_settings
from attncheck.lint.files import editing, python


def edit_settings(
    launch: Launch,
    settings: ParsedSettings,
    unknown_settings: tuple[UnknownSetting, ...],
    new_values: Mapping[str, str],
    argument_form: str = "--",
) -> tuple[Edit, ...]:
    """Return the edits that rename `unknown_settings` and give fields the values `new_values` (DROP: remove).

    A field that is not in the text is added to the configuration file if there is one, or else to the command.
    `argument_form` is "--" for options, "=" for name=value.
    """
    fixed = {setting.name for setting in settings.all_settings if setting.raw in launch.fixed}  # no edit changes them
    new_values = {name: value for name, value in new_values.items() if name not in fixed}
    unknown_by_key = {(unknown.name, unknown.location): unknown for unknown in unknown_settings}
    with_new_names = [
        _with_new_name(setting, unknown_by_key.get((setting.raw.name, setting.raw.location)))
        for setting in settings.all_settings
    ]
    settings = join_settings(settings.options, with_new_names)
    edits_by_span: dict[tuple[str, Span], Edit] = {}
    present: set[str] = set()
    for setting in settings.all_settings:
        field = setting.new_name.partition("=")[0] or setting.name.split(".")[0]
        is_effective = field in settings.by_field and settings.by_field[field].raw == setting.raw
        is_renamed = (setting.raw.name, setting.raw.location) in unknown_by_key
        if field in new_values and (is_effective or setting.known):
            present.add(field)
        try:
            for edit in _edit_setting(launch, settings, setting, is_renamed, is_effective, new_values.get(field)):
                edits_by_span[edit.source, edit.span] = edit
        except ValueError:
            continue  # its text comes from several places
    added = {name: value for name, value in new_values.items() if name not in present and value != DROP}
    return _resolve_overlaps([*edits_by_span.values(), *_add_settings(launch, settings, added, argument_form)])


def _resolve_overlaps(edits: list[Edit]) -> tuple[Edit, ...]:
    """Return the edits without overlaps: a removal next to another edit keeps the space that both would change."""
    kept: list[Edit] = []
    for edit in sorted(edits, key=lambda edit: (edit.source, edit.span)):
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


def _with_new_name(setting: ParsedSetting, unknown: UnknownSetting | None) -> ParsedSetting:
    """Return a setting with the new name from its `UnknownSetting`."""
    if unknown is None:
        return setting if setting.known or not setting.new_name else setting._replace(new_name="")
    suggestion = unknown.now[0] if unknown.now else unknown.near
    parts = re.split(r": | ", suggestion.removeprefix("--"), maxsplit=1)
    return setting._replace(known=False, new_name="=".join(parts))


def _edit_setting(
    launch: Launch,
    settings: ParsedSettings,
    setting: ParsedSetting,
    is_renamed: bool,
    is_effective: bool,
    value: str | None,
) -> Iterator[Edit]:
    """Yield the edit that one setting needs, if any. Raises `ValueError` if the source does not contain its text."""
    new_name, _, new_value = setting.new_name.partition("=")
    is_concerned = setting.known or is_renamed
    if (is_renamed and not (new_name and is_effective)) or (
        value is not None and is_concerned and (value == DROP or not is_effective)
    ):
        yield _remove_setting(launch, setting)
    elif value is not None and is_concerned:
        yield _set_value(launch, settings, setting, new_name, value)
    elif is_renamed and new_value:
        yield _set_value(launch, settings, setting, new_name, new_value)
    elif is_renamed:
        yield _rename_setting(launch, setting, new_name)


def _remove_setting(launch: Launch, setting: ParsedSetting) -> Edit:
    """Return the edit that removes a setting, or a table with all its keys."""
    source = launch.file if launch.file and setting.raw.location.source == launch.file.name else launch.source
    top, dot, _ = setting.raw.name.partition(".")
    parent = (
        re.search(rf"^{re.escape(top)}(?=\s*:)", source.text, re.MULTILINE) if dot and not setting.is_option else None
    )
    if parent is None or setting.known or source.kind != "yaml":
        return editing.remove_setting(source, setting.raw.span)
    inner = [entry.span[1] for entry in launch.entries if entry.name.startswith(f"{top}.")]
    return Edit(source.name, (parent.start(), _end_of_line(source.text, max(inner))), "")


def _end_of_line(text: str, offset: int) -> int:
    end = text.find("\n", offset)
    return len(text) if end < 0 else end + 1


def _rename_setting(launch: Launch, setting: ParsedSetting, name: str) -> Edit:
    """Return the edit that renames a setting. Raises `ValueError` if the text does not contain the name."""
    source = launch.file if launch.file and setting.raw.location.source == launch.file.name else launch.source
    start, end = setting.raw.span
    old_name = setting.raw.name if setting.is_option else setting.raw.name.split(".")[-1]
    offset = source.text.find(old_name, start, end)
    if start < 0 or not start <= offset <= start + 1:
        raise ValueError(f"{old_name} is assembled from several places")
    return Edit(source.name, (offset, offset + len(old_name)), f"--{name}" if setting.is_option else name)


def _set_value(launch: Launch, settings: ParsedSettings, setting: ParsedSetting, name: str, value: str) -> Edit:
    """Return the edit that gives a setting a value, and another name if `name` is not ""."""
    is_negated = setting.is_option and setting.raw.name.lstrip("-").startswith(("no_", "no-"))
    if not name and not is_negated:
        return editing.replace_value(setting.raw, value)
    if setting.raw.span == NOWHERE:
        raise ValueError(f"{setting.raw.name} is assembled from several places")
    field = name or setting.name
    if setting.is_option:
        return Edit(setting.raw.location.source, setting.raw.span, _format_option(settings, field, value))
    kind = launch.file.kind if launch.file and setting.raw.location.source == launch.file.name else "command"
    if launch.file is not None and kind == "python":
        text = python.name_argument(launch.file, setting.raw.span, field, value)
        return Edit(launch.file.name, setting.raw.span, text)
    text = f'"{field}": "{value}"' if kind == "json" else f"{field}: {value}" if kind == "yaml" else f"{field}={value}"
    return Edit(setting.raw.location.source, setting.raw.span, text)


def _format_option(settings: ParsedSettings, name: str, value: str) -> str:
    """Return an option as text; a switch that is on has no value."""
    option = settings.options.find_option(name)
    is_switch = option is not None and option.kind == "bool" and value == "true"
    return f"--{name}" if is_switch else f"--{name} {shlex.quote(value)}"


def _add_settings(
    launch: Launch, settings: ParsedSettings, new_values: Mapping[str, str], argument_form: str
) -> Iterator[Edit]:
    for name, value in new_values.items():
        try:
            if launch.file is not None:
                yield editing.add_key(launch.file, name, value)
            elif launch.words:
                yield editing.append_argument(
                    launch,
                    _format_option(settings, name, value) if argument_form == "--" else shlex.quote(f"{name}={value}"),
                )
        except (ValueError, AttncheckError):
            continue  # the source has no argument or table that can be edited
