"""attncheck smoke: train a small model as the job will, and find a change that fixes what goes wrong."""

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from attncheck.cli.commands import MEASURING, PASSED_COMMAND, Command
from attncheck.cli.parts import (
    TRAIN,
    BadUsage,
    Device,
    OutputOptions,
    PlanOptions,
    Python,
    RingOptions,
    Seed,
    Timeout,
    Unanswered,
    Verbose,
    complete_smoke_checks,
    make_execution_target,
    make_report_writer,
    make_training_plan,
    measure_and_exit,
    option,
    parse_ring_options,
    print_message,
    refuse_options,
    resolve_policy,
    select_interpreter,
)

if TYPE_CHECKING:
    from attncheck.rehearsal import reading

REPOSITORY = re.compile(r"\w[\w.-]*/[\w.-]+")  # owner/name on the Hub
LAUNCH_ENDINGS = (".sh", ".bash", ".yaml", ".yml", ".toml", ".slurm", ".sbatch")

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL|LAUNCH",
        show_default=False,
        help="Train a small model of this architecture, or rehearse this launch script or configuration file. "
        "Default: a small Llama and a small Qwen2.",
    ),
]
Full = Annotated[
    bool, option(TRAIN, "--full", help="Train the real weights of MODEL instead of a small model of its shape.")
]
FullModel = Annotated[
    bool,
    option(
        TRAIN,
        "--full-model",
        help="Rehearse LAUNCH with its own full-size model, from its folder or the local cache, instead of "
        "a small one of its architecture.",
    ),
]
LaunchModel = Annotated[
    str | None,
    option(
        TRAIN,
        "--model",
        metavar="MODEL",
        help="Rehearse LAUNCH with a small model of this one's architecture: a folder or a Hub name. Default: its own.",
    ),
]
RealData = Annotated[
    bool,
    option(
        TRAIN,
        "--real-data",
        help="Rehearse LAUNCH on the first rows of its own data, from their file, folder or the local cache, instead "
        "of synthetic documents.",
    ),
]
TrustScript = Annotated[
    bool,
    option(
        TRAIN,
        "--trust-script",
        help="Rehearse a script of yours even if this machine cannot keep it from writing to your files. Default: no.",
    ),
]
TrustRemoteCode = Annotated[
    bool,
    option(
        TRAIN,
        "--trust-remote-code",
        help="Allow a rehearsed LAUNCH that sets trust_remote_code to run its model's own code. Default: no.",
    ),
]
RunSubstitutions = Annotated[
    bool,
    option(
        TRAIN,
        "--run-substitutions",
        help="Allow a rehearsed LAUNCH to run the commands $(…) in its options and exports. Default: no.",
    ),
]
Only = Annotated[
    list[str] | None,
    option(
        TRAIN,
        "--only",
        metavar="QUESTION",
        help="Run only this check. Repeat for several. Default: all.",
        autocompletion=complete_smoke_checks,
    ),
]
FixOption = Annotated[
    bool,
    option(
        TRAIN,
        "--fix/--no-fix",
        help="Try changes that fix the problems, and train with them to prove it. Default: yes.",
    ),
]
TryPackages = Annotated[
    bool, option(TRAIN, "--try-packages", help="Also try other versions of packages, in a temporary folder.")
]


