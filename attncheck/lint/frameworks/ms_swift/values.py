"""The settings of one ms-swift launch, as one release reads them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from attncheck.lint import arguments
from attncheck.lint.fields import DefaultedReading, Launch, Setting, Snapshot, parse_value, value_or
from attncheck.lint.frameworks.ms_swift import tables as ms_swift
from attncheck.lint.frameworks.ms_swift.renames import translate_name, translate_setting

COMMANDS = {"swift": "swift.cli.main", "megatron": "swift.cli._megatron.main"}  # command -> its module


def read_settings(launch: Launch, verb: str, version: str, snapshot: Snapshot | None = None) -> "MsSwiftReading":
    """Return the settings of a launch as a release reads them; the command's options override the file's keys."""
    known_names = ms_swift.read_option_rows(version, verb == "rlhf")
    options = tuple(_parse_options(launch, known_names))
    by_field = {entry.name: entry for entry in launch.entries if not entry.name.startswith("ENV")}
    unknown: list[Setting] = []
    for setting in options:
        name = field_name(setting.name, known_names)
        by_field[name] = setting
        if name not in known_names:
            unknown.append(setting)
    unknown += [
        entry for name, entry in by_field.items() if entry in launch.entries and name.split(".")[0] not in known_names
    ]
    renamed = _rename_unknown(by_field, unknown, known_names)
    return MsSwiftReading(launch, verb, version, snapshot, by_field, tuple(unknown), renamed)


def _rename_unknown(
    by_field: dict[str, Setting], unknown: list[Setting], known_names: Mapping[str, Any]
) -> dict[Setting, tuple[str, str]]:
    """Put each setting of another release under its name in this one; return these names with their values.

    If the launch also has the new name, or has two old ones, the first one counts.
    """
    renamed: dict[Setting, tuple[str, str]] = {}
    for setting in unknown:
        old_name = field_name(setting.name, known_names)
        new = translate_setting(old_name, _written_value(setting), known_names) if setting.known else None
        new = new or (translate_name(old_name, known_names) if not setting.known else None)
        if new is None:
            continue
        renamed[setting] = new
        if new[0] not in by_field:
            by_field[new[0]] = by_field.pop(old_name)
    return renamed


def _written_value(setting: Setting) -> str:
    """Return the value of a setting; "true" or "false" for a switch without one."""
    if setting.name.startswith("--") and setting.name[2:].startswith(("no_", "no-")):
        return "false"
    return setting.value or "true"


def _parse_options(launch: Launch, known_names: Mapping[str, Any]) -> Iterator[Setting]:
    def arity(name: str) -> str:
        kind = known_names.get(field_name(name, known_names), ("str", None))[0]
        return "optional" if kind.startswith("bool") else "many" if kind.startswith("list") else "one"

    yield from arguments.parse_options(launch.words[2 if find_command(launch) else 1 :], arity, launch.source)


def find_command(launch: Launch) -> str:
    """Return the command that a launch starts, by its name or its module ("swift", "megatron"); "" if it does not."""
    first = launch.words[0].text if launch.words else ""
    module, name = first.removesuffix(".py").replace("/", "."), first.rsplit("/", 1)[-1]
    by_module = (command for command, own in COMMANDS.items() if name == command or module.endswith(own))
    return next(by_module, "")


def field_name(option: str, known_names: Mapping[str, Any]) -> str:
    """Return the field that an option sets; it may be a prefix that fits only one field (argparse, `allow_abbrev`)."""
    name = option.lstrip("-").replace("-", "_")
    if name in known_names:
        return name
    if name.startswith("no_") and name[3:] in known_names:
        return name[3:]
    return _complete_name(name, tuple(known_names)) if name and option.startswith("--") else name


@lru_cache(maxsize=4096)
def _complete_name(name: str, known_names: tuple[str, ...]) -> str:
    candidates = [known_name for known_name in known_names if known_name.startswith(name)]
    return candidates[0] if len(candidates) == 1 else name


@dataclass(frozen=True)
class MsSwiftReading(DefaultedReading):
    """The settings of a launch by field; `unknown` lists those that the release does not know."""

    launch: Launch
    verb: str  # "sft", "pt", "rlhf"
    version: str
    snapshot: Snapshot | None
    by_field: Mapping[str, Setting] = field(default_factory=dict)
    unknown: tuple[Setting, ...] = ()
    renamed: Mapping[Setting, tuple[str, str]] = field(default_factory=dict)  # their names and values in this release

    @cached_property
    def parsed_values(self) -> dict[str, Any]:
        """Return the parsed value of each setting by field; a switch without a value is on, "--no_x" is off."""
        return {name: self._parse_value(setting) for name, setting in self.by_field.items()}

    def _parse_value(self, setting: Setting) -> Any:
        if setting in self.renamed:
            return parse_value(self.renamed[setting][1])
        is_option = setting.name.startswith("--")
        if is_option and setting.name[2:].startswith(("no_", "no-")):
            return False
        return True if is_option and not setting.value else parse_value(setting.value)

    def default_value(self, name: str) -> Any:
        """Return the release's default of a setting; None if it has none."""
        return ms_swift.read_option_rows(self.version, self.verb == "rlhf").get(name, ("", None))[1]

    @cached_property
    def trainer(self) -> str:
        """Return what is trained: the kind of preference or reinforcement learning, or else the command's verb."""
        if self.verb != "rlhf":
            return self.verb
        verb = self.launch.words[1].text if len(self.launch.words) > 1 else ""
        return verb if verb in ms_swift.RLHF_VERBS else str(self.get("rlhf_type") or "dpo")

    @cached_property
    def implementation(self) -> str:
        """Return the implementation in transformers' words (model/utils.py:43); "" if transformers chooses."""
        if not self.is_at_least(ms_swift.HUGGING_FACE_SINCE):
            return "flash_attention_2" if self.is_on("use_flash_attn") else ""
        name = str(self.get("attn_impl") or "")
        return "flash_attention_2" if name == "flash_attn" else name

    @cached_property
    def packed(self) -> bool:
        """Return whether documents share rows: packing also turns padding_free on (arguments/sft_args.py:190)."""
        is_separated = self.is_at_least(ms_swift.PACKED_POSITIONS_SINCE)
        return (self.is_on("packing") and is_separated) or self.is_on("padding_free")

    @cached_property
    def rows(self) -> int:
        """Return the number of rows on a device; 2.x calls it batch_size (2.2.0 llm/utils/argument.py:566)."""
        return self.get_int("per_device_train_batch_size", self.get_int("batch_size"))

    @cached_property
    def uses_xtuner(self) -> bool:
        """Return whether sequence parallelism is xtuner's."""
        is_requested = self.environ.get("SEQUENCE_PARALLEL_IMPL") == "xtuner" and not self.is_at_least("3.7.0")
        return is_requested or not self.is_at_least(ms_swift.OWN_ULYSSES_SINCE)

    @cached_property
    def uses_ring_variable(self) -> bool:
        """Return whether a variable selects the ring, as it does up to 3.8."""
        is_read = self.is_at_least(ms_swift.RING_VARIABLE_SINCE) and not self.is_at_least(ms_swift.DERIVED_RING_SINCE)
        return is_read and self.environ.get("SEQUENCE_PARALLEL_IMPL") == "ring_attention"

    @cached_property
    def sequence_parallel_size(self) -> int:
        """Return how many ranks share a row."""
        return max(self.get_int("sequence_parallel_size"), 1)

    @cached_property
    def ulysses_size(self) -> int:
        """Return the number of ranks in a Ulysses group; the groups pass keys and values around a ring."""
        if self.model is None or not self.is_at_least(ms_swift.DERIVED_RING_SINCE):
            return self.sequence_parallel_size
        heads = value_or(self.model.num_kv_heads, value_or(self.model.num_heads, 0))
        return math.gcd(heads, self.sequence_parallel_size) if heads else self.sequence_parallel_size

    @cached_property
    def zigzag_ring_size(self) -> int:
        """Return the number of ranks in the zigzag ring."""
        return self.sequence_parallel_size // self.ulysses_size

    @cached_property
    def environ(self) -> dict[str, str]:
        """Return the job's variables: the exported ones, and those of the file's ENV that are not exported."""
        variables = {
            entry.name.partition(".")[2]: entry.value for entry in self.launch.entries if entry.name[:4] == "ENV."
        }
        table = next((parse_value(entry.value) for entry in self.launch.entries if entry.name == "ENV"), None)
        of_table = {str(name): str(value) for name, value in table.items()} if isinstance(table, dict) else {}
        return {**of_table, **variables, **self.launch.environ}
