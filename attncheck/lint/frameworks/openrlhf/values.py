"""The settings of one OpenRLHF launch as one release reads them, asked for by their newest names.

A setting that the release does not know counts under the name that it has there: what is judged is the launch that
was meant, and that it is refused as it stands is said by its `Unknown`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from attncheck.core.facts import Known, value_or
from attncheck.core.job import Consequence, SettingProblem
from attncheck.core.launch import Launch, Setting, SourceLocation, Word
from attncheck.core.model import Model
from attncheck.core.snapshot import Snapshot
from attncheck.lint.arguments import is_option, options
from attncheck.lint.fields.releases import reaches
from attncheck.lint.frameworks.openrlhf import names
from attncheck.lint.frameworks.openrlhf import tables as renamed

LLAMA3_HOOK = "flash_attention_2"
PPO_TURNS_PACKING_ON = "0.8.4"
ROLES = ("actor", "critic", "ref", "reward")


@dataclass(frozen=True)
class Given:
    """One option as it was written."""

    setting: Setting
    name: str  # whole, without dashes; "" where no release has it
    values: tuple[str, ...]
    known: bool  # to the release that reads it
    words: tuple[Word, ...]


@dataclass(frozen=True)
class Values:
    """Every setting under its newest name, with the release's defaults."""

    trainer: str
    version: str
    given: Mapping[str, tuple[tuple[str, ...], Setting]]
    world: int | None  # processes that train
    snapshot: Snapshot
    model: Model | None
    start: SourceLocation = SourceLocation()  # where the command begins
    written: tuple[Given, ...] = ()

    def reaches(self, boundary: str) -> bool:
        """Say whether the release is `boundary` or newer."""
        return reaches(self.version, boundary)

    def wrote(self, name: str) -> bool:
        """Say whether a setting is written."""
        return name in self.given

    def place(self, *wanted: str) -> SourceLocation:
        """Return where the first of the settings that is written stands."""
        found = (self.given[name][1].location for name in wanted if name in self.given)
        return next(found, self.start)

    def text(self, name: str) -> str | None:
        """Return a setting's value; "" where there is none, None where only running can tell."""
        if name in self.given:
            values, setting = self.given[name]
            return " ".join(values) if setting.known else None
        return self._default(name)

    def on(self, name: str) -> bool:
        """Say whether a switch is on."""
        return name in self.given or self._default(name) == "True"

    def number(self, name: str) -> int | None:
        """Return a whole number; None where there is none or only running can tell."""
        text = self.text(name) or ""
        try:
            return int(text)
        except ValueError:
            return None

    def fraction(self, name: str) -> float | None:
        """Return a number; None where there is none or only running can tell."""
        try:
            return float(self.text(name) or "")
        except ValueError:
            return None

    def local(self, name: str) -> str:
        """Return what a setting is called in this release, with dashes; its newest name where it has none."""
        here = self._options()
        for each in (name, *renamed.flat(self.trainer).get(name, ())):
            if each in here:
                return f"--{each}"
        return f"--{name}"

    def _options(self) -> Mapping[str, names.Option]:
        return names.options(self.trainer, self.version)

    def _default(self, name: str) -> str:
        """Return the release's default as text."""
        if name == "ds.attn_implementation" and not self.reaches(renamed.IMPLEMENTATION_NAMED):
            return "eager"
        if name == "ds.param_dtype" and not self.reaches(renamed.DTYPE_NAMED):
            return ""
        if self.trainer == "ppo" and not self.reaches(renamed.ONE_LENGTH):
            old = {"data.max_len": "2048", "rollout.max_new_tokens": "1024"}
            if name in old:
                return old[name]
        option = self._options().get(self.local(name)[2:])
        return "" if option is None or option.default is None else str(option.default)

    @property
    def ring(self) -> int:
        """How many processes share a row; 1 where only running can tell."""
        return self.number("ds.ring_attn_size") or 1

    @property
    def tensor_parallel(self) -> int:
        """How many processes share each weight."""
        return self.number("ds.tensor_parallel_size") or 1

    @property
    def dynamic(self) -> bool:
        """Whether micro batches are made by their tokens."""
        return self.trainer == "ppo" and self.on("train.dynamic_batch_enable")

    @property
    def packed(self) -> bool:
        """Whether rows are packed, after what the release turns on by itself."""
        turned_on = self.trainer == "ppo" and self.ring > 1 and self.reaches(PPO_TURNS_PACKING_ON)
        return self.on("ds.packing_samples") or turned_on or self.dynamic

    @property
    def implementation(self) -> str:
        """What computes attention, after what packing puts in its place; "" where only running can tell."""
        asked = self.text("ds.attn_implementation") or ""
        return LLAMA3_HOOK if self.packed and asked and "flash_attention" not in asked else asked

    @property
    def precision(self) -> str:
        """Of weights and arithmetic: "bf16", "fp16", "fp32"; of old releases without --bf16 the checkpoint's."""
        asked = self.text("ds.param_dtype")
        if asked:
            return asked
        own = value_or(self.model.dtype, "") if self.model is not None else ""
        return {"bfloat16": "bf16", "float16": "fp16"}.get(own.rpartition(".")[2], "fp32")

    @property
    def critic(self) -> bool:
        """Whether PPO trains a critic: only where advantages are estimated by "gae"."""
        return self.text("algo.advantage.estimator") in ("gae", None) if self._estimates() else True

    def _estimates(self) -> bool:
        return "advantage_estimator" in self._options() or "algo.advantage.estimator" in self._options()

    @property
    def remote_reward(self) -> bool:
        """Whether rewards come from elsewhere: a URL, a function, an agent."""
        return any(self.wrote(name) for name in ("reward.remote_url", "train.agent_func_path"))

    @property
    def engines(self) -> int | None:
        """How many GPUs vLLM takes; None where only running can tell."""
        if not self.text("vllm.num_engines") and self.text("vllm.num_engines") is not None:
            return 0
        count, size = self.number("vllm.num_engines"), self.number("vllm.tensor_parallel_size")
        return None if count is None or size is None else count * size

    @property
    def reference(self) -> bool:
        """Whether there is a reference model: not without a KL penalty, from 0.6.0 on."""
        coefficient = self.fraction("algo.kl.init_coef")
        return coefficient is None or coefficient > 0 or not self.reaches("0.6.0")

    def processes(self, role: str) -> int | None:
        """Return on how many GPUs a role runs; None where only running can tell."""
        nodes, each = self.number(f"{role}.num_nodes"), self.number(f"{role}.num_gpus_per_node")
        return None if nodes is None or each is None else nodes * each

    def roles(self) -> list[str]:
        """Return the models that a job of reinforcement runs beside vLLM."""
        there = {"actor": True, "critic": self.critic, "ref": self.reference, "reward": not self.remote_reward}
        return [role for role in ROLES if there[role]]

    def says(
        self, consequence: Consequence, message: str, where: str, *at: str, **others: Any
    ) -> Iterator[SettingProblem]:
        """Yield an objection at the first of the settings `at` that is written; `where` is in 0.11.2's source."""
        yield SettingProblem(consequence, message, (f"openrlhf 0.11.2 {where}",), self.place(*at), **others)

    def installed(self, name: str) -> str:
        """Return the version of a distribution here, "" where it is not known."""
        found = self.snapshot.version(name)
        return str(found.value) if isinstance(found, Known) else ""


