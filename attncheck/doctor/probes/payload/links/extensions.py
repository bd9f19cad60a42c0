"""Finds compiled modules that a package imports whenever it is imported, but that no file on sys.path provides.

A build that skips its extension, or a wheel without one, installs only the Python files. Metadata and RECORD are
complete, but the import fails. Nothing is imported here: the package's modules are followed from its `__init__.py`,
including guards, and each top-level module that no file provides is reported.
"""

from __future__ import annotations

import os
import sys

from ..packages import integrity, metadata
from .imports import ImportFollower
from .source import ModuleFinder, imported_modules

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from typing import Any, Dict

    from .conditions import Conditions
    from .source import SourceModule

    Distribution = Dict[str, Any]

# Distributions with a compiled extension that the training stack imports.
_COMPILED = """
    flash-attn flash-attn-3 flashattn-hopper causal-conv1d mamba-ssm xformers flash-mla sgl-kernel
"""
MAX_MODULES = 60  # per package, followed from its __init__.py


def find_missing_modules(installed: list[Distribution], site_dirs: list[str]) -> None:
    """Write "missing_modules" into each compiled distribution: "flash_attn_2_cuda (flash_attn/x.py:15)"."""
    chosen = [
        item for item in installed if item["name"] in _COMPILED.split() and not item["problem"] and not item["editable"]
    ]
    if not chosen:
        return
    finder = ModuleFinder([*site_dirs, *(path for path in sys.path if os.path.isdir(path) and path not in site_dirs)])
    records = integrity.Records()
    for distribution in chosen:
        names = sorted(integrity.top_level_names(distribution, records))
        required = metadata.list_required_names(distribution["requires"])
        distribution["missing_modules"] = _find_missing(names, finder, required)


def _find_missing(names: list[str], finder: ModuleFinder, required: set[str]) -> list[str]:
    """Return the modules that the packages `names` import, that no file provides and no requirement explains."""
    conditions = _make_conditions(finder)
    pending = [module for module in map(finder.find, names) if module is not None]
    followed: set[str] = set()
    missing: dict[str, str] = {}

    def is_missing(source: str, name: str) -> bool:
        top = source.partition(".")[0]
        is_here = top in sys.builtin_module_names or bool(finder.kind(top))
        return not name and not is_here and metadata.normalise_name(top) not in required

    while pending and len(followed) < MAX_MODULES:
        module = pending.pop(0)
        if module.name in followed or module.tree is None:
            continue
        followed.add(module.name)
        follower = ImportFollower(module, is_missing, conditions)
        for failure in follower.follow_import():
            if not failure.conditions:
                place = "/".join(module.path.split(os.sep)[-1 - module.name.count(".") - module.is_package :])
                missing.setdefault(failure.take.module, "%s (%s:%d)" % (failure.take.module, place, failure.take.line))
        pending += _imported_modules(module, names, finder, conditions)
    return list(missing.values())


def _imported_modules(
    module: SourceModule, names: list[str], finder: ModuleFinder, conditions: Conditions
) -> list[SourceModule]:
    """Return the modules of the same packages that a module imports at its top level."""
    import ast

    modules: list[SourceModule | None] = []
    statements: list[ast.stmt] = list(module.tree.body) if module.tree is not None else []
    while statements:
        statement = statements.pop(0)
        if isinstance(statement, ast.If):
            decided = conditions.decide(statement.test, module)
            if decided is not None:
                statements = [*(statement.body if decided else statement.orelse), *statements]
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            modules += map(finder.find, imported_modules(module.package, statement))
    return [item for item in modules if item is not None and item.name.partition(".")[0] in names]


def _make_conditions(finder: ModuleFinder) -> Conditions:
    """Return the evaluator of guards; a variable that is compared with a text has the value of this environment."""
    import ast

    from .conditions import Conditions

    class WithVariables(Conditions):
        def _decide_compare(self, test: ast.Compare, module: SourceModule) -> bool | None:
            call, right = test.left, test.comparators[0]
            is_lookup = isinstance(call, ast.Call) and ast.unparse(call.func) in ("os.getenv", "os.environ.get")
            if is_lookup and isinstance(test.ops[0], ast.Eq) and isinstance(right, ast.Constant):
                values = [value.value for value in call.args if isinstance(value, ast.Constant)]  # type: ignore[attr-defined]
                if len(values) == len(call.args) in (1, 2):  # type: ignore[attr-defined]
                    default = values[1] if len(values) == 2 else None
                    return bool(os.environ.get(str(values[0]), default) == right.value)
            return super()._decide_compare(test, module)

    return WithVariables(finder, {})
