"""Packages in addition to an environment: installed into a temporary folder that workers import from first.

The environment itself is never written to: the installer gets a folder (`--target`), no dependencies and no build.
"""

import contextlib
import fcntl
import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from attncheck.core.findings import Fix
from attncheck.core.io import interrupts
from attncheck.core.io.errors import Unanswered
from attncheck.workers.process import Process, closing_stream, defer_signals
from attncheck.workers.scratch import make_folder, remove_folder, scratch_folder

INSTALL_SECONDS = 900.0  # torch's wheels are gigabytes
POLL_SECONDS = 0.2  # between two checks for an interrupt
# `--target` is refused together with `--user`, and a user's pip.conf may require that or a virtual environment.
INSTALLER_ENVIRONMENT = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1",
    "PIP_USER": "0",
    "PIP_REQUIRE_VIRTUALENV": "0",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PIP_NO_COLOR": "1",
    "NO_COLOR": "1",
}
INSTALL_OPTIONS = ["--no-deps", "--only-binary", ":all:"]
# Starts any program as `Process` starts an interpreter: the same process becomes the program.
EXEC_SCRIPT = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
QUIET_OPTIONS = {"--no-deps", "--force-reinstall", "--upgrade", "-U", "--quiet", "-q", "--no-cache-dir"}
_INDEX_UNREACHABLE = re.compile(
    r"connection broken by|Max retries exceeded|Failed to establish|Temporary failure in name resolution|error sending "
    r"request|Failed to fetch|dns error|tcp connect error|ProxyError|ReadTimeout|ConnectTimeout|operation timed out"
)
_UV_CHANGE = re.compile(r"^ ([+-]) (\S+)==(\S+)", re.MULTILINE)
_NO_SUCH_VERSION = re.compile(
    r"No matching distribution|No solution found|has no usable wheels|Could not find a version"
)


@contextlib.contextmanager
def package_overlay(
    python: str,
    packages: Sequence[str],
    report_progress: Callable[[str], None],
    seconds: float = INSTALL_SECONDS,
    options: Sequence[str] = (),
) -> Iterator[Path]:
    """Yield a folder with exactly `packages`, which `python` can import; it is always removed afterwards.

    `options` are the installer's: "--no-index", "--find-links". uv installs if it is on PATH; if it fails or is
    missing, the interpreter's own pip does. `report_progress` gets a line of text at each poll. Raises `Unanswered` if
    the packages cannot be installed.
    """
    folder: Path | None = None
    try:
        with defer_signals():  # no interrupt may come between creating the folder and recording it
            folder = Path(make_folder())
        deadline = time.monotonic() + seconds
        yield _install_packages(python, packages, folder, report_progress, deadline, options)
    finally:
        with defer_signals():
            if folder is not None:
                remove_folder(str(folder))


def _install_packages(
    python: str,
    packages: Sequence[str],
    folder: Path,
    report_progress: Callable[[str], None],
    deadline: float,
    options: Sequence[str],
) -> Path:
    names, reasons = " ".join(map(_describe_package, packages)), []
    for number, command in enumerate(_iter_installers(python)):
        target = folder / f"packages-{number}"
        scratch = folder / "scratch"
        scratch.mkdir(exist_ok=True)
        arguments = [*command, *INSTALL_OPTIONS, *options, "--target", str(target), *packages]
        seconds = deadline - time.monotonic()
        doing = f"installing {names} into a temporary folder"
        installer = _run_installer(python, arguments, scratch, doing, seconds, report_progress)
        shutil.rmtree(scratch, ignore_errors=True)
        if installer is None:
            reasons.append(f"it took longer than {seconds:.0f} s; use a faster index, or install it by hand")
        elif installer.returncode:
            reasons.append(_explain_failure(installer.final_stderr()))
        else:
            return target
    raise Unanswered(f"{names} cannot be installed next to the environment: {reasons[0]}")


def _describe_package(text: str) -> str:
    """Return a package's name for messages: for a wheel's path, the file name."""
    return os.path.basename(text) if text.endswith(".whl") and "://" not in text else text


