"""`attncheck run`: it becomes the command and leaves no trace, or refuses; ranks of a node follow their first one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.facts import Known
from attncheck.core.findings import Allowance
from attncheck.core.io import private_folder
from attncheck.core.io.errors import Unanswered
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.probes.collect import collect_with_stamps
from attncheck.gate import cache, cache_key, guard, node_leader
from attncheck.gate.cache import Answer
from attncheck.gate.policy import Policy
from attncheck.workers.execution import ExecutionTarget
from tests import snapshots
from tests.conftest import all_processes_gone

PROGRAM = [sys.executable, "-m", "attncheck"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
# Judged by files alone, so that a start costs a fraction of a second: torch is here, and is said to be missing.
PASSES = 'target = "cpu"\nselect = ["ATN101"]\n'
REFUSES = 'target = "cpu,torch=none"\nselect = ["ATN101"]\n'
# What a process was given: everything that two starts of it can differ in.
DESCRIBE = """
import json, os, sys
rows = [line.replace(":", " ").split() for line in open("/proc/self/status")]
fields = {row[0]: row[1:] for row in rows if row}
try:
    children = str(os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    children = "none"
print(json.dumps({
    "argv": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd(), "children": children,
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
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {dist.get_rank()} sums {int(total)} of {sys.argv[1:]}\\n", end="", flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a policy that passes, its own cache and a folder for temporary files."""
    for name in ("project", "cache", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "project" / "attncheck.toml").write_text(PASSES)
    return tmp_path / "project"


def start_command(
    project: Path, *argv: str, options: tuple[str, ...] = (), **settings: Any
) -> subprocess.CompletedProcess[bytes]:
    command = [*PROGRAM, "run", "--quiet", *options, "--", *argv]
    return subprocess.run(command, cwd=project, capture_output=True, timeout=60, **settings)


def write_policy(project: Path, text: str) -> None:
    (project / "attncheck.toml").write_text(text)


def list_answers(project: Path) -> list[Path]:
    return sorted((project.parent / "cache" / "attncheck").glob("answer-*.json"))


@pytest.mark.parametrize("environment", [{"LANG": "C", "LC_ALL": ""}, {"LC_CTYPE": "C.UTF-8"}])
def test_the_command_is_given_exactly_what_we_were_given(project: Path, environment: dict[str, str]) -> None:
    argv = [sys.executable, "-c", DESCRIBE, "a b", "", "--", "--help", "é\udcff"]
    environ = {**os.environ, **environment}
    if environment:
        environ = {name: text for name, text in environ.items() if not name.startswith("LC_") or name in environment}
    direct = subprocess.run(argv, cwd=project, capture_output=True, timeout=60, env=environ)
    for _ in range(2):  # checked, then from the cache
        result = start_command(project, *argv, env=environ)
        assert result.stderr == b""
        assert json.loads(result.stdout) == json.loads(direct.stdout)
    assert json.loads(result.stdout)["children"] == "none"
    assert list((project.parent / "temporary").iterdir()) == []


def test_streams_pass_untouched_byte_for_byte(project: Path) -> None:
    data = bytes(range(256)) * 4000
    script = "import sys; d = sys.stdin.buffer.read(); sys.stdout.buffer.write(d); sys.stderr.buffer.write(d[::-1])"
    for _ in range(2):
        result = start_command(project, sys.executable, "-c", script, input=data)
        assert (result.returncode, result.stdout, result.stderr) == (0, data, data[::-1])


def test_a_command_that_reads_its_settings_from_standard_input_gets_them(project: Path) -> None:
    (project / "train.sh").write_text("cat\n")
    argv = ("sh", "train.sh", "--config", "-", "accelerate", "launch", "--config_file", "/dev/stdin", "x.py")
    assert start_command(project, *argv, input=b"a: 1\n").stdout == b"a: 1\n"
    (project / "attncheck.toml").write_text(PASSES + 'launch = ["-"]\n')
    result = start_command(project, *argv, input=b"a: 1\n")
    assert (result.returncode, result.stderr) == (2, b"attncheck: launch: '-' is standard input; name a file\n")


def test_a_reader_that_leaves_ends_the_command_as_it_would_without_us(project: Path) -> None:
    line = " ".join([*PROGRAM, "run", "--quiet", "--", "yes"]) + " | head -n1; exit ${PIPESTATUS[0]}"
    result = subprocess.run(["bash", "-c", line], cwd=project, capture_output=True, timeout=60)
    assert (result.stdout, result.stderr) == (b"y\n", b"")
    assert result.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize("code", [0, 1, 7])
def test_exit_codes_pass(project: Path, code: int) -> None:
    assert start_command(project, "sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_command_which_is_our_process(project: Path, marker: str, signum: signal.Signals) -> None:
    command = [*PROGRAM, "run", "--quiet", "--", sys.executable, "-c", LISTEN]
    process = subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert int(process.stdout.readline()) == process.pid
    process.send_signal(signum)
    output, error = process.communicate(timeout=20)
    assert (process.returncode, output, error) == (40 + signum, f"got {int(signum)}\n".encode(), b"")
    assert all_processes_gone(marker)


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("no-such-command",), 127, b"attncheck: no-such-command: command not found\n"),
        (("./plain",), 126, b"attncheck: ./plain: Permission denied\n"),
        (("./interpreterless",), 126, b"attncheck: ./interpreterless: No such file or directory\n"),
        (("./binary",), 126, b"attncheck: ./binary: Exec format error\n"),
    ],
)
def test_a_command_that_cannot_start(project: Path, argv: tuple[str, ...], code: int, message: bytes) -> None:
    (project / "plain").write_text("x")
    (project / "folder").mkdir()
    for name, data in (("interpreterless", b"#!/no/such\n"), ("binary", b"\x7fELF\0\0\0\0")):
        (project / name).write_bytes(data)
        (project / name).chmod(0o755)
    result = start_command(project, *argv)
    assert (result.returncode, result.stdout, result.stderr) == (code, b"", message)


def test_what_a_command_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain").write_text("x")
    (tmp_path / "folder").mkdir()
    for word, code, message in (
        ("./missing", 127, "No such file or directory"),
        ("./folder", 126, "Is a directory"),
        ("folder", 127, "command not found"),
        ("plain", 126, "Permission denied"),
        ("", 127, "command not found"),
        ("a\0b", 127, "command not found"),
    ):
        with pytest.raises(guard.NotStarted) as caught:
            guard.find_program(word, {"PATH": str(tmp_path)})
        assert (caught.value.exit_code, str(caught.value)) == (code, f"{word}: {message}")


def test_a_script_without_a_first_line_is_the_shells(project: Path) -> None:
    (project / "script").write_text('echo "$0 $1"; exit 7\n')
    (project / "script").chmod(0o755)
    result = start_command(project, "./script", "a b")
    assert (result.returncode, result.stdout) == (7, b"./script a b\n")


def test_a_refusal_prints_the_report_each_time_and_starts_nothing(project: Path) -> None:
    write_policy(project, REFUSES)
    for cached in (0, 1):
        assert len(list_answers(project)) == cached
        result = start_command(project, "touch", "started")
        assert result.returncode == 1 and result.stdout == b""
        assert b"ATN101" in result.stderr
        assert result.stderr.endswith(b"attncheck: refused: 1 error, ATN101; touch was not started\n")
    assert not (project / "started").exists()


def test_a_command_that_may_start_is_one_line_on_standard_error(project: Path) -> None:
    """What was checked is said, and never into standard output, which is the job's."""
    command = [*PROGRAM, "run", "--", "printf", "out"]
    lines = []
    for _ in range(2):  # checked, then kept
        result = subprocess.run(command, cwd=project, capture_output=True, timeout=60, text=True)
        assert (result.returncode, result.stdout) == (0, "out")
        lines.append(result.stderr)
    first = "attncheck: 1 passed, 0 errors; not linted: no known trainer was recognised"
    assert lines[0] == first + "\n"
    assert re.fullmatch(re.escape(first) + r"; kept answer of \d{4}-\d\d-\d\d \d\d:\d\d UTC\n", lines[1])
    assert start_command(project, "printf", "out").stderr == b""  # --quiet
    closed = subprocess.run(["sh", "-c", f"{' '.join(command)} 2>&-"], cwd=project, capture_output=True, timeout=60)
    assert (closed.returncode, closed.stdout) == (0, b"out")


def test_the_line_counts_what_stays(project: Path) -> None:
    write_policy(project, REFUSES + 'fail-on = "never"\n')
    command = [*PROGRAM, "run", "--no-cache", "--", "true"]
    result = subprocess.run(command, cwd=project, capture_output=True, timeout=60, text=True)
    assert result.stderr.startswith("attncheck: 0 passed, 1 error, ATN101; not linted: ")
    known = 'ignore = [{code = "ATN101", reason = "none needed", until = "2999-01-01"}]\n'
    write_policy(project, REFUSES + known)
    result = subprocess.run(command, cwd=project, capture_output=True, timeout=60, text=True)
    assert result.stderr.startswith("attncheck: 0 passed, 0 errors, 1 allowed; not linted: ")


def test_a_script_of_no_known_trainer_is_not_linted_and_starts(project: Path) -> None:
    """Also if the policy names lint: that nobody knows the trainer is no fault, and no gap that refuses a job."""
    (project / "train.sh").write_text("echo started\n")
    write_policy(project, PASSES + 'checks = ["lint"]\nlaunch = ["train.sh"]\n')
    result = subprocess.run(
        [*PROGRAM, "run", "--", "sh", "train.sh"], cwd=project, capture_output=True, timeout=60, text=True
    )
    assert (result.returncode, result.stdout) == (0, "started\n")
    assert "not linted: no known trainer was recognised" in result.stderr
    gated = subprocess.run([*PROGRAM, "gate"], cwd=project, capture_output=True, timeout=60, text=True)
    assert gated.returncode == 0
    assert "not run lint  no known trainer was recognised" in gated.stdout


def test_an_answer_is_taken_from_the_cache_while_nothing_changed(project: Path) -> None:
    def runs_gate(*argv: str, options: tuple[str, ...] = (), **settings: Any) -> bool:
        """Return whether a start ran the gate: it wrote an answer."""
        before = {path: path.stat().st_mtime_ns for path in list_answers(project)}
        assert start_command(project, *argv, options=options, **settings).returncode == 0
        return before != {path: path.stat().st_mtime_ns for path in list_answers(project)}

    (project / "train.sh").write_text("true # 1\n")
    write_policy(project, PASSES + 'launch = ["train.sh"]\n')
    argv = ("sh", "train.sh")
    assert runs_gate(*argv)
    assert not runs_gate(*argv)
    assert runs_gate("sh", "train.sh", "other")
    (project / "train.sh").write_text("true # 2\n")
    assert runs_gate(*argv)
    assert runs_gate(*argv, env={**os.environ, "NCCL_DEBUG": "INFO"})
    assert not runs_gate(*argv, env={**os.environ, "UNRELATED": "1", "LOCAL_RANK": "3"})
    write_policy(project, PASSES + 'launch = ["train.sh"]\nfail-on = "warning"\n')
    assert runs_gate(*argv)
    assert not runs_gate(*argv, options=("--no-cache",))


def test_a_module_that_was_edited_where_it_lies_is_seen(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = project.parent / "site"
    (site / "flash_attn").mkdir(parents=True)
    (site / "flash_attn-2.8.3.dist-info").mkdir()
    (site / "flash_attn-2.8.3.dist-info" / "METADATA").write_text("Name: flash-attn\nVersion: 2.8.3\n")
    (site / "flash_attn-2.8.3.dist-info" / "RECORD").write_text("flash_attn/__init__.py,,4\n")
    module = site / "flash_attn" / "__init__.py"
    module.write_text("x=1\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH")))))
    digests = [collect_with_stamps(sys.executable, 60.0)[1]]
    assert collect_with_stamps(sys.executable, 60.0)[1] == digests[0]
    module.write_text("x=2\n")
    os.utime(module, ns=(1, 1))
    digests.append(collect_with_stamps(sys.executable, 60.0)[1])
    module.unlink()
    digests.append(collect_with_stamps(sys.executable, 60.0)[1])
    assert len(set(digests)) == 3


