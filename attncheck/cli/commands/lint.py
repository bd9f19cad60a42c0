"""attncheck lint: read launches, judge them, print them corrected."""

from __future__ import annotations

from typing import Annotated

import typer

from attncheck.cli.commands import EXAMINING, PASSED_COMMAND, Command
from attncheck.cli.completion import complete_frameworks
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
from attncheck.cli.output import make_report_writer, write_and_exit
from attncheck.cli.progress import with_progress
from attncheck.cli.settings import resolve_policy, select_interpreter
from attncheck.core.streams import print_message

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE]...",
        show_default=False,
        help="Lint these scripts and YAML, TOML or JSON files; - is standard input.",
    ),
]
Framework = Annotated[
    str | None,
    option(
        EXAMINE,
        "--framework",
        metavar="NAME",
        help="Read only launches of this framework. Default: whichever is recognised.",
        autocompletion=complete_frameworks,
    ),
]
Write = Annotated[
    bool,
    option(OUTPUT, "--write", help="Write new names and harmless settings into the files, keeping their layout."),
]
SkipUnknown = Annotated[
    bool,
    option(EXAMINE, "--skip-unknown", help="Leave out files that start no known trainer, without a line about them."),
]


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
    from attncheck.lint import run as lint

    policy = resolve_policy(output, rules)
    writer = make_report_writer(output)
    engine.check_codes((*policy.select, *policy.ignore))
    request = lint.Request(
        sources=inputs.read_sources(tuple(files or ()), context.meta.get(PASSED_COMMAND)),
        framework=framework or "",
        version=inputs.parse_framework_version(framework_version),
        model=model or "",
        skip_unknown=skip_unknown,
        select=policy.select,
        ignore=policy.ignore,
    )
    interpreter = select_interpreter(python)
    snapshot = with_progress(
        lambda report_progress: inputs.collect_lint_snapshot(interpreter, target, policy.timeout, report_progress)
    )
    read_file = inputs.make_file_reader(request.sources)
    report = lint.run(snapshot, request, inputs.make_model_reader(online), read_file)
    if write:
        for name in lint.write_safe_edits(report, read_file):
            print_message(f"wrote {name}: new names, and settings that leave the job what it is")
    write_and_exit(writer, report, verbose, policy)


COMMAND = Command(lint, EXAMINING, 3, passes_through=True)
