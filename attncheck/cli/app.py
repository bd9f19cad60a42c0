"""The command line: a group whose commands are modules, each imported when it is named.

Typer 0.29 loads pydantic at the first option that it parses, some 0.1 s; nothing public avoids that. `attncheck
--version` is therefore answered before Typer is imported (`attncheck/__main__.py`).
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from attncheck import __version__
from attncheck.cli import commands
from attncheck.cli.commands import PASSED_COMMAND, Command
from attncheck.cli.options import expand_groups
from attncheck.core.io.errors import BadUsage

CONTEXT = {"help_option_names": ["-h", "--help"]}
EPILOG = "Begin with `attncheck demo` or `attncheck doctor`; before a job: `attncheck run -- torchrun … train.py`."


class PassThroughCommand(TyperCommand):
    """A command that takes another one after `--`, untouched: it stands in `context.meta[PASSED_COMMAND]`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move what stands after the first `--` into `ctx.meta`; return the arguments that are attncheck's own."""
        if "--" in args:
            ctx.meta[PASSED_COMMAND] = tuple(args[args.index("--") + 1 :])
            args = args[: args.index("--")]
        return super().parse_args(ctx, args)


def command_names() -> list[str]:
    """Return the names of the commands; none of them is imported."""
    return [info.name for info in pkgutil.iter_modules(commands.__path__)]


def load_command(name: str) -> Command:
    """Return the record of the command called `name`."""
    record: Command = importlib.import_module(f"{commands.__name__}.{name}").COMMAND
    return record


class CommandGroup(TyperGroup):
    """Finds commands by the names of their modules."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in the order of the help."""
        return sorted(command_names(), key=lambda name: load_command(name).order)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the first word names. Raises `BadUsage` with the nearest name where there is none."""
        if args[0] not in command_names() and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], command_names(), n=1)
            hint = f"did you mean {near[0]}?" if near else "`attncheck --help` lists them"
            raise BadUsage(f"there is no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return one command, None where there is none of this name."""
        if cmd_name not in command_names():
            return None
        record = load_command(cmd_name)
        single = typer.Typer(add_completion=False)
        kind = PassThroughCommand if record.passes_through else TyperCommand
        register = single.command(cmd_name, cls=kind, context_settings=CONTEXT, rich_help_panel=record.panel)
        register(expand_groups(record.function))
        return typer.main.get_command(single)


app = typer.Typer(cls=CommandGroup, context_settings=CONTEXT, epilog=EPILOG, pretty_exceptions_enable=False)


def print_version(requested: bool) -> None:
    """Print the version and end."""
    if requested:
        typer.echo(f"attncheck {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    """Prove that an LLM-training environment's attention stack works before anyone pays for the job."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
