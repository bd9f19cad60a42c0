"""SECURITY.md against the program: every command and option has its place, and read-only commands only read."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attncheck.cli.app import command_names
from tests.cli.test_surface import describe_surface
from tests.snapshots import FOLDER

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()
FACTS = FOLDER / "h200.json"
LAUNCH = "torchrun --nproc-per-node 8 -m trl sft --model_name_or_path x --dataset_name y --output_dir out\n"
# Commands that the page says write nothing but temporary files, and send nothing.
READING = {
    "backends": ["backends"],
    "diff": ["diff", str(FACTS), str(FACTS)],
    "doctor": ["doctor", "--facts", str(FACTS)],
    "doctor here": ["doctor", "--lane", "static"],
    "explain": ["explain", "ATN140"],
    "init": ["init"],
    "lint": ["lint", "train.sh"],
    "lock": ["lock", "--check"],
    "probe": ["probe", "--lane", "static"],
    "report": ["report", "kept.json"],
    "rules": ["rules"],
    "schema": ["schema"],
    "selftest": ["selftest", "--list"],
    "upgrade": ["upgrade", "transformers==5.18.0", "--facts", str(FACTS)],
}
OPENED = re.compile(r'(?:open|openat|openat2|creat)\((?:AT_FDCWD, |\d+(?:<[^>]*>)?, )?"([^"]*)", ([^)]*)\)\s*= \d')
CHANGED = re.compile(
    r"(?:unlink|unlinkat|mkdir|mkdirat|rename|renameat2?|link|symlink|truncate|chmod|fchmodat)\((.*)\)\s*= 0"
)
PATHS = re.compile(r'(?:\d+<([^>]*)>, )?"([^"]*)"')  # after a folder's descriptor, relative to it
CONNECTED = re.compile(r"connect\(\d+.*AF_INET6?\b.*")


def read_commands() -> list[str]:
    return re.findall(r"^\| `([a-z]+)` \| .* \| .* \| .* \| .* \|$", PAGE, re.MULTILINE)


def read_options() -> set[str]:
    table = PAGE.partition("## Options that change this")[2].partition("\n## ")[0]
    return {
        option
        for row in re.findall(r"^\| (`-.*?) \|", table, re.MULTILINE)
        for option in re.findall(r"`(-[^`]*)`", row)
    }


def read_other_options() -> set[str]:
    return set(PAGE.partition("<!-- other options:")[2].partition("-->")[0].split())


def list_options() -> set[str]:
    return {word for line in describe_surface().splitlines() for word in line.split()[1:] if word.startswith("-")}


def test_every_command_has_a_row() -> None:
    assert read_commands() == sorted(command_names())


def test_every_option_is_placed_once() -> None:
    changing, other = read_options(), read_other_options()
    assert changing | other == list_options(), sorted((changing | other) ^ list_options())
    assert not changing & other


def test_an_option_that_is_not_placed_is_noticed() -> None:
    assert "--upload-everything" not in read_options() | read_other_options()


def trace(tmp_path: Path, *argv: str) -> tuple[list[str], list[str]]:
    """Return the paths outside temporary folders that a command changed, and what it connected to."""
    log, scratch, home = tmp_path / "trace", tmp_path / "scratch", tmp_path / "home"
    for folder in (scratch, home, tmp_path / "work"):
        folder.mkdir(exist_ok=True)
    (tmp_path / "work" / "train.sh").write_text(LAUNCH)
    (tmp_path / "work" / "kept.json").write_text("{}")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), "TMPDIR": str(scratch), "PYTHONPATH": str(ROOT)}
    command = ["strace", "-f", "-qq", "-y", "-s", "4096", "-e", "trace=%file,%network", "-o", str(log)]
    subprocess.run(
        [*command, sys.executable, "-B", *argv],
        cwd=tmp_path / "work",
        env=environment,
        capture_output=True,
        timeout=300,
    )
    lines = log.read_text(errors="replace").splitlines()
    allowed = (str(scratch), f"{home}/.cache/attncheck", "/dev/null", "/dev/tty", "/dev/shm/", "/proc/")
    changed = {path for line in lines for path in iter_changed(line)}
    outside = [path for path in changed if not path.startswith(allowed) and path not in (f"{home}/.cache", str(home))]
    return sorted(outside), [line for line in lines if CONNECTED.search(line)]


def iter_changed(line: str) -> Iterator[str]:
    """Yield the paths that a line of strace shows as changed."""
    opened = OPENED.search(line)
    if opened and re.search(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", opened[2]):
        yield opened[1]
    changed = CHANGED.search(line)
    if changed:
        yield from (os.path.join(folder, path) for folder, path in PATHS.findall(changed[1]))


needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


@needs_strace
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("doctor", "lint") else pytest.mark.nightly) for name in READING]
)
def test_a_command_that_reads_only_reads(name: str, tmp_path: Path) -> None:
    outside, connected = trace(tmp_path, "-m", "attncheck", *READING[name])
    assert outside == [] and connected == []


@needs_strace
def test_a_trace_shows_a_write_and_a_connection(tmp_path: Path) -> None:
    work = "import os, socket; open('x', 'w'); os.mkdir('y'); os.rename('x', 'z')\n"
    work += "s = socket.socket(); s.settimeout(1)\ntry: s.connect(('127.0.0.1', 9))\nexcept OSError: pass"
    outside, connected = trace(tmp_path, "-c", work)
    assert outside == ["x", "y", "z"] and len(connected) == 1
