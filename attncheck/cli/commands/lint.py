"""attncheck lint: read launches, judge them, print them corrected."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from attncheck.cli.app import EXAMINING, PASSED_COMMAND, Command
from attncheck.cli.options import (
    EXAMINE,
    OUTPUT,
    FrameworkVersion,
    ModelOption,
    Online,
    OutputOptions,
    Python,
    RuleOptions,
    Target,
    Verbose,
    option,
)
from attncheck.cli.output import finish, report_writer
from attncheck.cli.progress import with_progress
from attncheck.cli.settings import load_config

Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILE]...", show_default=False, help='Scripts, YAML, TOML or JSON files ("-": stdin).'),
]
Framework = Annotated[
    str | None,
    option(EXAMINE, "--framework", metavar="NAME", help="Read it as a launch of this framework. Default: recognised."),
]
Write = Annotated[
    bool,
    option(OUTPUT, "--write", help="Write new names and harmless settings into the files, keeping their layout."),
]
SkipUnknown = Annotated[bool, option(EXAMINE, "--skip-unknown", help="Say nothing of files that start no training.")]


def lint(
    context: typer.Context,
    output: OutputOptions,
    rules: RuleOptions,
    files: Files = None,
    model: ModelOption = None,
    framework: Framework = None,
    framework_version: FrameworkVersion = None,
    target: Target = None,
    write: Write = False,
    skip_unknown: SkipUnknown = False,
    online: Online = False,
    python: Python = None,
    verbose: Verbose = False,
) -> None:
    """Say what a launch will really do, and print it corrected.

    FILE is a launch script or a YAML, TOML or JSON file; a command stands after --. Nothing of it is run.
    """
    from attncheck.doctor import engine
    from attncheck.lint import inputs
    from attncheck.lint import run as linting

    config = load_config(output, rules)
    writer = report_writer(output)
    engine.check_codes((*config.select, *config.ignore))
    request = linting.Request(
        sources=inputs.sources(tuple(files or ()), context.meta.get(PASSED_COMMAND)),
        framework=framework or "",
        version=inputs.version(framework_version),
        model=model or "",
        skip_unknown=skip_unknown,
        select=config.select,
        ignore=config.ignore,
    )
    snapshot = with_progress(lambda report_progress: inputs.look(python, target, config.timeout, report_progress))
    texts = inputs.files(request.sources)
    report = linting.run(snapshot, request, inputs.models(online), texts)
    if write:
        for name in linting.write(report, texts):
            print(f"wrote {name}: new names, and settings that leave the job what it is", file=sys.stderr)
    finish(writer, report, verbose, config)


COMMAND = Command(lint, EXAMINING, 3, passes_through=True)
