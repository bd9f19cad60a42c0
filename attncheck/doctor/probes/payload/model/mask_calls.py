"""Reads how a modelling file of transformers makes its masks: each call of `create_*_mask`, with its arguments.

The file is read, never run: "create_causal_mask(attention_mask,config,position_ids)". A call that only some inputs
reach is preceded by its condition: "if attention_mask is not None: create_causal_mask(…)". The values of arguments are
not followed, except a `**kwargs` that is a dict display in the same function. A variable that holds one of two such
functions counts as a call of both.
"""

from __future__ import annotations

import ast
from typing import Any


def find_mask_calls(text: str) -> list[str]:
    """Return the distinct calls in a file's text, sorted. Raises `SyntaxError`."""
    calls = set()
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef):
            displays, aliases = _dict_displays(function), _function_aliases(function)
            for statement in function.body:
                calls.update(_calls_under(statement, "", displays, aliases))
    return sorted(calls)


def _calls_under(
    node: ast.AST, condition: str, displays: dict[str, set[str]], aliases: dict[str, set[str]]
) -> set[str]:
    if isinstance(node, ast.FunctionDef):
        return set()  # visited separately
    calls = set()
    if isinstance(node, ast.Call):
        called = getattr(node.func, "id", getattr(node.func, "attr", ""))
        for name in aliases.get(called, {called}):
            if _makes_mask(name):
                calls.add("{}{}({})".format(condition, name, ",".join(sorted(_argument_names(node, displays)))))
    if isinstance(node, ast.If) and _is_about_the_mask(node.test):
        inner = "if attention_mask is not None: "
        for statement in node.body:
            calls |= _calls_under(statement, inner, displays, aliases)
        for statement in node.orelse:
            calls |= _calls_under(statement, condition, displays, aliases)
        return calls
    for child in ast.iter_child_nodes(node):
        calls |= _calls_under(child, condition, displays, aliases)
    return calls


def _makes_mask(name: str) -> bool:
    return name.startswith("create_") and name.endswith("mask")


def _function_aliases(function: ast.FunctionDef) -> dict[str, set[str]]:
    """Return, for each variable of a function that is set to one of several mask functions, these functions."""
    aliases: dict[str, set[str]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.IfExp, ast.Name)):
            choices = [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
            names = {choice.id for choice in choices if isinstance(choice, ast.Name) and _makes_mask(choice.id)}
            if names:
                aliases.update({target.id: names for target in node.targets if isinstance(target, ast.Name)})
    return aliases


def _is_about_the_mask(test: Any) -> bool:
    """Return whether a condition is `attention_mask is not None`, which tests for a mask from the user."""
    return (
        isinstance(test, ast.Compare)
        and getattr(test.left, "id", "") == "attention_mask"
        and isinstance(test.ops[0], ast.IsNot)
    )


def _argument_names(call: ast.Call, displays: dict[str, set[str]]) -> set[str]:
    names = set()
    for keyword in call.keywords:
        if keyword.arg is not None:
            names.add(keyword.arg)
        else:
            names |= displays.get(getattr(keyword.value, "id", ""), {"**"})
    return names | ({"*"} if call.args else set())


def _dict_displays(function: ast.FunctionDef) -> dict[str, set[str]]:
    """Return, for each variable of a function that is set to a dict display, its keys."""
    displays: dict[str, set[str]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            keys = {
                key.value for key in node.value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
            }
            displays.update({target.id: keys for target in node.targets if isinstance(target, ast.Name)})
    return displays
