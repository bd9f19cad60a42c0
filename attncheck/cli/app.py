"""The command line: a group whose commands are modules, each imported when it is used.

Typer 0.29 loads pydantic at the first option that it parses, which takes about 0.1 s; no public setting avoids that.
`attncheck --version` is therefore answered before Typer is imported (`attncheck/__main__.py`), and texts are not parsed
by it (`PlainText`).
"""

import difflib
import importlib
import pkgutil
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from attncheck import __version__
from attncheck.cli import commands
from attncheck.cli.commands import PASSED_COMMAND, Command
from attncheck.cli.options import OUTPUT, expand_groups
from attncheck.core.io.errors import BadUsage

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
MOST_USED = "Most used"
EPILOG = "Begin with `attncheck demo` or `attncheck doctor`; before a job: `attncheck run -- torchrun … train.py`."


class PlainText:
    """Takes an option's texts as they are, and leaves all other values to Typer (0.29 core.py, `_TyperParameter`)."""

    KNOWN = "0.29."  # other releases parse texts themselves

    @classmethod
    def take(cls, params: Any) -> Any:
        """Let parameters be parsed so."""
        for param in params if typer.__version__.startswith(cls.KNOWN) else ():
            vars(param)["_runtime_param"] = cls()
        return params

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of an option."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        kind = param.type_descriptor.annotation
        if kind is str and isinstance(value, str):
            return value
        if kind == list[str] and not isinstance(value, str):
            return list(value)
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


class SectionedCommand(TyperCommand):
    """A command whose help is plain text: examples, then options under headings. No name is cut at any width."""

    record: Command

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, parsed without pydantic if they are texts."""
        return PlainText.take(super().get_params(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, the arguments, the most used options and the others, each under its heading."""
        with formatter.section("Examples"):
            for example in self.record.examples:
                formatter.write(f"{'':{formatter.current_indent}}attncheck {example}\n")
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], MOST_USED: []}
        params: list[Any] = self.get_params(ctx)
        for name in self.record.most_used:
            sections[MOST_USED] += [param.get_help_record(ctx) for param in params if name in param.opts]
        for param in params:
            name, text = param.get_help_record(ctx)
            if param.param_type_name == "argument":
                sections["Arguments"].append((name.partition(" <")[0], text))
            elif not set(self.record.most_used) & set(param.opts):
                sections.setdefault(getattr(param, "rich_help_panel", None) or OUTPUT, []).append((name, text))
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


class PassThroughCommand(SectionedCommand):
    """A command that accepts another one after `--` and passes it on unchanged in `context.meta[PASSED_COMMAND]`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move the words after the first `--` into `ctx.meta`; return attncheck's own arguments."""
        if "--" in args:
            ctx.meta[PASSED_COMMAND] = tuple(args[args.index("--") + 1 :])
            args = args[: args.index("--")]
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # Typer's class, from its own copy of click since 0.29
            if "unexpected extra argument" not in str(getattr(error, "message", "")):
                raise
            raise BadUsage(f"put -- before the command: attncheck {ctx.info_name} -- torchrun … train.py") from None


def command_names() -> list[str]:
    """Return the names of the commands without importing them."""
    return [info.name for info in pkgutil.iter_modules(commands.__path__)]


def load_command(name: str) -> Command:
    """Return the record of the command called `name`."""
    record: Command = importlib.import_module(f"{commands.__name__}.{name}").COMMAND
    return record


class CommandGroup(TyperGroup):
    """Finds commands by the names of their modules."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, parsed without pydantic if they are texts."""
        return PlainText.take(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in the order of the help."""
        return sorted(command_names(), key=lambda name: load_command(name).order)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with the first sentence of its help, under the headings of the records."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            function = load_command(name).function
            sections.setdefault(load_command(name).panel, []).append((name, (function.__doc__ or "").split("\n")[0]))
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the first word names. Raises `BadUsage` with the closest name if there is none."""
        if args[0] not in command_names() and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], command_names(), n=1)
            hint = f"did you mean {near[0]}?" if near else "`attncheck --help` lists them"
            raise BadUsage(f"there is no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of this name, None if there is none."""
        if cmd_name not in command_names():
            return None
        record = load_command(cmd_name)
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        kind = PassThroughCommand if record.passes_through else SectionedCommand
        single.command(cmd_name, cls=kind, context_settings=CONTEXT)(expand_groups(record.function))
        command: Any = typer.main.get_command(single)
        command.record = record
        return command


app = typer.Typer(
    cls=CommandGroup, context_settings=CONTEXT, epilog=EPILOG, rich_markup_mode=None, pretty_exceptions_enable=False
)


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