def test_a_second_start_imports_nothing_heavy(project: Path) -> None:
    start_command(project, "true")
    result = start_command(project, "true", env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"})
    names = {line.rpartition(b"|")[2].strip() for line in result.stderr.splitlines()}
    assert b"attncheck.gate.guard" in names
    assert not names & {b"torch", b"transformers", b"attncheck.gate.run", b"attncheck.doctor.engine", b"rich.console"}


def test_damage_to_the_cache_costs_a_check_and_no_more(project: Path) -> None:
    start_command(project, "true")
    folder = project.parent / "cache" / "attncheck"
    assert folder.stat().st_mode & 0o777 == 0o700
    for data in (b"\xff", b'{"code": "0", "written": 1}'):
        for path in folder.iterdir():
            path.write_bytes(data)
        result = start_command(project, "true")
        assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    write_policy(project, REFUSES)
    start_command(project, "true")
    for path in folder.glob("report-*"):
        path.write_bytes(b"{")
    assert b"ATN101" in start_command(project, "true").stderr


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b'{"code": "0", "written": 1}', b"[" * 100_000, b"null"])
def test_a_damaged_answer_is_as_if_it_were_not_there(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "answer-x.json").write_bytes(data)
    assert cache.read_answer(tmp_path, "x", lambda answer: True) is None


