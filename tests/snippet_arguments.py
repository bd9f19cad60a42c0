"""Stands for a command of attncheck that measures: reads its arguments as the real one does, and measures nothing."""

from __future__ import annotations

import json
import sys
from typing import Any

import typer

from attncheck.cli.app import app


def main(argv: list[str]) -> int:
    """Return 0 for arguments that the command takes, 2 for others."""
    group: Any = typer.main.get_command(app)
    command = group.get_command(group.make_context("attncheck", argv[:1]), argv[0])
    try:
        command.make_context(argv[0], argv[1:])
    except Exception as error:  # Typer's and ours: an option that is not there, a value that it does not take
        print(error, file=sys.stderr)
        return 2
    print(json.dumps({argv[0]: {"verdicts": []}}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
