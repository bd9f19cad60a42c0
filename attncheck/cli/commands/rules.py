"""attncheck rules: list the rules."""

from typing import Annotated

import typer

from attncheck.cli.commands import ABOUT, Command
from attncheck.cli.parts import ListFormat, check_choice, complete_codes, write_text

Prefix = Annotated[
    str,
    typer.Argument(
        metavar="CODE",
        show_default=False,
        help="List the rules whose code begins with this: ATN4. Default: all.",
        autocompletion=complete_codes,
    ),
]


def rules(code: Prefix = "", format: ListFormat = "text") -> None:
    """List every rule."""
    from attncheck.doctor import engine, rule_list

    check_choice("--format", format, ("text", "json"))
    engine.check_codes((code.upper(),))
    render = rule_list.render_json if format == "json" else rule_list.render_text
    write_text(render([rule for rule in engine.all_rules()[0] if rule.code.startswith(code.upper())]), format)


COMMAND = Command(rules, ABOUT, 21, examples=("rules", "rules ATN4", "rules --format json"))
