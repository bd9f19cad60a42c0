"""verl's configurations by release: modules, groups, keys and defaults, as Hydra composes them.

The table is `names/verl.json`, written by `tests/lint/tools/names_verl.py` from the wheels 0.2.0.post2 to 0.9.1 (every
file of trainer/config and experimental/*/config); each composition it gives was compared with Hydra's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from packaging.version import InvalidVersion, Version

from attncheck.lint import names

Rows = list[list[Any]]  # [first release, last release, value], releases as places in the table's list
MANDATORY = "???"  # Hydra's value of a key that must be given
OLD_SFT = "verl.trainer.fsdp_sft_trainer"
NEW_SFT = "verl.trainer.sft_trainer"


@dataclass(frozen=True)
class Names:
    """What one release knows."""

    table: Mapping[str, Any]
    release: str
    _kept: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict, compare=False)

    @property
    def number(self) -> int:
        """Return the place of the release in the table."""
        found: int = self.table["releases"].index(self.release)
        return found

    def config(self, module: str) -> str:
        """Return the configuration that a module composes, "" where this release has no such module."""
        return str(self._at(self.table["modules"].get(module, [])) or "")

    def configs(self) -> list[str]:
        """Return the configurations that a command may name."""
        return [name for name, entry in self.table["configs"].items() if self._at(entry["defaults"]) is not None]

    def options(self, group: str) -> list[str]:
        """Return what may be chosen in a group."""
        return [
            name.partition("/")[2]
            for name, keys in self.table["options"].items()
            if name.startswith(f"{group}/") and any(self._has(rows) for rows in keys.values())
        ]

    def groups(self, config: str) -> dict[str, str]:
        """Return the group choices of a configuration: "actor@actor_rollout_ref.actor" -> "dp_actor"."""
        found: dict[str, str] = {}
        for key, choice in self._mounts(config):
            if key == "@":  # built on another configuration
                found.update(self.groups(choice))
            elif not key.startswith("@"):
                found[key.removeprefix("override ")] = choice
        return found

    def engines(self, config: str) -> Iterator[dict[str, str]]:
        """Yield the choices of training engine that a configuration offers, its own first."""
        groups = self.groups(config)
        key = next((name for name in ("model_engine", "engine") if name in groups), "")
        yield {}
        for choice in self.options(key) if key else []:
            yield {key: choice, **({"optim": choice} if choice in self.options("optim") and "optim" in groups else {})}

    def schema(self, config: str, choices: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the leaves of a configuration and their defaults, with some groups chosen otherwise."""
        chosen = choices or {}
        kept = (config, *(f"{key}={value}" for key, value in sorted(chosen.items())))
        if kept not in self._kept:
            self._kept[kept] = self._composed(config, chosen)
        return self._kept[kept]

    def requires(self, rollout: str = "") -> tuple[str, ...]:
        """Return what the release requires, with the extra of a rollout engine: "transformers<5.11,>=5.5.3"."""
        table = self.table["requires"]
        extra = self._at(table.get(rollout, [])) if rollout else None
        return (*(self._at(table[""]) or ()), *(extra or ()))

    def _composed(self, config: str, chosen: Mapping[str, str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        mine = {key: value for key, value in self._mounts(config) if key[:1] != "@" and not key.startswith("override ")}
        mounts = {key: chosen.get(key, value) for key, value in mine.items()}
        overridden = {key[9:]: value for key, value in self._mounts(config) if key.startswith("override ")}
        passed = {**overridden, **chosen}
        engine = passed.get("model_engine", mounts.get("model_engine", ""))
        added = {key: value for key, value in chosen.items() if key.startswith("+")}
        for key, base in self._mounts(config):
            if key.startswith("@"):  # a whole configuration, at its own place or at the root
                before = f"{key[1:]}." if key[1:] else ""
                found.update({f"{before}{name}": value for name, value in self.schema(base, passed).items()})
        for key, choice in {**mounts, **added}.items():
            group, _, at = key.lstrip("+").partition("@")
            option = self._option(f"{group}/{choice.replace('${model_engine}', engine)}")
            before = "" if group == "model_engine" else f"{at or group}."
            _laid(found, {f"{before}{name}": value for name, value in option.items()})
        own = self.table["configs"][config]["own"]
        _laid(found, {name: row[2] for name, rows in own.items() if (row := self._row(rows))})
        return found

    def _mounts(self, config: str) -> list[list[str]]:
        entry = self.table["configs"].get(config)
        return list(self._at(entry["defaults"]) or ()) if entry else []

    def _option(self, name: str) -> dict[str, Any]:
        keys = self.table["options"].get(name, {})
        return {key: row[2] for key, rows in keys.items() if (row := self._row(rows))}

    def _row(self, rows: Rows) -> list[Any] | None:
        return next((row for row in rows if row[0] <= self.number <= row[1]), None)

    def _has(self, rows: Rows) -> bool:
        return self._row(rows) is not None

    def _at(self, rows: Rows) -> Any:
        row = self._row(rows)
        return None if row is None else row[2]


def _laid(under: dict[str, Any], over: Mapping[str, Any]) -> None:
    """Lay leaves over others, as Hydra merges: an empty table adds nothing to a filled one."""
    for name, value in over.items():
        if value == {} and any(key.startswith(f"{name}.") for key in under):
            continue
        parts = name.split(".")
        for stop in range(1, len(parts)):  # a leaf that becomes a table
            under.pop(".".join(parts[:stop]), None)
        under[name] = value


@cache
def of(version: str) -> Names:
    """Return the names of a version: of its own release, or of the newest one that is not newer."""
    table = names.table("verl")
    releases: list[str] = table["releases"]
    try:
        wanted = Version(version)
    except InvalidVersion:
        return Names(table, releases[-1])
    older = [release for release in releases if Version(release) <= wanted]
    return Names(table, older[-1] if older else releases[0])
