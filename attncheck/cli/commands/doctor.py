"""attncheck doctor: collect or read a snapshot, and judge it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from attncheck.cli.cluster import NodesOptions, examine_nodes
from attncheck.cli.commands import EXAMINING, Command
from attncheck.cli.facts_file import read_facts
from attncheck.cli.parts import (
    EXAMINE,
    FOR_RING,
    NOT_IN_FACTS,
    OF_ONE_MACHINE,
    RANKS,
    BadUsage,
    Facts,
    Lanes,
    Model,
    OutputOptions,
    Profile,
    Python,
    Rendezvous,
    RuleOptions,
    Target,
    Timeout,
    Verbose,
    collect_lanes,
    make_execution_target,
    make_report_writer,
    option,
    refuse_options,
    refuse_with_target,
    resolve_policy,
    select_interpreter,
    with_progress,
    write_and_exit,
)

if TYPE_CHECKING:
    from attncheck.core.report import Report
    from attncheck.gate.policy import Policy

RingSize = Annotated[
    int | None,
    option(
        RANKS,
        "--ring-size",
        min=2,
        max=1024,
        metavar="N",
        help="Also test communication among this many ranks. Default: none.",
    ),
]
DoctorOnline = Annotated[
    bool,
    option(
        EXAMINE,
        "--online",
        help="Allow downloading a model's configuration, and querying the package index for the repair.",
    ),
]
TryPackages = Annotated[
    bool,
    option(
        EXAMINE, "--try-packages", help="Install the repair's packages into a temporary folder and judge the result."
    ),
]
Deep = Annotated[
    bool,
    option(
        EXAMINE,
        "--deep",
        help="Run the installed trainers on a CPU: gradients by division, batch keys, DeepSpeed accumulation.",
    ),
]
Progress = Callable[[str], None]


def doctor(
    output: OutputOptions,
    rules: RuleOptions,
    nodes: NodesOptions,
    model: Model = None,
    python: Python = None,
    lane: Lanes = None,
    timeout: Timeout = None,
    online: DoctorOnline = False,
    facts: Facts = None,
    profile: Profile = None,
    target: Target = None,
    ring_size: RingSize = None,
    rendezvous_timeout: Rendezvous = None,
    try_packages: TryPackages = False,
    deep: Deep = False,
    verbose: Verbose = False,
) -> None:
    """Find what is broken in an environment, and how to fix it.

    With MODEL, the rules also judge for that model: a folder, or a Hub name in the local cache.
    """
    from attncheck.doctor import engine
    from attncheck.doctor.profile import needs_of_profile
    from attncheck.doctor.target import apply_target, parse_target

    policy = resolve_policy(output, rules, profile, timeout)
    writer = make_report_writer(output)
    engine.check_codes((*policy.select, *policy.ignore))
    if nodes.is_cluster:
        refuse_options(
            OF_ONE_MACHINE, facts=facts, target=target, ring_size=ring_size, try_packages=try_packages, online=online,
            deep=deep, rendezvous_timeout=rendezvous_timeout,
        )  # fmt: skip
        write_and_exit(writer, examine_nodes(nodes, python, lane or (), model, policy), verbose, policy)
    if facts is not None:
        refuse_options(
            NOT_IN_FACTS,
            MODEL=model,
            python=python,
            lane=lane,
            online=online,
            ring_size=ring_size,
            try_packages=try_packages,
            deep=deep,
        )
        interpreter, snapshot = None, read_facts(facts)
    else:
        interpreter = select_interpreter(python)
        lanes = lane or (("static",) if target else ())
        snapshot = collect_lanes(interpreter, lanes, model, online, policy, keeps_imports=deep)
    if target is not None:
        refuse_with_target(lane or (), ring_size)
        if try_packages:
            raise BadUsage("--try-packages imports packages here, so it cannot be used with --target")
        if deep:
            raise BadUsage("--deep runs the trainers installed here, so it cannot be used with --target")
        snapshot = apply_target(snapshot, parse_target(target))
    if deep and interpreter is not None:
        from attncheck.doctor.experiments.run import add_experiments

        examined = interpreter.python
        snapshot = with_progress(
            lambda report_progress: add_experiments(snapshot, examined, timeout or 0, report_progress)
        )
    report = engine.run_rules(snapshot, needs_of_profile(policy.profile, snapshot), policy.select, policy.ignore)
    if ring_size is None or interpreter is None:
        refuse_options(FOR_RING, rendezvous_timeout=rendezvous_timeout)
    else:
        from attncheck.ring.communication_check import add_communication
        from attncheck.ring.group import Ring
        from attncheck.workers.ranks import RENDEZVOUS_SECONDS

        ring = Ring(ring_size, rendezvous_seconds=rendezvous_timeout or RENDEZVOUS_SECONDS)
        execution_target = make_execution_target(interpreter, "auto", policy)
        report = with_progress(
            lambda report_progress: add_communication(
                report, ring, execution_target, policy.select, policy.ignore, report_progress
            )
        )
    if interpreter is not None and (try_packages or online):
        examined = interpreter.python
        report = with_progress(
            lambda report_progress: _check_repair(report, examined, online, try_packages, policy, report_progress)
        )
    write_and_exit(writer, report, verbose, policy)


def _check_repair(
    report: "Report", python: str | None, online: bool, try_packages: bool, policy: "Policy", report_progress: Progress
) -> "Report":
    """Return the report with its repair, resolved by uv and tried in a temporary folder if those are requested."""
    from attncheck.doctor.repair.plan import add_repair
    from attncheck.doctor.repair.trial import resolve_repair, try_repair

    report = add_repair(report)
    if online or try_packages:
        report = resolve_repair(report, python, report_progress)
    return try_repair(report, python, policy.timeout, report_progress) if try_packages else report


COMMAND = Command(
    doctor,
    EXAMINING,
    1,
    examples=("doctor", "doctor --python .venv/bin/python", "doctor --target h100x8,requirements.txt"),
    most_used=("--python", "--lane", "--target", "--profile", "--fail-on"),
)
