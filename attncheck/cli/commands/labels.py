"""attncheck labels: show which tokens a launch trains on, by role."""

from typing import Annotated

import typer

from attncheck.cli.commands import MEASURING, PASSED_COMMAND, Command
from attncheck.cli.parts import (
    TRAIN,
    BadUsage,
    OutputOptions,
    Python,
    Seed,
    Timeout,
    Verbose,
    make_execution_target,
    make_report_writer,
    measure_and_exit,
    option,
    resolve_policy,
    select_interpreter,
)

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="[LAUNCH]",
        show_default=False,
        help="Read the labels of this launch script or configuration file. Default: the command after --.",
    ),
]
Template = Annotated[
    str | None,
    option(
        TRAIN,
        "--template",
        metavar="FOLDER",
        help="Use the tokenizer and chat template of this folder or cached model. Default: the launch's model's.",
    ),
]
TrustScript = Annotated[
    bool,
    option(
        TRAIN,
        "--trust-script",
        help="Run a script of yours even if this machine cannot keep it from writing to your files. Default: no.",
    ),
]
RunSubstitutions = Annotated[
    bool,
    option(
        TRAIN,
        "--run-substitutions",
        help="Allow LAUNCH to run the commands $(…) in its options and exports. Default: no.",
    ),
]


def labels(
    context: typer.Context,
    output: OutputOptions,
    launch: Target = None,
    template: Template = None,
    trust_script: TrustScript = False,
    run_substitutions: RunSubstitutions = False,
    seed: Seed = 0,
    python: Python = None,
    timeout: Timeout = None,
    verbose: Verbose = False,
) -> None:
    """Show which tokens a launch trains on, by role.

    The launch runs one step, scaled down, on conversations that can be recognised in its batches.
    """
    from attncheck.lint import inputs
    from attncheck.rehearsal import labels as rehearsal

    policy = resolve_policy(output, timeout=timeout)
    writer = make_report_writer(output)
    command = context.meta.get(PASSED_COMMAND)
    if launch is None and command is None:
        raise BadUsage("name a launch script or configuration file, or give the command after --")
    given = inputs.read_inputs(() if launch is None else (launch,), command)
    request = rehearsal.LabelsRequest(
        given.sources,
        inputs.make_model_reader(False),
        inputs.make_readers(given),
        template or "",
        seed,
        trust_script,
        run_substitutions,
    )
    interpreter = select_interpreter(python)
    target = make_execution_target(interpreter, "cpu", policy)
    measure_and_exit(
        lambda snapshot, report_progress: rehearsal.run(snapshot, request, target, report_progress),
        writer,
        interpreter,
        None,
        verbose,
        policy,
    )


COMMAND = Command(
    labels,
    MEASURING,
    10,
    passes_through=True,
    examples=("labels train.sh", "labels --template ./my-tokenizer train.sh", "labels -- torchrun train.py"),
)
