"""`attncheck run`: it becomes the command and leaves no trace, or refuses; ranks of a node follow their first one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.errors import Unanswered
from attncheck.gate import cache, cache_key, guard, node_leader
from attncheck.gate.cache import Answer, Hashes
from attncheck.gate.policy import Config
from attncheck.workers.execution import ExecutionTarget
from tests.conftest import all_gone

PROGRAM = [sys.executable, "-m", "attncheck"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
# Judged by files alone, so that a start costs a fraction of a second: torch is here, and is said to be missing.
PASSES = 'target = "cpu"\nselect = ["ATN101"]\n'
REFUSES = 'target = "cpu,torch=none"\nselect = ["ATN101"]\n'
# What a process was given: everything that two starts of it can differ in.
DESCRIBE = """
import json, os, sys
words = [line.replace(":", " ").split() for line in open("/proc/self/status")]
fields = {line[0]: line[1:] for line in words if line}
try:
    children = str(os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    children = "none"
print(json.dumps({
    "words": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd(), "children": children,
    "files": sorted(os.listdir("/proc/self/fd")), "umask": os.umask(0), "limits": open("/proc/self/limits").read(),
    "signals": [fields[name] for name in ("SigBlk", "SigIgn", "SigCgt", "SigPnd")],
    "group": os.getpgid(0) == os.getpid(), "session": os.getsid(0), "parent": os.getppid(),
}))
"""
LISTEN = """
import os, signal, sys, time
def stop(number, frame):
    print("got", number, flush=True)
    sys.exit(40 + number)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
print(os.getpid(), flush=True)
time.sleep(60)
"""
GLOO = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
print(f"rank {dist.get_rank()} sums {int(one)} of {sys.argv[1:]}\\n", end="", flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a policy that passes, a cache of its own and a folder for temporary files."""
    for name in ("project", "cache", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "project" / "attncheck.toml").write_text(PASSES)
    return tmp_path / "project"


def start(project: Path, *words: str, options: tuple[str, ...] = (), **more: Any) -> subprocess.CompletedProcess[bytes]:
    command = [*PROGRAM, "run", *options, "--", *words]
    return subprocess.run(command, cwd=project, capture_output=True, timeout=60, **more)


def policy(project: Path, text: str) -> None:
    (project / "attncheck.toml").write_text(text)


def answers(project: Path) -> list[Path]:
    return sorted((project.parent / "cache" / "attncheck").glob("answer-*.json"))


@pytest.mark.parametrize("environment", [{"LANG": "C", "LC_ALL": ""}, {"LC_CTYPE": "C.UTF-8"}])
def test_the_command_is_given_exactly_what_we_were_given(project: Path, environment: dict[str, str]) -> None:
    words = [sys.executable, "-c", DESCRIBE, "a b", "", "--", "--help", "é\udcff"]
    given = {**os.environ, **environment}
    if environment:
        given = {name: text for name, text in given.items() if not name.startswith("LC_") or name in environment}
    plain = subprocess.run(words, cwd=project, capture_output=True, timeout=60, env=given)
    for _ in range(2):  # checked, then from the cache
        done = start(project, *words, env=given)
        assert done.stderr == b""
        assert json.loads(done.stdout) == json.loads(plain.stdout)
    assert json.loads(done.stdout)["children"] == "none"
    assert list((project.parent / "temporary").iterdir()) == []


def test_streams_pass_untouched_byte_for_byte(project: Path) -> None:
    data = bytes(range(256)) * 4000
    script = "import sys; d = sys.stdin.buffer.read(); sys.stdout.buffer.write(d); sys.stderr.buffer.write(d[::-1])"
    for _ in range(2):
        done = start(project, sys.executable, "-c", script, input=data)
        assert (done.returncode, done.stdout, done.stderr) == (0, data, data[::-1])


def test_a_command_that_reads_its_settings_from_standard_input_gets_them(project: Path) -> None:
    (project / "train.sh").write_text("cat\n")
    words = ("sh", "train.sh", "--config", "-", "accelerate", "launch", "--config_file", "/dev/stdin", "x.py")
    assert start(project, *words, input=b"a: 1\n").stdout == b"a: 1\n"
    (project / "attncheck.toml").write_text(PASSES + 'launch = ["-"]\n')
    done = start(project, *words, input=b"a: 1\n")
    assert (done.returncode, done.stderr) == (2, b"attncheck: launch: '-' is standard input; name a file\n")


def test_a_reader_that_leaves_ends_the_command_as_it_would_without_us(project: Path) -> None:
    line = " ".join([*PROGRAM, "run", "--", "yes"]) + " | head -n1; exit ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", line], cwd=project, capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"y\n", b"")
    assert done.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize("code", [0, 1, 7])
