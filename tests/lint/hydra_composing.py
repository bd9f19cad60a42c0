"""Composes verl's own configurations with the real Hydra, in a child; reads a list of jobs, writes what became of them.

    python -m tests.lint.hydra_composing < jobs.json     each job: [folder, configuration, [overrides]]

What comes out for each is its leaves, or why it does not compose.
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


def leaves(tree: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted leaves of a configuration; a list and an empty table are leaves."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def composed(folder: str, name: str, overrides: list[str]) -> dict[str, Any] | str:
    """Return the leaves of one composition, or one line that says why there is none."""
    omegaconf = importlib.import_module("omegaconf")

    try:
        return dict(leaves(omegaconf.OmegaConf.to_container(overridden(folder, name, overrides), resolve=False)))
    except Exception as error:  # Hydra raises a dozen kinds
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def overridden(folder: str, name: str, overrides: list[str]) -> Any:
    """Return a configuration with overrides, in Hydra's own two steps: groups are chosen, then values laid in.

    The first step reads thirty files and is kept; `hydra.compose` does both anew each time
    (hydra/_internal/config_loader_impl.py 1.3, `_load_configuration_impl`).
    """
    loading: Any = importlib.import_module("hydra._internal.config_loader_impl")
    parsing: Any = importlib.import_module("hydra.core.override_parser.overrides_parser")
    loader = _state().instance().config_loader()
    parsed = parsing.OverridesParser.create().parse_overrides(overrides)
    first = [each for each in parsed if _is_group(loader, each) or each.key_or_group.startswith("hydra.")]
    tree = copy.deepcopy(_groups_chosen(folder, name, tuple(each.input_line for each in first)))
    loading.ConfigLoaderImpl._apply_overrides_to_config([each for each in parsed if each not in first], tree)
    return tree


def _is_group(loader: Any, override: Any) -> bool:
    return not isinstance(override.value(), dict) and loader.repository.group_exists(override.key_or_group)


@cache
def _groups_chosen(folder: str, name: str, overrides: tuple[str, ...]) -> Any:
    return importlib.import_module("hydra").compose(config_name=name, overrides=list(overrides))


def _state() -> Any:
    return importlib.import_module("hydra.core.global_hydra").GlobalHydra


def every(jobs: list[tuple[str, str, list[str]]]) -> Iterator[dict[str, Any] | str]:
    """Yield what each job composes; Hydra starts once a folder, its plugins cost more than a composition."""
    here = ""
    for folder, name, overrides in jobs:
        if folder != here:
            _state().instance().clear()
            importlib.import_module("hydra").initialize_config_dir(folder, version_base=None)
            here = folder
        yield composed(folder, name, overrides)


if __name__ == "__main__":
    yaml: Any = importlib.import_module("yaml")
    yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # OmegaConf's is built on it: five times faster
    warnings.simplefilter("ignore")
    json.dump(list(every(json.load(sys.stdin))), sys.stdout)
