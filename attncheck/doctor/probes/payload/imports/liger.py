"""What liger_kernel patches in transformers, and which of its patches would hit nothing.

`liger_kernel.transformers.monkey_patch` replaces names in transformers' modelling files by assignment, and assigning
to a name that is no longer there raises nothing. Its source is read as a syntax tree and the modelling files as text:
importing 50 of them would take many seconds.
"""

from __future__ import annotations

import ast
import os
import re
import sys

from .introspect import guarded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

PATCHES = "liger_kernel.transformers.monkey_patch"
READ_LIMIT = 4 << 20
_PREFIX = "transformers.models."


def inside_liger() -> Dict[str, Any]:
    """Return the model types liger knows and the patches it would make in vain."""
    return {
        "liger_model_types": guarded(
            lambda: sorted(getattr(sys.modules.get(PATCHES), "MODEL_TYPE_TO_APPLY_LIGER_FN", None) or ()) or None
        ),
        "liger_missing_targets": guarded(_missing_here),
    }


def _missing_here() -> List[str]:
    module = sys.modules[PATCHES]
    transformers = os.path.dirname(str(sys.modules["transformers"].__file__))
    return missing_targets(_read(str(module.__file__)) or "", os.path.join(transformers, "models"), vars(module))


def missing_targets(source: str, models: str, names: Dict[str, Any]) -> List[str]:
    """Return "module:attribute" for each patch in `source` whose target is not in the modelling files under `models`.

    `names` are the globals that decide guards such as `if IS_TRANSFORMERS_V5_OR_LATER`. Several names that get the
    same replacement side by side are spellings of one class in different versions: one of them is enough.
    """
    texts: Dict[str, Optional[str]] = {}
    missing: Set[str] = set()
    for function in ast.parse(source).body:
        if not isinstance(function, ast.FunctionDef) or not function.name.startswith("apply_liger_kernel_to_"):
            continue
        modules = _modules(function)
        for body in _live_bodies(function.body, names):
            for module, attributes in _targets(body, modules):
                if module not in texts:
                    texts[module] = _read(os.path.join(models, *module[len(_PREFIX) :].split(".")) + ".py")
                text = texts[module]
                if text is not None and not any(defines(text, attribute) for attribute in attributes):
                    missing.update(module + ":" + attribute for attribute in attributes)
    return sorted(missing)


def _modules(function: ast.FunctionDef) -> Dict[str, str]:
    """Return the modelling modules that `function` imports, by the name it gives them."""
    found = {}
    for node in ast.walk(function):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_PREFIX):
            for alias in node.names:
                if alias.name.startswith("modeling_"):
                    found[alias.asname or alias.name] = str(node.module) + "." + alias.name
    return found


def _live_bodies(body: List[ast.stmt], names: Dict[str, Any]) -> Iterator[List[ast.stmt]]:
    """Yield every block of statements that can run where the globals are `names`."""
    yield body
    for statement in body:
        if isinstance(statement, ast.If):
            verdict = _verdict(statement.test, names)
            if verdict is not False:
                yield from _live_bodies(statement.body, names)
            if verdict is not True:
                yield from _live_bodies(statement.orelse, names)


def _verdict(test: ast.expr, names: Dict[str, Any]) -> Optional[bool]:
    """Say how a guard made of globals alone decides; None where it depends on an argument."""
    if isinstance(test, ast.Name) and isinstance(names.get(test.id), bool):
        return bool(names[test.id])
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        verdict = _verdict(test.operand, names)
        return None if verdict is None else not verdict
    return None


def _targets(body: List[ast.stmt], modules: Dict[str, str]) -> Iterator[Tuple[str, List[str]]]:
    """Yield (module, alternative names) for the assignments directly in `body`."""
    groups: Dict[Tuple[str, str], List[str]] = {}
    for statement in body:
        if not isinstance(statement, ast.Assign):
            continue
        for target in statement.targets:
            place = _place(target)
            if place is not None and place[0] in modules:
                key = (modules[place[0]], ast.dump(statement.value))
                groups.setdefault(key, []).append(place[1])
    for (module, _), attributes in groups.items():
        yield module, attributes


def _place(target: ast.expr) -> Optional[Tuple[str, str]]:
    """Return ("modeling_x", "Name") for `modeling_x.Name = …` and `modeling_x.Name.forward = …`."""
    while isinstance(target, ast.Attribute):
        if isinstance(target.value, ast.Name):
            return target.value.id, target.attr
        target = target.value
    return None


def defines(text: str, name: str) -> bool:
    """Say whether Python source `text` defines or imports `name` outside its functions and classes."""
    if name not in text and "import *" not in text:
        return False
    pattern = r"^(?:(?:async )?def|class) +%s\b|^%s *[:=]|^from +[\w.]+ +import +(?:\*|\([^)]*\b%s\b|[^(\n#]*\b%s\b)"
    if re.search(pattern % ((re.escape(name),) * 4), text, re.MULTILINE):
        return True
    try:
        return name in set(_bound(ast.parse(text).body))  # slower: for what stands under an `if` or `try`
    except (SyntaxError, ValueError, RecursionError):
        return True


def _bound(body: List[ast.stmt]) -> Iterator[str]:
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
        for part in ("body", "orelse", "finalbody"):
            yield from _bound(getattr(statement, part, []))
        for handler in getattr(statement, "handlers", []):
            yield from _bound(handler.body)


def _read(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(READ_LIMIT)
    except OSError:
        return None
