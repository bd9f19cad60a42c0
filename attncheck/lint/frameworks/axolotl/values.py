"""The settings of one axolotl launch, as one release reads them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from packaging.version import Version

from attncheck.lint import arguments
from attncheck.lint.fields import (
    DefaultedReading,
    Known,
    Launch,
    Setting,
    Snapshot,
    get_nested,
    is_true,
    parse_value,
    read_fields,
    to_int,
)
from attncheck.lint.frameworks.axolotl import tables as axolotl


def read_settings(launch: Launch, version: str, snapshot: Snapshot | None = None) -> "AxolotlReading":
    """Return the settings of a launch as a release reads them; if a name is set twice, the last one takes effect."""
    by_field = {entry.name: entry for entry in launch.entries}
    options = tuple(_parse_options(launch, version))
    by_field.update({field_name(setting.name): setting for setting in options})
    return AxolotlReading(launch, version, snapshot, by_field, options)


def _parse_options(launch: Launch, version: str) -> Iterator[Setting]:
    """Yield the options of the command, each with a value; that of a switch is true or false."""
    words = launch.words
    known_fields = read_fields("axolotl", "names", version)
    is_click = bool(words) and words[0].text == "axolotl"
    leading_words = 2 if is_click else 1

    def arity(name: str) -> str:
        row = known_fields.get(field_name(name))
        is_switch = row is not None and row[0] == "bool" and is_click
        return "none" if is_switch or name.startswith("--no-") else "one" if is_click else "optional"

    for setting in arguments.parse_options(words[leading_words:], arity, launch.source):
        name = field_name(setting.name)
        is_off = setting.name.startswith("--no-") and name in known_fields
        yield replace(setting, value="false" if is_off else setting.value or "true")


def field_name(option: str) -> str:
    """Return the field that an option of the command sets: "--no-sample-packing" sets sample_packing."""
    name = option.lstrip("-").replace("-", "_")
    return name.removeprefix("no_") if option.startswith("--no-") else name


@dataclass(frozen=True)
class AxolotlReading(DefaultedReading):
    """The settings of a launch by field: the file's keys, overridden by the command's options."""

    launch: Launch
    version: str
    snapshot: Snapshot | None
    by_field: Mapping[str, Setting] = field(default_factory=dict)
    command_options: tuple[Setting, ...] = ()

    @cached_property
    def parsed_values(self) -> dict[str, Any]:
        """Return the parsed value of each setting by field; a value known only at run time remains text."""
        return {name: parse_value(setting.value) for name, setting in self.by_field.items()}

    def default_value(self, name: str) -> Any:
        """Return the release's default of a setting; None if it has none."""
        return read_fields("axolotl", "names", self.version).get(name, ("", None))[1]

    @cached_property
    def compute_capabilities(self) -> frozenset[tuple[int, int]]:
        """Return the compute capabilities of the GPUs, if they are known."""
        devices = self.snapshot.visible_devices() if self.snapshot is not None else ()
        capabilities = [device.compute_capability for device in devices]
        return frozenset(capability.value for capability in capabilities if isinstance(capability, Known))

    def has_version(self, name: str, boundary: str) -> bool:
        """Return whether a distribution is known to be installed in `boundary` or newer."""
        version = self.snapshot.version(name) if self.snapshot is not None else None
        return isinstance(version, Known) and version.value >= Version(boundary)

    def is_installed(self, name: str) -> bool:
        """Return whether a distribution is known to be installed."""
        return self.snapshot is not None and self.snapshot.lists(name)

    @cached_property
    def attention_flags(self) -> tuple[str, ...]:
        """Return the attention booleans that are on, in axolotl's order."""
        return tuple(flag for flag in axolotl.FLAG_IMPLEMENTATIONS if is_true(get_nested(self.parsed_values, flag)))

    @cached_property
    def implementation(self) -> str:
        """Return the implementation that the settings name, in transformers' words; "" if they name none."""
        name = get_nested(self.parsed_values, "attn_implementation")
        if name is not None and self.is_at_least(axolotl.ATTN_IMPLEMENTATION_SINCE):
            return axolotl.SHORT_NAMES.get(str(name), str(name))
        order = (
            tuple(axolotl.FLAG_IMPLEMENTATIONS)
            if self.is_at_least(axolotl.FLAGS_DEPRECATED_SINCE)
            else axolotl.OLD_FLAG_ORDER
        )
        flag = next((flag for flag in (*order, "eager_attention") if flag in self.attention_flags), "")
        if not flag and self.is_on("gemma4_hybrid_attn_impl"):
            return "flash_attention_2"
        return axolotl.FLAG_IMPLEMENTATIONS.get(flag, "")

    @cached_property
    def packed(self) -> bool:
        """Return whether documents share rows."""
        return self.is_on("sample_packing")

    @cached_property
    def isolates_documents(self) -> bool:
        """Return whether the release separates packed documents; before 0.17 only the booleans decide this."""
        if self.is_at_least(axolotl.FLAGS_DEPRECATED_SINCE):
            return axolotl.isolates_documents(self.version, self.implementation)
        return any(
            axolotl.isolates_documents(self.version, axolotl.FLAG_IMPLEMENTATIONS[flag])
            for flag in self.attention_flags
        )

    @cached_property
    def ring_size(self) -> int:
        """Return how many ranks share a row."""
        size = (
            to_int(get_nested(self.parsed_values, "context_parallel_size"), 0)
            if self.is_at_least(axolotl.CONTEXT_PARALLEL_SINCE)
            else 0
        )
        return max(size or to_int(get_nested(self.parsed_values, "sequence_parallel_degree"), 1), 1)

    @cached_property
    def ring_function(self) -> str:
        """Return the function of ring-flash-attn that the release uses."""
        if not self.is_at_least(axolotl.RING_FUNCTION_SINCE):
            return "varlen_llama3"
        return str(self.get("ring_attn_func") or ("varlen_llama3" if self.packed else "batch_ring"))

    @cached_property
    def real_batches(self) -> bool:
        """Return whether a packed batch keeps its rows; otherwise they are one long row."""
        real_batches = get_nested(self.parsed_values, "multipack_real_batches")
        return is_true(real_batches) if real_batches is not None else not self.takes_long_rows

    @cached_property
    def takes_long_rows(self) -> bool:
        """Return whether the implementation takes all rows of a packed batch as a single one."""
        if self.is_at_least(axolotl.FLAGS_DEPRECATED_SINCE):
            return self.implementation.split(":")[0].split("@")[0].strip() in axolotl.ISOLATING_IMPLEMENTATIONS
        return any(flag in self.attention_flags for flag in ("flash_attention", "flex_attention", "xformers_attention"))

    @cached_property
    def plugins(self) -> tuple[str, ...]:
        """Return the plugins that `plugins` lists."""
        values = [
            value for name, value in self.parsed_values.items() if name == "plugins" or name.startswith("plugins.")
        ]
        plugins = [plugin for value in values for plugin in (value if isinstance(value, list) else [value])]
        return tuple(str(plugin) for plugin in plugins if plugin)

    def has_plugin(self, folder: str) -> bool:
        """Return whether the plugin of a folder of axolotl/integrations is in `plugins`."""
        return any(f"integrations.{folder}." in name or name == f"integrations.{folder}" for name in self.plugins)

    @cached_property
    def uses_liger(self) -> bool:
        """Return whether any of Liger's kernels is used."""
        return self.has_plugin("liger") and any(
            is_true(value) for name, value in self.parsed_values.items() if name[:6] == "liger_"
        )
