"""The settings of one axolotl launch, as one release understands them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from attncheck.core.facts import Known
from attncheck.core.launch import Launch, Setting
from attncheck.core.snapshot import Snapshot
from attncheck.lint import arguments
from attncheck.lint.fields.given import Given
from attncheck.lint.fields.releases import fields
from attncheck.lint.fields.written import inside, number, truth, value
from attncheck.lint.frameworks.axolotl import tables as axolotl


def values(launch: Launch, version: str, snapshot: Snapshot | None = None) -> Values:
    """Return the settings of a launch as a release understands them: the last of a name counts."""
    given = {entry.name: entry for entry in launch.entries}
    options = tuple(_options(launch, version))
    given.update({field_name(setting.name): setting for setting in options})
    return Values(launch, version, snapshot, given, options)


def _options(launch: Launch, version: str) -> Iterator[Setting]:
    """Yield the options of the command as fields: switches with their value."""
    words = launch.words
    known = fields("axolotl", "names", version)
    click = bool(words) and words[0].text == "axolotl"
    front = 2 if click else 1

    def takes(name: str) -> str:
        row = known.get(field_name(name))
        switch = row is not None and row[0] == "bool" and click
        return "none" if switch or name.startswith("--no-") else "one" if click else "optional"

    for setting in arguments.options(words[front:], takes, launch.source):
        field_known = field_name(setting.name)
        off = setting.name.startswith("--no-") and field_known in known
        yield replace(setting, value="false" if off else setting.value or "true")


def field_name(option: str) -> str:
    """Return the field that an option of the command sets: "--no-sample-packing" sets sample_packing."""
    name = option.lstrip("-").replace("-", "_")
    return name.removeprefix("no_") if option.startswith("--no-") else name


@dataclass(frozen=True)
class Values(Given):
    """What was written, by name with underscores: the file's keys, and the command's options over them."""

    launch: Launch
    version: str
    snapshot: Snapshot | None
    given: Mapping[str, Setting] = field(default_factory=dict)
    options: tuple[Setting, ...] = ()  # of the command

    @cached_property
    def parsed(self) -> dict[str, Any]:
        """Return name -> value; what only running tells is left as text."""
        return {name: value(setting.value) for name, setting in self.given.items()}

    def default(self, name: str) -> Any:
        """Return the release's default of a setting, None where it has none."""
        return fields("axolotl", "names", self.version).get(name, ("", None))[1]

    @cached_property
    def capabilities(self) -> frozenset[tuple[int, int]]:
        """Return the compute capabilities of the GPUs, where they are known."""
        devices = self.snapshot.visible_devices() if self.snapshot is not None else ()
        found = [each.compute_capability for each in devices]
        return frozenset(each.value for each in found if isinstance(each, Known))

    def installed(self, name: str) -> bool:
        """Say whether a distribution is seen to be installed."""
        return self.snapshot is not None and self.snapshot.has(name)

    @cached_property
    def switches(self) -> tuple[str, ...]:
        """Return the attention booleans that are on."""
        return tuple(flag for flag in axolotl.BOOLEANS if truth(inside(self.parsed, flag)))

    @cached_property
    def asked(self) -> str:
        """Return the implementation that the settings ask for, in transformers' words; "" where they ask for none."""
        named = inside(self.parsed, "attn_implementation")
        if named is not None and self.reaches(axolotl.PASSED_ON):
            return axolotl.SHORT.get(str(named), str(named))
        order = tuple(axolotl.BOOLEANS) if self.reaches(axolotl.NAMED) else axolotl.OLD_ORDER
        flag = next((flag for flag in (*order, "eager_attention") if flag in self.switches), "")
        if not flag and self.on("gemma4_hybrid_attn_impl"):
            return "flash_attention_2"
        return axolotl.BOOLEANS.get(flag, "")

    @cached_property
    def packed(self) -> bool:
        """Say whether documents share rows."""
        return self.on("sample_packing")

    @cached_property
    def separated(self) -> bool:
        """Say whether the release keeps packed documents apart: before 0.17 it looks at the booleans alone."""
        if self.reaches(axolotl.NAMED):
            return axolotl.separates(self.version, self.asked)
        return any(axolotl.separates(self.version, axolotl.BOOLEANS[flag]) for flag in self.switches)

    @cached_property
    def ring(self) -> int:
        """Return how many ranks share a row."""
        size = number(inside(self.parsed, "context_parallel_size"), 0) if self.reaches(axolotl.CONTEXT_PARALLEL) else 0
        return max(size or number(inside(self.parsed, "sequence_parallel_degree"), 1), 1)

    @cached_property
    def ring_function(self) -> str:
        """Return the function of ring-flash-attn that the release takes."""
        if not self.reaches(axolotl.RING_FUNCTIONS):
            return "varlen_llama3"
        return str(self.get("ring_attn_func") or ("varlen_llama3" if self.packed else "batch_ring"))

    @cached_property
    def real_batches(self) -> bool:
        """Say whether a packed batch keeps its rows: else they are one long row."""
        asked = inside(self.parsed, "multipack_real_batches")
        return truth(asked) if asked is not None else not self.takes_long_rows

    @cached_property
    def takes_long_rows(self) -> bool:
        """Say whether the implementation takes all rows of a packed batch as one."""
        if self.reaches(axolotl.NAMED):
            return self.asked.split(":")[0].split("@")[0].strip() in axolotl.SEPARATES
        return any(flag in self.switches for flag in ("flash_attention", "flex_attention", "xformers_attention"))

    @cached_property
    def plugins(self) -> tuple[str, ...]:
        """Return the plugins that are named."""
        found = [each for name, each in self.parsed.items() if name == "plugins" or name.startswith("plugins.")]
        flat = [one for each in found for one in (each if isinstance(each, list) else [each])]
        return tuple(str(one) for one in flat if one)

    def plugin(self, folder: str) -> bool:
        """Say whether the plugin of a folder of axolotl/integrations is named."""
        return any(f"integrations.{folder}." in each or each == f"integrations.{folder}" for each in self.plugins)

    @cached_property
    def liger(self) -> bool:
        """Say whether some of Liger's kernels are put in."""
        return self.plugin("liger") and any(truth(each) for name, each in self.parsed.items() if name[:6] == "liger_")