def test_no_home_and_a_cache_that_cannot_be_written(project: Path) -> None:
    minimal_environ = {"PATH": os.environ["PATH"]}
    assert start_command(project, "true", env=minimal_environ).returncode == 0
    (project / "file").write_text("")
    assert (
        start_command(project, "true", env={**minimal_environ, "XDG_CACHE_HOME": str(project / "file")}).returncode == 0
    )


def test_many_starts_at_once(project: Path) -> None:
    command = [*PROGRAM, "run", "--quiet", "--", "true"]
    processes = [subprocess.Popen(command, cwd=project, stderr=subprocess.PIPE) for _ in range(4)]
    assert [process.communicate(timeout=60)[1] for process in processes] == [b""] * 4
    assert {process.returncode for process in processes} == {0}
    assert len(list_answers(project)) == 1


def test_torchrun_over_gloo_and_its_exit_codes(project: Path, marker: str) -> None:
    (project / "train.py").write_text(GLOO)
    argv = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "train.py", "--x", "a b"]
    result = start_command(project, *argv)
    assert result.returncode == 0
    assert sorted(result.stdout.splitlines()) == [f"rank {rank} sums 2 of ['--x', 'a b']".encode() for rank in (0, 1)]
    argv = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "--no-python", "sh", "-c", "exit 7"]
    assert start_command(project, *argv).returncode == 1
    assert all_processes_gone(marker)


