"""One module per command with its record `COMMAND`; each is imported when it is used."""

from collections.abc import Callable
from typing import NamedTuple

PASSED_COMMAND = "attncheck.command"  # in a context's `meta`: the words after `--`

# Headings of commands in the help.
EXAMINING = "Examine an environment or a launch"
MEASURING = "Measure what attention computes"
GATING = "Gate a job"
ABOUT = "About the checks"


class Command(NamedTuple):
    """One command: its function, its heading and position in the help, and the start of its help.

    The function's parameters are `Annotated` options of `attncheck.cli.options` or groups of them. With
    `passes_through` it accepts another command after `--`. `most_used` are the options that the help lists first.
    """

    function: Callable[..., None]
    panel: str
    order: int
    passes_through: bool = False
    examples: tuple[str, ...] = ()  # each without the word `attncheck`
    most_used: tuple[str, ...] = ()