def test_exit_codes_pass(project: Path, code: int) -> None:
    assert start(project, "sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_command_which_is_our_process(project: Path, marker: str, signum: signal.Signals) -> None:
    command = [*PROGRAM, "run", "--", sys.executable, "-c", LISTEN]
    process = subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert int(process.stdout.readline()) == process.pid
    process.send_signal(signum)
    out, error = process.communicate(timeout=20)
    assert (process.returncode, out, error) == (40 + signum, f"got {int(signum)}\n".encode(), b"")
    assert all_gone(marker)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("no-such-command",), 127, b"attncheck: no-such-command: command not found\n"),
        (("./plain",), 126, b"attncheck: ./plain: Permission denied\n"),
        (("./interpreterless",), 126, b"attncheck: ./interpreterless: No such file or directory\n"),
        (("./binary",), 126, b"attncheck: ./binary: Exec format error\n"),
    ],
)
def test_a_command_that_cannot_start(project: Path, words: tuple[str, ...], code: int, says: bytes) -> None:
    (project / "plain").write_text("x")
    (project / "folder").mkdir()
    for name, data in (("interpreterless", b"#!/no/such\n"), ("binary", b"\x7fELF\0\0\0\0")):
        (project / name).write_bytes(data)
        (project / name).chmod(0o755)
    done = start(project, *words)
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", says)


def test_what_a_command_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain").write_text("x")
    (tmp_path / "folder").mkdir()
    for word, code, says in (
        ("./missing", 127, "No such file or directory"),
        ("./folder", 126, "Is a directory"),
        ("folder", 127, "command not found"),
        ("plain", 126, "Permission denied"),
        ("", 127, "command not found"),
        ("a\0b", 127, "command not found"),
    ):
        with pytest.raises(guard.NotStarted) as caught:
            guard.program(word, {"PATH": str(tmp_path)})
        assert (caught.value.exit_code, str(caught.value)) == (code, f"{word}: {says}")


def test_a_script_without_a_first_line_is_the_shells(project: Path) -> None:
    (project / "script").write_text('echo "$0 $1"; exit 7\n')
    (project / "script").chmod(0o755)
    done = start(project, "./script", "a b")
    assert (done.returncode, done.stdout) == (7, b"./script a b\n")


def test_a_refusal_prints_the_report_each_time_and_starts_nothing(project: Path) -> None:
    policy(project, REFUSES)
    for cached in (0, 1):
        assert len(answers(project)) == cached
        done = start(project, "touch", "started")
        assert done.returncode == 1 and done.stdout == b""
        assert b"ATN101" in done.stderr
        assert done.stderr.endswith(b"attncheck: touch was not started: it would not run as it should\n")
    assert not (project / "started").exists()


def test_an_answer_is_taken_from_the_cache_while_nothing_changed(project: Path) -> None:
    def asks(*words: str, options: tuple[str, ...] = (), **more: Any) -> bool:
        """Say whether a start asked the gate: it wrote an answer."""
        before = {path: path.stat().st_mtime_ns for path in answers(project)}
        assert start(project, *words, options=options, **more).returncode == 0
        return before != {path: path.stat().st_mtime_ns for path in answers(project)}

    (project / "settings.yaml").write_text("a: 1\n")
    words = ("true", "--config", "settings.yaml")
    assert asks(*words)
    assert not asks(*words)
    assert asks("true", "--config", "other.yaml")
    (project / "settings.yaml").write_text("a: 2\n")
    assert asks(*words)
    assert asks(*words, env={**os.environ, "NCCL_DEBUG": "INFO"})
    assert not asks(*words, env={**os.environ, "UNRELATED": "1", "LOCAL_RANK": "3"})
    policy(project, PASSES + 'fail-on = "warning"\n')
    assert asks(*words)
    assert not asks(*words, options=("--no-cache",))


