"""The fenced blocks of the pages that users read, and a place in which those of a shell run as they are written.

What a snippet needs and a test must not touch or cannot have is a stand-in on PATH: torchrun and srun start what is
behind them, with `--nodes` as the one node of a launch, pip, pipx and uvx check that the repository can be had as they
name it, make shows what it would run, and GitHub is a clone of this checkout (git's `url.<base>.insteadOf`). attncheck
is the real one, in its own environment without torch; its commands that measure read their arguments there, and
are run whole by the nightly tests.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from attncheck import __version__
from attncheck.cli.app import app
from tests.doctor.venvs import make_venv
from tests.own_environment import make_own_environment

ROOT = Path(__file__).resolve().parents[1]
SKILL = ROOT / "skills" / "attncheck" / "SKILL.md"
PAGES = (
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    SKILL,
    *sorted(ROOT.glob("docs/*.md")),
)
REPOSITORY = "https://github.com/attncheck/attncheck"
TAG = f"v{__version__}"
# Commands that measure: minutes each. Their arguments are read here; tests of their rooms run them.
MEASURING = ("parity", "determinism", "bench", "smoke", "selftest")
_FENCE = re.compile(r"^ *(```+)([\w+-]*)[^\n]*\n(.*?)^ *\1 *$", re.MULTILINE | re.DOTALL)

ATTNCHECK = """
case "$1" in
  {measuring}) printf '%s\\0' "$@" $'\\n' >> "$MEASURED"; echo '{"'"$1"'": {"verdicts": []}}'; exit;;
esac
exec "{own}/attncheck" "$@"
"""
# Options of a launcher come before the command; each of these takes a value.
LAUNCHER = """
case " $* " in *" --nodes "*)
  export RANK=0 WORLD_SIZE=8 LOCAL_RANK=0 LOCAL_WORLD_SIZE=8 GROUP_RANK=0 GROUP_WORLD_SIZE=1
  export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=snippet;;
esac
while [ $# -gt 0 ]; do
  case "$1" in
    -m) shift; exec "$@";;
    --*=*) shift;;
    --nnodes|--nproc-per-node|--ntasks-per-node|--rdzv-*) shift 2;;
    -*|…) shift;;
    *.py) exit 0;;
    *) exec "$@";;
  esac
done
exit 2
"""
INSTALLER = """
for word in "$@"; do
  case "$word" in
    git+*) url="${word#git+}"; tag=""
      case "$url" in *@v*) tag="${url##*@}"; url="${url%@*}";; esac
      [ -n "$(git ls-remote "$url" "${tag:-HEAD}")" ] || { echo "$word cannot be had" >&2; exit 2; }
      found=yes;;
  esac
done
[ -n "$found" ] || { echo "nothing to install: $*" >&2; exit 2; }
"""
UVX = INSTALLER + 'while [ $# -gt 0 ] && [ "$1" != attncheck ]; do shift; done\nexec "$@"\n'
# Runs modules of the repository, but for the benchmarks: those only have to be there.
PYTHON = """
case "$2" in
  benchmarks.*) set -- -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec(sys.argv[1]))' "$2";;
esac
exec "{python}" "$@"
"""


@dataclass(frozen=True)
class Snippet:
    """A fenced block: where it is, its language, and its text as a reader copies it."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def find_snippets(page: Path) -> list[Snippet]:
    """Return the fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [
        Snippet(page, text.count("\n", 0, match.start(3)) + 1, match[2], match[3]) for match in _FENCE.finditer(text)
    ]


class Workshop:
    """A folder of programs, real ones and stand-ins, and a clone of this checkout in GitHub's place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "bin"
        self.programs.mkdir()
        self.own = make_own_environment(folder / "own")
        # The first Python on PATH, without torch: attncheck would examine one that has it, for many seconds.
        self.plain = make_venv(folder / "plain").parent
        self.bare = folder / "attncheck.git"
        git = ["git", "-c", "safe.directory=*"]
        subprocess.run([*git, "clone", "-q", "--bare", str(ROOT), str(self.bare)], check=True, capture_output=True)
        subprocess.run([*git, "-C", str(self.bare), "tag", "-f", TAG], check=True, capture_output=True)
        # As variables: pre-commit hides GIT_CONFIG_GLOBAL from its git, and these it does not.
        self.git_settings = {
            "GIT_CONFIG_COUNT": "2",
            "GIT_CONFIG_KEY_0": f"url.file://{self.bare}.insteadOf",
            "GIT_CONFIG_VALUE_0": REPOSITORY,
            "GIT_CONFIG_KEY_1": "safe.directory",
            "GIT_CONFIG_VALUE_1": "*",
        }
        self.write_program("attncheck", fill(ATTNCHECK, measuring="|".join(MEASURING), own=self.own))
        for name in ("torchrun", "srun"):
            self.write_program(name, LAUNCHER)
        for name in ("pip", "pipx"):
            self.write_program(name, INSTALLER)
        self.write_program("uvx", UVX)
        self.write_program("make", f'exec {shutil.which("make")} --dry-run "$@"\n')

    def run(self, snippet: Snippet, folder: Path, programs: str = "") -> list[tuple[int, str]]:
        """Run a block of a shell's, to its end; return each command that failed, with its exit code.

        `programs` is a folder of more programs, before all others.
        """
        failures = folder.parent / f"{folder.name}.failures"
        measured = folder.parent / f"{folder.name}.measured"
        for path in (failures, measured):
            path.write_text("", encoding="utf-8")
        text = snippet.text.replace("/opt/attncheck/bin/", f"{self.programs}/")
        script = f'set -o pipefail\ntrap \'printf "%s\\t%s\\n" $? "$BASH_COMMAND" >> "{failures}"\' ERR\n{text}'
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GITHUB_", "ATTNCHECK_", "VIRTUAL_ENV", "CONDA_"))
        }
        environ |= {
            "PATH": ":".join(filter(None, (programs, str(self.programs), str(self.plain), environ["PATH"]))),
            **self.git_settings,
            "HOME": str(self.folder),
            "PYTHONPATH": "",
            "MEASURED": str(measured),
        }
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-c", script],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert "Traceback" not in done.stderr, done.stderr
        lines = failures.read_text(encoding="utf-8").splitlines()
        commands = [line.split("\t", 1) for line in lines if re.match(r"\d+\t", line)]
        results = [(int(code), f"{command}: {done.stderr}") for code, command in commands]
        for argv in measured.read_text(encoding="utf-8").split("\n\0")[:-1]:
            words = argv.split("\0")[:-1]
            results += [(2, f"{words}: {message}") for message in find_argument_error(words)]
        return results

    def write_program(self, name: str, body: str, folder: Path | None = None) -> None:
        """Write a stand-in."""
        path = (folder or self.programs) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{body}", encoding="utf-8")
        path.chmod(0o755)


def find_argument_error(argv: list[str]) -> list[str]:
    """Return why a command of attncheck does not take its arguments, nothing where it does; it is not run."""
    group: Any = typer.main.get_command(app)
    command = group.get_command(group.make_context("attncheck", argv[:1]), argv[0])
    try:
        command.make_context(argv[0], argv[1:])
    except Exception as error:  # Typer's and ours: an option that is not there, a value that it does not take
        return [str(error) or type(error).__name__]
    return []


def fill(text: str, **values: object) -> str:
    """Return a text with `{name}` replaced for these names alone."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text
