"""The settings of one OpenRLHF launch as one release reads them, looked up by their newest names.

A setting that the release does not know counts under its name in that release, so that the intended launch is judged.
The release's refusal of the written name is an `UnknownSetting` of the job.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

from attncheck.core.model import Model
from attncheck.lint.arguments import is_option, parse_options
from attncheck.lint.fields import (
    Known,
    Launch,
    Setting,
    Snapshot,
    Source,
    SourceLocation,
    Word,
    value_or,
)
from attncheck.lint.fields.reading import VersionedReading
from attncheck.lint.frameworks.openrlhf import names, tables

LLAMA3_HOOK = "flash_attention_2"  # the implementation that the ring replaces
PPO_TURNS_PACKING_ON = "0.8.4"  # the first release that does
ROLES = ("actor", "critic", "ref", "reward")


class ParsedOption(NamedTuple):
    """One option of the command as written."""

    setting: Setting
    name: str  # full name without dashes; "" if no release has it
    values: tuple[str, ...]
    known: bool  # whether the release has it
    words: tuple[Word, ...]


@dataclass(frozen=True)
class Values(VersionedReading):
    """All settings under their newest names, with the release's defaults."""

    trainer: str
    version: str
    settings: Mapping[str, tuple[tuple[str, ...], Setting]]  # newest name -> its values, and the setting as written
    world_size: int | None  # number of training processes
    snapshot: Snapshot
    model: Model | None
    command_location: SourceLocation = SourceLocation()  # the start of the command
    parsed_options: tuple[ParsedOption, ...] = ()

    def has_any(self, name: str) -> bool:
        """Return whether the launch sets this setting."""
        return name in self.settings

    def find_location(self, *names: str) -> SourceLocation:
        """Return the location of the first of the settings that is set, or else of the command."""
        locations = (self.settings[name][1].location for name in names if name in self.settings)
        return next(locations, self.command_location)

    def find_text(self, name: str) -> str | None:
        """Return a setting's value; "" if it has none, None if it is known only at run time."""
        if name in self.settings:
            values, setting = self.settings[name]
            return " ".join(values) if setting.known else None
        return self._default_text(name)

    def is_on(self, name: str) -> bool:
        """Return whether a switch is on."""
        return name in self.settings or self._default_text(name) == "True"

    def find_int(self, name: str) -> int | None:
        """Return a setting as an int; None if it has none or is known only at run time."""
        text = self.find_text(name) or ""
        try:
            return int(text)
        except ValueError:
            return None

    def find_float(self, name: str) -> float | None:
        """Return a setting as a float; None if it has none or is known only at run time."""
        try:
            return float(self.find_text(name) or "")
        except ValueError:
            return None

    def option(self, name: str) -> str:
        """Return a setting's option in this release, with dashes; its newest name if the release has none."""
        release_options = self._parser_options()
        for candidate in (name, *tables.flat_names(self.trainer).get(name, ())):
            if candidate in release_options:
                return f"--{candidate}"
        return f"--{name}"

    def _parser_options(self) -> Mapping[str, names.OptionSpec]:
        return names.parser_options(self.trainer, self.version)

    def _default_text(self, name: str) -> str:
        """Return the release's default as text."""
        if name == "ds.attn_implementation" and not self.is_at_least(tables.FIRST_ATTN_IMPLEMENTATION):
            return "eager"
        if name == "ds.param_dtype" and not self.is_at_least(tables.FIRST_PARAM_DTYPE):
            return ""
        if self.trainer == "ppo" and not self.is_at_least(tables.FIRST_SINGLE_LENGTH):
            old_defaults = {"data.max_len": "2048", "rollout.max_new_tokens": "1024"}
            if name in old_defaults:
                return old_defaults[name]
        option = self._parser_options().get(self.option(name)[2:])
        return "" if option is None or option.default is None else str(option.default)

    @property
    def ring_size(self) -> int:
        """The number of processes that share a row; 1 if known only at run time."""
        return self.find_int("ds.ring_attn_size") or 1

    @property
    def tensor_parallel(self) -> int:
        """The number of processes that share each weight; 1 if known only at run time."""
        return self.find_int("ds.tensor_parallel_size") or 1

    @property
    def has_dynamic_batches(self) -> bool:
        """Whether micro batches are filled by their number of tokens."""
        return self.trainer == "ppo" and self.is_on("train.dynamic_batch_enable")

    @property
    def packed(self) -> bool:
        """Whether rows are packed, including by the release's own defaults."""
        is_forced = self.trainer == "ppo" and self.ring_size > 1 and self.is_at_least(PPO_TURNS_PACKING_ON)
        return self.is_on("ds.packing_samples") or is_forced or self.has_dynamic_batches

    @property
    def attn_implementation(self) -> str:
        """The implementation that computes attention, after packing's replacement; "" if known only at run time."""
        requested = self.find_text("ds.attn_implementation") or ""
        return LLAMA3_HOOK if self.packed and requested and "flash_attention" not in requested else requested

    @property
    def precision(self) -> str:
        """The precision: "bf16", "fp16" or "fp32"; the checkpoint's in old releases without --bf16."""
        requested = self.find_text("ds.param_dtype")
        if requested:
            return requested
        checkpoint_dtype = value_or(self.model.dtype, "") if self.model is not None else ""
        return {"bfloat16": "bf16", "float16": "fp16"}.get(checkpoint_dtype.rpartition(".")[2], "fp32")

    @property
    def has_critic(self) -> bool:
        """Whether PPO trains a critic: only if advantages are estimated by "gae"."""
        return self.find_text("algo.advantage.estimator") in ("gae", None) if self._has_estimator() else True

    def _has_estimator(self) -> bool:
        return "advantage_estimator" in self._parser_options() or "algo.advantage.estimator" in self._parser_options()

    @property
    def has_remote_reward(self) -> bool:
        """Whether rewards come from outside: a URL, a function, an agent."""
        return any(self.has_any(name) for name in ("reward.remote_url", "train.agent_func_path"))

    @property
    def vllm_gpus(self) -> int | None:
        """The number of GPUs for vLLM; None if known only at run time."""
        if not self.find_text("vllm.num_engines") and self.find_text("vllm.num_engines") is not None:
            return 0
        engines, gpus_per_engine = self.find_int("vllm.num_engines"), self.find_int("vllm.tensor_parallel_size")
        return None if engines is None or gpus_per_engine is None else engines * gpus_per_engine

    @property
    def has_reference(self) -> bool:
        """Whether there is a reference model; since 0.6.0 only with a KL penalty."""
        coefficient = self.find_float("algo.kl.init_coef")
        return coefficient is None or coefficient > 0 or not self.is_at_least("0.6.0")

    def count_role_gpus(self, role: str) -> int | None:
        """Return the number of GPUs of a role; None if known only at run time."""
        nodes, gpus_per_node = self.find_int(f"{role}.num_nodes"), self.find_int(f"{role}.num_gpus_per_node")
        return None if nodes is None or gpus_per_node is None else nodes * gpus_per_node

    def list_roles(self) -> list[str]:
        """Return the roles of the models that a reinforcement-learning job runs besides vLLM."""
        exists = {"critic": self.has_critic, "ref": self.has_reference, "reward": not self.has_remote_reward}
        return [role for role in ROLES if exists.get(role, True)]

    def installed_version(self, name: str) -> str:
        """Return the installed version of a distribution; "" if it is not known."""
        version = self.snapshot.version(name)
        return str(version.value) if isinstance(version, Known) else ""