def resolve_with_uv(
    python: str, requirements: Sequence[str], report_progress: Callable[[str], None], seconds: float = 120.0
) -> str:
    """Return the output of `uv pip install --dry-run` for all `requirements`; "" if uv is not on PATH.

    It contacts the package index, builds nothing and changes nothing. Raises `Unanswered` if there is no answer in
    time.
    """
    uv = shutil.which("uv")
    if not uv or not os.path.isabs(uv):
        return ""
    command = [uv, "pip", "install", "--dry-run", "--python", python, "--no-progress", "--only-binary", ":all:"]
    lock = Path(python).parent.parent / ".lock"  # uv leaves a lock file in a virtual environment, even after a dry run
    had_lock = lock.exists()
    arguments = ["-c", EXEC_SCRIPT, *command, *requirements]
    try:
        with scratch_folder() as scratch:
            doing = "uv resolves it, without changing anything"
            installer = _run_installer(python, arguments, Path(scratch), doing, seconds, report_progress)
    finally:
        if not had_lock:
            _remove_lock(lock)
    if installer is None:
        raise Unanswered(f"uv's dry run took longer than {seconds:.0f} s")
    return installer.final_stderr()


def _remove_lock(lock: Path) -> None:
    """Remove an empty lock file that no one holds."""
    with contextlib.suppress(OSError), lock.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file.fileno()).st_size == 0:
            lock.unlink()


def parse_uv_changes(answer: str) -> tuple[tuple[str, str, str], ...]:
    """Return what uv's dry run would change as (sign, name, version); the sign is "+" or "-"."""
    return tuple(_UV_CHANGE.findall(answer))


@dataclass(frozen=True)
class ResolvedPackage:
    """A package that an installer would put into the environment."""

    name: str
    version: str


def resolve_with_pip(
    python: str,
    requirements: Sequence[str],
    report_progress: Callable[[str], None],
    options: Sequence[str] = (),
    seconds: float = 300.0,
) -> tuple[ResolvedPackage, ...]:
    """Return the packages that the interpreter's pip would install (`pip install --dry-run --report`).

    It contacts the package index unless `options` forbid it, builds nothing and changes nothing. Raises `Unanswered` if
    pip finds no solution, is missing or older than 22.2, or does not answer in time.
    """
    names = " ".join(map(_describe_package, requirements))
    with scratch_folder() as scratch:
        answer = Path(scratch) / "report.json"
        command = ["-m", "pip", "install", "--dry-run", "--report", str(answer), "--only-binary", ":all:", *options]
        doing = f"pip resolves {names}, without changing anything"
        installer = _run_installer(
            python,
            [*command, *requirements],
            Path(scratch),
            doing,
            seconds,
            report_progress,
            {"PIP_BREAK_SYSTEM_PACKAGES": "1"},
        )
        if installer is None:
            raise Unanswered(f"pip's dry run of {names} took longer than {seconds:.0f} s")
        if installer.returncode:
            raise Unanswered(f"pip cannot resolve {names}: {_explain_failure(installer.final_stderr())}")
        return _read_pip_report(answer)


