"""Reads what liger_kernel patches in transformers, and which of its patches have no target there.

`liger_kernel.transformers.monkey_patch` replaces names in transformers' modelling files by assignment. Assigning to a
name that no longer exists raises no error. The patch source is read as a syntax tree and the modelling files as text,
because importing 50 of them would take many seconds.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from .introspect import query_fact

PATCHES = "liger_kernel.transformers.monkey_patch"
READ_LIMIT = 4 << 20
_PREFIX = "transformers.models."


def collect_liger_facts() -> dict[str, Any]:
    """Return the model types that liger knows, and those of its patches that have no target."""
    return {
        "liger_model_types": query_fact(
            lambda: sorted(getattr(sys.modules.get(PATCHES), "MODEL_TYPE_TO_APPLY_LIGER_FN", None) or ()) or None
        ),
        "liger_missing_targets": query_fact(_find_installed_missing_targets),
    }


def _find_installed_missing_targets() -> list[str]:
    module = sys.modules[PATCHES]
    transformers = os.path.dirname(str(sys.modules["transformers"].__file__))
    source = _read_source(str(module.__file__)) or ""
    return find_missing_targets(source, os.path.join(transformers, "models"), vars(module))


def find_missing_targets(source: str, models: str, names: dict[str, Any]) -> list[str]:
    """Return "module:attribute" for each patch in `source` whose target is not in the modelling files under `models`.

    `names` are the globals that decide guards such as `if IS_TRANSFORMERS_V5_OR_LATER`. Adjacent names with the same
    replacement are spellings of one class in different versions, so one of them is enough.
    """
    texts: dict[str, str | None] = {}
    missing: set[str] = set()
    for function in ast.parse(source).body:
        if not isinstance(function, ast.FunctionDef) or not function.name.startswith("apply_liger_kernel_to_"):
            continue
        modules = _imported_modelling_modules(function)
        for body in _reachable_blocks(function.body, names):
            for module, attributes in _patch_targets(body, modules):
                if module not in texts:
                    texts[module] = _read_source(os.path.join(models, *module[len(_PREFIX) :].split(".")) + ".py")
                text = texts[module]
                if text is not None and not any(defines_name(text, attribute) for attribute in attributes):
                    missing.update(module + ":" + attribute for attribute in attributes)
    return sorted(missing)


def _imported_modelling_modules(function: ast.FunctionDef) -> dict[str, str]:
    """Return the modelling modules that `function` imports, by their name inside it."""
    modules = {}
    for node in ast.walk(function):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_PREFIX):
            for alias in node.names:
                if alias.name.startswith("modeling_"):
                    modules[alias.asname or alias.name] = str(node.module) + "." + alias.name
    return modules


def _reachable_blocks(body: list[ast.stmt], names: dict[str, Any]) -> Iterator[list[ast.stmt]]:
    """Yield every block of statements that can run if the globals have the values in `names`."""
    yield body
    for statement in body:
        if isinstance(statement, ast.If):
            guard = _evaluate_guard(statement.test, names)
            if guard is not False:
                yield from _reachable_blocks(statement.body, names)
            if guard is not True:
                yield from _reachable_blocks(statement.orelse, names)


def _evaluate_guard(test: ast.expr, names: dict[str, Any]) -> bool | None:
    """Return the value of a guard that uses only globals; None if it depends on an argument."""
    if isinstance(test, ast.Name) and isinstance(names.get(test.id), bool):
        return bool(names[test.id])
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        operand = _evaluate_guard(test.operand, names)
        return None if operand is None else not operand
    return None


def _patch_targets(body: list[ast.stmt], modules: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Yield (module, alternative names) for the assignments directly in `body`."""
    groups: dict[tuple[str, str], list[str]] = {}
    for statement in body:
        if not isinstance(statement, ast.Assign):
            continue
        for target in statement.targets:
            attribute = _assigned_attribute(target)
            if attribute is not None and attribute[0] in modules:
                key = (modules[attribute[0]], ast.dump(statement.value))
                groups.setdefault(key, []).append(attribute[1])
    for (module, _), attributes in groups.items():
        yield module, attributes


def _assigned_attribute(target: ast.expr) -> tuple[str, str] | None:
    """Return ("modeling_x", "Name") for `modeling_x.Name = …` and `modeling_x.Name.forward = …`."""
    while isinstance(target, ast.Attribute):
        if isinstance(target.value, ast.Name):
            return target.value.id, target.attr
        target = target.value
    return None


def defines_name(text: str, name: str) -> bool:
    """Return whether Python source `text` defines or imports `name` outside its functions and classes."""
    if name not in text and "import *" not in text:
        return False
    pattern = r"^(?:(?:async )?def|class) +%s\b|^%s *[:=]|^from +[\w.]+ +import +(?:\*|\([^)]*\b%s\b|[^(\n#]*\b%s\b)"
    if re.search(pattern % ((re.escape(name),) * 4), text, re.MULTILINE):
        return True
    try:
        return name in set(_bound_names(ast.parse(text).body))  # slower, but covers names bound under an `if` or `try`
    except (SyntaxError, ValueError, RecursionError):
        return True


def _bound_names(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind in their own scope."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield statement.name
            continue
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
        for field in ("body", "orelse", "finalbody"):
            yield from _bound_names(getattr(statement, field, []))
        for handler in getattr(statement, "handlers", []):
            yield from _bound_names(handler.body)


def _read_source(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(READ_LIMIT)
    except OSError:
        return None