@pytest.mark.parametrize("text", [PASSES, REFUSES])
def test_inside_torchrun_the_first_rank_checks_and_the_other_follows(project: Path, marker: str, text: str) -> None:
    write_policy(project, text)
    rank = "import os; print(f\"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}\\n\", end='', flush=True)"
    inner = [*PROGRAM, "run", "--no-cache", "--", sys.executable, "-c", rank]
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "--no-python", *inner]
    result = subprocess.run(command, cwd=project, capture_output=True, timeout=60)
    if text == PASSES:
        assert result.returncode == 0
        assert sorted(result.stdout.splitlines()) == [b"rank 0 of 2", b"rank 1 of 2"]
    else:
        assert (result.returncode, result.stdout) == (1, b"")
        assert result.stderr.count(b"was not started") == 1
        assert result.stderr.count(b"torch is not installed") == 1
    assert all_processes_gone(marker)


TORCHRUN_RANK = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
SLURM_RANK = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "7"}


def test_the_place_of_a_rank_on_its_node() -> None:
    assert node_leader.node_rank({}, ("true",)) == node_leader.ALONE
    assert node_leader.node_rank({"RANK": "0", "WORLD_SIZE": "2"}, ("true",)) == node_leader.ALONE  # half a place
    torchrun_node = node_leader.node_rank({**TORCHRUN_RANK, "LOCAL_WORLD_SIZE": "2"}, ("true",))
    assert (torchrun_node.leads, torchrun_node.reports, torchrun_node.local_size) == (False, False, 2)
    node = node_leader.node_rank(SLURM_RANK, ("true",))
    assert (node.leads, node.reports) == (True, False)
    first = node_leader.node_rank({**TORCHRUN_RANK, "RANK": "2", "LOCAL_RANK": "0"}, ("true",))
    assert first.launch_id == node_leader.node_rank(TORCHRUN_RANK, ("true",)).launch_id
    again = {**TORCHRUN_RANK, "TORCHELASTIC_RESTART_COUNT": "1"}
    assert node_leader.node_rank(again, ("true",)).launch_id != first.launch_id
    assert node_leader.node_rank(TORCHRUN_RANK, ("false",)).launch_id != first.launch_id


