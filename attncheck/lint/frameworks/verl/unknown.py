"""What of a launch does not compose in one release of verl, and what it is called there."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

from attncheck.core.job import UnknownSetting
from attncheck.core.launch import Setting
from attncheck.lint.frameworks.verl import tables as verl
from attncheck.lint.frameworks.verl.given import Given, Override, resolved, successor
from attncheck.lint.frameworks.verl.tables import NEW_SFT, OLD_SFT, Names
from attncheck.lint.frameworks.verl.values import Values, scalar, values, within

# Keys that moved, in both directions; the first whose other name this release has is taken. Read by comparing the
# compositions of neighbouring releases (tests/lint/tools/names_verl.py) and the code that reads the keys.
MOVED = (
    (r"critic\.model\.fsdp_config\.(.+)", r"critic.fsdp.\1"),  # 0.8.0
    (r"critic\.fsdp\.(.+)", r"critic.model.fsdp_config.\1"),
    (r"(.+)\.checkpoint\.contents", r"\1.checkpoint.save_contents"),  # 0.4.1
    (r"(.+)\.checkpoint\.save_contents", r"\1.checkpoint.contents"),
    (r"trainer\.val_generations_to_log_to_wandb", "trainer.log_val_generations"),  # 0.4.0
    (r"(.+\.multi_turn)\.max_turns", r"\1.max_assistant_turns"),  # 0.4.1
    (r"trainer\.profile_steps", "global_profiler.steps"),  # 0.6.0
    (r"ray_init\.num_cpus", "ray_kwargs.ray_init.num_cpus"),  # 0.6.0
    (r"ray_init\.timeline_json_file", "ray_kwargs.timeline_json_file"),
    (r"(.+\.rollout)\.(update_weights_bucket_megabytes)", r"\1.checkpoint_engine.\2"),  # 0.7.1
    (r"(actor_rollout_ref\.(?:actor|ref))\.router_replay\.(.+)", r"\1.megatron.router_replay.\2"),  # 0.9.1
    (r"algorithm\.rollout_is_threshold", "algorithm.rollout_correction.rollout_is_threshold"),  # 0.6.1
    (r"(actor_rollout_ref\.(?:actor|ref))\.fsdp_config\.(ulysses_sequence_parallel_size)", r"\1.\2"),  # to ≤0.5.0
    (r"critic\.(?:model\.fsdp_config|fsdp)\.(ulysses_sequence_parallel_size)", r"critic.\1"),
    # fsdp_sft_trainer to sft_trainer (0.6.0 has both, 0.7.1 the new one alone), and back
    (r"model\.partial_pretrain", "model.path"),
    (r"model\.path", "model.partial_pretrain"),
    (r"ulysses_sequence_parallel_size", "engine.ulysses_sequence_parallel_size"),
    (r"engine\.ulysses_sequence_parallel_size", "ulysses_sequence_parallel_size"),
    (r"use_remove_padding", "model.use_remove_padding"),
    (r"model\.use_remove_padding", "use_remove_padding"),
    (r"data\.micro_batch_size", "data.micro_batch_size_per_gpu"),
    (r"data\.multiturn\.(\w+_key)", r"data.\1"),
    (r"data\.chat_template", "model.custom_chat_template"),
    (r"model\.fsdp_config\.offload_params", "engine.param_offload"),
    (r"model\.fsdp_config\.(model_dtype|wrap_policy\..+)", r"engine.\1"),
    (r"engine\.(model_dtype|wrap_policy\..+)", r"model.fsdp_config.\1"),
    (r"model\.strategy", "engine.strategy"),
    (r"engine\.strategy", "model.strategy"),
    (r"trainer\.checkpoint\.(.+)", r"checkpoint.\1"),
    (r"checkpoint\.(.+)", r"trainer.checkpoint.\1"),
    (r"optim\.lr_scheduler", "optim.lr_scheduler_type"),
    (r"optim\.lr_scheduler_type", "optim.lr_scheduler"),
)
# Tables that stand in no configuration and that verl reads all the same: workers/config/engine.py (0.9.1:290),
# before 0.6.0 `fsdp_config.get("mixed_precision")` (workers/fsdp_workers.py).
READ_ALL_THE_SAME = re.compile(r"(.+\.(fsdp_config|fsdp)|engine)\.mixed_precision(\..+)?")
ENGINES = {"megatron": "--config-name=ppo_megatron_trainer"}  # how 0.7.0 and older chose the training engine
CLOSE = 0.84


def unknown(given: Given, names: Names) -> Iterator[UnknownSetting]:
    """Yield what of the launch does not compose in this release."""
    yield from _module(given, names)
    composition = _Composition(given, names)
    for entry in given.entries:
        yield from composition.entry(entry)
    for override in given.overrides:
        found = composition.override(override)
        if found is not None:
            yield found
    for word in given.strange:
        near = difflib.get_close_matches(word.text, ("--config-name", "--config-path"), 1, CLOSE)
        yield UnknownSetting(word.text, word.location, near=near[0] if near else "")


def _module(given: Given, names: Names) -> Iterator[UnknownSetting]:
    if not given.module.startswith("verl.trainer.") or names.config(given.module) or given.place is None:
        return
    now = successor(given.module, names)
    if now:
        yield UnknownSetting(given.written, given.place, (given.as_written(now),), _since_module(given.module, names))


def _since_module(module: str, names: Names) -> str:
    releases = [release for release in names.table["releases"] if verl.of(release).config(module)]
    return _turn(releases, names)


def _turn(having: list[str], names: Names) -> str:
    """Return the release in which what `having` have went, or came; "" where none has it."""
    releases: list[str] = names.table["releases"]
    before = [release for release in having if releases.index(release) < names.number]
    if before:
        return releases[releases.index(before[-1]) + 1]
    return having[0] if having else ""


class _Composition:
    """A composition in the making: overrides are laid in one after another, as Hydra does."""

    def __init__(self, given: Given, names: Names) -> None:
        self.given, self.names = given, names
        self.groups = names.groups(given.config)
        bare = Given(given.module, given.config, choices=given.choices)
        self.values = Values(dict(values(bare, names).held), {})
        self.schema = frozenset(self.values.held)
        self.held: dict[str, Any] = dict(self.values.held)
        for entry in given.entries:
            self.held[entry.name] = scalar(entry.value)

    def entry(self, entry: Setting) -> Iterator[UnknownSetting]:
        """Yield what is wrong with a key of a file: a file may add keys, so only what verl once had, or will have."""
        top = entry.name.partition(".")[0]
        if top in ("defaults", "hydra") or self.among(entry.name, self.schema) or self.open(entry.name):
            return
        moved, since = self.moved(entry.name), self.since(entry.name)
        if moved or since:
            yield UnknownSetting(entry.name, entry.location, (moved,) if moved else (), since)

    def override(self, override: Override) -> UnknownSetting | None:
        """Return what is wrong with an override, and lay it in."""
        key = override.key
        if key.partition(".")[0] == "hydra":
            return None
        if override.prefix != "~" and self.is_group(override):
            return self.group(override)
        if override.prefix == "~":
            return self.removal(override)
        there = self.among(key, self.held)
        if override.prefix == "+" and there and not self.joins(override):
            return self.said(override, (override.spelled(),), self.came(key))
        if not there and (override.prefix == "" or self.moved(key)):
            return self.missing(override)
        self.held[key] = scalar(override.value)
        return None

    def is_group(self, override: Override) -> bool:
        """Say whether an override chooses in a group of files; a table given to such a name is no choice."""
        group = override.key.partition("@")[0]
        return override.value[:1] not in ("[", "{") and ("." not in group) and bool(self.names.options(group))

    def group(self, override: Override) -> UnknownSetting | None:
        """Return what is wrong with a choice in a group."""
        key, options = override.key, self.names.options(override.key.partition("@")[0])
        if override.word.known and override.value not in options:
            near = difflib.get_close_matches(override.value, options, 1)
            return UnknownSetting(
                override.text, override.word.location, near=f"{key}={near[0]}" if near else ", ".join(options)
            )
        if key in self.groups or override.prefix == "+":
            return None
        return self.said(override, (override.spelled("+"),), "")

    def removal(self, override: Override) -> UnknownSetting | None:
        """Return what is wrong with taking a key out."""
        if not self.among(override.key, self.held):
            return self.said(override, (), self.since(override.key))
        self.held = {key: value for key, value in self.held.items() if not within(key, override.key)}
        return None

    def missing(self, override: Override) -> UnknownSetting:
        """Return an override whose key this release lacks."""
        key = override.key
        moved = self.moved(key)
        if moved:
            there = self.among(moved, self.held)
            now = override.spelled("" if there else "+", moved)
            self.held[moved] = scalar(override.value)
            return self.said(override, (now,), self.since(key))
        if key == "model_engine" and override.value in ENGINES:
            return self.said(override, (ENGINES[override.value],), "0.7.1")
        if self.open(key):
            self.held[key] = scalar(override.value)
            return self.said(override, (override.spelled("+"),), self.since(key))
        since = self.since(key)
        near = difflib.get_close_matches(key, list(self.held), 1, CLOSE) if not since else []
        return UnknownSetting(override.prefix + key, override.word.location, (), since, near[0] if near else "")

    def said(self, override: Override, now: tuple[str, ...], since: str) -> UnknownSetting:
        """Return an override as unknown."""
        return UnknownSetting(override.prefix + override.key, override.word.location, now, since)

    def joins(self, override: Override) -> bool:
        """Say whether Hydra lets `+` through although the key is there: null, or a list or table is given."""
        return override.value[:1] in ("[", "{") or Values(self.held, {}).get(override.key) is None

    def among(self, key: str, keys: Any) -> bool:
        """Say whether a key, or anything below it, is among `keys`."""
        return key in keys or any(name.startswith(f"{key}.") for name in keys)

    def open(self, key: str) -> bool:
        """Say whether a key may be added: below an empty table, or where verl reads it although it is not listed."""
        parts = key.split(".")
        parents = (".".join(parts[:stop]) for stop in range(1, len(parts)))
        return any(self.held.get(parent, "") == {} for parent in parents) or bool(READ_ALL_THE_SAME.fullmatch(key))

    def moved(self, key: str) -> str:
        """Return where a key that this release lacks went, "" where nowhere."""
        if self.among(key, self.schema):
            return ""
        for pattern, new in MOVED:
            found = re.fullmatch(pattern, key)
            target = found.expand(new) if found else ""
            if target and (self.among(target, self.schema) or READ_ALL_THE_SAME.fullmatch(target)):
                return target
        return ""

    def since(self, key: str) -> str:
        """Return the release in which a key went, or the one in which it came; "" where none has it."""
        return _turn(self.having(key), self.names)

    def came(self, key: str) -> str:
        """Return the release in which a key that this one has came in."""
        having, found = self.having(key), self.names.release
        for release in reversed(self.names.table["releases"][: self.names.number]):
            if release not in having:
                return found
            found = release
        return ""

    def having(self, key: str) -> list[str]:
        """Return the releases whose configuration for this launch has a key."""
        found = []
        for release in self.names.table["releases"]:
            names = verl.of(release)
            again = resolved(self.given, names)
            configs = {again.config} | (
                {"sft_trainer", "sft_trainer_engine"} & set(names.configs()) if self.sft else set()
            )
            if any(self.among(key, names.schema(config, again.choices)) for config in configs):
                found.append(release)
        return found

    @property
    def sft(self) -> bool:
        """Say whether the launch is fine-tuning, whose two trainers have a configuration each."""
        return self.given.module in (OLD_SFT, NEW_SFT) or self.given.config.startswith("sft_trainer")
