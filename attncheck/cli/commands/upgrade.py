"""attncheck upgrade: what other versions would break here, before they are installed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from attncheck.cli.commands import EXAMINING, Command
from attncheck.cli.facts_file import read_facts
from attncheck.cli.parts import (
    DEVICES,
    EXAMINE,
    MEASURE,
    NOT_IN_FACTS,
    BadUsage,
    Device,
    Facts,
    OutputOptions,
    Profile,
    Python,
    RuleOptions,
    Texts,
    Timeout,
    Verbose,
    check_choice,
    complete_from,
    make_execution_target,
    make_report_writer,
    option,
    print_message,
    refuse_options,
    resolve_policy,
    select_interpreter,
    with_progress,
    write_and_exit,
)
from attncheck.cli.progress import INTERRUPTED
from attncheck.core.report import InterruptedRun

if TYPE_CHECKING:
    from attncheck.core.snapshot import Snapshot
    from attncheck.doctor.probes.collect import Lane
    from attncheck.doctor.probes.interpreter import Interpreter
    from attncheck.gate.policy import Policy
    from attncheck.stacks.upgrade.requests import UpgradeRequest
    from attncheck.stacks.upgrade.run import UpgradeSettings

STAGES = ("imports", "parity", "smoke")
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="REQUIREMENT… [MODEL]",
        show_default=False,
        help="Judge these releases, each NAME==VERSION or a wheel file; add a model to judge them for it.",
    ),
]
Try = Annotated[
    bool,
    option(
        MEASURE,
        "--try",
        help=(
            "Install them into a temporary folder, from the package index, and run imports, parity and smoke with "
            "them. Default: no, nothing is fetched or run."
        ),
    ),
]
Only = Annotated[
    Texts,
    option(
        MEASURE,
        "--only",
        metavar="STAGE",
        help="Run only this part of the trial: imports, parity or smoke. Repeat for several. Default: all three.",
        autocompletion=complete_from(STAGES),
    ),
]
FindLinks = Annotated[
    Texts,
    option(
        EXAMINE,
        "--find-links",
        metavar="FOLDER",
        help="Use only wheels from this folder, not from an index. Repeat for several. Default: the index, with --try.",
    ),
]
Budget = Annotated[
    float,
    option(
        MEASURE, "--budget", metavar="SECONDS", min=1, help="Stop the trial after this many seconds. Default: 1800."
    ),
]


def upgrade(
    output: OutputOptions,
    rules: RuleOptions,
    requirements: Words = None,
    python: Python = None,
    facts: Facts = None,
    find_links: FindLinks = None,
    timeout: Timeout = None,
    device: Device = "auto",
    profile: Profile = None,
    trial: Try = False,
    only: Only = None,
    budget: Budget = 1800.0,
    verbose: Verbose = False,
) -> None:
    """Predict what other package versions would break.

    Nothing is installed and the environment is never changed; --try runs them from a temporary folder.
    """
    from attncheck.doctor import engine
    from attncheck.stacks.upgrade.requests import locate_wheels, parse_request
    from attncheck.stacks.upgrade.run import run_upgrade
    from attncheck.stacks.upgrade.wheel_fit import list_host_tags

    policy = resolve_policy(output, rules, profile, timeout)
    engine.check_codes((*policy.select, *policy.ignore))
    writer = make_report_writer(output)
    request = parse_request(requirements or ())
    if only and not trial:
        raise BadUsage("--only is for --try")
    stages = tuple(check_choice("--only", name, STAGES) for name in only or STAGES)
    check_choice("--device", device, DEVICES)
    interpreter = None
    if facts is not None:
        refuse_options(NOT_IN_FACTS, MODEL=request.model, python=python)
        if trial:
            raise BadUsage("--try runs packages here, so it cannot be used with a recorded snapshot; remove --facts")
        before = read_facts(facts)
    else:
        interpreter = select_interpreter(python)
        lanes: tuple[Lane, ...] = ("static", "import", "device") if trial else ("static", "device")
        before = with_progress(
            lambda report_progress: _collect(interpreter, lanes, request.model, policy, report_progress)
        )
    request = locate_wheels(request, find_links or (), list_host_tags(before.host))
    settings = _make_settings(request, interpreter, device, trial, stages, find_links, budget, policy)
    try:
        report = with_progress(lambda report_progress: run_upgrade(request, before, settings, report_progress))
    except InterruptedRun as interrupt:
        print_message(f"attncheck: {INTERRUPTED}; these are the results so far")
        report = interrupt.report
    write_and_exit(writer, report, verbose, policy)


def _collect(
    interpreter: Interpreter,
    lanes: tuple[Lane, ...],
    model: str | None,
    policy: Policy,
    report_progress: Callable[[str], None],
) -> Snapshot:
    from attncheck.doctor.probes.collect import collect_snapshot

    return collect_snapshot(
        interpreter.python,
        lanes,
        model,
        None,
        policy.timeout,
        report_progress,
        interpreter.selection,
        requirements=True,
    )


def _make_settings(
    request: UpgradeRequest,
    interpreter: Interpreter | None,
    device: str,
    trial: bool,
    stages: tuple[str, ...],
    find_links: list[str] | None,
    budget: float,
    policy: Policy,
) -> UpgradeSettings:
    from attncheck.stacks.upgrade.compare import Judging
    from attncheck.stacks.upgrade.run import UpgradeSettings
    from attncheck.stacks.upgrade.trial import TrialRequest

    judging = Judging(policy.profile, policy.select, policy.ignore)
    if interpreter is None:
        return UpgradeSettings(judging)
    target = make_execution_target(interpreter, device, policy)
    if not trial:
        return UpgradeSettings(judging, target)
    folders = [os.path.abspath(folder) for folder in find_links or ()]
    options = [word for folder in folders for word in ("--find-links", folder)] + (["--no-index"] if folders else [])
    return UpgradeSettings(judging, target, TrialRequest(request, stages, tuple(options), budget))


COMMAND = Command(
    upgrade, EXAMINING, 4, examples=("upgrade transformers==5.23.0", "upgrade --try transformers==5.23.0")
)
