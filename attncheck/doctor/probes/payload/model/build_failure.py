"""Finds the fields of a configuration that prevent the installed class from being built, by removing each in turn.

A field is named if the class can be built without that one field, which then has its class default.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from ..facts import describe_error

SECONDS = 8.0  # a build on the meta device takes tens of milliseconds
MAX_FIELDS = 200
_KEPT = ("model_type", "auto_map", "transformers_version")
# Written by the same tool for every model, with no effect on the build.
_UNINTERESTING = ("torch_dtype", "dtype", "use_cache", "_name_or_path")


def describe_build_failure(
    error: Exception, document: dict[str, Any], build: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Return the record `core.model.BuildFailure`; `build` raises for a document that cannot be built."""
    deadline = time.monotonic() + SECONDS
    fields: dict[str, str] = {}
    for path in list(_iter_paths(document))[:MAX_FIELDS]:
        if time.monotonic() > deadline:
            break
        if not any(path[0] == name for name in fields) and _builds(build, _without(document, path)):
            value = document[path[0]] if len(path) == 1 else document[path[0]][path[1]]
            fields[".".join(path)] = json.dumps(value, default=str)[:200]
    return {"error": describe_error(error), "fields": fields}


def _iter_paths(document: dict[str, Any]) -> Any:
    """Yield the fields of `document`; fields of nested configurations come before the nested configuration itself."""
    for name in sorted(document, key=lambda name: name in _UNINTERESTING):
        if name in _KEPT:
            continue
        if isinstance(document[name], dict) and name.endswith("_config"):
            for inner in document[name]:
                if inner not in _KEPT:
                    yield (name, inner)
        else:
            yield (name,)


def _without(document: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    changed = dict(document)
    if len(path) == 1:
        del changed[path[0]]
    else:
        changed[path[0]] = {name: item for name, item in document[path[0]].items() if name != path[1]}
    return changed


def _builds(build: Callable[[dict[str, Any]], None], document: dict[str, Any]) -> bool:
    try:
        build(document)
    except Exception:  # any exception: removing only this field does not make it buildable
        return False
    return True
