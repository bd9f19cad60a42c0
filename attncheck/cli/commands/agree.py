"""attncheck agree: whether the rollout engine and the trainer compute the same model."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from attncheck.cli.commands import MEASURING, PASSED_COMMAND, Command
from attncheck.cli.commands.smoke import choose_model, is_launch
from attncheck.cli.parts import (
    TRAIN,
    BadUsage,
    Device,
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
from attncheck.core.agreement import ENGINES

if TYPE_CHECKING:
    from attncheck.agree.run import AgreeRequest

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL|LAUNCH",
        show_default=False,
        help="Compare on a scaled-down model of this architecture, or on this RL launch. "
        "Default: the command after --.",
    ),
]
EngineOption = Annotated[
    str | None,
    option(
        TRAIN,
        "--engine",
        metavar="ENGINE",
        help=f"Generate with this engine: {', '.join(ENGINES)}. Default: the launch's own if installed, otherwise "
        "transformers.",
    ),
]
EngineModel = Annotated[
    str | None,
    option(
        TRAIN,
        "--engine-model",
        metavar="FOLDER",
        help="Load this folder or cached model, such as an export, in the engine. Default: the trainer's model.",
    ),
]
FullModel = Annotated[
    bool,
    option(
        TRAIN,
        "--full-model",
        help="Compare with the real weights, from their folder or the local cache, instead of a small model.",
    ),
]


def agree(
    context: typer.Context,
    output: OutputOptions,
    model: Target = None,
    engine: EngineOption = None,
    engine_model: EngineModel = None,
    full_model: FullModel = False,
    seed: Seed = 0,
    device: Device = "auto",
    python: Python = None,
    timeout: Timeout = None,
    verbose: Verbose = False,
) -> None:
    """Check that the rollout engine and the trainer compute the same.

    The engine generates from a small model, and the trainer's path scores the same tokens. The difference is compared
    with rounding error, and explained.
    """
    from attncheck.agree import run as agreement

    policy = resolve_policy(output, timeout=timeout)
    writer = make_report_writer(output)
    request = make_request(model, context.meta.get(PASSED_COMMAND), engine, engine_model, full_model, seed)
    interpreter = select_interpreter(python)
    target = make_execution_target(interpreter, device, policy)
    measure_and_exit(
        lambda snapshot, report_progress: agreement.run(snapshot, request, target, report_progress),
        writer,
        interpreter,
        None,
        verbose,
        policy,
    )


def make_request(
    model: str | None,
    command: tuple[str, ...] | None,
    engine: str | None,
    engine_model: str | None,
    full_model: bool,
    seed: int,
) -> "AgreeRequest":
    """Return the request for a model or a launch. Raises `BadUsage`, `Unanswered`."""
    from attncheck.agree.run import AgreeRequest
    from attncheck.lint import inputs

    if engine is not None and engine not in ENGINES:
        raise BadUsage(f"--engine {engine!r} is not one of {', '.join(ENGINES)}")
    if model is None and command is None:
        raise BadUsage("name a model or a launch, or give the command after --")
    request = AgreeRequest(engine=engine or "", engine_model=engine_model or "", full_model=full_model, seed=seed)
    if command is None and model is not None and not is_launch(model):
        return replace(request, model=model if full_model else choose_model(model))
    given = inputs.read_inputs(() if model is None else (model,), command)
    return replace(
        request,
        sources=given.sources,
        read_model=inputs.make_model_reader(False),
        make_reader=inputs.make_readers(given),
    )


COMMAND = Command(
    agree,
    MEASURING,
    11,
    passes_through=True,
    examples=("agree train.sh", "agree Qwen/Qwen3-4B --engine vllm", "agree ./actor --engine-model ./export"),
)
