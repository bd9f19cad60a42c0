"""Finds the model that a program's source loads: by its name, or by the option for it, as in `args.base_model`."""

import ast
from functools import lru_cache
from pathlib import Path

from attncheck.core.launch import Launch
from attncheck.lint.arguments import iter_option_values
from attncheck.lint.programs.fixed_arguments import list_model_names
from attncheck.lint.programs.places import find_own_program, open_tree
from attncheck.lint.programs.program import Entry, find_entry


def find_own_model(launch: Launch) -> str:
    """Return the model that the command gives to the option with which its program loads it; "" for none."""
    option, _ = read_own_model(launch) or ("", "")
    given = iter_option_values(launch.words[1:]) if option else ()
    values = [word for name, word in given if name.lstrip("-").replace("-", "_") == option]
    return values[-1].text if values and values[-1].known else ""


def read_own_model(launch: Launch) -> tuple[str, str] | None:
    """Return the option and the literal by which a launch's program names its model, each "" if it has none.

    None if the program loads no model, or is not found.
    """
    place = find_own_program(launch)
    return _read_model(place[0], place[1].folders, place[1].base) if place is not None else None


@lru_cache(maxsize=512)
def _read_model(entry: Entry, folders: tuple[Path, ...], base: Path) -> tuple[str, str] | None:
    tree = open_tree(folders, base)
    main = find_entry(entry, tree)
    names = list_model_names(tree, main) if main is not None else []
    options = {name.attr if isinstance(name, ast.Attribute) else "" for name in names}
    literals = {str(name.value) if isinstance(name, ast.Constant) else "" for name in names}
    return (options.pop(), literals.pop()) if len(options) == len(literals) == 1 else ("", "") if names else None
