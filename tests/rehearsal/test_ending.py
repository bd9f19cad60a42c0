"""How a launch ended: with its own error, or because of what a rehearsal does not let it do."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.rehearsal import FilesBy, Isolation
from attncheck.core.results.smoke import judge_result
from attncheck.rehearsal.ending import excuse_stand_in, judge_end
from attncheck.rehearsal.execution import Execution, RunRequest, _follow

TRACEBACK = ("Traceback (most recent call last):", '  File "train.py", line 3, in <module>')
WARNING = "[W socket.cpp:759] The client socket cannot be initialized: Temporary failure in name resolution"


def end(*lines: str, files: FilesBy = "overlay", denied: tuple[str, ...] = (), status: int = 1) -> tuple[str, str]:
    result = judge_end(Execution(status, 0, (*TRACEBACK, *lines), 1.0, Isolation(files, denied=denied)))
    return judge_result(result), result.reason or "".join(result.violations)


@pytest.mark.parametrize(
    ("line", "files", "denied", "reason"),
    [
        ("OSError: [Errno 101] Network is unreachable", "overlay", (), "needs the network"),
        ("ConnectionError: Max retries exceeded: Failed to resolve: name resolution", "overlay", (), "the network"),
        ("PermissionError: attncheck rehearses without a network: ('10.0.0.1', 80)", "landlock", (), "the network"),
        ("PermissionError: [Errno 13] Permission denied: '/data/x'", "landlock", ("/data/x",), "must write /data/x"),
        ("OSError: [Errno 30] Read-only file system: '/data/x'", "read-only", ("/data/x",), "must write /data/x"),
        ("RuntimeError: Error 304: OS call failed or operation not supported", "landlock", (), "CUDA cannot start"),
        ("NotImplementedError: FlexAttention does not support backward on CPU.", "overlay", (), "with a GPU"),
    ],
)
def test_what_a_rehearsal_denies_is_no_fault_of_the_launch(
    line: str, files: FilesBy, denied: tuple[str, ...], reason: str
) -> None:
    answer, text = end(line, files=files, denied=denied)
    assert answer == "skipped" and reason in text


@pytest.mark.parametrize(
    ("lines", "denied"),
    [
        (("ValueError: bad rows",), ()),
        (("PermissionError: [Errno 13] Permission denied: '/etc/shadow'",), ()),  # which nobody may read
        (("PermissionError: [Errno 13] Permission denied: '/etc/shadow'",), ("/data/x",)),
        ((WARNING, *["  File x"] * 4, "ValueError: bad rows"), ()),  # a remark long before its own error
        (("RuntimeError: Error 304: OS call failed",), ()),
    ],
)
def test_its_own_error_stays_its_own(lines: tuple[str, ...], denied: tuple[str, ...]) -> None:
    assert end(*lines, denied=denied)[0] == "fail"


def test_an_error_that_python_ignores_is_not_the_end() -> None:
    ignored = ("Exception ignored in: <function tqdm.__del__ at 0x1>", *TRACEBACK, "AttributeError: no 'display'")
    assert end("ValueError: bad rows", *ignored)[1].startswith("ValueError: bad rows (ended with status 1")
    assert end("ValueError: bad rows", *ignored, *TRACEBACK, "KeyError: 'x'")[1].startswith("KeyError: 'x' (")


def test_an_ignored_error_without_a_traceback_hides_no_other() -> None:
    ignored = ("Exception ignored in: <_io.TextIOWrapper name='<stdout>'>", "BrokenPipeError: [Errno 32] Broken pipe")
    assert end("ValueError: bad rows", *ignored)[1].startswith("ValueError: bad rows (")
    assert end("ValueError: bad rows", *ignored, *TRACEBACK, "KeyError: 'x'")[1].startswith("KeyError: 'x' (")


def test_an_error_of_two_lines_is_read_to_its_end() -> None:
    """A validation's own first line only counts its errors."""
    text = end("ValidationError: 1 validation error for AxolotlConfig", "  Value error, packing does not work with rl")[
        1
    ]
    assert text.startswith("ValidationError: 1 validation error for AxolotlConfig Value error, packing does not work")


@pytest.mark.parametrize("rank", ["", "[rank1]: "])
def test_an_assertion_without_a_text_is_told_by_its_line(rank: str) -> None:
    lines = (f"{rank}    assert IMAGE in row['value']", f"{rank}           ^^^^^^^^^^^", f"{rank}AssertionError")
    assert end(*lines)[1].startswith("AssertionError: assert IMAGE in row['value'] (ended with status 1")
    assert end("    run()", f"{rank}AssertionError: no image")[1].startswith("AssertionError: no image (ended")


