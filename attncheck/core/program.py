"""The names that the program of a launch accepts, according to its own source; plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Style = Literal["argparse", "dataclasses", "hydra", "omegaconf"]


class ProgramOption(NamedTuple):
    """One name that a program accepts.

    `kind` is "bool", "bool?" (None by default: it needs a value), "int", "float", "str", "list", "" for any other;
    `nargs` is argparse's, 0 for a switch. `place` is where the source defines it: "src/params.py:12".
    `default` is also None if it was not read (`is_default_known`).
    """

    kind: str = ""
    default: Any = None
    choices: tuple[str, ...] = ()
    nargs: int | str = 1
    place: str = ""
    is_default_known: bool = False


@dataclass(frozen=True)
class Program:
    """The names that one program accepts; if `gaps` is empty, its parser refuses every other name.

    Names have no dashes: argparse's as written ("max-len"), a dataclass's fields, Hydra's dotted keys.
    """

    path: str  # the file that is run, by the path where it was found
    style: Style
    options: Mapping[str, ProgramOption] = field(default_factory=dict)
    gaps: tuple[str, ...] = ()  # why it may accept other names too: "parse_known_args (train.py:40)"
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # Hydra's config groups and their options
    choices: Mapping[str, str] = field(default_factory=dict)  # key that is missing -> "group=option" that adds it
    missing: tuple[str, ...] = ()  # files of Hydra's groups that no folder has: "model/gpt2"
    origin: object = field(default=None, compare=False, repr=False)  # its modules, for whoever reads on

    @property
    def is_complete(self) -> bool:
        """Return whether a name that is not among the options is known to be refused."""
        return not self.gaps