def test_a_second_start_is_quick_and_imports_nothing_heavy(project: Path) -> None:
    start(project, "true")
    best = 60.0
    for _ in range(3):
        began = time.monotonic()
        assert start(project, "true").returncode == 0
        best = min(best, time.monotonic() - began)
    assert best < 1.0
    done = start(project, "true", env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"})
    names = {line.rpartition(b"|")[2].strip() for line in done.stderr.splitlines()}
    assert b"attncheck.gate.guard" in names
    assert not names & {b"torch", b"transformers", b"attncheck.gate.run", b"attncheck.doctor.engine", b"rich"}


def test_damage_to_the_cache_costs_a_check_and_no_more(project: Path) -> None:
    start(project, "true")
    folder = project.parent / "cache" / "attncheck"
    assert folder.stat().st_mode & 0o777 == 0o700
    for data in (b"\xff", b'{"code": "0", "written": 1}'):
        for path in folder.iterdir():
            path.write_bytes(data)
        done = start(project, "true")
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    policy(project, REFUSES)
    start(project, "true")
    for path in folder.glob("report-*"):
        path.write_bytes(b"{")
    assert b"ATN101" in start(project, "true").stderr


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b'{"code": "0", "written": 1}', b"[" * 100_000, b"null"])
def test_a_damaged_answer_and_damaged_hashes_are_as_if_they_were_not_there(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "answer-x.json").write_bytes(data)
    (tmp_path / cache.HASHES).write_bytes(data)
    assert cache.read(tmp_path, "x", lambda answer: True) is None
    hashes = Hashes(tmp_path)
    assert hashes.of(__file__)
    hashes.save()
    assert __file__ in json.loads((tmp_path / cache.HASHES).read_text())


def test_no_home_and_a_cache_that_cannot_be_written(project: Path) -> None:
    bare = {"PATH": os.environ["PATH"]}
    assert start(project, "true", env=bare).returncode == 0
    (project / "file").write_text("")
    assert start(project, "true", env={**bare, "XDG_CACHE_HOME": str(project / "file")}).returncode == 0


def test_many_starts_at_once(project: Path) -> None:
    command = [*PROGRAM, "run", "--", "true"]
    running_now = [subprocess.Popen(command, cwd=project, stderr=subprocess.PIPE) for _ in range(4)]
    assert [process.communicate(timeout=60)[1] for process in running_now] == [b""] * 4
    assert {process.returncode for process in running_now} == {0}
    assert len(answers(project)) == 1


def test_torchrun_over_gloo_and_its_exit_codes(project: Path, marker: str) -> None:
    (project / "train.py").write_text(GLOO)
    words = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "train.py", "--x", "a b"]
    done = start(project, *words)
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} sums 2 of ['--x', 'a b']".encode() for rank in (0, 1)]
    words = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "--no-python", "sh", "-c", "exit 7"]
    assert start(project, *words).returncode == 1
    assert all_gone(marker)


@pytest.mark.parametrize("text", [PASSES, REFUSES])
def test_inside_torchrun_the_first_rank_checks_and_the_other_follows(project: Path, marker: str, text: str) -> None:
    policy(project, text)
    rank = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)"
    inner = [*PROGRAM, "run", "--no-cache", "--", sys.executable, "-c", rank]
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "--no-python", *inner]
    done = subprocess.run(command, cwd=project, capture_output=True, timeout=60)
    if text == PASSES:
        assert done.returncode == 0
        assert sorted(done.stdout.splitlines()) == [b"rank 0 of 2", b"rank 1 of 2"]
    else:
        assert (done.returncode, done.stdout) == (1, b"")
        assert done.stderr.count(b"was not started") == 1
        assert done.stderr.count(b"torch is not installed") == 1
    assert all_gone(marker)


TORCHRUN_RANK = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
SLURM_RANK = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "7"}


