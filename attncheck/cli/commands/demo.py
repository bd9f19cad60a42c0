"""attncheck demo: the main workflow on real input; each step is a command that users can run themselves."""

import contextlib
import gzip
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attncheck.cli.commands import EXAMINING, Command
from attncheck.cli.parts import (
    CLEAN,
    FOUND,
    OUTPUT,
    UNANSWERED,
    AttncheckError,
    Interrupted,
    option,
    print_message,
    with_progress,
)

if TYPE_CHECKING:
    from attncheck.core.snapshot import Snapshot

INPUTS = Path(__file__).parents[1] / "demo"
SECONDS = 60.0  # timeout of the probe that reads which packages are installed
NEXT_STEPS = """
The demo's files are in {folder}; open report.html there in a browser.
Now examine your own environment and launch:
  attncheck doctor --python /path/to/your/env/bin/python
  attncheck lint your_launch.sh --python /path/to/your/env/bin/python
"""
Folder = Annotated[
    str,
    option(
        OUTPUT, "--folder", metavar="FOLDER", help="Write the inputs and reports here. Default: attncheck-demo, here."
    ),
]


REPORTS = ("doctor", "lint", "smoke", "parity")  # steps that keep their report as JSON for the page


@dataclass(frozen=True)
class Step:
    """One command of the demo, without its first word; it is skipped if a package that it `needs` is missing."""

    title: str
    line: str
    needs: tuple[str, ...] = ()


def list_steps(has_trl: bool) -> tuple[Step, ...]:
    """Return the steps before the page; without TRL, lint judges for another machine and is not on the page."""
    lint = "lint train.sh " + ("--output json=lint.json" if has_trl else "--target h100x8,trl=1.16")
    parity = "parity --suite quick --backend eager --backend sdpa_flash --budget 90"
    return (
        Step("examine this environment", "doctor --output json=doctor.json"),
        Step("lint a launch that would train wrongly", lint),
        Step(
            "run that launch, scaled down, as written and corrected",
            "smoke train.sh --output json=smoke.json",
            ("torch", "transformers", "trl"),
        ),
        Step("compare attention backends with float64", f"{parity} --output json=parity.json", ("torch",)),
        Step("judge a machine from its recording: one H200", "doctor --facts h200.json"),
    )


def demo(context: typer.Context, folder: Folder = "attncheck-demo") -> None:
    """Show the main workflow on real input, in about two minutes.

    Findings are part of the demo: it exits with 0 unless a step gets no answer.
    """
    from attncheck.cli.settings import select_interpreter
    from attncheck.doctor.probes.collect import collect_snapshot

    interpreter = select_interpreter(None)
    snapshot = with_progress(
        lambda report_progress: collect_snapshot(
            interpreter.python, ("static",), None, None, SECONDS, report_progress, interpreter.selection
        )
    )
    _write_inputs(Path(folder))
    os.chdir(folder)
    run = context.find_root().command.main
    steps = list_steps(snapshot.has("trl"))
    unanswered = [step.line for number, step in enumerate(steps, 1) if not _show_step(run, number, step, snapshot)]
    kept = " ".join(f"{name}.json" for name in REPORTS if os.path.exists(f"{name}.json"))
    line = f"report {kept} --format html"
    _print_heading(f"{len(steps) + 1}: combine these reports into one page", f"{line} > report.html")
    with open("report.html", "w", encoding="utf-8") as page, contextlib.redirect_stdout(page):
        unanswered += [line] * (_run_command(run, line) not in (CLEAN, FOUND))
    for line in unanswered:
        print(f"\nThis step gave no result: attncheck {line}")
    print(NEXT_STEPS.format(folder=folder), end="", flush=True)
    sys.exit(UNANSWERED if unanswered else CLEAN)


def _write_inputs(folder: Path) -> None:
    """Write the launch and the recording. Raises `Unanswered` if the folder cannot be written."""
    from attncheck.core.io.files import make_write_error

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in REPORTS:
            (folder / f"{name}.json").unlink(missing_ok=True)
        (folder / "train.sh").write_bytes((INPUTS / "train.sh").read_bytes())
        (folder / "h200.json").write_bytes(gzip.decompress((INPUTS / "h200.json.gz").read_bytes()))
    except OSError as error:
        raise make_write_error(str(folder), error) from None


def _show_step(run: Any, number: int, step: Step, snapshot: "Snapshot") -> bool:
    """Run one step, or print why it is skipped. Return False if it gave no result."""
    _print_heading(f"{number}: {step.title}", step.line)
    missing = [name for name in step.needs if not snapshot.has(name)]
    if missing:
        print(f"skipped: not installed here: {', '.join(missing)}; `make demo` sets up an environment that has them")
    return bool(missing) or _run_command(run, step.line) in (CLEAN, FOUND)


def _print_heading(title: str, line: str) -> None:
    print(f"\n{'-' * 100}\nStep {title}\n$ attncheck {line}", flush=True)


def _run_command(run: Any, line: str) -> int:
    """Return the exit code of one of our own commands; `run` is the command line's `main`."""

    code = CLEAN
    try:
        run(line.split(), prog_name="attncheck", standalone_mode=False)
    except SystemExit as error:
        code = int(error.code or CLEAN)
    except AttncheckError as error:
        print_message(f"attncheck: {error}")
        code = error.exit_code
    if code == Interrupted.exit_code:
        sys.exit(code)
    return code


COMMAND = Command(demo, EXAMINING, 0, examples=("demo", "demo --folder /tmp/demo"))
