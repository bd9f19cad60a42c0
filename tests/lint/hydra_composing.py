"""Composes verl's own configurations with the real Hydra, in a child; reads a list of jobs, writes the results.

    python -m tests.lint.hydra_composing < jobs.json     each job: [folder, configuration, [overrides]]

The result of a job is its leaves, or the error with which it does not compose.
"""

from __future__ import annotations

import copy
import importlib
import json
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any


def iter_leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted leaves of a configuration; a list and an empty table are leaves."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from iter_leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def compose_or_error(folder: str, name: str, overrides: list[str]) -> dict[str, Any] | str:
    """Return the leaves of one composition, or the first line of the error."""
    omegaconf = importlib.import_module("omegaconf")

    try:
        tree = apply_overrides(folder, name, overrides)
        return dict(iter_leaves(omegaconf.OmegaConf.to_container(tree, resolve=False)))
    except Exception as error:  # Hydra raises a dozen kinds
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def apply_overrides(folder: str, name: str, overrides: list[str]) -> Any:
    """Return a configuration with overrides, in Hydra's own two steps: groups are chosen, then values set.

    The first step reads thirty files and is cached; `hydra.compose` does both again each time
    (hydra/_internal/config_loader_impl.py 1.3, `_load_configuration_impl`).
    """
    config_loader_impl: Any = importlib.import_module("hydra._internal.config_loader_impl")
    overrides_parser: Any = importlib.import_module("hydra.core.override_parser.overrides_parser")
    loader = _hydra_state().instance().config_loader()
    first: list[Any] = []
    second: list[Any] = []
    for override in overrides_parser.OverridesParser.create().parse_overrides(overrides):
        chooses = _is_group(loader, override) or override.key_or_group.startswith("hydra.")
        (first if chooses else second).append(override)
    tree = copy.deepcopy(_compose_groups(folder, name, tuple(override.input_line for override in first)))
    config_loader_impl.ConfigLoaderImpl._apply_overrides_to_config(second, tree)
    return tree


def _is_group(loader: Any, override: Any) -> bool:
    return not isinstance(override.value(), dict) and loader.repository.group_exists(override.key_or_group)


@cache
def _compose_groups(folder: str, name: str, overrides: tuple[str, ...]) -> Any:
    return importlib.import_module("hydra").compose(config_name=name, overrides=list(overrides))


def _hydra_state() -> Any:
    return importlib.import_module("hydra.core.global_hydra").GlobalHydra


def compose_jobs(jobs: list[tuple[str, str, list[str]]]) -> Iterator[dict[str, Any] | str]:
    """Yield the result of each job; Hydra starts once a folder, its plugins cost more than a composition."""
    initialized = ""
    for folder, name, overrides in jobs:
        if folder != initialized:
            _hydra_state().instance().clear()
            importlib.import_module("hydra").initialize_config_dir(folder, version_base=None)
            initialized = folder
        yield compose_or_error(folder, name, overrides)


if __name__ == "__main__":
    yaml: Any = importlib.import_module("yaml")
    yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # OmegaConf's is built on it: five times faster
    warnings.simplefilter("ignore")
    json.dump(list(compose_jobs(json.load(sys.stdin))), sys.stdout)
