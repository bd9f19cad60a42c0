"""Writes names and settings back into a verl launch, in the names of one release."""

import shlex
from collections.abc import Iterable, Iterator, Mapping

from attncheck.core.io.errors import BadUsage
from attncheck.lint.fields import DROP, KEYS, NOWHERE, Edit, Job, Launch, Setting, Source, UnknownSetting, Word
from attncheck.lint.files import editing
from attncheck.lint.frameworks.verl import tables, yaml_tables
from attncheck.lint.frameworks.verl.given import Override, parse_hydra_inputs, resolve_config
from attncheck.lint.frameworks.verl.job import with_new_names
from attncheck.lint.frameworks.verl.roles import REF, ULYSSES_SIZE, LaunchConfig
from attncheck.lint.frameworks.verl.values import compose_values

SWITCHES = {"on": "True", "off": "False"}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
# Implementations in the words of engines that do not use transformers' names (workers/config/engine.py 0.9.1:190, 520).
ENGINE_BACKENDS: Mapping[str, Mapping[str, str]] = {
    "megatron": {"flash_attention_2": "flash", "eager": "unfused"},
    "torchtitan": {"flex_attention": "flex"},
}
Sets = Mapping[str, str]


def write_settings(launch: Launch, job: Job, sets: Sets) -> tuple[Edit, ...]:
    """Return the edits that rename what this release does not know and set `sets`; none if any is impossible."""
    try:
        return tuple(_without_overlaps(_iter_edits(launch, job, sets)))
    except (ValueError, BadUsage):  # something cannot be edited; no edits are better than half of them
        return ()


def _iter_edits(launch: Launch, job: Job, sets: Sets) -> Iterator[Edit]:
    config = _read_config(launch, job)
    new_values = dict(_translate_keys(config, sets))
    writer = _Writer(launch, {(setting.location, setting.name): setting for setting in job.unknown_settings})
    for word in launch.words[:1]:
        yield from writer.edit_module(word)
    for override in parse_hydra_inputs(launch).overrides:
        yield from writer.edit_override(override, new_values)
    yield from writer.remove_emptied_tables()
    for entry in launch.entries:
        yield from writer.edit_entry(entry, new_values)
    for word in parse_hydra_inputs(launch).unrecognized_words:
        unknown_setting = writer.unknown_settings.get((word.location, word.text))
        if unknown_setting is not None and not unknown_setting.near:
            yield from writer.remove_word(word)
    new = {key: value for key, value in new_values.items() if value != DROP and key not in writer.edited}
    yield from writer.add_settings(new, config)


def _without_overlaps(edits: Iterable[Edit]) -> Iterator[Edit]:
    """Yield the edits without overlaps; if two overlap, the first is kept."""
    kept_edits: list[Edit] = []
    for edit in edits:
        spans = [earlier.span for earlier in kept_edits if earlier.source == edit.source]
        if not any(edit.span[0] < end and start < edit.span[1] for start, end in spans):
            kept_edits.append(edit)
            yield edit


def _read_config(launch: Launch, job: Job) -> LaunchConfig:
    release = tables.find_release(job.version)
    inputs = resolve_config(with_new_names(parse_hydra_inputs(launch), job.unknown_settings), release)
    return LaunchConfig(release, inputs, compose_values(inputs, release))


def _translate_keys(config: LaunchConfig, sets: Sets) -> Iterator[tuple[str, str]]:
    """Yield the settings `sets` as verl's own keys and values."""
    for key, value in sets.items():
        if key not in KEYS:
            yield key, value
            continue
        names = config.find_keys(key)
        text = SWITCHES.get(value, value)
        if key == "attn_implementation" and config.strategy in ENGINE_BACKENDS:
            text = ENGINE_BACKENDS[config.strategy].get(value, "")
            names = names if text else ()
        if key == "precision":
            yield from ((name, DTYPES.get(value, value)) for name in names)
        elif key == "ring_size":
            yield from _sequence_parallel_settings(config, names, text)
        elif key == "max_length" and config.is_reinforcement:
            yield from _response_length(config, value)
        else:
            yield from ((name, text) for name in names[:1])


def _sequence_parallel_settings(config: LaunchConfig, names: tuple[str, ...], value: str) -> Iterator[tuple[str, str]]:
    """Yield the sequence-parallel size for every key that the launch sets, or else for the deciding one."""
    reference_keys = (f"{REF}.{ULYSSES_SIZE}", f"{REF}.fsdp_config.{ULYSSES_SIZE}")
    keys = (*names, *reference_keys) if config.is_reinforcement and config.is_fsdp else names
    written_keys = [name for name in keys if config.values.has_any(name)]
    for name in written_keys or names[:1]:
        yield name, value


def _response_length(config: LaunchConfig, value: str) -> Iterator[tuple[str, str]]:
    prompt_length = config.values.find_int("data.max_prompt_length")
    if value.isdecimal() and len(value) < 10 and prompt_length is not None and int(value) > prompt_length:
        yield "data.max_response_length", str(int(value) - prompt_length)


