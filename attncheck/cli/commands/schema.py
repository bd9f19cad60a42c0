"""attncheck schema: print the JSON schema of reports."""

from __future__ import annotations

from pathlib import Path

from attncheck import report
from attncheck.cli.commands import ABOUT, Command
from attncheck.cli.output import write_stdout


def schema() -> None:
    """Print the JSON schema of `--format json`.

    It is JSON Schema, draft 2020-12.
    """
    write_stdout(Path(report.__path__[0], "report.schema.json").read_text(encoding="utf-8"), "json")


COMMAND = Command(schema, ABOUT, 20)
