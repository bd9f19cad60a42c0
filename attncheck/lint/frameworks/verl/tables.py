"""verl's configurations by release: modules, groups, keys and defaults, as Hydra composes them.

The table is `names/verl.json`, written by `tools/names/verl.py` from the wheels 0.2.0.post2 to 0.9.1 (every
file of trainer/config and experimental/*/config). Each composition was compared with Hydra's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Any

from packaging.version import InvalidVersion, Version

from attncheck.lint import names
from attncheck.lint.fields.releases import parse_release

Rows = list[list[Any]]  # [first release, last release, value]; releases are indices into the table's list
MANDATORY = "???"  # Hydra's value of a required key
OLD_SFT = "verl.trainer.fsdp_sft_trainer"
NEW_SFT = "verl.trainer.sft_trainer"


@dataclass(frozen=True)
class Release:
    """The contents of one release of verl: its modules, configurations, groups, keys and defaults."""

    table: Mapping[str, Any]
    version: str
    _schemas: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict, compare=False)
    _keys: dict[tuple[str, ...], frozenset[str]] = field(default_factory=dict, compare=False)

    @cached_property
    def index(self) -> int:
        """Return the index of the release in the table's list."""
        index: int = self.table["versions"].index(self.version)
        return index

    def config_of_module(self, module: str) -> str:
        """Return the configuration that a module composes; "" if this release has no such module."""
        return str(self._find_value(self.table["modules"].get(module, [])) or "")

    def config_names(self) -> list[str]:
        """Return the configurations that a command may name."""
        configs = self.table["configs"].items()
        return [name for name, entry in configs if self._find_value(entry["defaults"]) is not None]

    def group_options(self, group: str) -> list[str]:
        """Return the available options of a group."""
        return [
            name.partition("/")[2]
            for name, keys in self.table["options"].items()
            if name.startswith(f"{group}/") and any(self._find_row(rows) is not None for rows in keys.values())
        ]

    def group_choices(self, config_name: str) -> dict[str, str]:
        """Return the group choices of a configuration: "actor@actor_rollout_ref.actor" -> "dp_actor"."""
        choices: dict[str, str] = {}
        for key, choice in self._defaults_list(config_name):
            if key == "@":  # based on another configuration
                choices.update(self.group_choices(choice))
            elif not key.startswith("@"):
                choices[key.removeprefix("override ")] = choice
        return choices

    def schema(self, config_name: str, choices: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the leaves of a configuration and their defaults, with `choices` for some groups."""
        group_choices = choices or {}
        cache_key = _name_schema(config_name, group_choices)
        if cache_key not in self._schemas:
            self._schemas[cache_key] = self._compose(config_name, group_choices)
        return self._schemas[cache_key]

    def has_key(self, key: str, config_name: str, choices: Mapping[str, str]) -> bool:
        """Return whether a configuration has a key, as a leaf or as a table of leaves."""
        cache_key = _name_schema(config_name, choices)
        if cache_key not in self._keys:
            self._keys[cache_key] = add_tables(frozenset(self.schema(config_name, choices)))
        return key in self._keys[cache_key]

    def required_packages(self, rollout: str = "") -> tuple[str, ...]:
        """Return the release's requirements, including those for a rollout engine: "transformers<5.11,>=5.5.3"."""
        table = self.table["requires"]
        extra = self._find_value(table.get(rollout, [])) if rollout else None
        return (*(self._find_value(table[""]) or ()), *(extra or ()))

    def _compose(self, config_name: str, group_choices: Mapping[str, str]) -> dict[str, Any]:
        """Return the leaves of a configuration: those of its base configurations, of its groups, then its own."""
        leaves: dict[str, Any] = {}
        defaults = self._defaults_list(config_name)
        own_groups = {key: value for key, value in defaults if key[:1] != "@" and not key.startswith("override ")}
        choices = {key: group_choices.get(key, value) for key, value in own_groups.items()}
        overrides = {key[9:]: value for key, value in defaults if key.startswith("override ")}
        base_choices = {**overrides, **group_choices}
        engine = base_choices.get("model_engine", choices.get("model_engine", ""))
        added = {key: value for key, value in group_choices.items() if key.startswith("+")}
        for key, base in defaults:
            if key.startswith("@"):  # a whole configuration, in its own place or at the root
                prefix = f"{key[1:]}." if key[1:] else ""
                leaves.update({f"{prefix}{name}": value for name, value in self.schema(base, base_choices).items()})
        for key, choice in {**choices, **added}.items():
            group, _, package = key.lstrip("+").partition("@")
            option = self._option_leaves(f"{group}/{choice.replace('${model_engine}', engine)}")
            prefix = "" if group == "model_engine" else f"{package or group}."
            _merge_leaves(leaves, {f"{prefix}{name}": value for name, value in option.items()})
        own_leaves = self.table["configs"][config_name]["own"]
        _merge_leaves(leaves, {name: row[2] for name, rows in own_leaves.items() if (row := self._find_row(rows))})
        return leaves

    def _defaults_list(self, config_name: str) -> list[list[str]]:
        """Return Hydra's defaults list: (group, choice), ("override group", choice) or ("@package", configuration)."""
        entry = self.table["configs"].get(config_name)
        return list(self._find_value(entry["defaults"]) or ()) if entry else []

    def _option_leaves(self, name: str) -> dict[str, Any]:
        keys = self.table["options"].get(name, {})
        return {key: row[2] for key, rows in keys.items() if (row := self._find_row(rows))}

    def _find_row(self, rows: Rows) -> list[Any] | None:
        return next((row for row in rows if row[0] <= self.index <= row[1]), None)

    def _find_value(self, rows: Rows) -> Any:
        row = self._find_row(rows)
        return None if row is None else row[2]


@lru_cache(maxsize=256)
def add_tables(keys: frozenset[str]) -> frozenset[str]:
    """Return keys and the tables that contain them: "a.b" and "a" for "a.b"."""
    paths = (key.split(".") for key in keys)
    return frozenset(".".join(path[:depth]) for path in paths for depth in range(1, len(path) + 1))


def _name_schema(config_name: str, choices: Mapping[str, str]) -> tuple[str, ...]:
    """Return the key under which a composed configuration is kept."""
    return (config_name, *(f"{key}={value}" for key, value in sorted(choices.items())))


def _merge_leaves(leaves: dict[str, Any], new_leaves: Mapping[str, Any]) -> None:
    """Merge leaves into others as Hydra does: an empty table adds nothing to a table with keys."""
    for name, value in new_leaves.items():
        if value == {} and any(key.startswith(f"{name}.") for key in leaves):
            continue
        parts = name.split(".")
        for depth in range(1, len(parts)):  # a leaf that becomes a table
            leaves.pop(".".join(parts[:depth]), None)
        leaves[name] = value


@cache
def find_release(version: str) -> Release:
    """Return the release for a version: the same one, or the newest one in the table that is not newer."""
    table = names.load_table("verl")
    versions: list[str] = table["versions"]
    try:
        requested = parse_release(version)
    except InvalidVersion:
        return Release(table, versions[-1])
    older = [known_version for known_version in versions if Version(known_version) <= requested]
    return Release(table, older[-1] if older else versions[0])