def test_seats() -> None:
    assert node_leader.seat({}, ("true",)) == node_leader.ALONE
    assert node_leader.seat({"RANK": "0", "WORLD_SIZE": "2"}, ("true",)) == node_leader.ALONE  # half a place
    ours = node_leader.seat({**TORCHRUN_RANK, "LOCAL_WORLD_SIZE": "2"}, ("true",))
    assert (ours.first, ours.speaks, ours.local_size) == (False, False, 2)
    node = node_leader.seat(SLURM_RANK, ("true",))
    assert (node.first, node.speaks) == (True, False)
    first = node_leader.seat({**TORCHRUN_RANK, "RANK": "2", "LOCAL_RANK": "0"}, ("true",))
    assert first.name == node_leader.seat(TORCHRUN_RANK, ("true",)).name
    again = {**TORCHRUN_RANK, "TORCHELASTIC_RESTART_COUNT": "1"}
    assert node_leader.seat(again, ("true",)).name != first.name
    assert node_leader.seat(TORCHRUN_RANK, ("false",)).name != first.name


def test_a_ring_is_no_larger_than_the_node() -> None:
    asked = Config(ring_size=16)
    assert guard.within(asked, node_leader.ALONE).ring_size == 16
    assert guard.within(asked, replace(node_leader.ALONE, local_size=8)).ring_size == 8
    assert guard.within(asked, replace(node_leader.ALONE, local_size=1)).ring_size == 0


def test_rank_variables_are_hidden_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {**TORCHRUN_RANK, **SLURM_RANK, "TORCHELASTIC_RUN_ID": "x", "PET_NNODES": "2"}.items():
        monkeypatch.setenv(name, text)
    before = dict(os.environ)
    with node_leader.unranked():
        assert not {*TORCHRUN_RANK, "SLURM_PROCID", "TORCHELASTIC_RUN_ID", "PET_NNODES"} & set(os.environ)
        assert os.environ["SLURM_JOB_ID"] == "7"
    assert dict(os.environ) == before


FIRST = node_leader.Seat(True, True, "launch")
SECOND = node_leader.Seat(False, False, "launch")


def in_a_thread(folder: Path, code: int | None) -> threading.Thread:
    def lead() -> None:
        with node_leader.leading(folder, FIRST) as tell:
            time.sleep(0.3)
            if code is not None:
                tell(code)

    thread = threading.Thread(target=lead)
    thread.start()
    return thread


@pytest.mark.parametrize("code", [0, 1])
def test_a_rank_hears_the_answer_of_the_first_whoever_begins(tmp_path: Path, code: int) -> None:
    thread = in_a_thread(tmp_path, code)
    assert node_leader.followed(tmp_path, SECOND, 10.0) == code
    thread.join()
    assert node_leader.followed(tmp_path, SECOND, 10.0) == code  # one that comes late


def test_a_first_rank_that_ends_without_an_answer(tmp_path: Path) -> None:
    thread = in_a_thread(tmp_path, None)
    time.sleep(0.1)
    with pytest.raises(Unanswered, match="ended without an answer"):
        node_leader.followed(tmp_path, SECOND, 10.0)
    thread.join()


def test_a_first_rank_that_never_answers_or_never_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = in_a_thread(tmp_path, 0)
    time.sleep(0.1)
    with pytest.raises(Unanswered, match=r"gave no answer within 0\.1 s"):
        node_leader.followed(tmp_path, SECOND, 0.1)
    thread.join()
    monkeypatch.setattr(node_leader, "START_SECONDS", 0.2)
    assert node_leader.followed(tmp_path, replace(SECOND, name="other"), 10.0) is None


def test_hashes_are_remembered_until_the_file_changes(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(b"one")
    first = Hashes(tmp_path)
    mark = first.of(str(library))
    first.save()
    remembered = json.loads((tmp_path / cache.HASHES).read_text())
    assert list(remembered) == [str(library)] and first.of(str(tmp_path / "none")) == ""
    remembered[str(library)][-1] = "planted"
    (tmp_path / cache.HASHES).write_text(json.dumps(remembered))
    assert Hashes(tmp_path).of(str(library)) == "planted"
    library.write_bytes(b"two")
    assert Hashes(tmp_path).of(str(library)) not in ("planted", mark)


def test_a_large_file_is_told_apart_by_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "SAMPLED_FROM", 1 << 20)
    monkeypatch.setattr(cache, "PIECE", 64 << 10)
    path = tmp_path / "lib.so"
    path.write_bytes(bytes(4 << 20))
    mark = Hashes(None).of(str(path))
    for place in (0, (2 << 20) + 5, (4 << 20) - 1):
        path.write_bytes(bytes(place) + b"x" + bytes((4 << 20) - place - 1))
        assert Hashes(None).of(str(path)) != mark


