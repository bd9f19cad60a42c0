"""What a launch gives verl: the module, the configuration and its groups, Hydra's overrides, and files of keys.

Hydra 1.3 (core/override_parser, _internal/config_loader_impl.py:393-470): `key=value` wants a key of the composed
configuration, `+key=value` one that is not there or is null (a list or a table is joined to what is there),
`++key=value` takes any, `~key` takes one out; a key that is a group of configuration files chooses one of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from attncheck.core.launch import Launch, Setting, SourceLocation, Word
from attncheck.lint.frameworks.verl.tables import NEW_SFT, OLD_SFT, Names

OVERRIDE = re.compile(r"(?P<prefix>\+\+|\+|~)?(?P<key>[A-Za-z_][\w.@/:-]*)(?:=(?P<value>.*))?", re.DOTALL)
NAMED = ("--config-name", "-cn")
PLACED = ("--config-path", "-cp", "--config-dir", "-cd")
# Switches and options of Hydra's own command line (hydra/_internal/utils.py, get_args_parser).
SWITCHES = ("--multirun", "-m", "--help", "-h", "--hydra-help", "--resolve", "--version", "--run", "-r")
OPTIONS = ("--cfg", "-c", "--package", "-p", "--info", "-i", "--experimental-rerun")
SFT_KEYS = ("model.partial_pretrain", "data.micro_batch_size_per_gpu", "engine.ulysses_sequence_parallel_size")
OWNERS = ("actor_rollout_ref.", "critic.model.")


@dataclass(frozen=True)
class Override:
    """One override of a command; `prefix` is "", "+", "++" or "~"."""

    prefix: str
    key: str
    value: str
    word: Word

    @property
    def text(self) -> str:
        """Return it as it is written."""
        return self.word.text

    def spelled(self, prefix: str = "", key: str = "") -> str:
        """Return it with another prefix and perhaps another key."""
        return f"{prefix}{key or self.key}={self.value}"


@dataclass(frozen=True)
class Given:
    """A launch, taken apart."""

    module: str = ""  # "verl.trainer.main_ppo"; "" for a bare file
    config: str = ""  # named with --config-name
    foreign: bool = False  # the module or the configuration is none of verl's own
    overrides: tuple[Override, ...] = ()
    entries: tuple[Setting, ...] = ()
    strange: tuple[Word, ...] = ()  # words that are neither overrides nor Hydra's own
    opaque: tuple[Word, ...] = ()  # words that only running can tell
    choices: Mapping[str, str] = field(default_factory=dict)  # groups that overrides choose in
    first: Word | None = None  # the module or script, as written

    @property
    def place(self) -> SourceLocation | None:
        """Return where the module is written."""
        return self.first.location if self.first is not None else None

    @property
    def written(self) -> str:
        """Return the module as it is written, a dotted name or a path."""
        return self.first.text if self.first is not None else ""

    def as_written(self, module: str) -> str:
        """Return another module in the form in which this launch names its own."""
        if not self.written.endswith(".py"):
            return module
        return self.written.removesuffix(f"{self.module.replace('.', '/')}.py") + f"{module.replace('.', '/')}.py"


def module_of(launch: Launch) -> str:
    """Return the module that a launch starts, "" for a bare file: "verl/trainer/main_ppo.py" is a module too."""
    if not launch.words:
        return ""
    first = launch.words[0].text
    if not first.endswith(".py"):
        return first
    parts = PurePosixPath(first).with_suffix("").parts
    for top in ("verl", "recipe"):
        if top in parts:
            return ".".join(parts[parts.index(top) :])
    return first


def taken(launch: Launch) -> Given:
    """Return a launch taken apart, whatever the release."""
    overrides: list[Override] = []
    strange: list[Word] = []
    opaque: list[Word] = []
    named, placed = "", False
    words = iter(launch.words[1:])
    for word in words:
        option, _, value = word.text.partition("=")
        if option in NAMED or option in PLACED:
            value = value or next(words, Word("", (-1, -1), word.location)).text
            named = value.removesuffix(".yaml") if option in NAMED else named
            placed = placed or option in PLACED
        elif option in OPTIONS:
            next(words, None)
        elif option not in SWITCHES:
            parts = OVERRIDE.fullmatch(word.text)
            if parts and (parts["value"] is not None or parts["prefix"] == "~"):
                overrides.append(Override(parts["prefix"] or "", parts["key"], parts["value"] or "", word))
            elif word.text.strip():
                (strange if word.known else opaque).append(word)
    first = launch.words[0] if launch.words else None
    found = (tuple(overrides), launch.entries, tuple(strange), tuple(opaque))
    return Given(module_of(launch), named, placed, *found, first=first)


def trainer(launch: Launch) -> str:
    """Return which of verl's trainers a launch starts, "" where it is none."""
    given = taken(launch)
    if given.module.startswith("verl.") and launch.words:
        tail = given.module.rpartition(".")[2]
        if "sft" in tail:
            return "sft"
        return _algorithm(given) if "ppo" in tail or "async" in tail else ""
    keys = [setting.name for setting in given.entries] + [override.key for override in given.overrides]
    if any(key.startswith(OWNERS) for key in keys):
        return _algorithm(given)
    bare = not launch.words and sum(key in SFT_KEYS for key in keys) >= 2
    return "sft" if bare else ""