def at_least(version: str, boundary: str) -> bool:
    """Say whether a version is known and `boundary` or newer."""
    try:
        return bool(version) and Version(version) >= Version(boundary)
    except InvalidVersion:
        return False


def given(launch: Launch, trainer: str, version: str) -> tuple[Given, ...]:
    """Return the options of a launch as argparse divides them; what belongs to none is one of its own, unknown."""
    found = []
    words = launch.words[1:]
    at = 0
    while at < len(words):
        end = _end(words, at, trainer, version)
        found.append(_one(launch, words[at:end], trainer, version))
        at = end
    return tuple(found)


def _end(words: Sequence[Word], at: int, trainer: str, version: str) -> int:
    """Return where the option at `at` ends, its values included."""
    written, attached, _ = words[at].text.partition("=")
    if not is_option(words[at].text) or attached:
        return at + 1
    wanted = names.takes(trainer, version, written)
    most = wanted if isinstance(wanted, int) else len(words)
    end = at + 1
    while end < len(words) and end - at - 1 < most and not is_option(words[end].text):
        end += 1
    return end


def _one(launch: Launch, words: Sequence[Word], trainer: str, version: str) -> Given:
    first = words[0]
    read = options(words, lambda _: "many", launch.source)
    if not read:  # a value of nothing
        setting = Setting(first.text, "", first.location, first.span, known=first.known)
        return Given(setting, "", (), False, tuple(words))
    setting = read[0]
    values = tuple(word.text for word in words[1:]) if len(words) > 1 else (setting.value,) if "=" in first.text else ()
    name, known = names.resolved(trainer, version, setting.name) if setting.name.startswith("--") else ("", False)
    return Given(setting, name, values, known, tuple(words))
