"""attncheck lock: record the stack that is known to be good, or compare with it."""

from typing import TYPE_CHECKING, Annotated

import typer

from attncheck.cli.commands import GATING, Command
from attncheck.cli.facts_file import read_facts
from attncheck.cli.parts import (
    NOT_IN_FACTS,
    POLICY,
    BadUsage,
    Facts,
    Lanes,
    OutputOptions,
    Python,
    RuleOptions,
    Texts,
    Timeout,
    Unanswered,
    Verbose,
    collect_lanes,
    make_report_writer,
    option,
    refuse_options,
    resolve_policy,
    select_interpreter,
    write_and_exit,
    write_text,
)
from attncheck.cli.report_files import read_report
from attncheck.core.lock import LOCK_FILE

if TYPE_CHECKING:
    from attncheck.core.lock import Lock
    from attncheck.core.report import Report
    from attncheck.core.snapshot import Snapshot

LANES = ("static", "device")  # the contents of a lock need no import
File = Annotated[
    str,
    typer.Argument(metavar="FILE", show_default=False, help=f"The lock's file. Default: {LOCK_FILE}."),
]
Check = Annotated[
    bool,
    option(POLICY, "--check", help="Compare with the existing lock, and write nothing. Default: write it."),
]
Reports = Annotated[
    Texts,
    option(
        POLICY,
        "--report",
        metavar="FILE.json",
        help=(
            "Take the measurements of parity, determinism or bench from this report (--output json=FILE). Repeat for "
            "several. Default: none."
        ),
    ),
]


def lock(
    output: OutputOptions,
    rules: RuleOptions,
    file: File = LOCK_FILE,
    check: Check = False,
    report: Reports = None,
    python: Python = None,
    facts: Facts = None,
    lane: Lanes = None,
    timeout: Timeout = None,
    verbose: Verbose = False,
) -> None:
    """Record a known-good stack; --check shows what changed since.

    FILE holds packages, GPUs, driver, and the measurements of the given reports.
    """
    from attncheck.doctor import engine
    from attncheck.gate.dates import today
    from attncheck.stacks.lock import check as checking
    from attncheck.stacks.lock.file import load_lock, write_lock
    from attncheck.stacks.lock.make import make_lock

    if not file or file == "-":
        raise BadUsage("a lock is a project file: name one, or omit it to use " + LOCK_FILE)
    policy = resolve_policy(output, rules, timeout=timeout)
    engine.check_codes((*policy.select, *policy.ignore))
    if not check and (output != OutputOptions() or rules != RuleOptions()):
        raise BadUsage("report options apply to `attncheck lock --check`; the lock itself is JSON")
    writer = make_report_writer(output)
    locked = load_lock(file) if check else None
    reports = tuple(read_report(path) for path in report or ())
    if facts is not None:
        refuse_options(NOT_IN_FACTS, python=python, lane=lane)
        snapshot = read_facts(facts)
    else:
        snapshot = collect_lanes(select_interpreter(python), lane or LANES, None, False, policy)
    for path, measured in zip(report or (), reports):
        checking.check_report(measured, path, snapshot)
    if locked is not None:
        checked = checking.check_lock(locked, file, snapshot, reports, policy.select, policy.ignore)
        write_and_exit(writer, checked, verbose, policy)
    _refuse_unknown(snapshot, reports, file)
    written = make_lock(snapshot, reports, today())
    write_lock(written, file)
    write_text(describe_lock(written, file))


def _refuse_unknown(snapshot: "Snapshot", reports: "tuple[Report, ...]", file: str) -> None:
    """Raise `Unanswered` if a lock would contain less than was requested."""
    if snapshot.lost:
        raise Unanswered(f"{file} was not written: {snapshot.lost[0]}")
    if any(report.interrupted for report in reports):
        raise Unanswered(f"{file} was not written: a report was interrupted before its end")


def describe_lock(lock: "Lock", path: str) -> str:
    """Return the contents of a lock in a few lines."""
    from attncheck.core.facts import Known
    from attncheck.stacks.lock.machine import describe_gpus

    gpus = describe_gpus(lock.gpus.value) if isinstance(lock.gpus, Known) else f"none ({lock.gpus.reason})"
    driver = f", driver {lock.driver.value}" if isinstance(lock.driver, Known) else ""
    counts = (
        (len(lock.errors), "worst parity errors"),
        (len(lock.repeats), "answers of determinism"),
        (len(lock.speeds), "times of bench"),
    )
    measured = ", ".join(f"{count} {name}" for count, name in counts if count) or "nothing (--report FILE.json)"
    return (
        f"{path}: python {lock.python}, {len(lock.packages)} package{'s' * (len(lock.packages) != 1)}\n"
        f"gpus      {gpus}{driver}\n"
        f"measured  {measured}\n"
        f"compare with it: attncheck lock --check{'' if path == LOCK_FILE else ' ' + path}\n"
    )


COMMAND = Command(lock, GATING, 17, examples=("lock", "lock --check"))
