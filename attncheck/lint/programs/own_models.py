"""Finds the model that a program's source loads: by its name, or by the option for it, as in `args.base_model`.

A program may also build one by its class: `GPT2LMHeadModel(config)`.
"""

import ast
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from attncheck.core.launch import Launch
from attncheck.lint.arguments import iter_option_values
from attncheck.lint.programs.fixed_arguments import list_model_names
from attncheck.lint.programs.modules import SourceModule, SourceTree
from attncheck.lint.programs.places import find_own_program, open_tree
from attncheck.lint.programs.program import Entry, find_entry
from attncheck.lint.programs.syntax import list_kind

LANGUAGE_MODEL = re.compile(r"For[A-Z]\w+|AutoModel|LMHeadModel")
BUILT = re.compile(r"transformers\.(?:\w+\.)*\w+(?:ForCausalLM|LMHeadModel)")


class OwnModel(NamedTuple):
    """How a program names the model that it loads: by an option, or by a literal; "" for what it does not have."""

    option: str = ""
    literal: str = ""
    is_language_model: bool = False


def find_own_model(launch: Launch) -> str:
    """Return the model that the command gives to the option with which its program loads it; "" for none."""
    option = read_own_model(launch).option
    given = iter_option_values(launch.words[1:]) if option else ()
    values = [word for name, word in given if name.lstrip("-").replace("-", "_") == option]
    return values[-1].text if values and values[-1].known else ""


def read_own_model(launch: Launch) -> OwnModel:
    """Return how a launch's program names its model."""
    place = find_own_program(launch)
    return _read_model(place[0], place[1].folders, place[1].base) if place is not None else OwnModel()


@lru_cache(maxsize=512)
def _read_model(entry: Entry, folders: tuple[Path, ...], base: Path) -> OwnModel:
    tree = open_tree(folders, base)
    main = find_entry(entry, tree)
    loads = list_model_names(tree, main) if main is not None else []
    is_language_model = any(LANGUAGE_MODEL.search(kind) for kind, _ in loads) or (
        main is not None and not loads and _builds_model(tree, main)
    )
    options = {name.attr if isinstance(name, ast.Attribute) else "" for _, name in loads}
    literals = {str(name.value) if isinstance(name, ast.Constant) else "" for _, name in loads}
    known = (options.pop(), literals.pop()) if len(options) == len(literals) == 1 else ("", "")
    return OwnModel(*known, is_language_model)


def _builds_model(tree: SourceTree, main: SourceModule) -> bool:
    """Return whether a program, or a module that it imports, calls the class of one of transformers' models."""
    calls = ((module, call) for module in (main, *tree.iter_imports(main)) for call in list_kind(module.body, ast.Call))
    names = (getattr(tree.resolve(module, call.func), "name", "") for module, call in calls)
    return any(isinstance(name, str) and BUILT.fullmatch(name) for name in names)
