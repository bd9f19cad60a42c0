"""The values that a tree's trainer hands to its actor with a batch: its own expressions, evaluated.

verl's trainer/ppo/ray_trainer.py assigns `batch.meta_info[NAME]`, and forks add names: SkyworkAI/Skywork-OR1 has
`self.ent_ctrl.__dict__`, made of the configuration. The module itself, which starts Ray, is not imported.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

TRAINER = "verl.trainer.ppo.ray_trainer"
UPDATE = "update_actor"  # the call that hands a batch to the actor
READ = re.compile(r"""meta_info\[["'](\w+)["']\]""")
MAX_NAMES = 50  # that an expression needs


def make_values(actor_source: str, config: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of `meta_info` that an actor reads, by name; without those that cannot be made here."""
    spec = importlib.util.find_spec(TRAINER)
    names = set(READ.findall(actor_source)) - set(known)
    if not names or spec is None or spec.origin is None:
        return {}
    with open(spec.origin, encoding="utf-8") as stream:
        text = stream.read()
    nodes = list(ast.walk(ast.parse(text)))
    definitions = dict(_iter_definitions(nodes))
    last = max((node.lineno for node in nodes if isinstance(node, ast.Attribute) and node.attr == UPDATE), default=0)
    values = {}
    for name in names:
        target = re.compile(rf"""\.meta_info\[["']{name}["']\]$""")
        given = [own for own in _iter_assignments(nodes) if target.search(own[0]) and own[1].lineno < last]
        scope = {"config": config, "self": SimpleNamespace(config=config)}
        try:
            values[name] = _evaluate(max(given, key=lambda own: own[1].lineno)[1], scope, definitions)
        except Exception:  # the actor's own error then names what it lacks
            continue
    return values


def _iter_assignments(nodes: list[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    for node in nodes:
        if isinstance(node, ast.Assign):
            yield from ((ast.unparse(target), node.value) for target in node.targets)


def _iter_definitions(nodes: list[ast.AST]) -> Iterator[tuple[str, Any]]:
    """Yield names and attributes of `self`, each with its value or the module and name that it is imported from."""
    yield from _iter_assignments(nodes[::-1])  # the first assignment replaces later ones
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((alias.asname or alias.name, (node.module, alias.name)) for alias in node.names)
        if isinstance(node, ast.Import):
            yield from ((alias.asname, (alias.name, "")) for alias in node.names if alias.asname)


def _evaluate(node: ast.expr, scope: dict[str, Any], definitions: Mapping[str, Any]) -> Any:
    """Return an expression's value, with the names that it needs defined on the way."""
    code = compile(ast.Expression(node), TRAINER, "eval")
    for _ in range(MAX_NAMES):
        try:
            return eval(code, scope)
        except NameError as error:
            scope[str(error.name)] = _define(definitions[str(error.name)], scope, definitions)
        except AttributeError as error:
            if error.obj is not scope["self"]:
                raise
            setattr(error.obj, str(error.name), _define(definitions[f"self.{error.name}"], scope, definitions))
    raise RecursionError(ast.unparse(node))


def _define(definition: Any, scope: dict[str, Any], definitions: Mapping[str, Any]) -> Any:
    if isinstance(definition, ast.expr):
        return _evaluate(definition, scope, definitions)
    module, name = definition
    own = importlib.import_module(module)
    if name and not hasattr(own, name):
        return importlib.import_module(f"{module}.{name}")
    return getattr(own, name) if name else own
