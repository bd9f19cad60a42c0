"""States which interpreter was examined, if attncheck selected it itself."""

from attncheck.core.report import Report


def describe_interpreter(report: Report) -> str:
    """Return the examined interpreter and why it was selected; "" if the user named it or the overview shows it."""
    host = report.snapshot.host
    if report.command == "doctor" or not host.selection.is_notable:
        return ""
    python = f"{host.python_version} at {host.executable}"
    return " · ".join(filter(None, (python, host.selection.reason, *host.selection.passed_over)))
