"""attncheck explain: print the page of a rule."""

from typing import Annotated

import typer

from attncheck.cli.commands import ABOUT, Command
from attncheck.cli.completion import complete_rules
from attncheck.cli.output import write_text

Code = Annotated[
    str,
    typer.Argument(
        metavar="CODE",
        show_default=False,
        help="Print the page of the rule with this code or name.",
        autocompletion=complete_rules,
    ),
]


def explain(code: Code) -> None:
    """Print a rule's page: what it checks, why it matters, what to do."""
    from attncheck.doctor import engine

    write_text(engine.render_rule_page(code), "text")


COMMAND = Command(explain, ABOUT, 20, examples=("explain ATN140", "explain ATN444"))
