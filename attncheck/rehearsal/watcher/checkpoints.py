"""Loads a script's own checkpoints into the small model, and notes those that are not the weights they should be.

Those whose names are all unknown to the model, and those that are kept without a copy: they change with each step.
Source: torch 2.13 nn/modules/module.py (`load_state_dict`: with `strict=False` unknown names are only returned;
`state_dict` returns references).
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import os
import re
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from .absent import is_script, note
from .script_code import CODE, find_script_frame, name_line

KEPT = (
    "the model's weights without a copy, and the next step has changed them: what is loaded or saved from it later are "
    "the last weights, not those of that moment (clone each tensor, or copy.deepcopy)"
)
LIVE = (
    "the model's own tensors, so nothing is restored: a state that is kept without a copy is always the last "
    "(clone each tensor, or copy.deepcopy)"
)
MAX_CALLERS = 2  # of `load_state_dict`: the script, or the watcher's own
LEAST_SHARE = 0.5  # of the model's names that a prefix must explain
COPIES = re.compile(r"\b(clone|deepcopy|cpu|to|numpy|float|half|bfloat16)\(")  # on a GPU, `cpu` copies
HOLDERS = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.For, ast.While)


def watch_checkpoints(module: Any) -> None:
    """Follow the script's calls of `load_state_dict`; a small model takes the tensors that have its sizes."""
    original = module.load_state_dict

    @functools.wraps(original)
    def load_state_dict(self: Any, state_dict: Any, *arguments: Any, **options: Any) -> Any:
        caller, own = sys._getframe(1), self.state_dict() if isinstance(state_dict, Mapping) else {}
        if not own or not is_script(caller.f_globals):
            return original(self, state_dict, *arguments, **options)
        is_strict = [*arguments, options.pop("strict", True)][0]
        is_unknown = own.keys().isdisjoint(state_dict)
        if is_unknown and not is_strict and (reason := _find_prefix(own, state_dict)):
            CODE["unloaded"] = [
                f"load_state_dict with strict=False in {name_line(caller)} takes none of {len(state_dict)} tensors: "
                f"{reason}"
            ]
        known = {name: value for name, value in state_dict.items() if name in own}
        fitting = {name: value for name, value in known.items() if own[name].shape == getattr(value, "shape", None)}
        if len(fitting) < len(known) and "ATTNCHECK_ROWS" in os.environ:
            note(os.environ["ATTNCHECK_WATCH"], "checkpoint", f"{len(fitting)} {len(state_dict)}")
            state_dict, is_strict = fitting, False
        return original(self, state_dict, is_strict, *arguments[1:], **options)

    module.load_state_dict = load_state_dict


def _find_prefix(own: Collection[str], given: Collection[str]) -> str:
    """Return whose names have a prefix without which most of the model's names are the checkpoint's; or ""."""
    for longer, shorter, whose in ((given, own, "its"), (own, given, "the model's")):
        for prefix in dict.fromkeys(_list_prefixes(longer, next(iter(shorter)))):
            ends = {name.removeprefix(prefix) for name in longer if name.startswith(prefix)}
            if len(ends.intersection(shorter)) > LEAST_SHARE * len(own):
                return f'{whose} names begin with "{prefix}"'
    return ""


def _list_prefixes(names: Collection[str], end: str) -> list[str]:
    return [name.removesuffix(end) for name in names if name.endswith(f".{end}")]


def watch_kept(module: Any, register: Callable[[Any], Any], report: Callable[..., None]) -> None:
    """Report a script's state that is kept without a copy and used elsewhere, when a step has changed it."""
    import torch

    original, kept, reported = module.state_dict, list[tuple[Any, Any, str]](), list[str]()

    @functools.wraps(original)
    def state_dict(self: Any, *arguments: Any, **options: Any) -> Any:
        state, caller = original(self, *arguments, **options), sys._getframe(1)
        with contextlib.suppress(Exception):  # the script continues without the answer
            if not reported and is_script(caller.f_globals) and (name := _find_kept(caller)):
                trained = [state[key] for key, own in self.named_parameters() if own.requires_grad and key in state]
                for value in sorted(trained, key=torch.numel)[:1]:
                    kept[:] = [(weakref.ref(value), value.clone(), f"{name} in {name_line(caller)}")]
        return state

    def compare(*arguments: Any) -> None:
        for reference, before, text in kept if not reported else ():
            value = reference()
            if value is not None and not value.equal(before):
                reported.append(text)
                report("update", violations=[f"{text} keeps {KEPT}"])

    load = module.load_state_dict

    @functools.wraps(load)
    def load_state_dict(self: Any, state_dict: Any, *arguments: Any, **options: Any) -> Any:
        caller = find_script_frame(sys._getframe(1), MAX_CALLERS) if kept and not reported else None
        if caller is not None and _is_live(self, state_dict):
            reported.append(name_line(caller))
            report("update", violations=[f"{reported[0]} loads {LIVE}"])
        return load(self, state_dict, *arguments, **options)

    module.state_dict, module.load_state_dict = state_dict, load_state_dict
    register(compare)


def _is_live(model: Any, state: Any) -> bool:
    """Return whether a state's tensors are the model's own parameters."""
    pairs = [(state[name], own) for name, own in model.named_parameters() if name in state]
    return bool(pairs) and all(value.data_ptr() == own.data_ptr() for value, own in pairs)


def _find_kept(frame: Any) -> str:
    """Return the variable that the statement of a frame assigns, if it is loaded or saved after the loop; or "".

    An attribute may also be loaded by another function. What is used in the same pass of a loop has not changed.
    """
    tree, line = ast.parse("".join(linecache.getlines(frame.f_code.co_filename))), frame.f_lineno
    holders = [node for node in ast.walk(tree) if isinstance(node, HOLDERS) and _holds(node, line)]  # the outer first
    is_in_loop = isinstance(holders[-1], (ast.For, ast.While))
    scope = next(node for node in reversed(holders) if not isinstance(node, (ast.For, ast.While)))
    for node in ast.walk(holders[-1]):
        if (
            isinstance(node, (ast.Assign, ast.AnnAssign))
            and _holds(node, line)
            and not COPIES.search(ast.unparse(node))
        ):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for own in ast.walk(target):
                    used = {
                        ast.Attribute: _iter_used(tree, holders[-1], "load_state_dict"),
                        ast.Name: _iter_used(scope if is_in_loop else holders[-1], holders[-1], "load_state_dict|save"),
                    }
                    if ast.unparse(own) in used.get(type(own), ()):
                        return ast.unparse(own)
    return ""


def _holds(node: Any, line: int) -> bool:
    return isinstance(node, ast.Module) or node.lineno <= line <= node.end_lineno


def _iter_used(scope: ast.AST, holder: ast.AST, uses: str) -> Iterator[str]:
    """Yield the arguments of the calls, outside of a loop or function, that load or save."""
    for call in ast.walk(scope):
        if isinstance(call, ast.Call) and not _holds(holder, call.lineno) and re.search(uses, ast.unparse(call.func)):
            yield from map(ast.unparse, (*call.args, *(keyword.value for keyword in call.keywords)))
