"""Finds the model of a program that names the option for it: `from_pretrained(args.base_model)`."""

from functools import lru_cache
from pathlib import Path

from attncheck.core.launch import Launch
from attncheck.lint.arguments import iter_option_values
from attncheck.lint.programs.fixed_arguments import find_model_option
from attncheck.lint.programs.modules import SourceTree
from attncheck.lint.programs.places import find_own_program
from attncheck.lint.programs.program import Entry, find_entry


def find_own_model(launch: Launch) -> str:
    """Return the model that the command gives to the option with which its program loads it; "" for none."""
    place = find_own_program(launch)
    name = _read_option(place[0], place[1].folders, place[1].base) if place is not None else ""
    given = iter_option_values(launch.words[1:]) if name else ()
    values = [word for option, word in given if option.lstrip("-").replace("-", "_") == name]
    return values[-1].text if values and values[-1].known else ""


@lru_cache(maxsize=512)
def _read_option(entry: Entry, folders: tuple[Path, ...], base: Path) -> str:
    tree = SourceTree(folders, base)
    main = find_entry(entry, tree)
    return find_model_option(tree, main) if main is not None else ""
