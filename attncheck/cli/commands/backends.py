"""attncheck backends: list what computes attention here."""

from __future__ import annotations

from attncheck.cli.app import MEASURING, Command
from attncheck.cli.options import Device, ListFormat, Python, Timeout
from attncheck.cli.output import emit
from attncheck.cli.progress import with_progress
from attncheck.cli.settings import check_choice, execution_target, load_config


def backends(
    python: Python = None, device: Device = "auto", format: ListFormat = "text", timeout: Timeout = None
) -> None:
    """List the backends: which run here, why the others do not."""
    from attncheck.measure import available

    check_choice("--format", format, ("text", "json"))
    where = execution_target(python, device, load_config(timeout=timeout))
    listed = with_progress(lambda report_progress: available.look(where, report_progress))
    emit(available.as_json(listed) if format == "json" else available.as_text(listed))


COMMAND = Command(backends, MEASURING, 8)
