"""Shared by the measuring commands: a snapshot of the installed files, a progress line, writing the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from attncheck.cli.output import ReportWriter, write_and_exit
from attncheck.cli.progress import INTERRUPTED, ProgressDisplay, with_progress

if TYPE_CHECKING:
    from attncheck.core.report import Report
    from attncheck.core.snapshot import Snapshot
    from attncheck.doctor.probes.interpreter import Interpreter
    from attncheck.gate.policy import Policy


def read_installed_files(
    interpreter: Interpreter, model: str | None, policy: Policy, counts_gpus: bool = False
) -> Snapshot:
    """Return a snapshot of the environment and the model from their files only; nothing is imported.

    If it `counts_gpus`, the driver is queried for them as well.
    """
    from attncheck.doctor.probes.collect import collect_snapshot

    return collect_snapshot(
        interpreter.python,
        ("static", "device") if counts_gpus else ("static",),
        model,
        None,
        policy.timeout,
        selection=interpreter.selection,
    )


def collect_lanes(
    interpreter: Interpreter,
    lanes: Sequence[str],
    model: str | None,
    online: bool,
    policy: Policy,
    keeps_imports: bool = False,
) -> Snapshot:
    """Return a snapshot of the environment from the given lanes, with a progress line. Raises `BadUsage`."""
    from attncheck.cli.settings import parse_lanes
    from attncheck.doctor.probes.collect import collect_snapshot

    chosen = parse_lanes(lanes)

    def work(report_progress: Callable[[str], None]) -> Snapshot:
        if online and model is not None:
            report_progress(f"fetching the configuration of {model}")
        documents = fetch_documents(model) if online else None
        return collect_snapshot(
            interpreter.python, chosen, model, documents, policy.timeout, report_progress, interpreter.selection,
            keeps_imports=keeps_imports,
        )  # fmt: skip

    return with_progress(work)


def fetch_documents(model: str | None) -> dict[str, str] | None:
    """Return the configuration files of a model on the Hub by file name, None for a folder.

    Raises the errors of the download.
    """
    from attncheck.doctor.probes import hub_download

    return None if model is None else hub_download.fetch_config_files(model)


def measure_and_exit(
    measure: Callable[[Snapshot, ProgressDisplay], Report],
    writer: ReportWriter,
    interpreter: Interpreter,
    model: str | None,
    verbose: bool,
    policy: Policy,
    counts_gpus: bool = False,
) -> NoReturn:
    """Run `measure(snapshot, report_progress)`, write its report, and exit with its code."""
    from attncheck.core.io.streams import print_message
    from attncheck.core.report import InterruptedRun

    try:
        report = with_progress(
            lambda report_progress: measure(
                read_installed_files(interpreter, model, policy, counts_gpus), report_progress
            )
        )
    except InterruptedRun as interrupt:
        print_message(f"attncheck: {INTERRUPTED}; these are the results so far")
        report = interrupt.report
    write_and_exit(writer, report, verbose, policy)
