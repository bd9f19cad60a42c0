"""The settings of one NeMo-RL launch: those of its file, of the files that it inherits from, and overrides."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from attncheck.lint.arguments import parse_overrides
from attncheck.lint.fields import Absent, Fact, Known, Launch, Reading, Setting

REFERENCE = re.compile(r"\$\{([\w.]+)\}")
MAX_HOPS = 8


@dataclass(frozen=True)
class NemoReading(Reading):
    """The settings of a launch by dotted name."""

    launch: Launch
    written: tuple[Setting, ...]
    by_field: Mapping[str, Setting]

    def get_text(self, name: str) -> str:
        """Return a value, with references to other settings resolved; "" if it is not set or not known."""
        for _ in range(MAX_HOPS):
            setting = self.by_field.get(name)
            text = setting.value if setting is not None else ""
            reference = REFERENCE.fullmatch(text)
            if reference is None:
                return text if setting is not None and setting.known and text != "null" else ""
            name = reference[1]
        return ""

    def is_known(self, *names: str) -> bool:
        """Return whether none of the settings has a value known only at run time."""
        return all(bool(self.get_text(name)) or name not in self.by_field for name in names)

    @cached_property
    def is_megatron(self) -> bool:
        """Whether the policy trains with Megatron-core."""
        return self.is_on("policy.megatron_cfg.enabled")

    @cached_property
    def backend(self) -> str:
        """The table of the backend that trains."""
        return "policy.megatron_cfg" if self.is_megatron else "policy.dtensor_cfg"

    @cached_property
    def tensor_parallel(self) -> int:
        """The number of ranks that share a layer."""
        name = "tensor_model_parallel_size" if self.is_megatron else "tensor_parallel_size"
        return self.get_int(f"{self.backend}.{name}", 1)

    @cached_property
    def context_parallel(self) -> int:
        """The number of ranks that share a row."""
        return self.get_int(f"{self.backend}.context_parallel_size", 1)

    @cached_property
    def pipeline_parallel(self) -> int:
        """The number of ranks that share the layers, each with successive ones."""
        return self.get_int("policy.megatron_cfg.pipeline_model_parallel_size", 1) if self.is_megatron else 1

    def count_cluster(self) -> Fact[int]:
        """Return how many GPUs the cluster has."""
        names = ("cluster.num_nodes", "cluster.gpus_per_node")
        if not all(self.get_text(name) for name in names):
            return Absent("the launch does not set the size of the cluster")
        return Known(self.get_int(names[0], 1) * self.get_int(names[1], 1))

    def describe_unresolved(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return a line for each of the settings with a value known only at run time."""
        rows = [
            (name, self.by_field[name]) for name in names if name in self.by_field and not self.by_field[name].known
        ]
        unknown = [(name, setting) for name, setting in rows if not self.get_text(name)]
        return tuple(f"{name} {setting.value}: its value is known only at run time" for name, setting in unknown)


def parse_launch_settings(launch: Launch) -> NemoReading:
    """Return the settings of a launch, later ones overriding earlier ones; `~name` removes one."""
    overrides = parse_overrides(launch.words[1:], launch.source)
    by_field: dict[str, Setting] = {}
    for setting in (*launch.entries, *overrides):
        name = setting.name.lstrip("+")
        if name.startswith("~"):
            by_field.pop(name[1:], None)
        else:
            by_field[name] = setting
    own = [entry for entry in launch.entries if launch.file is None or entry.location.source == launch.file.name]
    return NemoReading(launch, (*own, *overrides), by_field)
