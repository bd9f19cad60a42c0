"""The settings of one EasyR1 launch: the keys of its YAML file, overridden by the command's "key=value" words.

verl/trainer/main.py:94-105 of b44b311: dataclasses, then the file that `config=` names, then the command line.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from attncheck.lint.arguments import parse_overrides
from attncheck.lint.fields import (
    NOWHERE,
    Changes,
    Edit,
    Fact,
    Known,
    Launch,
    Setting,
    SourceLocation,
    changes_to_edits,
    is_true,
    parse_value,
    to_int,
)

MODULE = "verl.trainer.main"
ACTOR = "worker.actor"
MODEL_PATH = f"{ACTOR}.model.model_path"
OLD_ULYSSES_KEY = f"{ACTOR}.ulysses_sequence_parallel_size"
NEW_ULYSSES_KEY = f"{ACTOR}.ulysses_size"


@dataclass(frozen=True)
class EasyR1Settings:
    """The settings of a launch; `by_key` maps each key to the setting that takes effect."""

    launch: Launch
    all_settings: tuple[Setting, ...]
    by_key: Mapping[str, Setting]

    @cached_property
    def is_open(self) -> bool:
        """Whether part of the launch could not be read; a setting that was not found may then still be set."""
        words = self.launch.words[1:]
        has_unread_words = any(not word.known and "=" not in word.text for word in words)
        names_file = any(word.text.startswith("config=") for word in words)
        return has_unread_words or (names_file and self.launch.file is None)

    def is_written(self, *keys: str) -> bool:
        """Return whether the launch sets any of the keys."""
        return any(key in self.by_key for key in keys)

    def locate(self, *keys: str) -> SourceLocation:
        """Return the location of the first of the keys that the launch sets."""
        return next((self.by_key[key].location for key in keys if key in self.by_key), SourceLocation())

    def get_text(self, key: str) -> str:
        """Return the text of a key; "" if it is null, not set, or known only at run time."""
        setting = self.by_key.get(key)
        value = parse_value(setting.value) if setting is not None and setting.known else None
        return "" if value is None else str(value)

    def get_int(self, key: str) -> int | None:
        """Return the positive integer value of a key; None if it has none."""
        number = to_int(parse_value(self.get_text(key)), 0)
        return number if number > 0 else None

    def is_on(self, key: str) -> bool:
        """Return whether a key is set and true."""
        return is_true(parse_value(self.get_text(key)))

    @property
    def is_packed(self) -> bool:
        """Whether rows are packed: on by default since v0.3.1, the release that renamed Ulysses' size."""
        switch = f"{ACTOR}.padding_free"
        return self.is_on(switch) if self.is_written(switch) else self.is_written(NEW_ULYSSES_KEY)

    @property
    def ulysses_size(self) -> int:
        """Return the number of ranks that share a row: only with padding_free (workers/actor/dp_actor.py:88-117)."""
        size = self.get_int(find_ulysses_key(self)) or 1
        return size if self.is_packed else 1

    def rows_per_device(self, world_size: Fact[int]) -> int | None:
        """Return a device's rows in one optimiser step (workers/fsdp_workers.py:142-146); None if not known."""
        rows, answers = self.get_int(f"{ACTOR}.global_batch_size"), self.get_int("worker.rollout.n")
        size = self.get_int(find_ulysses_key(self)) or 1
        if rows is None or answers is None or not isinstance(world_size, Known) or world_size.value % size:
            return None
        groups = world_size.value // size
        total = rows * answers
        return total // groups if total < groups or total % groups == 0 else None  # v0.3.0 rounds otherwise


def find_ulysses_key(settings: EasyR1Settings) -> str:
    """Return this launch's name for Ulysses' size; v0.3.1 shortened it (workers/actor/config.py:87, then 99)."""
    return OLD_ULYSSES_KEY if settings.is_written(OLD_ULYSSES_KEY) else NEW_ULYSSES_KEY


def is_own_launch(launch: Launch) -> bool:
    """Return whether a launch starts EasyR1 or a fork of it; a file alone is recognised by its keys."""
    if launch.words:
        program = launch.words[0].text.removesuffix(".py").replace("/", ".")
        if program == MODULE or program.endswith(f".{MODULE}"):
            return True
        return any(word.text.startswith(f"{ACTOR}.") for word in launch.words[1:])
    return any(entry.name == MODEL_PATH for entry in launch.entries)


def parse_launch_settings(launch: Launch) -> EasyR1Settings:
    """Return the settings of a launch."""
    overrides = parse_overrides(launch.words[1:], launch.source)
    all_settings = (*launch.entries, *overrides)
    return EasyR1Settings(launch, all_settings, {setting.name: setting for setting in all_settings})


def make_edits(settings: EasyR1Settings, values: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the edits that give keys new values: in place if they are set, else at the end of the command or file."""
    changes = Changes()
    for key, value in values.items():
        setting = settings.by_key.get(key)
        if setting is None or setting.span != NOWHERE:
            changes.set_field(settings.by_key, key, value)
    return changes_to_edits(settings.launch, changes, lambda key, value: shlex.quote(f"{key}={value}"))