class _Writer:
    """Makes the edits of one launch. A setting that is written twice is edited twice, because the last one counts."""

    def __init__(self, launch: Launch, unknown_settings: Mapping[tuple[object, str], UnknownSetting]) -> None:
        self.launch = launch
        self.unknown_settings = unknown_settings
        self.source = launch.source
        self.edited: set[str] = set()
        self.moved_entries: dict[str, str] = {}  # new key -> value, for renamed keys of the file

    def edit_module(self, word: Word) -> Iterator[Edit]:
        """Yield the module's new name."""
        unknown_setting = self.unknown_settings.get((word.location, word.text))
        if unknown_setting is not None and unknown_setting.now:
            yield from self.replace_in_word(word, word.text, unknown_setting.now[0])

    def edit_override(self, override: Override, new_values: Sets) -> Iterator[Edit]:
        """Yield the edits of one override: a new name, a new value, its removal."""
        unknown_setting = self.unknown_settings.get((override.word.location, override.prefix + override.key))
        new_text = unknown_setting.now[0] if unknown_setting is not None and unknown_setting.now else override.text
        key = new_text.partition("=")[0].lstrip("+~")
        if key in new_values and override.prefix != "~":
            value = new_values[key]
            self.edited.add(key)
            yield from self.remove_word(override.word) if value == DROP else self.set_value(override, new_text, value)
        elif unknown_setting is not None and unknown_setting.now:
            name, equals, _ = new_text.partition("=")
            written_key = override.prefix + override.key
            if override.text == f"{written_key}={override.value}" and new_text == f"{name}={override.value}":
                yield from self.replace_in_word(override.word, f"{written_key}{equals}", f"{name}{equals}")
            else:
                yield from self.replace_in_word(override.word, override.text, new_text)
        elif unknown_setting is not None and not unknown_setting.near:
            yield from self.remove_word(override.word)

    def set_value(self, override: Override, new_text: str, value: str) -> Iterator[Edit]:
        """Yield the edit that gives an override another value."""
        yield from self.replace_in_word(override.word, override.text, f"{new_text.partition('=')[0]}={value}")

    def replace_in_word(self, word: Word, old: str, new: str) -> Iterator[Edit]:
        """Yield the edit that replaces part of a word and keeps its quotes and variables."""
        if word.span == NOWHERE:
            return
        text = self.source.text[slice(*word.span)]
        start = text.find(old)
        if start >= 0 and text.count(old) == 1 and (len(text) - len(old) <= 2 or old.endswith("=")):
            begin = word.span[0] + start
            yield Edit(self.source.name, (begin, begin + len(old)), new)
        elif text.partition("=")[0].lstrip("\"'+~") == word.text.partition("=")[0].lstrip("+~"):
            yield Edit(self.source.name, word.span, shlex.quote(new))

    def remove_word(self, word: Word) -> Iterator[Edit]:
        """Yield the edit that removes a word, if it is literally in the source."""
        text = self.source.text[slice(*word.span)] if word.span != NOWHERE else ""
        if text.partition("=")[0].strip("\"'") == word.text.partition("=")[0]:
            yield editing.remove_setting(self.source, word.span)

    def remove_emptied_tables(self) -> Iterator[Edit]:
        """Yield the edits that remove tables emptied by renaming; such a table is null, which Hydra refuses."""
        removed_keys = [
            entry.name for entry in self.launch.entries if (entry.location, entry.name) in self.unknown_settings
        ]
        if removed_keys and self.config_file.kind == "yaml":
            emptied = yaml_tables.remove_emptied_tables(self.config_file, self.launch.entries, removed_keys)
            yield from (edit for _, edit in emptied)

    def edit_entry(self, entry: Setting, new_values: Sets) -> Iterator[Edit]:
        """Yield the edits of one key of a file: its removal or a new value."""
        source = self.config_file
        unknown_setting = self.unknown_settings.get((entry.location, entry.name))
        key = unknown_setting.now[0] if unknown_setting is not None and unknown_setting.now else entry.name
        is_overridden = any(override.key == key for override in parse_hydra_inputs(self.launch).overrides)
        if unknown_setting is not None:
            yield editing.remove_setting(source, entry.span)
            if unknown_setting.now and key not in new_values:
                self.moved_entries[key] = entry.value
            return
        if key in new_values and not is_overridden and not self.launch.words:
            value = new_values[key]
            self.edited.add(key)
            yield editing.remove_setting(source, entry.span) if value == DROP else editing.replace_value(entry, value)

    @property
    def config_file(self) -> Source:
        """Return the source of the launch's keys: its configuration file, or else its own source."""
        return self.launch.file or self.source

    def add_to_file(self, new_values: Sets) -> Iterator[Edit]:
        """Yield the edits that add keys to the file."""
        if self.config_file.kind == "yaml":
            yield from yaml_tables.add_keys(self.config_file, self.launch.entries, new_values)
        else:
            yield from (editing.add_key(self.config_file, key, value) for key, value in new_values.items())

    def add_settings(self, new_values: Sets, config: LaunchConfig) -> Iterator[Edit]:
        """Yield the edits that add settings, as arguments of the command or as keys of the file."""
        yield from self.add_to_file({**self.moved_entries, **({} if self.launch.words else new_values)})
        if not self.launch.words:
            return
        last_word = self.launch.words[-1]
        prefixes = {key: "" if _is_in_schema(config, key) else "+" for key in new_values}
        texts = [shlex.quote(f"{prefixes[key]}{key}={value}") for key, value in new_values.items()]
        edits = [editing.append_argument(self.launch, text) for text in texts]
        if last_word.known or not edits:
            yield from edits
            return
        # "$@" stays last, because options that the user adds must win.
        for text in texts:
            yield Edit(self.source.name, (last_word.span[0], last_word.span[0]), f"{text} ")


def _is_in_schema(config: LaunchConfig, key: str) -> bool:
    """Return whether Hydra knows a key without `+`: it is Hydra's own, or in the configuration."""
    return key.startswith("hydra.") or any(
        name == key or name.startswith(f"{key}.")
        for name in config.release.schema(config.inputs.config_name, config.inputs.group_choices)
    )