@pytest.mark.parametrize(("status", "answer"), [(0, "pass"), (137, "fail"), (127, "fail")])
def test_other_ends(status: int, answer: str) -> None:
    assert end("bash: line 1: trl: command not found", status=status)[0] == answer


@pytest.mark.parametrize(("steps", "is_stopped"), [(5, True), (3, False), (16, False)])
def test_a_launch_that_cannot_take_all_its_steps_is_stopped_at_half_of_its_time(
    tmp_path: Path, steps: int, is_stopped: bool
) -> None:
    """If the recorded steps are there, so that all but the learning is judged."""
    (tmp_path / "steps-0.json").write_text(json.dumps({"steps": [{}] * steps}))
    polls = iter([False, False, True])
    process: Any = type("Process", (), {"returncode": 0, "wait_for_exit": lambda self, seconds: next(polls)})()
    request, began = RunRequest("train", {}, False, 30, 100.0), time.monotonic() - 60
    ended = _follow(process, request, str(tmp_path), began, lambda text: None)
    assert ended.returncode == (None if is_stopped else 0) and ended.steps == steps
    assert not is_stopped or judge_end(ended).outcome == "out_of_time"


BANNER = (
    "E1126 failed (exitcode: 1) local_rank: 0 (pid: 7) of binary: python",
    "Traceback (most recent call last):",
    '  File "run.py", line 9, in main',
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "train.py FAILED",
)
RANKS = (
    "[rank1]: Traceback (most recent call last):",
    '[rank1]:   File "train.py", line 3, in <module>',
    "[rank1]: ValueError: bad rows",
    "[rank0]: Traceback (most recent call last):",
    '[rank0]:   File "train.py", line 9, in <module>',
    "[rank0]: torch.distributed.DistBackendError: Connection closed by peer [127.0.0.1]:9",
)


@pytest.mark.parametrize(
    ("lines", "first"),
    [
        (("ValueError: bad rows", *BANNER), "ValueError: bad rows"),
        (RANKS, "ValueError: bad rows"),  # the other rank's error follows from it
        ((*RANKS, *BANNER), "ValueError: bad rows"),
        ((*RANKS[3:], *BANNER), "torch.distributed.DistBackendError: Connection closed"),
        (("pkg.errors.Refused: no rows", *BANNER), "pkg.errors.Refused: no rows"),  # no name of an error
        (
            ("/bin/python: Error while finding module specification for 'a.b' (X: y)", *BANNER),
            "/bin/python: Error while",
        ),
        (("Could not override 'data.x'.", "Key 'x' is not in struct", *BANNER), "Could not override 'data.x'."),
        (("In 'dapo': Could not find 'ppo'", "Config search path:", *BANNER), "In 'dapo': Could not find 'ppo'"),
        (("StopIteration", "  warnings.warn(", "Saving: the log"), "StopIteration (ended"),
    ],
)
def test_the_trainers_own_error_comes_before_what_follows_from_it(lines: tuple[str, ...], first: str) -> None:
    assert end(*lines)[1].startswith(first)


def test_the_last_lines_of_a_rank_without_an_error_are_not_its_launchers() -> None:
    ended = Execution(1, 0, ("loading", "the data are empty, so nothing is trained", *BANNER[:1], "exitcode: 1"), 1.0)
    assert judge_end(ended).notes == ("loading", "the data are empty, so nothing is trained")
    killed = replace(ended, lines=("loading", BANNER[0].replace("exitcode: 1", "exitcode: -9")))
    assert "killed" in judge_end(killed).violations[0] and "killed" not in judge_end(ended).violations[0]


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        ("AttributeError: 'LlamaForCausalLM' object has no attribute 'set_lora_adapter'", "skipped"),
        ("AssertionError: Unknown backbone name llama.Supported models are {'gme'}", "skipped"),
        ("ValueError: no rows in /data/llama/rows", "fail"),
        ("AttributeError: 'Codellama' object has no attribute 'x'", "fail"),
        ("ModuleNotFoundError: No module named 'transformers.models.llama.gone'", "fail"),
    ],
)
def test_a_script_that_refuses_the_stand_in_is_not_at_fault(error: str, answer: str) -> None:
    """Only if the error names it: others are the launch's own."""
    result = excuse_stand_in(judge_end(Execution(1, 0, (*TRACEBACK, error), 1.0)), "llama", "microsoft/Phi-4")
    assert judge_result(result) == answer and error in (result.reason or "".join(result.violations))
