"""Prints as JSON what every command takes; run by an environment that attncheck is installed in.

Of each parameter: its words and help, what it is when it is left out, and what each of its words gives; and which words
the command's help lacks. The commands are read and not run.
"""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import typer

from attncheck.cli.app import app

SAMPLE = "1"  # a value that every option and argument takes, regardless of its type


def describe_commands() -> dict[str, Any]:
    """Return what each command takes, by its name."""
    group: Any = typer.main.get_command(app)
    context = group.make_context("attncheck", [])
    return {name: describe_command(group.get_command(context, name)) for name in sorted(group.list_commands(context))}


def describe_command(command: Any) -> dict[str, Any]:
    """Return the parameters of a command by their names, and the words that its help lacks."""
    left_out = parse(command, [])
    parameters = {param.name: describe_parameter(command, param, left_out[param.name]) for param in command.params}
    text = print_help(command)
    words = [word for param in command.params if param.param_type_name == "option" for word in list_words(param)]
    return {"parameters": parameters, "help lacks": [word for word in words if word not in text]}


def describe_parameter(command: Any, param: Any, left_out: Any) -> dict[str, Any]:
    """Return what a parameter is, and what it becomes of each way to write it."""
    return {
        "kind": param.param_type_name,
        "words": sorted(list_words(param)),
        "metavar": param.metavar,
        "help": param.help,
        "required": param.required,
        "left out": left_out,
        "given": {argv[0]: parse(command, argv)[param.name] for argv in list_samples(param)},
    }


def list_words(param: Any) -> list[str]:
    """Return an option's words, or an argument's name."""
    return [*param.opts, *param.secondary_opts]


def list_samples(param: Any) -> list[list[str]]:
    """Return the words that give a parameter a value, in each way that it can be written."""
    if param.param_type_name == "argument":
        return [[SAMPLE]]
    return [[word] if param.is_flag else [word, SAMPLE] for word in list_words(param)]


def parse(command: Any, argv: list[str]) -> dict[str, Any]:
    """Return what the parameters are after `argv`; one that is required and missing is None."""
    return dict(command.make_context(command.name, list(argv), resilient_parsing=True).params)


def print_help(command: Any) -> str:
    """Return what --help prints; the terminal is as wide as COLUMNS says."""
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        command.main(["--help"], prog_name=command.name, standalone_mode=False)
    return text.getvalue()


if __name__ == "__main__":
    print(json.dumps(describe_commands(), default=repr))
