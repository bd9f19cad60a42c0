"""Which interpreter was examined, where attncheck selected one that no one named."""

from attncheck.core.report import Report


def describe_interpreter(report: Report) -> str:
    """Return the examined interpreter and why it was that one; "" if it was named, and in doctor's overview."""
    host = report.snapshot.host
    if report.command == "doctor" or not host.selection.is_notable:
        return ""
    python = f"{host.python_version} at {host.executable}"
    return " · ".join(filter(None, (python, host.selection.reason, *host.selection.passed_over)))
