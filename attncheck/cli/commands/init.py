"""attncheck init: write a policy for this environment."""

from typing import Annotated

from attncheck.cli.commands import GATING, Command
from attncheck.cli.parts import (
    OUTPUT,
    Python,
    option,
    print_message,
    print_selection,
    select_interpreter,
    with_progress,
    write_text,
)

SECONDS = 60.0  # timeout of each probe
Write = Annotated[
    bool,
    option(
        OUTPUT, "--write", help="Write attncheck.toml instead of printing it; an existing one is never overwritten."
    ),
]


def init(write: Write = False, python: Python = None) -> None:
    """Print a commented policy for this environment.

    Covers its packages, GPUs, launch scripts and models.
    """
    from pathlib import Path

    from attncheck.doctor.probes.collect import collect_snapshot
    from attncheck.gate import init

    interpreter = select_interpreter(python)
    print_selection(interpreter)
    snapshot = with_progress(
        lambda report_progress: collect_snapshot(
            interpreter.python, ("static", "device"), None, None, SECONDS, report_progress
        )
    )
    text = init.render_policy(init.inspect_project(Path.cwd(), snapshot))
    if write:
        print_message(f"wrote {init.write_policy(Path.cwd(), text).name}")
    else:
        write_text(text)


COMMAND = Command(init, GATING, 18, examples=("init", "init --write"))
