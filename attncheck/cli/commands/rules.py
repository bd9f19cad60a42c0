"""attncheck rules: list the rules."""

from __future__ import annotations

from attncheck.cli.commands import ABOUT, Command
from attncheck.cli.options import ListFormat
from attncheck.cli.output import write_text
from attncheck.cli.settings import check_choice


def rules(format: ListFormat = "text") -> None:
    """List every rule."""
    from attncheck.doctor import engine, rule_list

    check_choice("--format", format, ("text", "json"))
    render = rule_list.render_json if format == "json" else rule_list.render_text
    write_text(render(engine.all_rules()[0]), format)


COMMAND = Command(rules, ABOUT, 20)