def _algorithm(given: Given) -> str:
    pairs = [(setting.name, setting.value) for setting in given.entries]
    pairs += [(override.key, override.value) for override in given.overrides]
    chosen = [value for key, value in pairs if key == "algorithm.adv_estimator"]
    asked = chosen[-1].strip("\"'") if chosen else "gae"
    return "ppo" if asked == "gae" else asked if re.fullmatch(r"\w+", asked) else "ppo"


def resolved(given: Given, names: Names) -> Given:
    """Return what was given with its configuration settled for one release, and the groups that are chosen in.

    A module that this release lacks is read with the configuration of its successor, and one of another package
    with verl's own, which such recipes build on; those are `foreign`: what else they hold is not known.
    """
    home = names.config(given.module) or names.config(successor(given.module, names))
    known = given.config in names.configs()
    foreign = not (home and given.module.startswith("verl.")) or (bool(given.config) and not known)
    config = given.config if known else home or _guessed(given, names)
    old = "model_engine" not in names.groups(config) and "ppo_megatron_trainer" in names.configs()
    if old and any((each.key, each.value) == ("model_engine", "megatron") for each in given.overrides):
        config = "ppo_megatron_trainer"  # how 0.7.0 and older name what is a group from 0.7.1 on
    groups = names.groups(config)
    choices = {override.key: override.value for override in given.overrides if _chooses(override, groups)}
    return replace(given, config=config, foreign=foreign, choices=choices)


def successor(module: str, names: Names) -> str:
    """Return the module that does in this release what `module` does in another; itself where it is there."""
    if names.config(module):
        return module
    if module.startswith("verl.trainer.") and "sft" in module:
        return NEW_SFT if names.config(NEW_SFT) else OLD_SFT
    return "verl.trainer.main_ppo" if module.startswith("verl.") else ""


def _guessed(given: Given, names: Names) -> str:
    keys = [setting.name for setting in given.entries] + [override.key for override in given.overrides]
    if any(key.startswith(OWNERS) for key in keys):
        return "ppo_trainer"
    old = "model.partial_pretrain" in keys or not names.config(NEW_SFT)
    return "sft_trainer" if old and "sft_trainer" in names.configs() else "sft_trainer_engine"


def _chooses(override: Override, groups: Mapping[str, str]) -> bool:
    plain = override.word.known and override.value[:1] not in ("", "[", "{")  # a table given is no choice of a file
    return plain and override.prefix in ("", "++") and override.key in groups