def test_a_ring_is_no_larger_than_the_node() -> None:
    policy = Policy(ring_size=16)
    assert guard.fit_node(policy, node_leader.ALONE).ring_size == 16
    assert guard.fit_node(policy, replace(node_leader.ALONE, local_size=8)).ring_size == 8
    assert guard.fit_node(policy, replace(node_leader.ALONE, local_size=1)).ring_size == 0


def test_rank_variables_are_hidden_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {**TORCHRUN_RANK, **SLURM_RANK, "TORCHELASTIC_RUN_ID": "x", "PET_NNODES": "2"}.items():
        monkeypatch.setenv(name, text)
    before = dict(os.environ)
    with node_leader.hide_rank():
        assert not {*TORCHRUN_RANK, "SLURM_PROCID", "TORCHELASTIC_RUN_ID", "PET_NNODES"} & set(os.environ)
        assert os.environ["SLURM_JOB_ID"] == "7"
    assert dict(os.environ) == before


LEADER = node_leader.NodeRank(True, True, "launch")
FOLLOWER = node_leader.NodeRank(False, False, "launch")


def lead_in_thread(folder: Path, code: int | None) -> threading.Thread:
    def lead() -> None:
        with node_leader.lead_node(folder, LEADER) as publish:
            time.sleep(0.3)
            if code is not None:
                publish(code)

    thread = threading.Thread(target=lead)
    thread.start()
    return thread


@pytest.mark.parametrize("code", [0, 1])
def test_a_rank_hears_the_answer_of_the_first_whoever_begins(tmp_path: Path, code: int) -> None:
    thread = lead_in_thread(tmp_path, code)
    assert node_leader.follow_leader(tmp_path, FOLLOWER, 10.0) == code
    thread.join()
    assert node_leader.follow_leader(tmp_path, FOLLOWER, 10.0) == code  # one that comes late


def test_a_first_rank_that_ends_without_an_answer(tmp_path: Path) -> None:
    thread = lead_in_thread(tmp_path, None)
    time.sleep(0.1)
    with pytest.raises(Unanswered, match="ended without answering"):
        node_leader.follow_leader(tmp_path, FOLLOWER, 10.0)
    thread.join()


def test_a_first_rank_that_never_answers_or_never_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = lead_in_thread(tmp_path, 0)
    time.sleep(0.1)
    with pytest.raises(Unanswered, match=r"did not answer within 0\.1 s"):
        node_leader.follow_leader(tmp_path, FOLLOWER, 0.1)
    thread.join()
    monkeypatch.setattr(node_leader, "START_SECONDS", 0.2)
    assert node_leader.follow_leader(tmp_path, replace(FOLLOWER, launch_id="other"), 10.0) is None


