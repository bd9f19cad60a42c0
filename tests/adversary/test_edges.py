"""Commands that lack what every program takes for granted: memory, files, a disk, streams, a folder to be in.

Whatever is missing, the exit code is one that the documentation names, what is said is one line, 1 comes only with a
finding, and 0 only with a report that arrived. Here each limit meets one command, nightly all of them.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import pytest

from attncheck.core.io.errors import BadUsage
from attncheck.core.io.files import read_bounded
from attncheck.core.io.streams import READABLE
from attncheck.gate.policy import load_policy
from tests.adversary.in_process import run_entry
from tests.adversary.outcomes import BAD_USAGE, CLEAN, FOUND, INTERRUPTED, UNANSWERED, error_lines, find_fault
from tests.conftest import without_progress

FACTS = Path(__file__).parents[1] / "data" / "snapshots" / "h200.json"
PYTHON = shlex.quote(sys.executable)
TIMEOUT_SECONDS = 300
LAUNCH = "torchrun --nproc_per_node 8 -m openrlhf.cli.train_sft --data.max_len 4096 --ds.packing_samples\n"

# What runs in a fraction of a second on its own.
COMMANDS = {
    "doctor": f"doctor --facts {shlex.quote(str(FACTS))}",
    "doctor static": "doctor --lane static --format json",
    "lint": "lint launch.sh --target h100x8",
    "gate": "gate --checks doctor,lint --launch launch.sh --target h100x8",
    "run": "run --quiet --no-cache --checks doctor --target h100x8 --fail-on never -- true",
    "run refused": (
        "run --no-cache --checks lint --launch launch.sh --target h100x8,openrlhf=0.11.2,flash-attn=none -- true"
    ),
    "init": "init",
    "baseline": "baseline --checks doctor --target h100x8 --baseline new.json",
    "explain": "explain ATN140",
    "rules": "rules",
    "probe": "probe --lane static",
    "help": "--help",
    "smoke help": "smoke --help",
    "selftest list": "selftest --list",
    "version": "--version",
    "a mistake": "explain ATN140X",
}
SLOW_COMMANDS = {
    "doctor all lanes": "doctor --timeout 60",
    "backends": "backends --device cpu",
    "parity": "parity --backend sdpa_math --device cpu --timeout 60",
}


@dataclass(frozen=True)
class Limit:
    """A shell's words before and after the command, and which of its streams arrive."""

    before: str = ""
    after: str = ""
    can_report: bool = True
    can_complain: bool = True


LIMITS = {
    "no limit": Limit(),
    "a folder that no longer exists": Limit(before="mkdir gone; cd gone; rmdir ../gone;"),
    # Root may write anywhere, but not in /proc. The sizes of files also limit what a temporary folder is tried with.
    "no temporary folder": Limit(before="ulimit -f 0; export TMPDIR=/proc TEMP=/proc TMP=/proc HOME=/proc;"),
    "no home": Limit(before="unset HOME XDG_CACHE_HOME TMPDIR;"),
    "a temporary folder that is not there": Limit(before="export TMPDIR=/no/such/folder;"),
    "few files": Limit(before="ulimit -n 7;"),
    "some files": Limit(before="ulimit -n 12;"),
    "a small stack": Limit(before="ulimit -s 512;"),
    "no core, no time to spare": Limit(before="ulimit -c 0; ulimit -t 120;"),
    "a full disk": Limit(after="> /dev/full", can_report=False),
    "a full standard error": Limit(after="2> /dev/full", can_complain=False),
    "nothing but full disks": Limit(after="> /dev/full 2> /dev/full", can_report=False, can_complain=False),
    "standard output closed": Limit(after=">&-", can_report=False),
    "standard error closed": Limit(after="2>&-", can_complain=False),
    "standard input closed": Limit(after="<&-"),
    "input and output closed": Limit(after="<&- >&-", can_report=False),
    "input and error closed": Limit(after="<&- 2>&-", can_complain=False),
    "output and error closed": Limit(after=">&- 2>&-", can_report=False, can_complain=False),
    "every stream closed": Limit(after="<&- >&- 2>&-", can_report=False, can_complain=False),
    "an ASCII locale": Limit(before="export LC_ALL=C PYTHONCOERCECLOCALE=0 PYTHONUTF8=0;"),
    "ASCII output": Limit(before="export PYTHONIOENCODING=ascii:strict;"),
    "Latin-1 output": Limit(before="export PYTHONIOENCODING=latin-1:strict;"),
    "an empty environment": Limit(before="exec env -i"),
}  # fmt: skip


