"""What the commands that measure share: a snapshot of the installed files, a line of progress, the report's end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from attncheck.cli.output import ReportWriter, finish
from attncheck.cli.progress import with_progress

if TYPE_CHECKING:
    from attncheck.core.report import Report
    from attncheck.core.snapshot import Snapshot
    from attncheck.gate.policy import Config


def read_installed_files(python: str | None, model: str | None, config: Config) -> Snapshot:
    """Return what the files report_progress of the environment, and of the model."""
    from attncheck.doctor.probes.collect import collect_snapshot

    return collect_snapshot(python, ("static",), model, None, config.timeout)


def collect(python: str | None, lanes: Sequence[str], model: str | None, online: bool, config: Config) -> Snapshot:
    """Return a snapshot of the environment by the lanes asked for, with a line of progress. Raises `BadUsage`."""
    from attncheck.cli.settings import parse_lanes
    from attncheck.doctor.probes.collect import collect_snapshot

    chosen = parse_lanes(lanes)

    def work(report_progress: Callable[[str], None]) -> Snapshot:
        documents = None
        if online and model is not None:
            from attncheck.doctor.probes import hub_download

            report_progress(f"fetching the configuration of {model}")
            documents = hub_download.fetch_config_files(model)
        return collect_snapshot(python, chosen, model, documents, config.timeout, report_progress)

    return with_progress(work)


def measure_and_finish(
    measure: Callable[[Snapshot, Callable[[str], None]], Report],
    writer: ReportWriter,
    python: str | None,
    model: str | None,
    verbose: bool,
    config: Config,
    pictures: Sequence[str] = (),
) -> NoReturn:
    """Run `measure(snapshot, report_progress)`, write its report, and end with the exit code."""
    report = with_progress(
        lambda report_progress: measure(read_installed_files(python, model, config), report_progress)
    )
    finish(writer, report, verbose, config, pictures)
