"""Writes attncheck/lint/names/verl.json: what each release of verl composes, read in its wheels with Hydra.

    python -m tools.names.verl        (needs hydra-core and omegaconf; downloads the wheels once)

The releases are those that the table names already; `tools.names.update` adds newer ones.

Kept are the modules with a `@hydra.main`, the configurations they name, and the leaves of those and of every group's
options, each with its default and the releases that have it. Every composition that the table gives is compared with
Hydra's own before it is written.
"""

from __future__ import annotations

import importlib
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from attncheck.lint.frameworks.verl import tables
from tests import wheels

HYDRA_MAIN = re.compile(r"""@hydra\.main\(config_path=["']config["'], config_name=["'](\w+)["']""")
TABLE_FILE = Path(__file__).parents[2] / "attncheck" / "lint" / "names" / "verl.json"
SHARED_CONFIGS = "verl/trainer/config"
PACKAGES = ("transformers", "torch", "flash-attn", "liger-kernel", "tensordict", "vllm", "sglang")
EXTRAS = ("", "vllm", "sglang")


hydra: Any = importlib.import_module("hydra")
GlobalHydra: Any = importlib.import_module("hydra.core.global_hydra").GlobalHydra
Plugins: Any = importlib.import_module("hydra.core.plugins").Plugins
SearchPathPlugin: Any = importlib.import_module("hydra.plugins.search_path_plugin").SearchPathPlugin
OmegaConf: Any = importlib.import_module("omegaconf").OmegaConf


class SharedSearchPath(SearchPathPlugin):  # type: ignore[misc]  # Hydra may be missing if this is only checked
    """Adds verl's own configurations to the search path, as its experimental ones ask for in their `hydra` key."""

    root = ""

    def manipulate_search_path(self, search_path: Any) -> None:
        """Add the shared folder, if there is one."""
        if self.root:
            search_path.append("verl", f"file://{self.root}/{SHARED_CONFIGS}")


def iter_leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted leaves of a configuration; a list and an empty table are leaves."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from iter_leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def compose(folder: Path, name: str, *overrides: str) -> dict[str, Any]:
    """Return the leaves that Hydra composes, interpolations left as they are written."""
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(folder), version_base=None):
        tree = OmegaConf.to_container(hydra.compose(config_name=name, overrides=list(overrides)), resolve=False)
    return dict(iter_leaves(tree))


def compose_option(folder: Path, name: str) -> dict[str, Any]:
    """Return the leaves of one option of a group, under no package."""
    text = (folder / f"{name}.yaml").read_text(encoding="utf-8")
    group = "" if "@package _global_" in text else name.rpartition("/")[0]
    leaves = compose(folder, name)
    return {key.removeprefix(f"{group}."): value for key, value in leaves.items()} if group else leaves


def read_defaults(folder: Path, name: str) -> list[Any]:
    """Return the defaults list of a configuration, as written."""
    raw = OmegaConf.to_container(OmegaConf.load(folder / f"{name}.yaml"), resolve=False)
    assert isinstance(raw, dict)
    return list(raw.get("defaults", ()))


def read_own_leaves(folder: Path, name: str) -> dict[str, Any]:
    """Return the leaves that are in a configuration's own file."""
    raw = OmegaConf.to_container(OmegaConf.load(folder / f"{name}.yaml"), resolve=False)
    assert isinstance(raw, dict)
    return dict(iter_leaves({key: value for key, value in raw.items() if key not in ("defaults", "hydra")}))