def is_known_at_least(version: str, boundary: str) -> bool:
    """Return whether a version is known and at least `boundary`."""
    try:
        return bool(version) and Version(version) >= Version(boundary)
    except InvalidVersion:
        return False


def parse_trainer_options(launch: Launch, trainer: str, version: str) -> tuple[ParsedOption, ...]:
    """Return the options of a launch as argparse divides them; a stray word is an unknown option."""
    return _parse_words(launch.words[1:], launch.source, trainer, version)


@lru_cache(maxsize=64)
def _parse_words(words: tuple[Word, ...], source: Source, trainer: str, version: str) -> tuple[ParsedOption, ...]:
    parsed_options = []
    start = 0
    while start < len(words):
        end = _find_option_end(words, start, trainer, version)
        parsed_options.append(_parse_option(source, words[start:end], trainer, version))
        start = end
    return tuple(parsed_options)


def _find_option_end(words: Sequence[Word], start: int, trainer: str, version: str) -> int:
    """Return the index after the option that begins at `start`, including its values."""
    name, equals, _ = words[start].text.partition("=")
    if not is_option(words[start].text) or equals:
        return start + 1
    nargs = names.find_nargs(trainer, version, name)
    limit = nargs if isinstance(nargs, int) else len(words)
    end = start + 1
    while end < len(words) and end - start - 1 < limit and not is_option(words[end].text):
        end += 1
    return end


def _parse_option(source: Source, words: Sequence[Word], trainer: str, version: str) -> ParsedOption:
    first_word = words[0]
    settings = parse_options(words, lambda _: "many", source)
    if not settings:  # a stray value
        setting = Setting(first_word.text, "", first_word.location, first_word.span, known=first_word.known)
        return ParsedOption(setting, "", (), False, tuple(words))
    setting = settings[0]
    values = (
        tuple(word.text for word in words[1:]) if len(words) > 1 else (setting.value,) if "=" in first_word.text else ()
    )
    name, known = names.resolve_option(trainer, version, setting.name) if setting.name.startswith("--") else ("", False)
    return ParsedOption(setting, name, values, known, tuple(words))
