"""Writes attncheck/lint/names/verl.json: what each release of verl composes, read in its wheels with Hydra.

    python -m tests.lint.tools.names_verl        (needs hydra-core and omegaconf; downloads the wheels once)

Kept are the modules with a `@hydra.main`, the configurations they name, and the leaves of those and of every group's
options, each with its default and the releases that have it. Every composition that the table gives is compared with
Hydra's own before it is written.
"""

from __future__ import annotations

import importlib
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from attncheck.lint.frameworks.verl import tables as verl
from tests import wheels

RELEASES = (
    *("0.2.0.post2", "0.3.0.post1", "0.4.0", "0.4.1", "0.5.0", "0.6.0", "0.6.1", "0.7.0", "0.7.1"),
    *("0.8.0", "0.9.0", "0.9.1"),
)
MAIN = re.compile(r"""@hydra\.main\(config_path=["']config["'], config_name=["'](\w+)["']""")
FILE = Path(__file__).parents[3] / "attncheck" / "lint" / "names" / "verl.json"
SHARED = "verl/trainer/config"
WANTED = ("transformers", "torch", "flash-attn", "liger-kernel", "tensordict", "vllm", "sglang")
EXTRAS = ("", "vllm", "sglang")


hydra: Any = importlib.import_module("hydra")
State: Any = importlib.import_module("hydra.core.global_hydra").GlobalHydra
Plugins: Any = importlib.import_module("hydra.core.plugins").Plugins
Plugin: Any = importlib.import_module("hydra.plugins.search_path_plugin").SearchPathPlugin
OmegaConf: Any = importlib.import_module("omegaconf").OmegaConf


class Shared(Plugin):  # type: ignore[misc]  # Hydra may be missing where this is only checked
    """Adds verl's own configurations to the search path, as its experimental ones ask for in their `hydra` key."""

    root = ""

    def manipulate_search_path(self, search_path: Any) -> None:
        if self.root:
            search_path.append("verl", f"file://{self.root}/{SHARED}")


