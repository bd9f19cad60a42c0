"""Packages beside an environment: installed into a temporary folder, for workers that look there first, then removed.

The environment itself is never written to: the installer gets a folder (`--target`), no dependencies and no build.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from attncheck.core import interrupts
from attncheck.core.errors import Unanswered
from attncheck.core.findings import Fix
from attncheck.workers.process import Process, piped, uninterrupted

SECONDS = 900.0  # torch's wheels are gigabytes
TICK = 0.2  # seconds between looks for an interrupt
# `--target` is refused beside `--user`, and a user's pip.conf may ask for either that or a virtual environment.
ENVIRONMENT = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1",
    "PIP_USER": "0",
    "PIP_REQUIRE_VIRTUALENV": "0",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PIP_NO_COLOR": "1",
    "NO_COLOR": "1",
}
ONLY = ["--no-deps", "--only-binary", ":all:"]
# Starts any program as `Process` starts an interpreter: the same process becomes it.
BECOME = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
QUIET_OPTIONS = {"--no-deps", "--force-reinstall", "--upgrade", "-U", "--quiet", "-q", "--no-cache-dir"}
_UNREACHED = re.compile(
    r"connection broken by|Max retries exceeded|Failed to establish|Temporary failure in name resolution|error sending "
    r"request|Failed to fetch|dns error|tcp connect error|ProxyError|ReadTimeout|ConnectTimeout|operation timed out"
)
_UNSATISFIED = re.compile(r"No matching distribution|No solution found|has no usable wheels|Could not find a version")


@contextlib.contextmanager
def overlay(
    python: str, packages: Sequence[str], say: Callable[[str], None], seconds: float = SECONDS
) -> Iterator[Path]:
    """Yield a folder that holds exactly `packages` as `python` can import them; afterwards it is gone, always.

    uv installs where it is on PATH, and where it fails or is missing the interpreter's own pip. `say` shows progress.
    Raises `Unanswered` where the packages cannot be had.
    """
    folder: Path | None = None
    try:
        with uninterrupted():  # no interrupt may come between the folder and our knowing it
            folder = Path(tempfile.mkdtemp(prefix="attncheck-packages-"))
        yield _installed(python, packages, folder, say, time.monotonic() + seconds)
    finally:
        with uninterrupted():
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)


def _installed(python: str, packages: Sequence[str], folder: Path, say: Callable[[str], None], deadline: float) -> Path:
    names, reasons = " ".join(packages), []
    for number, words in enumerate(_installers(python)):
        target = folder / f"packages-{number}"
        scratch = folder / "scratch"
        scratch.mkdir(exist_ok=True)
        reason = _run(python, [*words, *ONLY, "--target", str(target), *packages], scratch, names, say, deadline)
        shutil.rmtree(scratch, ignore_errors=True)
        if not reason:
            return target
        reasons.append(reason)
    raise Unanswered(f"{names} cannot be installed beside the environment: {reasons[0]}")


def _installers(python: str) -> Iterator[list[str]]:
    """Yield what follows `python -B` for each installer, the better first."""
    uv = shutil.which("uv")
    if uv:
        # Copies: a hard link would let a worker write into uv's cache.
        own = ["--python", python, "--link-mode", "copy", "--no-progress"]
        yield ["-c", BECOME, uv, "pip", "install", *own]
    yield ["-m", "pip", "install", "--no-compile", "--progress-bar", "off"]


class _Installer(Process):
    """An installer at work; what it says is kept at its end."""

    def __init__(self, python: str, words: Sequence[str], scratch: Path) -> None:
        environment = {**ENVIRONMENT, "TMPDIR": str(scratch)}  # what pip leaves when it is killed goes with our folder
        super().__init__(python, words, environment)

    def _servers(self) -> list[Callable[[], None]]:
        return [self._close_input, self._drop_output, *super()._servers()]

    def _drop_output(self) -> None:
        with contextlib.suppress(OSError, ValueError), piped(self._process.stdout) as stream:
            while stream.read(1 << 16):
                pass

    def said(self) -> str:
        """Return the end of its standard error, once all of it has been read."""
        self._threads[-1].join(1.0)
        return self.stderr


def _run(
    python: str, words: Sequence[str], scratch: Path, names: str, say: Callable[[str], None], deadline: float
) -> str:
    """Return "" once the installer has done its work, or why it has not."""
    began = time.monotonic()
    installer = _Installer(python, words, scratch)
    try:
        while not installer.ended(TICK):
            interrupts.check()
            if time.monotonic() > deadline:
                return f"it took longer than {deadline - began:.0f} s; take a faster index, or install it by hand"
            say(f"installing {names} into a temporary folder ({time.monotonic() - began:.0f} s)")
        return _reason(installer.said()) if installer.returncode else ""
    finally:
        installer.kill()


def _reason(said: str) -> str:
    """Return in one line why an installer failed, from what it wrote to standard error."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if "No module named pip" in said:
        return "there is neither uv on PATH nor pip in the environment; install uv"
    if _UNREACHED.search(said):
        return "the package index cannot be reached; is there a network, a proxy or a mirror to set?"
    if _UNSATISFIED.search(said):
        known = re.search(r"from versions: (.+)\)", said)
        newest = f"; the newest is {known[1].split(', ')[-1]}" if known and known[1] != "none" else ""
        return f"the index has no such version, or no wheel of it for this Python and machine (none is built){newest}"
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines[-1:] or ["the installer says nothing"])[0][:300]


def packages_of(fix: Fix) -> tuple[str, ...]:
    """Return the requirements that a fix installs, or none where an overlay cannot show what its command would do.

    Taken are `pip install`, `python -m pip install` and `uv pip install` of requirements that are pinned or have an
    upper bound, and of wheels by their address. Not taken: anything from another index, from a file or from source,
    and commands that do something else too.
    """
    if fix.kind != "command":
        return ()
    commands = [command for command in fix.text.split("&&") if "-m ensurepip" not in command]
    try:
        words = shlex.split(commands[0]) if len(commands) == 1 else []
    except ValueError:
        return ()
    rest = _arguments(words)
    named = [word for word in rest if word not in QUIET_OPTIONS]
    return tuple(named) if named and all(map(_pinned, named)) else ()


def _arguments(words: Sequence[str]) -> list[str]:
    """Return what follows "pip install", without uv's choice of an interpreter; empty for another command."""
    for before in (1, 2, 3):  # pip; uv pip; python -m pip
        program, last = words[: before - 1], words[before - 1 : before + 1]
        if last in (["pip", "install"], ["pip3", "install"]) and _runs_pip(program):
            rest = list(words[before + 1 :])
            if program and program[0].endswith("uv"):
                for index, word in enumerate(rest):
                    if word == "--python":
                        del rest[index : index + 2]
                        break
            return rest
    return []


def _runs_pip(program: Sequence[str]) -> bool:
    if not program:
        return True
    name = Path(program[0]).name
    return name == "uv" if len(program) == 1 else name.startswith("python") and program[1] == "-m"


def _pinned(word: str) -> bool:
    """Say whether a word names one release, or releases up to one."""
    if re.fullmatch(r"https?://\S+\.whl(#\S+)?", word):
        return True
    try:
        requirement = Requirement(word)
    except InvalidRequirement:
        return False
    if requirement.url:
        return requirement.url.endswith(".whl") and requirement.url.startswith("http")
    return any(each.operator in ("==", "===", "~=", "<", "<=") for each in requirement.specifier)
