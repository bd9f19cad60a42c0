"""The settings of one ms-swift launch, as one release understands them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from attncheck.core.facts import value_or
from attncheck.core.launch import Launch, Setting
from attncheck.core.snapshot import Snapshot
from attncheck.lint import arguments
from attncheck.lint.fields.given import Given
from attncheck.lint.fields.written import value
from attncheck.lint.frameworks.ms_swift import tables as ms_swift


def values(launch: Launch, kind: str, version: str, snapshot: Snapshot | None = None) -> Values:
    """Return the settings of a launch as a release understands them: options of the command after the file's keys."""
    known = ms_swift.names(version, kind == "rlhf")
    written = tuple(_options(launch, known))
    given = {entry.name: entry for entry in launch.entries if not entry.name.startswith("ENV")}
    strange: list[Setting] = []
    for setting in written:
        name = field_name(setting.name, known)
        given[name] = setting
        if name not in known:
            strange.append(setting)
    strange += [entry for name, entry in given.items() if entry in launch.entries and name.split(".")[0] not in known]
    return Values(launch, kind, version, snapshot, given, tuple(strange))


def _options(launch: Launch, known: Mapping[str, Any]) -> Iterator[Setting]:
    def takes(name: str) -> str:
        kind = known.get(field_name(name, known), ("str", None))[0]
        return "optional" if kind.startswith("bool") else "many" if kind.startswith("list") else "one"

    yield from arguments.options(launch.words[front(launch) :], takes, launch.source)


def front(launch: Launch) -> int:
    """Return how many words stand before the options: the program and its verb, or a module."""
    words = [word.text.rsplit("/", 1)[-1] for word in launch.words[:2]]
    return 2 if words and words[0] in ("swift", "megatron") else 1


def field_name(option: str, known: Mapping[str, Any]) -> str:
    """Return the field that an option sets, its beginning where it fits one alone (argparse, `allow_abbrev`)."""
    name = option.lstrip("-").replace("-", "_")
    if name in known:
        return name
    if name.startswith("no_") and name[3:] in known:
        return name[3:]
    alike = [each for each in known if each.startswith(name)] if name and option.startswith("--") else []
    return alike[0] if len(alike) == 1 else name


@dataclass(frozen=True)
class Values(Given):
    """What was written, by field; `strange` is what the release does not know."""

    launch: Launch
    kind: str  # "sft", "pt", "rlhf"
    version: str
    snapshot: Snapshot | None
    given: Mapping[str, Setting] = field(default_factory=dict)
    strange: tuple[Setting, ...] = ()

    @cached_property
    def parsed(self) -> dict[str, Any]:
        """Return field -> value; a switch without a value is on, "--no_x" is off."""
        return {name: self._value(setting) for name, setting in self.given.items()}

    @staticmethod
    def _value(setting: Setting) -> Any:
        option = setting.name.startswith("--")
        if option and setting.name[2:].startswith(("no_", "no-")):
            return False
        return True if option and not setting.value else value(setting.value)

    def default(self, name: str) -> Any:
        """Return the release's default of a setting, None where it has none."""
        return ms_swift.names(self.version, self.kind == "rlhf").get(name, ("", None))[1]

    @cached_property
    def trainer(self) -> str:
        """Return what is trained: the kind of preference or reinforcement learning, else the command's verb."""
        return str(self.get("rlhf_type") or "dpo") if self.kind == "rlhf" else self.kind

    @cached_property
    def asked(self) -> str:
        """Return the implementation in transformers' words (model/utils.py:43); "" where transformers chooses."""
        found = str(self.get("attn_impl") or "")
        return "flash_attention_2" if found == "flash_attn" else found

    @cached_property
    def packed(self) -> bool:
        """Say whether documents share rows: packing turns padding_free on (arguments/sft_args.py:190)."""
        return self.on("packing") or self.on("padding_free")

    @cached_property
    def size(self) -> int:
        """Return how many ranks share a row."""
        return max(self.number("sequence_parallel_size"), 1)

    @cached_property
    def ulysses(self) -> int:
        """Return over how many of them heads are exchanged: the others pass keys and values round a ring."""
        if self.model is None or not self.reaches(ms_swift.DERIVED_RING):
            return self.size
        heads = value_or(self.model.num_kv_heads, value_or(self.model.num_heads, 0))
        return math.gcd(heads, self.size) if heads else self.size

    @cached_property
    def ring(self) -> int:
        """Return how many ranks the ring has."""
        return self.size // self.ulysses

    @cached_property
    def environ(self) -> dict[str, str]:
        """Return the variables of the job: those exported, and the file's ENV where they are not."""
        named = {entry.name.partition(".")[2]: entry.value for entry in self.launch.entries if entry.name[:4] == "ENV."}
        whole = next((value(entry.value) for entry in self.launch.entries if entry.name == "ENV"), None)
        table = {str(k): str(v) for k, v in whole.items()} if isinstance(whole, dict) else {}
        return {**table, **named, **self.launch.environ}