def leaves(tree: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted leaves of a configuration; a list and an empty table are leaves."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def composed(folder: Path, name: str, *overrides: str) -> dict[str, Any]:
    """Return the leaves that Hydra composes, interpolations left as they are written."""
    State.instance().clear()
    with hydra.initialize_config_dir(str(folder), version_base=None):
        tree = OmegaConf.to_container(hydra.compose(config_name=name, overrides=list(overrides)), resolve=False)
    return dict(leaves(tree))


def option(folder: Path, name: str) -> dict[str, Any]:
    """Return the leaves of one option of a group, under no package."""
    text = (folder / f"{name}.yaml").read_text(encoding="utf-8")
    group = "" if "@package _global_" in text else name.rpartition("/")[0]
    found = composed(folder, name)
    return {key.removeprefix(f"{group}."): value for key, value in found.items()} if group else found


def defaults(folder: Path, name: str) -> list[Any]:
    """Return the defaults list of a configuration, as written."""
    raw = OmegaConf.to_container(OmegaConf.load(folder / f"{name}.yaml"), resolve=False)
    assert isinstance(raw, dict)
    return list(raw.get("defaults", ()))


def own(folder: Path, name: str) -> dict[str, Any]:
    """Return the leaves that stand in a configuration's own file."""
    raw = OmegaConf.to_container(OmegaConf.load(folder / f"{name}.yaml"), resolve=False)
    assert isinstance(raw, dict)
    return dict(leaves({key: value for key, value in raw.items() if key not in ("defaults", "hydra")}))


class Table:
    """What is written, filled release by release."""

    def __init__(self) -> None:
        self.modules: dict[str, list[list[Any]]] = {}
        self.configs: dict[str, dict[str, Any]] = {}
        self.options: dict[str, dict[str, list[list[Any]]]] = {}
        self.requires: dict[str, list[list[Any]]] = {}

    def requirements(self, number: int, release: str) -> None:
        """Add what a release requires of the packages that attention depends on, by extra."""
        found: dict[str, list[str]] = {extra: [] for extra in EXTRAS}
        for line in wheels.fetch("verl", release).requires():
            wanted = Requirement(line)
            if wanted.name not in WANTED or not wanted.specifier:
                continue
            for extra in EXTRAS:
                marker = wanted.marker
                plain = marker is None and not extra
                if plain or (marker is not None and wanted.name == extra and marker.evaluate({"extra": extra})):
                    found[extra].append(f"{wanted.name}{wanted.specifier}")
        for extra, lines in found.items():
            add(self.requires.setdefault(extra, []), number, sorted(set(lines)))

    def release(self, number: int, root: Path) -> None:
        """Add one release."""
        Shared.root = str(root)
        shared = root / SHARED
        for path in sorted(shared.glob("*/*.yaml")):
            if "_generated" not in path.name:
                self.option(number, shared, f"{path.parent.name}/{path.stem}")
        for folder in (shared, *sorted((root / "verl/experimental").glob("*/config"))):
            self.mains(number, root, folder)
        for name in ("ppo_megatron_trainer",):
            self.config(number, shared, name)

    def mains(self, number: int, root: Path, folder: Path) -> None:
        for path in sorted(folder.parent.glob("*.py")):
            found = MAIN.search(path.read_text(encoding="utf-8"))
            if found is None:
                continue
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            add(self.modules.setdefault(module, []), number, found[1])
            self.config(number, folder, found[1])
            beside = folder / f"{found[1].replace('_trainer', '_megatron_trainer')}.yaml"
            if beside.exists():
                self.config(number, folder, beside.stem)

    def config(self, number: int, folder: Path, name: str) -> None:
        entry = self.configs.setdefault(name, {"defaults": [], "own": {}})
        if any(row[0] <= number <= row[1] for row in entry["defaults"]):
            return
        mounts = []
        for item in defaults(folder, name):
            if isinstance(item, dict):
                [(key, choice)] = item.items()
                group, _, at = key.partition("@")
                mounts.append([group if at == group else key, choice])  # as Hydra wants it written in an override
            elif item != "_self_":
                base, _, at = item.partition("@")
                mounts.append([f"@{at}", base])
                beside = folder if (folder / f"{base}.yaml").exists() else Path(Shared.root) / SHARED
                self.config(number, beside, base)
        add(entry["defaults"], number, mounts)
        for key, value in own(folder, name).items():
            add(entry["own"].setdefault(key, []), number, value)

    def option(self, number: int, folder: Path, name: str) -> None:
        entry = self.options.setdefault(name, {})
        for key, value in option(folder, name).items():
            add(entry.setdefault(key, []), number, value)


def add(rows: list[list[Any]], number: int, value: Any) -> None:
    """Add what one release says to rows of (first release, last release, value)."""
    if rows and rows[-1][1] == number - 1 and rows[-1][2] == value and type(rows[-1][2]) is type(value):
        rows[-1][1] = number
    else:
        rows.append([number, number, value])


def unpacked(release: str, into: Path) -> Path:
    """Return the folder with verl's configurations and entry points of one release."""
    wheel = wheels.fetch("verl", release)
    for name in wheel.names:
        if name.startswith(("verl/trainer/", "verl/experimental/")):
            wheel.archive.extract(name, into)
    return into


def compare(table: dict[str, Any], root: Path, release: str) -> int:
    """Compare what the table gives with what Hydra composes; return how many compositions there were."""
    Shared.root = str(root)
    count = 0
    names = verl.Names(table, release)
    for name in names.configs():
        folder = next(path.parent for path in sorted(root.rglob(f"config/{name}.yaml")))
        for choices in names.engines(name):
            wanted = composed(folder, name, *(f"{key}={value}" for key, value in choices.items()))
            found = names.schema(name, choices)
            assert found == wanted, (release, name, choices, differing(found, wanted))
            count += 1
    return count


def differing(found: dict[str, Any], wanted: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return where two compositions differ, the first few."""
    missing = "missing"
    return [
        (key, found.get(key, missing), wanted.get(key, missing))
        for key in sorted({*found, *wanted})
        if found.get(key, missing) != wanted.get(key, missing)
    ][:8]


def main() -> None:
    """Write the table, and compare it."""
    Plugins.instance().register(Shared)
    with tempfile.TemporaryDirectory() as scratch:
        roots = [unpacked(release, Path(scratch) / release) for release in RELEASES]
        table = Table()
        for number, root in enumerate(roots):
            table.release(number, root)
            table.requirements(number, RELEASES[number])
        written = {"releases": RELEASES, **vars(table)}
        text = json.dumps(written, sort_keys=True, separators=(",", ":"))
        count = sum(compare(json.loads(text), root, release) for root, release in zip(roots, RELEASES))
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(text.replace('},"', '},\n"') + "\n", encoding="utf-8")
    print(f"{FILE}: {FILE.stat().st_size} bytes, {count} compositions compared")


if __name__ == "__main__":
    main()
