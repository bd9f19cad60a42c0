"""Finds the model that a program's source loads: by its name, or by the option for it, as in `args.base_model`."""

import ast
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from attncheck.core.launch import Launch
from attncheck.lint.arguments import iter_option_values
from attncheck.lint.programs.fixed_arguments import list_model_names
from attncheck.lint.programs.places import find_own_program, open_tree
from attncheck.lint.programs.program import Entry, find_entry

LANGUAGE_MODEL = re.compile(r"For[A-Z]\w+|AutoModel|LMHeadModel")


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
    is_language_model = any(LANGUAGE_MODEL.search(kind) for kind, _ in loads)
    options = {name.attr if isinstance(name, ast.Attribute) else "" for _, name in loads}
    literals = {str(name.value) if isinstance(name, ast.Constant) else "" for _, name in loads}
    known = (options.pop(), literals.pop()) if len(options) == len(literals) == 1 else ("", "")
    return OwnModel(*known, is_language_model)
