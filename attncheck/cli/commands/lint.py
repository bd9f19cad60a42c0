"""attncheck lint: read launches, judge them, and print corrected ones."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import typer

from attncheck.cli.commands import EXAMINING, PASSED_COMMAND, Command
from attncheck.cli.parts import (
    EXAMINE,
    OUTPUT,
    BadUsage,
    FrameworkVersion,
    ModelOption,
    Online,
    OutputOptions,
    Python,
    RuleOptions,
    Target,
    Verbose,
    complete_frameworks,
    make_execution_target,
    make_report_writer,
    option,
    print_message,
    resolve_policy,
    select_interpreter,
    with_progress,
    write_and_exit,
)
from attncheck.core.report import Report

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PATH...",
        show_default=False,
        help="Lint these scripts and YAML, TOML or JSON files, and all below these folders; - is standard input.",
    ),
]
Framework = Annotated[
    str | None,
    option(
        EXAMINE,
        "--framework",
        metavar="NAME",
        help="Read only launches of this framework. Default: all known frameworks.",
        autocompletion=complete_frameworks,
    ),
]
Write = Annotated[
    bool,
    option(
        OUTPUT,
        "--write",
        help="Write current option names and harmless corrections into the files, keeping their layout.",
    ),
]
SkipUnknown = Annotated[
    bool,
    option(EXAMINE, "--skip-unknown", help="Do not list files that start no known trainer."),
]
Labels = Annotated[
    bool,
    option(
        EXAMINE,
        "--labels",
        help="Also run each named SFT launch for one step, scaled down, and show which tokens it learns. Default: no.",
    ),
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
    labels: Labels = False,
    python: Python = None,
    verbose: Verbose = False,
) -> None:
    """Show what a launch will do, and print a corrected launch.

    PATH is a launch script, a YAML, TOML or JSON file, or a folder of them; a command comes after --. Nothing of it
    is run, except with --labels.
    """
    from attncheck.doctor import engine
    from attncheck.lint import inputs
    from attncheck.lint import run as lint
    from attncheck.lint.context import Request

    if labels and target is not None:
        raise BadUsage("--labels runs launches here, so it cannot be used with --target")
    policy = resolve_policy(output, rules)
    writer = make_report_writer(output)
    engine.check_codes((*policy.select, *policy.ignore))
    given = inputs.read_inputs(tuple(files or ()), context.meta.get(PASSED_COMMAND))
    request = Request(
        sources=given.sources,
        below_folders=given.below_folders,
        left_out=given.left_out,
        framework=framework or "",
        version=inputs.parse_framework_version(framework_version),
        model=model or "",
        skip_unknown=skip_unknown,
        select=policy.select,
        ignore=policy.ignore,
    )
    interpreter = select_interpreter(python)
    read_file = inputs.make_file_reader((*given.sources, *given.below_folders))

    def lint_launches(report_progress: Callable[[str], None]) -> Report:
        snapshot = inputs.collect_lint_snapshot(interpreter, target, policy.timeout, report_progress)
        read_model = inputs.make_model_reader(online)
        stated = inputs.choose_stated(interpreter, target, snapshot)
        report = lint.run(
            snapshot,
            replace(request, stated=stated, named=inputs.list_named(target)),
            read_model,
            read_file,
            inputs.make_readers(given),
            report_progress,
        )
        if not labels:
            return report
        from attncheck.rehearsal import labels as rehearsal

        wanted = rehearsal.LabelsRequest(given.sources, read_model, inputs.make_readers(given))
        execution = make_execution_target(interpreter, "cpu", policy)
        section = rehearsal.read_labels(snapshot, wanted, execution, report_progress)
        return rehearsal.add_labels(report, section, policy.select, policy.ignore)

    report = with_progress(lint_launches)
    if write:
        for name in lint.write_safe_edits(report, read_file):
            print_message(f"wrote {name}: current option names, and settings that do not change the job")
    write_and_exit(writer, report, verbose, policy)


COMMAND = Command(
    lint,
    EXAMINING,
    5,
    passes_through=True,
    examples=(
        "lint train.sh",
        "lint train.sh --target h100x8,requirements.txt",
        "lint -- torchrun --nproc-per-node 8 train.py",
    ),
    most_used=("--target", "--python", "--model", "--write", "--fail-on"),
)
