"""What is shown while something is measured: a line that changes, on a terminal only, and lines that stay."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

from attncheck.cli.progress import SILENT_SECONDS

CODE = """
import time
from attncheck.cli.progress import with_progress

def work(display):
    display("timing the first")
    display.print_line("1 of 2 · first · [red]0.1 ms[/red]\\x1b[31m\\nHF_TOKEN=hf_" + "aBcDeFgHiJkLmNoPq" * 2)
    time.sleep(0.3)
    display("timing the second")
    display.print_line("2 of 2 · second")
    time.sleep(0.3)

with_progress(work)
print("the table")
"""


def run_in_terminal() -> tuple[str, str]:
    """Return what standard output and a pseudo-terminal as standard error got."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE, stderr=follower, env=environment)
    os.close(follower)
    chunks = []
    try:
        while chunk := os.read(leader, 65536):
            chunks.append(chunk)
    except OSError:  # Linux ends a pseudo-terminal so
        pass
    stdout, _ = process.communicate(timeout=30)
    os.close(leader)
    return stdout.decode(), b"".join(chunks).decode()


def test_a_terminal_gets_rows_above_the_line_that_changes() -> None:
    stdout, terminal = run_in_terminal()
    assert stdout == "the table\n"
    assert "\x1b[31m" not in terminal and "hf_aBc" not in terminal, "foreign text is shown as it is, secrets are not"
    rows = re.findall(r"\d of 2 · [^\r\n]*", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal))
    assert [row.split(" · ")[1].strip() for row in rows] == ["first", "second"], "each once, and it stays"
    assert "[red]0.1 ms[/red]" in rows[0] and "timing the second" in terminal


def test_a_pipe_gets_the_rows_and_nothing_that_changes() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=30)
    assert done.stdout == "the table\n"
    lines = done.stderr.splitlines()
    assert len(lines) == 2 and "timing" not in done.stderr
    assert lines[0].startswith("1 of 2 · first · [red]0.1 ms[/red]\\x1b[31m") and "hf_aBc" not in lines[0]
    assert lines[1] == "2 of 2 · second"


def test_a_pipe_gets_a_line_now_and_then_with_the_latest_text_and_none_after_the_end() -> None:
    """Silent for 58 s in doctor and 232 s in parity, at fca601f."""
    code = CODE.replace("def work", "import attncheck.cli.progress as p\np.SILENT_SECONDS = 0.1\n\ndef work")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    repeated = [line for line in done.stderr.splitlines() if line.startswith("attncheck: ")]
    assert any("timing the first" in line for line in repeated), done.stderr
    assert any("timing the second" in line for line in repeated)
    assert done.stdout == "the table\n"
    quiet = subprocess.run(
        [sys.executable, "-c", code.replace("(work)", "(work, quiet=True)")], capture_output=True, text=True, timeout=30
    )
    assert quiet.stderr == ""


def test_fifteen_seconds_never_pass_without_a_line() -> None:
    assert SILENT_SECONDS < 15