def test_answers_are_bounded_age_and_are_dropped_for_other_inputs(tmp_path: Path) -> None:
    for number in range(cache.MAX_ANSWERS + 5):
        cache.write_answer(tmp_path, f"{number:03}", Answer(0, time.time()), "{}")
        os.utime(tmp_path / f"answer-{number:03}.json", (number, number))
    cache.write_answer(tmp_path, "last", Answer(0, time.time()), "{}")
    assert len(list(tmp_path.glob("answer-*"))) == len(list(tmp_path.glob("report-*"))) == cache.MAX_ANSWERS
    assert cache.read_answer(tmp_path, "last", lambda answer: True) is not None
    assert cache.read_answer(tmp_path, "last", lambda answer: False) is None
    assert cache.read_answer(tmp_path, "000", lambda answer: True) is None
    cache.write_answer(tmp_path, "old", Answer(0, time.time() - 2 * cache.MAX_AGE_SECONDS), "{}")
    assert cache.read_answer(tmp_path, "old", lambda answer: True) is None


def test_an_answer_holds_while_what_it_read_is_the_same(tmp_path: Path) -> None:
    from attncheck.gate.inputs import Inputs

    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "deepspeed.json").write_text("{}")
    inputs = Inputs()
    inputs.read_file(str(tmp_path / "deepspeed.json"))
    inputs.read_file(str(tmp_path / "not-there.yaml"))
    inputs.read_model(str(tmp_path / "model"))
    answer = Answer(0, 0.0, inputs.files, inputs.models)
    assert guard._is_current(answer)
    (tmp_path / "not-there.yaml").write_text("now: it is\n")
    assert not guard._is_current(answer)
    (tmp_path / "not-there.yaml").unlink()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen2"}')
    assert not guard._is_current(answer)


def test_what_an_answer_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot, default = snapshots.load_snapshot("h200"), Policy()
    monkeypatch.chdir(tmp_path)

    def key(
        collected: Snapshot = snapshot,
        policy: Policy = default,
        argv: str = "true",
        date: str = "2026-11-21",
        **environ: str,
    ) -> str:
        changed = replace(collected, environ={**collected.environ, **environ})
        monkeypatch.setattr(cache_key, "collect_with_stamps", lambda *arguments: (changed, "stamps"))
        return cache_key.answer_key(policy, ExecutionTarget("python"), (argv,), date)

    first = key()
    assert key() == first
    assert key(date="2026-11-22") == first
    assert key(RANK="1", MASTER_PORT="1", SLURM_PROCID="2") == first
    busier_host = replace(snapshot.host, memory_available_bytes=Known(1))
    assert key(replace(snapshot, host=busier_host, taken="2030-01-01")) == first
    ignoring = Policy(allowances=(Allowance("ATN140", "known", "2026-11-21"),))
    (tmp_path / "baseline.json").write_text("{}")
    other_keys = [
        key(CUDA_VISIBLE_DEVICES="1"),
        key(policy=Policy(plan={"packing": "padding"})),
        key(argv="false"),
        key(snapshots.without_packages(snapshot, "flash-attn")),
        key(policy=ignoring),
        key(policy=ignoring, date="2026-11-22"),
        key(policy=Policy(baseline="baseline.json")),
    ]
    (tmp_path / "baseline.json").write_text("[]")
    other_keys.append(key(policy=Policy(baseline="baseline.json")))
    for pin in ("torch==2.9.0", "torch==2.10.0"):
        (tmp_path / "requirements.txt").write_text(pin)
        other_keys.append(key(policy=Policy(target="h100x8,requirements.txt")))
    monkeypatch.setattr(cache_key, "describe_machine", lambda: ["another"])
    other_keys.append(key())
    monkeypatch.setattr(cache_key, "describe_machine", list)  # a driver that is not described
    for boot in ("one", "two"):
        monkeypatch.setattr(cache_key, "identify_machine", lambda boot=boot: [boot, "kfd"])
        other_keys.append(key())
    assert len({first, *other_keys}) == len(other_keys) + 1


def test_a_cache_of_another_user_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert private_folder.cache_folder({"XDG_CACHE_HOME": "relative", "HOME": ""}) is None
    folder = private_folder.cache_folder({"XDG_CACHE_HOME": "relative", "HOME": str(tmp_path)})
    assert folder == tmp_path / ".cache" / "attncheck"
    folder.chmod(0o777)
    assert private_folder.make_private(folder) == folder and folder.stat().st_mode & 0o777 == 0o700
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert private_folder.make_private(link) is None
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert private_folder.make_private(folder) is None
