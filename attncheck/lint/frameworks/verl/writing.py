"""Writes names and settings back into a launch of verl, in the words of one release."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping

from attncheck.core.errors import BadUsage
from attncheck.core.job import DROP, KEYS, Job, UnknownSetting
from attncheck.core.launch import NOWHERE, Edit, Launch, Setting, Source, Word
from attncheck.lint.files import editing
from attncheck.lint.frameworks.verl import tables as verl
from attncheck.lint.frameworks.verl import yaml_tables
from attncheck.lint.frameworks.verl.given import Override, resolved, taken
from attncheck.lint.frameworks.verl.job import as_meant
from attncheck.lint.frameworks.verl.roles import REF, SIZE, Roles
from attncheck.lint.frameworks.verl.values import values

SWITCHES = {"on": "True", "off": "False"}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
# Implementations in the words of engines that do not take transformers' (workers/config/engine.py 0.9.1:190, 520).
BACKENDS: Mapping[str, Mapping[str, str]] = {
    "megatron": {"flash_attention_2": "flash", "eager": "unfused"},
    "torchtitan": {"flex_attention": "flex"},
}
Sets = Mapping[str, str]


def write(launch: Launch, job: Job, sets: Sets) -> tuple[Edit, ...]:
    """Return the edits that rename what this release does not know and set what is asked for."""
    try:
        return tuple(_apart(_edits(launch, job, sets)))
    except (ValueError, BadUsage):  # a place that cannot be edited: nothing is better than half
        return ()


def _edits(launch: Launch, job: Job, sets: Sets) -> Iterator[Edit]:
    roles = _roles(launch, job)
    wanted = dict(_own(roles, sets))
    writer = _Writer(launch, {(each.location, each.name): each for each in job.unknown_settings})
    for word in launch.words[:1]:
        yield from writer.module(word)
    for override in taken(launch).overrides:
        yield from writer.override(override, wanted)
    yield from writer.tables()
    for entry in launch.entries:
        yield from writer.entry(entry, wanted)
    for word in taken(launch).strange:
        unknown = writer.unknown.get((word.location, word.text))
        if unknown is not None and not unknown.near:
            yield from writer.dropped(word)
    yield from writer.added({key: value for key, value in wanted.items() if value != DROP}, roles)


def _apart(edits: Iterable[Edit]) -> Iterator[Edit]:
    """Yield the edits that do not overlap: of two words that run into one another the first one's."""
    found: list[Edit] = []
    for edit in edits:
        mine = [other.span for other in found if other.source == edit.source]
        if not any(edit.span[0] < end and start < edit.span[1] for start, end in mine):
            found.append(edit)
            yield edit


def _roles(launch: Launch, job: Job) -> Roles:
    names = verl.of(job.version)
    given = resolved(as_meant(taken(launch), job.unknown_settings), names)
    return Roles(names, given, values(given, names))


def _own(roles: Roles, sets: Sets) -> Iterator[tuple[str, str]]:
    """Yield what is asked for in verl's own keys and values."""
    for key, value in sets.items():
        if key not in KEYS:
            yield key, value
            continue
        names = roles.keys(key)
        text = SWITCHES.get(value, value)
        if key == "attn_implementation" and roles.strategy in BACKENDS:
            text = BACKENDS[roles.strategy].get(value, "")
            names = names if text else ()
        if key == "precision":
            yield from ((name, DTYPES.get(value, value)) for name in names)
        elif key == "ring_size":
            yield from _sizes(roles, names, text)
        elif key == "max_length" and roles.reinforcement:
            yield from _length(roles, value)
        else:
            yield from ((name, text) for name in names[:1])


def _sizes(roles: Roles, names: tuple[str, ...], value: str) -> Iterator[tuple[str, str]]:
    """Yield the size of sequence parallelism for every key that is written, else for the one that decides."""
    followers = (f"{REF}.{SIZE}", f"{REF}.fsdp_config.{SIZE}") if roles.reinforcement and roles.fsdp else ()
    written = [name for name in (*names, *followers) if roles.values.written(name)]
    for name in written or names[:1]:
        yield name, value


def _length(roles: Roles, value: str) -> Iterator[tuple[str, str]]:
    prompt = roles.values.known("data.max_prompt_length")
    if value.isdigit() and prompt is not None and int(value) > prompt:
        yield "data.max_response_length", str(int(value) - prompt)