def smoke(
    context: typer.Context,
    plan: PlanOptions,
    ranks: RingOptions,
    output: OutputOptions,
    model: Target = None,
    full: Full = False,
    full_model: FullModel = False,
    launch_model: LaunchModel = None,
    real_data: RealData = False,
    trust_script: TrustScript = False,
    trust_remote_code: TrustRemoteCode = False,
    run_substitutions: RunSubstitutions = False,
    only: Only = None,
    fix: FixOption = True,
    try_packages: TryPackages = False,
    seed: Seed = 0,
    device: Device = "auto",
    python: Python = None,
    timeout: Timeout = None,
    verbose: Verbose = False,
) -> None:
    """Train a small model as the job will, and fix what goes wrong.

    A fix is proven by training with it.

    A launch, as a file or as the command after --, is rehearsed: it runs scaled down with its own trainer, and its
    first step is compared with each document run alone.
    """
    from attncheck.rehearsal import environments
    from attncheck.rehearsal import run as rehearsal
    from attncheck.smoke import run as smoke

    policy = resolve_policy(output, timeout=timeout)
    writer = make_report_writer(output)
    command = context.meta.get(PASSED_COMMAND)
    if command is not None or is_launch(model):
        given = () if model is None else (model,)
        launches = replace(
            make_rehearsal_request(given, command, fix, seed, full_model, real_data),
            trusts_script=trust_script,
            trusts_remote_code=trust_remote_code,
            runs_substitutions=run_substitutions,
            only=tuple(only or ()),
            model=launch_model or "",
        )
        pythons = environments.list_environments(python)
        fitting = environments.select(pythons, launches, policy.timeout) if pythons else None
        interpreter = fitting or select_interpreter(python)
        target = make_execution_target(interpreter, device, policy)
        measure_and_exit(
            lambda snapshot, report_progress: rehearsal.run(snapshot, launches, target, report_progress),
            writer,
            interpreter,
            None,
            verbose,
            policy,
            counts_gpus=target.uses_gpu,
        )
    if full_model:
        raise BadUsage("--full-model applies to a launch's rehearsal; use --full to train a MODEL's real weights")
    refuse_options(
        "{} is for a launch's rehearsal: name a launch",
        real_data=real_data,
        trust_script=trust_script,
        trust_remote_code=trust_remote_code,
        model=launch_model,
        run_substitutions=run_substitutions,
    )
    request = smoke.Request(
        plan=make_training_plan(policy, plan, seed, ranks.ring_size),
        models=smoke.DEFAULT_MODELS if model is None else (model if full else choose_model(model),),
        check_names=smoke.parse_check_names(tuple(only or ())),
        full=full,
        fix=fix,
        try_packages=try_packages,
        ring=parse_ring_options(ranks),
    )
    smoke.validate_request(request)
    interpreter = select_interpreter(python)
    target = make_execution_target(interpreter, device, policy)
    measure_and_exit(
        lambda snapshot, report_progress: smoke.run(snapshot, request, target, report_progress),
        writer,
        interpreter,
        None,
        verbose,
        policy,
    )


def choose_model(name: str) -> str:
    """Return the model to train: `name`, or a small shape of its architecture if it is not cached.

    Raises `Unanswered` if no shape is known for it.
    """
    from attncheck.core.facts import Unreadable
    from attncheck.doctor.probes.model import read_model
    from attncheck.smoke.run import find_shape

    if "/" not in name or os.path.exists(name) or not isinstance(read_model(name), Unreadable):
        return name
    if not REPOSITORY.fullmatch(name):
        raise Unanswered(f"folder {name} does not exist; to train a small model: attncheck smoke llama")
    download = f"hf download {name} config.json"
    if not (shape := find_shape(name)):
        raise Unanswered(f"{name} is not cached: {download}; or train a small model: attncheck smoke llama")
    print_message(f"attncheck: {name} is not cached: training a small {shape} instead ({download})")
    return shape


def is_launch(name: str | None) -> bool:
    """Return whether the argument is a launch file and not a model."""
    return name is not None and (name == "-" or os.path.isfile(name) or name.endswith(LAUNCH_ENDINGS))


def make_rehearsal_request(
    names: tuple[str, ...],
    command: tuple[str, ...] | None,
    fix: bool,
    seed: int,
    full_model: bool = False,
    real_data: bool = False,
) -> "reading.Request":
    """Return the request to rehearse a file's launches, or the command after `--`. Raises `BadUsage`."""
    from attncheck.lint import inputs
    from attncheck.rehearsal import reading

    given = inputs.read_inputs(names, command)
    return reading.Request(
        given.sources,
        inputs.make_model_reader(False),
        inputs.make_readers(given),
        fix=fix,
        seed=seed,
        full_model=full_model,
        real_data=real_data,
    )


COMMAND = Command(
    smoke,
    MEASURING,
    9,
    passes_through=True,
    examples=("smoke train.sh", "smoke llama --packing position_ids", "smoke -- torchrun --nproc-per-node 2 train.py"),
    most_used=("--real-data", "--full-model", "--ring-size", "--fix", "--device"),
)