# What other tests here show with a particular command, or what takes nothing away, is left to the night.
NIGHTLY_LIMITS = {
    *("no limit", "no home", "no core, no time to spare", "a temporary folder that is not there"),
    *("ASCII output", "Latin-1 output", "an ASCII locale", "a full disk", "standard output closed"),
    *("a folder that no longer exists", "output and error closed"),
}


def run_limited(folder: Path, limit: Limit, command: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command of attncheck from a shell that takes something away from it first."""
    (folder / "launch.sh").write_text(LAUNCH)
    execute = "" if limit.before.startswith("exec") else "exec"
    script = f"{limit.before} {execute} {PYTHON} -m attncheck {command} {limit.after}"
    environ = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    if limit.before.startswith("exec env -i"):
        script = script.replace("env -i", f"env -i PYTHONPATH={shlex.quote(os.environ.get('PYTHONPATH', ''))}")
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environ, capture_output=True, timeout=TIMEOUT_SECONDS,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def check_limited(folder: Path, limit: Limit, name: str, command: str) -> int:
    """Run a command under a limit and check how it ended; return its exit code."""
    result = run_limited(folder, limit, command)
    stdout, stderr = result.stdout.decode("utf-8", "replace"), result.stderr.decode("utf-8", "replace")
    # The command that `run` becomes writes nothing; what is lost is what attncheck wrote.
    writes = name not in ("run",)
    if result.returncode == CLEAN and not writes:
        assert (stdout, stderr) == ("", "")
        return CLEAN
    can_report = limit.can_report or name in ("run refused", "baseline")
    fault = find_fault(result.returncode, stdout, stderr, can_report, limit.can_complain)
    assert not fault, f"{limit}, {command}: {fault}: exit code {result.returncode}\n{stdout[-500:]}\n{stderr[-3000:]}"
    return result.returncode


def pick_commands(limit: str, count: int) -> list[str]:
    """Return some commands for a limit, others for another one, so that every command meets several."""
    names = list(COMMANDS)
    start = zlib.crc32(limit.encode()) % len(names)
    return [names[(start + 7 * step) % len(names)] for step in range(count)]


@pytest.mark.parametrize("limit", [limit for limit in LIMITS if limit not in NIGHTLY_LIMITS])
def test_a_limit_ends_in_a_documented_way(tmp_path: Path, limit: str) -> None:
    (name,) = pick_commands(limit, 1)
    check_limited(tmp_path, LIMITS[limit], name, COMMANDS[name])


@pytest.mark.nightly
@pytest.mark.parametrize("limit", LIMITS)
def test_every_command_under_every_limit(tmp_path: Path, limit: str) -> None:
    codes = {}
    for name, command in {**COMMANDS, **SLOW_COMMANDS}.items():
        folder = tmp_path / name
        folder.mkdir()
        codes[name] = check_limited(folder, LIMITS[limit], name, command)
    print(f"{limit}: {codes}")


@pytest.mark.nightly
@pytest.mark.parametrize("command", ["doctor --lane static", "lint launch.sh", "init", "rules", "--help"])
def test_a_ladder_of_memory(tmp_path: Path, command: str) -> None:
    codes: dict[int, int] = {}
    for kib in range(16_000, 64_000, 1_500):
        limit = Limit(before=f"ulimit -v {kib};")
        started = subprocess.run(
            ["bash", "-c", f"{limit.before} {PYTHON} -c 'import attncheck.__main__'"], capture_output=True
        )
        if started.returncode == 0:  # below, Python itself does not start
            codes[kib] = check_limited(tmp_path, limit, "", command)
    print(f"{command}: {codes}")
    assert UNANSWERED in codes.values() and len(codes) > 5


@pytest.mark.nightly
def test_a_ladder_of_files(tmp_path: Path) -> None:
    for count in range(5, 24):
        for command in ("doctor --lane static", "lint launch.sh", "init"):
            check_limited(tmp_path, Limit(before=f"ulimit -n {count};"), "", command)


@pytest.mark.skipif(os.geteuid() == 0, reason="no limit on processes binds root")
def test_no_more_processes(tmp_path: Path) -> None:
    for command in ("init", "lint launch.sh"):
        assert check_limited(tmp_path, Limit(before="ulimit -u 1;"), "", command) in (BAD_USAGE, UNANSWERED)


@pytest.mark.parametrize(
    ("limit", "command", "code", "line"),
    [
        ("a full disk", "rules", UNANSWERED, "cannot write to standard output: No space left on device"),
        ("standard output closed", "doctor", UNANSWERED, "cannot write to standard output: it is closed"),
        (
            "a folder that no longer exists",
            "doctor",
            UNANSWERED,
            "the working directory no longer exists: cd to a folder that exists",
        ),
        ("output and error closed", "doctor", UNANSWERED, ""),
        ("standard error closed", "run refused", UNANSWERED, ""),
        ("every stream closed", "run", CLEAN, ""),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, limit: str, command: str, code: int, line: str) -> None:
    result = run_limited(tmp_path, LIMITS[limit], COMMANDS[command])
    assert (result.returncode, result.stderr.decode()) == (code, f"attncheck: {line}\n" if line else "")


def test_static_commands_need_no_temporary_folder(tmp_path: Path) -> None:
    for name in ("doctor static", "lint", "explain", "rules"):
        assert check_limited(tmp_path, LIMITS["no temporary folder"], name, COMMANDS[name]) in (CLEAN, FOUND)
    result = run_limited(tmp_path, LIMITS["no temporary folder"], "parity --backend sdpa_math --device cpu")
    assert result.returncode == UNANSWERED
    assert result.stderr == b"attncheck: no temporary folder can be written to: set TMPDIR to one that can\n"


def test_every_character_is_written(tmp_path: Path) -> None:
    plain = run_limited(tmp_path, LIMITS["no limit"], COMMANDS["doctor"])
    text = plain.stdout.decode()
    assert plain.returncode == FOUND and not text.isascii(), "the report has no character to lose"
    encodings = {"ASCII output": "ascii", "Latin-1 output": "latin-1", "an ASCII locale": "ascii"}
    for limit, encoding in encodings.items():
        limited = run_limited(tmp_path, LIMITS[limit], COMMANDS["doctor"])
        assert (limited.returncode, limited.stdout) == (FOUND, text.encode(encoding, READABLE))


@pytest.mark.parametrize(
    ("command", "code"), [("doctor", FOUND), ("doctor", CLEAN), ("help", CLEAN)], ids=["found", "clean", "help"]
)
def test_a_reader_that_leaves_changes_no_exit_code(tmp_path: Path, command: str, code: int) -> None:
    option = "--fail-on never" if command == "doctor" and code == CLEAN else ""
    reader = "| (exec <&-; sleep 1); exit ${PIPESTATUS[0]}"
    script = f"{PYTHON} -m attncheck {COMMANDS[command]} {option} {reader}"
    result = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, timeout=TIMEOUT_SECONDS)
    assert (result.returncode, result.stderr) == (code, b"")


def test_a_pipe_that_does_not_block_is_waited_for(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    os.write(writing, b"x" * 65_536)  # it is full
    process = subprocess.Popen([sys.executable, "-m", "attncheck", "rules"], stdout=writing, cwd=tmp_path)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        text = stream.read()
    assert process.wait(TIMEOUT_SECONDS) == CLEAN
    assert text.startswith(b"x" * 65_536) and b"ATN999" not in text and text.count(b"ATN") > 100


FAULTS = {
    "a crash": ("raise TypeError('planted')", "this is a bug in attncheck: TypeError: planted (ATTNCHECK_TRACEBACK=1"),
    "no memory": ("raise MemoryError", "out of memory: raise the limit"),
    "no memory to say so": (
        "raise SystemError('error return without exception set')",
        "out of memory: raise the limit",
    ),
    "recursion": ("f = lambda: f()\n    f()", "this is a bug in attncheck: RecursionError"),
    "no files": ("raise OSError(24, 'x')", "no more files can be opened: raise the limit (ulimit -n)"),
    "no processes": ("raise BlockingIOError(11, 'x')", "no more processes can be started: raise the limit"),
    "no threads": ('raise RuntimeError("can\'t start new thread")', "no more threads can be started: raise the limit"),
    "a broken package": ("import no_such_package", "attncheck's own installation is damaged: No module named"),
    "its own exit": ("raise SystemExit('x')", "this is a bug in attncheck: RuntimeError: x"),
    "several lines": ("raise ValueError('a\\nb')", "this is a bug in attncheck: ValueError: a b"),
    "a file": ("open('/no/such/file')", "/no/such/file: No such file or directory"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_crash_is_one_line_and_no_finding(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    body, line = FAULTS[fault]
    namespace: dict[str, object] = {}
    exec(f"def crash(code):\n    {body}", namespace)
    monkeypatch.setattr("attncheck.doctor.engine.render_rule_page", namespace["crash"])
    ended = run_entry("explain", "ATN140")
    assert (ended.code, ended.stdout) == (UNANSWERED, "")
    assert ended.stderr.startswith(f"attncheck: {line}") and ended.stderr.count("\n") == 1
    monkeypatch.setenv("ATTNCHECK_TRACEBACK", "1")
    shown = run_entry("explain", "ATN140")
    assert shown.code == UNANSWERED and "Traceback" in shown.stderr


def test_a_crash_on_the_way_out_has_a_code_and_a_line(tmp_path: Path) -> None:
    script = """
import sys
from attncheck import __main__ as entry
def crash(*arguments):
    raise MemoryError
entry.describe_failure = entry._run = crash
entry.main()
"""
    result = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == UNANSWERED
    assert result.stderr == "attncheck: ended before it could say why (out of memory?)\n"


def test_a_package_of_ours_that_does_not_load(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise AttributeError('planted')\n")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))}
    command = [sys.executable, "-c", "from attncheck.__main__ import main; main()", "rules"]
    result = subprocess.run(command, cwd="/", env=environ, capture_output=True, text=True)
    assert result.returncode == UNANSWERED
    assert result.stderr == (
        "attncheck: attncheck's own installation is damaged: AttributeError: planted; install it again\n"
    )


MOMENTS = {
    # When a signal comes, and how the command may end then.
    "before the report is written": ("before()", "", "", {INTERRUPTED}),
    "when the report is written": ("", "after()", "", {INTERRUPTED}),
    "while Python ends": ("", "", "atexit.register(send)", {FOUND}),
    "while Python forgets modules": ("", "", "keep = type('Last', (), {'__del__': lambda self: send()})()", {FOUND}),
}  # fmt: skip


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.nightly), signal.SIGTERM])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_late_signal_ends_with_its_code_or_the_reports(tmp_path: Path, moment: str, number: signal.Signals) -> None:
    before, after, at_end, codes = MOMENTS[moment]
    script = f"""
import atexit, os, signal, sys
from attncheck import __main__ as entry
from attncheck.cli import output
number = {int(number)}
def send():
    os.kill(os.getpid(), number)
before = after = send
write = output.write_stdout
def write_stdout(text, syntax='text'):
    {before or "pass"}
    write(text, syntax)
    {after or "pass"}
output.write_stdout = write_stdout
{at_end}
sys.argv = ["attncheck", "gate", "--checks", "doctor", "--target", "h100x8", "--fail-on", "warning"]
entry.main()
"""
    result = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode in codes
    interrupted = "attncheck: interrupted\n" if INTERRUPTED in codes else ""
    assert without_progress(result.stderr) == f"attncheck: policy file not found, using default settings\n{interrupted}"
    assert ("ATN" in result.stdout) == (moment != "before the report is written")


@pytest.mark.parametrize("kind", ["a folder", "a link to nothing", "a pipe", "a device", "too large", "a loop"])
@pytest.mark.parametrize("name", ["attncheck.toml", "pyproject.toml"])
def test_a_policy_that_cannot_be_read_is_not_passed_over(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / name
    if kind == "a folder":
        path.mkdir()
    elif kind == "a link to nothing":
        path.symlink_to("gone")
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    elif kind == "a loop":
        path.symlink_to(name)
    else:
        path.touch()
        os.truncate(path, 3 << 30)  # sparse
    below = tmp_path / "below"
    below.mkdir()
    with pytest.raises(BadUsage) as raised:
        load_policy(below)
    assert str(raised.value).startswith(f"cannot read {name} in {tmp_path}: ") and "\n" not in str(raised.value)


def test_a_policy_that_is_a_link_to_nothing_stops_the_command(tmp_path: Path) -> None:
    (tmp_path / "attncheck.toml").symlink_to("gone")
    result = run_limited(tmp_path, Limit(), COMMANDS["doctor"])
    assert (result.returncode, result.stdout) == (BAD_USAGE, b"")
    line = f"attncheck: cannot read attncheck.toml in {tmp_path}: a link to a file that does not exist\n"
    assert result.stderr.decode() == line


ENDLESS = [
    ("lint {}", "sparse"),
    pytest.param("lint {}", "pipe", marks=pytest.mark.nightly),  # it waits ten seconds for a writer
    ("doctor --facts {}", "sparse"),
    ("gate --checks doctor --target cpu --baseline {}", "pipe"),
    ("gate --checks lint --launch {}", "pipe"),
    ("lint --target cpu -- torchrun train.py --config {}.yaml", "pipe"),
]


@pytest.mark.parametrize(("command", "name"), ENDLESS)
def test_files_that_never_end_are_refused(tmp_path: Path, command: str, name: str) -> None:
    for suffix in ("", ".yaml"):
        path = tmp_path / f"{name}{suffix}"
        if name == "sparse":
            path.touch()
            os.truncate(path, 3 << 30)
        elif name == "zero":
            path.symlink_to("/dev/zero")
        else:
            os.mkfifo(path)
    result = run_limited(tmp_path, Limit(before="ulimit -v 400000;"), command.format(name))
    if "--config" in command:  # what it starts is any program's affair, and that its file was not read is said
        assert (result.returncode, result.stderr) == (CLEAN, b"")
        assert b"not linted" in result.stdout and b"could not be read" in result.stdout
    else:
        assert result.returncode in (BAD_USAGE, UNANSWERED), result.stderr
        assert len(error_lines(result.stderr.decode())) == 1 and result.stderr.endswith(b"\n"), result.stderr
    assert b"memory" not in result.stderr and b"Traceback" not in result.stderr


def test_a_file_of_the_largest_size_takes_bounded_memory(tmp_path: Path) -> None:
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 4 << 20)
    with pytest.raises(BadUsage, match="larger than 3 MiB"):
        read_bounded(tmp_path / "sparse", 3 << 20)
    assert len(read_bounded(tmp_path / "sparse", 4 << 20)) == 4 << 20
    with pytest.raises(BadUsage, match="larger than 0 MiB"):
        read_bounded("/proc/self/maps", 10)  # which has no size before it is read


def test_pipes_that_a_user_names_are_read(tmp_path: Path) -> None:
    limit = Limit(before="cat launch.sh > copy.sh;")
    expected = run_limited(tmp_path, limit, "lint copy.sh --target h100x8,openrlhf=0.11.2,flash-attn=none").stdout
    assert b"ATN" in expected
    for words in (
        "lint <(cat launch.sh) --target h100x8,openrlhf=0.11.2,flash-attn=none",
        "lint - --target h100x8,openrlhf=0.11.2,flash-attn=none < launch.sh",
    ):
        result = run_limited(tmp_path, limit, words)
        assert result.returncode == FOUND and result.stdout.count(b"ATN") == expected.count(b"ATN")
    shown = run_limited(tmp_path, Limit(), f"doctor --facts <(sleep 1; cat {shlex.quote(str(FACTS))})")
    assert shown.returncode == FOUND and b"ATN" in shown.stdout


def test_launches_beyond_the_bound_are_not_dropped(tmp_path: Path) -> None:
    (tmp_path / "many.sh").write_text(LAUNCH * 201)
    (tmp_path / "long.sh").write_text("date\n" * 2_100 + LAUNCH)
    (tmp_path / "late.sh").write_text("date\n" * 1_900 + LAUNCH)
    (tmp_path / "wide.sh").write_text(LAUNCH.strip() + " --x y" * 6_000)
    for name in ("many.sh", "long.sh", "wide.sh"):
        result = run_limited(tmp_path, Limit(), f"lint {name} --target h100x8")
        assert result.returncode == UNANSWERED, name
        assert result.stderr.startswith(f"attncheck: {name}: ".encode()) and result.stderr.count(b"\n") == 1
    result = run_limited(tmp_path, Limit(), "lint late.sh --target h100x8,openrlhf=0.11.2,flash-attn=none")
    assert result.returncode == FOUND and b"ATN" in result.stdout


def test_an_output_does_not_follow_a_link_that_lies_in_wait(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    script = f"""
import os, sys
for pid in (os.getpid(),):
    os.symlink("victim", "report.json.%d.part" % pid)
from attncheck import __main__ as entry
sys.argv = ["attncheck", "doctor", "--facts", {str(FACTS)!r}, "--output", "json=report.json"]
entry.main()
"""
    result = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == FOUND and victim.read_text() == "mine"
    assert (tmp_path / "report.json").stat().st_size > 1000
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".attncheck")]
