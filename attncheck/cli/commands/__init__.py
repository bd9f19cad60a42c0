"""One module a command, holding its record `COMMAND`; each is imported when it is named."""

from collections.abc import Callable
from dataclasses import dataclass

PASSED_COMMAND = "attncheck.command"  # in a context's `meta`: the words of the command after `--`

# Headings of commands in the help.
EXAMINING = "Examine an environment or a launch"
MEASURING = "Measure what attention computes"
GATING = "Gate a job"
ABOUT = "About the checks"


@dataclass(frozen=True)
class Command:
    """One command: its function, its heading in the help and its place there, and what its own help begins with.

    The function's parameters are `Annotated` options of `attncheck.cli.options` or groups of them. With
    `passes_through` it takes another command after `--`. `most_used` are the options that the help lists first.
    """

    function: Callable[..., None]
    panel: str
    order: int
    passes_through: bool = False
    examples: tuple[str, ...] = ()  # each without `attncheck`
    most_used: tuple[str, ...] = ()