def _read_pip_report(path: Path) -> tuple[ResolvedPackage, ...]:
    """Return the packages in pip's installation report.

    Format: https://pip.pypa.io/en/stable/reference/installation-report/.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return tuple(
            ResolvedPackage(str(entry["metadata"]["name"]), str(entry["metadata"]["version"]))
            for entry in document["install"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        raise Unanswered("pip's report of its dry run cannot be read; it is written by pip 22.2 and newer") from None


def _iter_installers(python: str) -> Iterator[list[str]]:
    """Yield the arguments after `python -B` for each installer, the better one first."""
    uv = shutil.which("uv")
    if uv and os.path.isabs(uv):  # an empty entry of PATH means the user's working folder
        # Copies: a hard link would let a worker write into uv's cache.
        options = ["--python", python, "--link-mode", "copy", "--no-progress"]
        yield ["-c", EXEC_SCRIPT, uv, "pip", "install", *options]
    yield ["-m", "pip", "install", "--no-compile", "--progress-bar", "off"]


class _Installer(Process):
    """A running installer process; the end of its standard error is kept."""

    def __init__(
        self, python: str, arguments: Sequence[str], scratch: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        # Files of a killed pip are removed with our folder.
        environment = {**INSTALLER_ENVIRONMENT, **(variables or {}), "TMPDIR": str(scratch)}
        super().__init__(python, arguments, environment)

    def _stream_handlers(self) -> list[Callable[[], None]]:
        return [self._close_stdin, self._drop_output, *super()._stream_handlers()]

    def _drop_output(self) -> None:
        with contextlib.suppress(OSError, ValueError), closing_stream(self._process.stdout) as stream:
            while stream.read(1 << 16):
                pass

    def final_stderr(self) -> str:
        """Return the end of its standard error, once all of it has been read."""
        self._threads[-1].join(1.0)
        return self.stderr


def _run_installer(
    python: str,
    arguments: Sequence[str],
    scratch: Path,
    doing: str,
    seconds: float,
    report_progress: Callable[[str], None],
    variables: Mapping[str, str] | None = None,
) -> _Installer | None:
    """Run an installer to its end and return it; None if it took longer than `seconds`."""
    began = time.monotonic()
    installer = _Installer(python, arguments, scratch, variables)
    try:
        while not installer.wait_for_exit(POLL_SECONDS):
            interrupts.raise_if_interrupted()
            if time.monotonic() - began > seconds:
                return None
            report_progress(f"{doing} ({time.monotonic() - began:.0f} s)")
        return installer
    finally:
        installer.kill()


def _explain_failure(stderr: str) -> str:
    """Return in one line why an installer failed, from its standard error."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if "No module named pip" in stderr:
        return "there is neither uv on PATH nor pip in the environment; install uv"
    if _INDEX_UNREACHABLE.search(stderr):
        return "the package index cannot be reached; check the network, proxy and mirror settings"
    if _NO_SUCH_VERSION.search(stderr):
        versions = re.search(r"from versions: (.+)\)", stderr)
        newest = f"; the newest is {versions[1].split(', ')[-1]}" if versions and versions[1] != "none" else ""
        return f"the index has no such version, or no wheel of it for this Python and machine{newest}"
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines[-1:] or ["the installer printed nothing"])[0][:300]


def parse_fix_requirements(fix: Fix) -> tuple[str, ...]:
    """Return the requirements that a fix installs, () if an overlay cannot replace its command.

    It accepts `pip install`, `python -m pip install` and `uv pip install` of requirements that are pinned or have an
    upper bound, and of wheels by their address. It rejects packages from another index, from a file or from source, and
    commands that do anything else too.
    """
    if fix.kind != "command":
        return ()
    commands = [command for command in fix.text.split("&&") if "-m ensurepip" not in command]
    try:
        arguments = shlex.split(commands[0]) if len(commands) == 1 else []
    except ValueError:
        return ()
    install_arguments = _pip_install_arguments(arguments)
    requirements = [word for word in install_arguments if word not in QUIET_OPTIONS]
    return tuple(requirements) if requirements and all(map(_is_pinned, requirements)) else ()


def _pip_install_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments after "pip install", without uv's choice of an interpreter; empty for other commands."""
    for position in (1, 2, 3):  # the positions after: pip; uv pip; python -m pip
        program, subcommand = arguments[: position - 1], arguments[position - 1 : position + 1]
        if subcommand in (["pip", "install"], ["pip3", "install"]) and _is_pip_program(program):
            install_arguments = list(arguments[position + 1 :])
            if program and program[0].endswith("uv"):
                for index, word in enumerate(install_arguments):
                    if word == "--python":
                        del install_arguments[index : index + 2]
                        break
            return install_arguments
    return []


def _is_pip_program(program: Sequence[str]) -> bool:
    if not program:
        return True
    name = Path(program[0]).name
    return name == "uv" if len(program) == 1 else name.startswith("python") and program[1] == "-m"


def _is_pinned(text: str) -> bool:
    """Return whether a requirement names one release, or releases up to one."""
    if re.fullmatch(r"https?://\S+\.whl(#\S+)?", text):
        return True
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return False
    if requirement.url:
        return requirement.url.endswith(".whl") and requirement.url.startswith("http")
    return any(specifier.operator in ("==", "===", "~=", "<", "<=") for specifier in requirement.specifier)
