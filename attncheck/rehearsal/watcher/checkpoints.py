"""Loads a script's own checkpoints into the small model, and notes one whose names are all unknown to its model.

Source: torch 2.13 nn/modules/module.py (`load_state_dict`: with `strict=False` unknown names are only returned).
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Collection, Mapping
from typing import Any

from .absent import is_script, note
from .script_code import CODE, name_line

LEAST_SHARE = 0.5  # of the model's names that a prefix must explain


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
