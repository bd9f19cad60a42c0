"""Finds the settings of a launch that do not compose in one release of verl, and their names there."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from attncheck.lint.fields import Setting, UnknownSetting, find_closest_name
from attncheck.lint.frameworks.verl import tables
from attncheck.lint.frameworks.verl.given import HydraInputs, Override, find_successor, resolve_config
from attncheck.lint.frameworks.verl.tables import NEW_SFT, OLD_SFT, Release, add_tables
from attncheck.lint.frameworks.verl.values import Values, compose_values, is_within, parse_scalar

# Keys that moved, in both directions; the first whose other name exists in this release is used. They were found by
# comparing the compositions of successive releases (tools/names/verl.py) and reading the code.
MOVED_KEYS = (
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
    # fsdp_sft_trainer to sft_trainer (0.6.0 has both, 0.7.1 only the new one), and back
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
# Tables that are in no configuration but that verl reads: workers/config/engine.py (0.9.1:290), before 0.6.0
# `fsdp_config.get("mixed_precision")` (workers/fsdp_workers.py).
UNLISTED_KEYS = re.compile(r"(.+\.(fsdp_config|fsdp)|engine)\.mixed_precision(\..+)?")
ENGINE_CONFIGS = {"megatron": "--config-name=ppo_megatron_trainer"}  # how 0.7.0 and before select the training engine
CLOSE_MATCH, CLOSE_OPTION = 0.84, 0.6


def find_unknown_settings(inputs: HydraInputs, release: Release) -> Iterator[UnknownSetting]:
    """Yield the settings of the launch that do not compose in this release."""
    yield from _unknown_module(inputs, release)
    if inputs.is_unread:
        return  # it may have any keys
    composition = _Composition(inputs, release)
    for entry in inputs.entries:
        yield from composition.check_entry(entry)
    for override in inputs.overrides:
        unknown_setting = composition.apply_override(override)
        if unknown_setting is not None:
            yield unknown_setting
    for word in inputs.unrecognized_words:
        near = find_closest_name(word.text, ("--config-name", "--config-path"), CLOSE_MATCH)
        yield UnknownSetting(word.text, word.location, near=near)


def _unknown_module(inputs: HydraInputs, release: Release) -> Iterator[UnknownSetting]:
    module, location = inputs.module, inputs.module_location
    if not module.startswith("verl.trainer.") or release.config_of_module(module) or location is None:
        return
    successor = find_successor(module, release)
    if successor:
        since = _find_module_change(module, release)
        yield UnknownSetting(inputs.module_text, location, (inputs.format_module(successor),), since)


def _find_module_change(module: str, release: Release) -> str:
    versions: list[str] = release.table["versions"]
    known_in = [version for version in versions if tables.find_release(version).config_of_module(module)]
    return _find_change_release(known_in, release)


def _find_change_release(known_in: list[str], release: Release) -> str:
    """Return the release that removed what the releases `known_in` have, or else the one that added it, or else ""."""
    versions: list[str] = release.table["versions"]
    earlier = [version for version in known_in if versions.index(version) < release.index]
    if earlier:
        return versions[versions.index(earlier[-1]) + 1]
    return known_in[0] if known_in else ""


class _Composition:
    """A composition under construction: overrides are applied one after another, as in Hydra."""

    def __init__(self, inputs: HydraInputs, release: Release) -> None:
        self.inputs, self.release = inputs, release
        self.group_choices = release.group_choices(inputs.config_name)
        without_overrides = HydraInputs(inputs.module, inputs.config_name, group_choices=inputs.group_choices)
        self.values_by_key: dict[str, Any] = dict(compose_values(without_overrides, release).by_key)
        self.default_keys = add_tables(frozenset(self.values_by_key))
        self.keys = set(self.default_keys)
        for entry in inputs.entries:
            self.set_value(entry.name, entry.value)

    def set_value(self, key: str, value: str) -> None:
        """Set the value of a key."""
        self.values_by_key[key] = parse_scalar(value)
        self.keys |= add_tables(frozenset({key}))

    def check_entry(self, entry: Setting) -> Iterator[UnknownSetting]:
        """Yield a file's key if it has another name in this release; a file may add all other keys."""
        if entry.name.partition(".")[0] in ("defaults", "hydra"):
            return
        if entry.name in self.default_keys or self.allows_new_key(entry.name):
            return
        new_key = self.find_moved_key(entry.name)
        if new_key:
            yield UnknownSetting(entry.name, entry.location, (new_key,), self.find_change_release(entry.name))

    def apply_override(self, override: Override) -> UnknownSetting | None:
        """Apply an override; return it as unknown if Hydra refuses it."""
        key = override.key
        if key.partition(".")[0] == "hydra":
            return None
        if override.prefix != "~" and self.is_group_choice(override):
            return self.check_group_choice(override)
        if override.prefix == "~":
            return self.apply_removal(override)
        exists = key in self.keys
        if override.prefix == "+" and exists and not self.inputs.is_foreign and not self.can_add(override):
            return self.unknown_setting(override, (override.format(),), self.find_first_release(key))
        if not exists and override.prefix == "":
            return self.resolve_missing_key(override)
        if not exists and self.find_moved_key(key):  # Hydra adds it, but verl reads the other one
            return replace(self.resolve_missing_key(override), dropped=f"verl reads {self.find_moved_key(key)}")
        self.set_value(key, override.value)
        return None

    def is_group_choice(self, override: Override) -> bool:
        """Return whether an override selects an option of a group; an override with a table does not."""
        group = override.key.partition("@")[0]
        return override.value[:1] not in ("[", "{") and ("." not in group) and bool(self.release.group_options(group))

    def check_group_choice(self, override: Override) -> UnknownSetting | None:
        """Return a group choice as unknown if Hydra refuses it; otherwise None."""
        key, options = override.key, self.release.group_options(override.key.partition("@")[0])
        if override.word.known and override.value not in options:
            closest = find_closest_name(override.value, options, CLOSE_OPTION)
            near = f"{key}={closest}" if closest else ", ".join(options)
            return UnknownSetting(override.text, override.word.location, near=near)
        if key in self.group_choices or override.prefix == "+":
            return None
        return self.unknown_setting(override, (override.format("+"),), "")

    def apply_removal(self, override: Override) -> UnknownSetting | None:
        """Remove a key; return the override as unknown if the key does not exist."""
        if override.key not in self.keys:
            return self.unknown_setting(override, (), self.find_change_release(override.key))
        items = self.values_by_key.items()
        self.values_by_key = {key: value for key, value in items if not is_within(key, override.key)}
        self.keys = set(add_tables(frozenset(self.values_by_key)))
        return None

    def resolve_missing_key(self, override: Override) -> UnknownSetting:
        """Return an override with a key that this release lacks as unknown, with its new form; apply the new form."""
        key = override.key
        new_key = self.find_moved_key(key)
        if new_key:
            exists = new_key in self.keys
            now = override.format("" if exists else "+", new_key)
            self.set_value(new_key, override.value)
            return self.unknown_setting(override, (now,), self.find_change_release(key))
        if key == "model_engine" and override.value in ENGINE_CONFIGS:
            return self.unknown_setting(override, (ENGINE_CONFIGS[override.value],), "0.7.1")
        if self.allows_new_key(key):
            self.set_value(key, override.value)
            return self.unknown_setting(override, (override.format("+"),), self.find_change_release(key))
        since = self.find_change_release(key)
        near = find_closest_name(key, self.values_by_key, CLOSE_MATCH) if not since else ""
        return UnknownSetting(override.prefix + key, override.word.location, (), since, near)

    def unknown_setting(self, override: Override, now: tuple[str, ...], since: str) -> UnknownSetting:
        """Return an override as an unknown setting."""
        return UnknownSetting(override.prefix + override.key, override.word.location, now, since)

    def can_add(self, override: Override) -> bool:
        """Return whether Hydra accepts `+` for an existing key: its value is null, or a list or table is given."""
        return override.value[:1] in ("[", "{") or Values(self.values_by_key, {}).get(override.key) is None

    def allows_new_key(self, key: str) -> bool:
        """Return whether a key may be added: below an empty table, or if verl reads it although it is not listed."""
        parts = key.split(".")
        parents = (".".join(parts[:depth]) for depth in range(1, len(parts)))
        return any(self.values_by_key.get(parent, "") == {} for parent in parents) or bool(UNLISTED_KEYS.fullmatch(key))

    def find_moved_key(self, key: str) -> str:
        """Return a key's other name in this release; "" if the key is known or has no other name."""
        if key in self.default_keys:
            return ""
        for pattern, replacement in MOVED_KEYS:
            match = re.fullmatch(pattern, key)
            target = match.expand(replacement) if match else ""
            if target and (target in self.default_keys or UNLISTED_KEYS.fullmatch(target)):
                return target
        return ""

    def find_change_release(self, key: str) -> str:
        """Return the release that removed a key, or else the one that added it; "" if none has it."""
        return _find_change_release(self.releases_with_key(key), self.release)

    def find_first_release(self, key: str) -> str:
        """Return the release that added a key of this release."""
        versions, first = self.releases_with_key(key), self.release.version
        for version in reversed(self.release.table["versions"][: self.release.index]):
            if version not in versions:
                return first
            first = version
        return ""

    def releases_with_key(self, key: str) -> list[str]:
        """Return the releases whose configuration for this launch has a key."""
        rows = self.configurations
        return list(
            dict.fromkeys(release.version for release, name, groups in rows if release.has_key(key, name, groups))
        )

    @cached_property
    def configurations(self) -> list[tuple[Release, str, Mapping[str, str]]]:
        """Return the configurations for this launch of each release, with the groups that it chooses there."""
        rows = []
        for version in self.release.table["versions"]:
            release = tables.find_release(version)
            inputs = resolve_config(self.inputs, release)
            both = {"sft_trainer", "sft_trainer_engine"} & set(release.config_names()) if self.is_sft else set()
            rows += [(release, config_name, inputs.group_choices) for config_name in {inputs.config_name} | both]
        return rows

    @property
    def is_sft(self) -> bool:
        """Return whether the launch is fine-tuning, whose two trainers have one configuration each."""
        return self.inputs.module in (OLD_SFT, NEW_SFT) or self.inputs.config_name.startswith("sft_trainer")
