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
    Reading,
    Setting,
    changes_to_edits,
)

MODULE = "verl.trainer.main"
ACTOR = "worker.actor"
MODEL_PATH = f"{ACTOR}.model.model_path"
OLD_ULYSSES_KEY = f"{ACTOR}.ulysses_sequence_parallel_size"
NEW_ULYSSES_KEY = f"{ACTOR}.ulysses_size"


@dataclass(frozen=True)
class EasyR1Reading(Reading):
    """The keys of a launch."""

    launch: Launch
    all_settings: tuple[Setting, ...]
    by_field: Mapping[str, Setting]

    @cached_property
    def is_open(self) -> bool:
        """Whether part of the launch could not be read; a setting that was not found may then still be set."""
        words = self.launch.words[1:]
        has_unread_words = any(not word.known and "=" not in word.text for word in words)
        names_file = any(word.text.startswith("config=") for word in words)
        return has_unread_words or (names_file and self.launch.file is None)

    @property
    def is_packed(self) -> bool:
        """Whether rows are packed: on by default since v0.3.1, the release that renamed Ulysses' size."""
        switch = f"{ACTOR}.padding_free"
        return self.is_on(switch) if self.has_any(switch) else self.has_any(NEW_ULYSSES_KEY)

    @property
    def ulysses_size(self) -> int:
        """Return the number of ranks that share a row: only with padding_free (workers/actor/dp_actor.py:88-117)."""
        size = self.get_int(find_ulysses_key(self), 1)
        return size if self.is_packed else 1

    def rows_per_device(self, world_size: Fact[int]) -> int | None:
        """Return a device's rows in one optimiser step (workers/fsdp_workers.py:142-146); None if not known."""
        rows, answers = self.get_int(f"{ACTOR}.global_batch_size"), self.get_int("worker.rollout.n")
        size = self.get_int(find_ulysses_key(self), 1)
        if not rows or not answers or not isinstance(world_size, Known) or world_size.value % size:
            return None
        groups = world_size.value // size
        total = rows * answers
        return total // groups if total < groups or total % groups == 0 else None  # v0.3.0 rounds otherwise


def find_ulysses_key(settings: EasyR1Reading) -> str:
    """Return this launch's name for Ulysses' size; v0.3.1 shortened it (workers/actor/config.py:87, then 99)."""
    return OLD_ULYSSES_KEY if settings.has_any(OLD_ULYSSES_KEY) else NEW_ULYSSES_KEY


def is_own_launch(launch: Launch) -> bool:
    """Return whether a launch starts EasyR1 or a fork of it; a file alone is recognised by its keys."""
    if launch.words:
        program = launch.words[0].text.removesuffix(".py").replace("/", ".")
        if program == MODULE or program.endswith(f".{MODULE}"):
            return True
        return any(word.text.startswith(f"{ACTOR}.") for word in launch.words[1:])
    return any(entry.name == MODEL_PATH for entry in launch.entries)


def parse_launch_settings(launch: Launch) -> EasyR1Reading:
    """Return the settings of a launch."""
    all_settings = (*launch.entries, *parse_overrides(launch.words[1:], launch.source))
    return EasyR1Reading(launch, all_settings, {setting.name: setting for setting in all_settings})


def make_edits(settings: EasyR1Reading, values: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the edits that give keys new values: in place if they are set, else at the end of the command or file."""
    changes = Changes()
    for key, value in values.items():
        setting = settings.by_field.get(key)
        if setting is None or setting.span != NOWHERE:
            changes.set_field(settings.by_field, key, value)
    return changes_to_edits(settings.launch, changes, lambda key, value: shlex.quote(f"{key}={value}"))