class _Writer:
    """The edits of one launch; what is set is taken out of `wanted` on the way."""

    def __init__(self, launch: Launch, unknown: Mapping[tuple[object, str], UnknownSetting]) -> None:
        self.launch = launch
        self.unknown = unknown
        self.source = launch.source
        self.moved: dict[str, str] = {}  # keys of the file that stand elsewhere in it now

    def module(self, word: Word) -> Iterator[Edit]:
        """Yield the module's new name."""
        unknown = self.unknown.get((word.location, word.text))
        if unknown is not None and unknown.now:
            yield from self.swapped(word, word.text, unknown.now[0])

    def override(self, override: Override, wanted: dict[str, str]) -> Iterator[Edit]:
        """Yield what becomes of one override."""
        unknown = self.unknown.get((override.word.location, override.prefix + override.key))
        said = unknown.now[0] if unknown is not None and unknown.now else override.text
        key = said.partition("=")[0].lstrip("+~")
        if key in wanted and override.prefix != "~":
            value = wanted.pop(key)
            yield from self.dropped(override.word) if value == DROP else self.valued(override, said, value)
        elif unknown is not None and unknown.now:
            name, equals, _ = said.partition("=")
            old = override.prefix + override.key
            if override.text == f"{old}={override.value}" and said == f"{name}={override.value}":
                yield from self.swapped(override.word, f"{old}{equals}", f"{name}{equals}")
            else:
                yield from self.swapped(override.word, override.text, said)
        elif unknown is not None and not unknown.near:
            yield from self.dropped(override.word)

    def valued(self, override: Override, said: str, value: str) -> Iterator[Edit]:
        """Yield an override with another value."""
        yield from self.swapped(override.word, override.text, f"{said.partition('=')[0]}={value}")

    def swapped(self, word: Word, old: str, new: str) -> Iterator[Edit]:
        """Yield a part of a word put otherwise, its quotes and variables left as they are."""
        if word.span == NOWHERE:
            return
        raw = self.source.text[slice(*word.span)]
        start = raw.find(old)
        if start >= 0 and raw.count(old) == 1 and (len(raw) - len(old) <= 2 or old.endswith("=")):
            at = word.span[0] + start
            yield Edit(self.source.name, (at, at + len(old)), new)
        elif raw.partition("=")[0].lstrip("\"'+~") == word.text.partition("=")[0].lstrip("+~"):
            yield Edit(self.source.name, word.span, shlex.quote(new))

    def dropped(self, word: Word) -> Iterator[Edit]:
        """Yield a word taken out, where it stands as itself."""
        raw = self.source.text[slice(*word.span)] if word.span != NOWHERE else ""
        if raw.partition("=")[0].strip("\"'") == word.text.partition("=")[0]:
            yield editing.dropped(self.source, word.span)

    def tables(self) -> Iterator[Edit]:
        """Yield the tables of a YAML file that renaming leaves empty, taken out: an empty one is null, and refused."""
        gone = [one.name for one in self.launch.entries if (one.location, one.name) in self.unknown]
        if gone and self.file.kind == "yaml":
            yield from (edit for _, edit in yaml_tables.emptied(self.file, self.launch.entries, gone))

    def entry(self, entry: Setting, wanted: dict[str, str]) -> Iterator[Edit]:
        """Yield what becomes of one key of a file."""
        source = self.file
        unknown = self.unknown.get((entry.location, entry.name))
        key = unknown.now[0] if unknown is not None and unknown.now else entry.name
        overridden = any(override.key == key for override in taken(self.launch).overrides)
        if unknown is not None:
            yield editing.dropped(source, entry.span)
            if unknown.now and key not in wanted:
                self.moved[key] = entry.value
            return
        if key in wanted and not overridden and not self.launch.words:
            value = wanted.pop(key)
            yield editing.dropped(source, entry.span) if value == DROP else editing.replaced(entry, value)

    @property
    def file(self) -> Source:
        """Return the file whose keys the launch has."""
        return self.launch.file or self.source

    def in_file(self, wanted: Sets) -> Iterator[Edit]:
        """Yield new keys of the file."""
        if self.file.kind == "yaml":
            yield from yaml_tables.added(self.file, self.launch.entries, wanted)
        else:
            yield from (editing.added(self.file, key, value) for key, value in wanted.items())

    def added(self, wanted: Sets, roles: Roles) -> Iterator[Edit]:
        """Yield what stands nowhere yet: one argument more each, or a key of the file."""
        yield from self.in_file({**self.moved, **({} if self.launch.words else wanted)})
        if not self.launch.words:
            return
        end = self.launch.words[-1]
        texts = [shlex.quote(f"{'' if _there(roles, key) else '+'}{key}={value}") for key, value in wanted.items()]
        edits = [editing.appended(self.launch, text) for text in texts]
        if end.known or not edits:
            yield from edits
            return
        # "$@" stays last: what the user adds by hand must win.
        for text in texts:
            yield Edit(self.source.name, (end.span[0], end.span[0]), f"{text} ")


def _there(roles: Roles, key: str) -> bool:
    """Say whether Hydra knows a key without `+`."""
    return any(
        name == key or name.startswith(f"{key}.")
        for name in roles.names.schema(roles.given.config, roles.given.choices)
    )