def test_answers_are_bounded_age_and_are_dropped_for_other_inputs(tmp_path: Path) -> None:
    for number in range(cache.MOST + 5):
        cache.write(tmp_path, f"{number:03}", Answer(0, time.time()), "{}")
        os.utime(tmp_path / f"answer-{number:03}.json", (number, number))
    cache.write(tmp_path, "last", Answer(0, time.time()), "{}")
    assert len(list(tmp_path.glob("answer-*"))) == len(list(tmp_path.glob("report-*"))) == cache.MOST
    assert cache.read(tmp_path, "last", lambda answer: True) is not None
    assert cache.read(tmp_path, "last", lambda answer: False) is None
    assert cache.read(tmp_path, "000", lambda answer: True) is None
    cache.write(tmp_path, "old", Answer(0, time.time() - 2 * cache.FRESH_SECONDS), "{}")
    assert cache.read(tmp_path, "old", lambda answer: True) is None


def test_an_answer_holds_while_what_it_read_is_the_same(tmp_path: Path) -> None:
    from attncheck.gate.inputs import Inputs

    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "deepspeed.json").write_text("{}")
    inputs = Inputs()
    inputs.file(str(tmp_path / "deepspeed.json"))
    inputs.file(str(tmp_path / "not-there.yaml"))
    inputs.model(str(tmp_path / "model"))
    answer = Answer(0, 0.0, inputs.files, inputs.models)
    assert cache_key.current(answer)
    (tmp_path / "not-there.yaml").write_text("now: it is\n")
    assert not cache_key.current(answer)
    (tmp_path / "not-there.yaml").unlink()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen2"}')
    assert not cache_key.current(answer)


def test_what_an_answer_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site-packages"
    info = site / "flash_attn-2.8.3.dist-info"
    info.mkdir(parents=True)
    (info / "RECORD").write_text("flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so,sha256=x,4\n")
    extension = site / "flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so"
    extension.write_bytes(b"\x7fELF")
    monkeypatch.setattr(cache_key, "sites", lambda python: [str(site)])

    def key(asked: Config | None = None, **environ: str) -> str:
        bench, hashes = ExecutionTarget("python"), Hashes(None)
        told = cache_key.circumstances(asked or Config(), bench, ("true",), "2026-11-21", hashes, environ)
        return cache.key(told)

    first = key()
    assert key() == first
    assert key(RANK="1", HOME="/x", MASTER_PORT="1") == first
    assert key(CUDA_VISIBLE_DEVICES="1") != first
    assert key(Config(plan={"packing": "padding"})) != first
    extension.write_bytes(b"\x7fELX")
    changed = key()
    assert changed != first
    info.rename(site / "flash_attn-2.8.4.dist-info")
    assert key() not in (first, changed)
    monkeypatch.setattr(cache_key, "gpus", lambda: ["nvidia0"])
    assert key() not in (first, changed)


def test_a_cache_of_another_user_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.folder({"XDG_CACHE_HOME": "relative", "HOME": ""}) is None
    found = cache.folder({"XDG_CACHE_HOME": "relative", "HOME": str(tmp_path)})
    assert found == tmp_path / ".cache" / "attncheck"
    found.chmod(0o777)
    assert cache.private(found) == found and found.stat().st_mode & 0o777 == 0o700
    link = tmp_path / "link"
    link.symlink_to(found)
    assert cache.private(link) is None
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert cache.private(found) is None


def test_a_change_of_our_own_code_is_another_circumstance() -> None:
    assert (cache_key.PACKAGE / "rules" / "launch_refused.py").exists()