class Table:
    """The contents of the table, filled release by release."""

    def __init__(self) -> None:
        self.modules: dict[str, list[list[Any]]] = {}
        self.configs: dict[str, dict[str, Any]] = {}
        self.options: dict[str, dict[str, list[list[Any]]]] = {}
        self.requires: dict[str, list[list[Any]]] = {}

    def add_requirements(self, index: int, release: str) -> None:
        """Add what a release requires of the packages that attention depends on, by extra."""
        requirements: dict[str, list[str]] = {extra: [] for extra in EXTRAS}
        for line in wheels.fetch_wheel("verl", release).requires():
            requirement = Requirement(line)
            if requirement.name not in PACKAGES or not requirement.specifier:
                continue
            for extra in EXTRAS:
                marker = requirement.marker
                is_unconditional = marker is None and not extra
                is_of_extra = requirement.name == extra and marker is not None and marker.evaluate({"extra": extra})
                if is_unconditional or is_of_extra:
                    requirements[extra].append(f"{requirement.name}{requirement.specifier}")
        for extra, lines in requirements.items():
            extend_spans(self.requires.setdefault(extra, []), index, sorted(set(lines)))

    def add_release(self, index: int, root: Path) -> None:
        """Add one release."""
        SharedSearchPath.root = str(root)
        shared = root / SHARED_CONFIGS
        for path in sorted(shared.glob("*/*.yaml")):
            if "_generated" not in path.name:
                self.add_option(index, shared, f"{path.parent.name}/{path.stem}")
        for folder in (shared, *sorted((root / "verl/experimental").glob("*/config"))):
            self.add_modules(index, root, folder)
        for name in ("ppo_megatron_trainer",):
            self.add_config(index, shared, name)

    def add_modules(self, index: int, root: Path, folder: Path) -> None:
        """Add the modules of a release that have a `@hydra.main`, with the configurations that they name."""
        for path in sorted(folder.parent.glob("*.py")):
            match = HYDRA_MAIN.search(path.read_text(encoding="utf-8"))
            if match is None:
                continue
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            extend_spans(self.modules.setdefault(module, []), index, match[1])
            self.add_config(index, folder, match[1])
            megatron_file = folder / f"{match[1].replace('_trainer', '_megatron_trainer')}.yaml"
            if megatron_file.exists():
                self.add_config(index, folder, megatron_file.stem)

    def add_config(self, index: int, folder: Path, name: str) -> None:
        """Add a configuration of a release: its defaults list and its own leaves."""
        entry = self.configs.setdefault(name, {"defaults": [], "own": {}})
        if any(row[0] <= index <= row[1] for row in entry["defaults"]):
            return
        mounts = []
        for item in read_defaults(folder, name):
            if isinstance(item, dict):
                [(key, choice)] = item.items()
                group, _, package = key.partition("@")
                mounts.append([group if package == group else key, choice])  # as Hydra wants it written in an override
            elif item != "_self_":
                base, _, package = item.partition("@")
                mounts.append([f"@{package}", base])
                is_beside = (folder / f"{base}.yaml").exists()
                self.add_config(index, folder if is_beside else Path(SharedSearchPath.root) / SHARED_CONFIGS, base)
        extend_spans(entry["defaults"], index, mounts)
        for key, value in read_own_leaves(folder, name).items():
            extend_spans(entry["own"].setdefault(key, []), index, value)

    def add_option(self, index: int, folder: Path, name: str) -> None:
        """Add an option of a group in a release: its leaves."""
        entry = self.options.setdefault(name, {})
        for key, value in compose_option(folder, name).items():
            extend_spans(entry.setdefault(key, []), index, value)


def extend_spans(spans: list[list[Any]], index: int, value: Any) -> None:
    """Add the value of one release to spans of (first release, last release, value)."""
    if spans and spans[-1][1] == index - 1 and spans[-1][2] == value and type(spans[-1][2]) is type(value):
        spans[-1][1] = index
    else:
        spans.append([index, index, value])


def unpack_wheel(release: str, into: Path) -> Path:
    """Return the folder with verl's configurations and entry points of one release."""
    wheel = wheels.fetch_wheel("verl", release)
    for name in wheel.names:
        if name.startswith(("verl/trainer/", "verl/experimental/")):
            wheel.archive.extract(name, into)
    return into


def iter_engine_choices(release: tables.Release, config_name: str) -> Iterator[dict[str, str]]:
    """Yield the training engines that a configuration offers, as group choices; its default first."""
    groups = release.group_choices(config_name)
    key = next((name for name in ("model_engine", "engine") if name in groups), "")
    yield {}
    for choice in release.group_options(key) if key else []:
        has_optim = "optim" in groups and choice in release.group_options("optim")
        yield {key: choice, **({"optim": choice} if has_optim else {})}


def compare_with_hydra(table: dict[str, Any], root: Path, release: str) -> int:
    """Compare what the table gives with what Hydra composes; return how many compositions there were."""
    SharedSearchPath.root = str(root)
    count = 0
    known = tables.Release(table, release)
    for name in known.config_names():
        folder = next(path.parent for path in sorted(root.rglob(f"config/{name}.yaml")))
        for choices in iter_engine_choices(known, name):
            composed = compose(folder, name, *(f"{key}={value}" for key, value in choices.items()))
            schema = known.schema(name, choices)
            assert schema == composed, (release, name, choices, find_differences(schema, composed))
            count += 1
    return count


def find_differences(schema: dict[str, Any], composed: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the first few keys in which two compositions differ, with both values."""
    missing = "missing"
    return [
        (key, schema.get(key, missing), composed.get(key, missing))
        for key in sorted({*schema, *composed})
        if schema.get(key, missing) != composed.get(key, missing)
    ][:8]


def main(releases: Sequence[str]) -> None:
    """Write the table of these releases, and compare it."""
    Plugins.instance().register(SharedSearchPath)
    with tempfile.TemporaryDirectory() as scratch:
        roots = [unpack_wheel(release, Path(scratch) / release) for release in releases]
        table = Table()
        for index, root in enumerate(roots):
            table.add_release(index, root)
            table.add_requirements(index, releases[index])
        contents = {"versions": list(releases), **vars(table)}
        text = json.dumps(contents, sort_keys=True, separators=(",", ":"))
        count = sum(compare_with_hydra(json.loads(text), root, release) for root, release in zip(roots, releases))
    TABLE_FILE.parent.mkdir(exist_ok=True)
    TABLE_FILE.write_text(text.replace('},"', '},\n"') + "\n", encoding="utf-8")
    print(f"{TABLE_FILE}: {TABLE_FILE.stat().st_size} bytes, {count} compositions compared")


if __name__ == "__main__":
    main(json.loads(TABLE_FILE.read_text(encoding="utf-8"))["versions"])
