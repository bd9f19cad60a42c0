"""The import lane with real processes: packages that raise, crash, hang, flood, exit and leave children behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attncheck.doctor.probes.payload.imports import introspect, plan
from attncheck.doctor.probes.payload.imports.child import parse_crash_frames
from tests.conftest import find_python
from tests.doctor import stub_packages as stubs

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the import lane forks")


@pytest.fixture
def mark() -> Iterator[str]:
    """A value in the environment of every process that a test starts; none may be left."""
    value = uuid.uuid4().hex
    yield value
    assert stubs.wait_until_gone(value), f"left behind: {stubs.list_marked_processes(value)}"


def import_outcomes(
    site: Path, mark: str, names: list[str], deadline: float = 20.0, python: str = ""
) -> dict[str, dict[str, Any]]:
    """Return the outcomes of the import lane over the stub packages in `site`, by module."""
    return stubs.outcomes_by_module(stubs.run_import_lane(site, mark, names, deadline, python))


OutcomeCheck = Callable[[dict[str, Any]], bool]
MISBEHAVIOURS: dict[str, tuple[str, str, str, OutcomeCheck]] = {
    "raises": (
        "flash_attn",
        "flash-attn",
        stubs.MISSING_CUDA,
        lambda outcome: (
            outcome["exception"] == "ImportError"
            and "libcudart.so.12" in outcome["message"]
            and outcome["frames"] == ["flash_attn.py:1 in <module>"]
        ),
    ),
    "aborts": (
        "triton",
        "triton",
        stubs.ABORT,
        lambda outcome: outcome["outcome"] == "died" and outcome["signal"] == "SIGABRT",
    ),
    "crashes": (
        "yunchang",
        "yunchang",
        stubs.SEGFAULT,
        lambda outcome: (
            outcome["outcome"] == "died"
            and outcome["signal"] == "SIGSEGV"
            and "yunchang.py:3 in crash" in outcome["frames"]
        ),
    ),
    "floods": ("kernels", "kernels", stubs.FLOOD, lambda outcome: outcome["outcome"] == "ok"),
    "calls sys.exit": (
        "flash_attn_interface",
        "flash-attn-3",
        "import sys\nsys.exit(0)\n",
        lambda outcome: outcome["outcome"] == "raised" and outcome["exception"] == "SystemExit",
    ),
    "calls os._exit": (
        "peft",
        "peft",
        "import os\nos._exit(0)\n",
        lambda outcome: (
            outcome["outcome"] == "died" and outcome["signal"] == "" and "exit status 0" in outcome["message"]
        ),
    ),
    "interrupts": (
        "trl",
        "trl",
        "raise KeyboardInterrupt\n",
        lambda outcome: outcome["outcome"] == "raised" and outcome["exception"] == "KeyboardInterrupt",
    ),
    "raises a base exception": (
        "verl",
        "verl",
        "class Odd(BaseException):\n    def __str__(self):\n        raise ValueError\nraise Odd\n",
        lambda outcome: outcome["outcome"] == "raised" and outcome["exception"] == "Odd",
    ),
    "leaves children": (
        "ring_flash_attn",
        "ring-flash-attn",
        stubs.GRANDCHILDREN,
        lambda outcome: outcome["outcome"] == "ok",
    ),
    "closes its streams": (
        "causal_conv1d_cuda",
        "causal-conv1d",
        "import os\nos.close(1)\nos.close(2)\n",
        lambda outcome: outcome["outcome"] == "ok",
    ),
    "writes a huge message": (
        "selective_scan_cuda",
        "mamba-ssm",
        "raise RuntimeError('x' * 10_000_000)\n",
        lambda outcome: outcome["outcome"] == "raised" and len(outcome["message"]) == 2000,
    ),
    "kills its group": (
        "xformers.ops",
        "xformers",
        "import os\nos.killpg(0, 9)\n",
        lambda outcome: outcome["outcome"] == "died" and outcome["signal"] == "SIGKILL",
    ),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    value = uuid.uuid4().hex
    modules = {module: text for module, _, text, _ in MISBEHAVIOURS.values()}
    site = stubs.write_site(tmp_path_factory.mktemp("zoo"), modules)
    (site / "xformers" / "__init__.py").touch()
    document = stubs.run_import_lane(site, value, ["torch", *(name for _, name, _, _ in MISBEHAVIOURS.values())])
    if sys.platform.startswith("linux"):
        assert stubs.wait_until_gone(value), f"left behind: {stubs.list_marked_processes(value)}"
    return stubs.outcomes_by_module(document)


FRAMES = """Fatal Python error: Segmentation fault

%s (most recent call first):
  File "/lib/ctypes/__init__.py", line 624 in string_at
  File "/site/yunchang.py", line 3 in crash
"""
C_STACK = """
Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python3.14", at _Py_DumpStack+0x4a [0x49b2f9]
  Binary file "/usr/bin/python3.14" [0x53d28e]
"""


@pytest.mark.parametrize("heading", ["Stack", "Current thread 0x00007ff5e8044b80", "Current thread 0x1 [python3.14]"])
@pytest.mark.parametrize("after", ["", C_STACK])
def test_the_frames_of_a_crash_are_those_of_python(heading: str, after: str) -> None:
    frames = ["/site/yunchang.py:3 in crash", "/lib/ctypes/__init__.py:624 in string_at"]
    assert parse_crash_frames(FRAMES % heading + after) == frames


@pytest.mark.parametrize("title", MISBEHAVIOURS)
def test_each_ends_in_its_own_way_and_costs_only_itself(title: str, outcomes: dict[str, dict[str, Any]]) -> None:
    module, _, _, is_expected = MISBEHAVIOURS[title]
    assert is_expected(outcomes[module]), outcomes[module]
    assert outcomes["torch"]["outcome"] == "ok" and outcomes["torch"]["version"] == "2.0.0"


@linux
def test_those_that_hang_are_stopped_at_the_deadline_and_say_where(tmp_path: Path, mark: str) -> None:
    site = stubs.write_site(
        tmp_path,
        {"flash_attn": stubs.HANG, "triton": stubs.HANG, "yunchang": stubs.HANG, "kernels": "__version__ = '9'\n"},
    )
    begin = time.monotonic()
    outcomes = import_outcomes(site, mark, ["torch", "Flash_Attn", "triton", "yunchang", "kernels"], 4.0)
    assert time.monotonic() - begin < 60, "the stubs hang for longer"
    for module in ("flash_attn", "triton", "yunchang"):
        assert outcomes[module]["outcome"] == "hung" and outcomes[module]["seconds"] > 1.0, outcomes[module]
        assert outcomes[module]["frames"][-1] == f"{module}.py:6 in wait"
    assert outcomes["kernels"]["outcome"] == "ok" and outcomes["kernels"]["version"] == "9"


@linux
@pytest.mark.parametrize(
    ("text", "ending", "reason"),
    [
        (stubs.MISSING_CUDA, "raised", "torch raised ImportError on import"),
        (stubs.SEGFAULT, "died", "torch died on import"),
        ("import os\nos._exit(3)\n", "died", "torch died on import"),
        ("import sys\nsys.exit()\n", "raised", "torch raised SystemExit on import"),
        (stubs.HANG, "hung", "torch hung on import"),
        ("import os\nos.closerange(3, 4096)\n", "died", "torch died on import"),
    ],
    ids=["raises", "crashes", "calls os._exit", "calls sys.exit", "hangs", "closes everything"],
)
def test_a_broken_torch_costs_its_dependants_but_not_the_others(
    text: str, ending: str, reason: str, tmp_path: Path, mark: str
) -> None:
    site = stubs.write_site(
        tmp_path, {"torch": text, "transformers": "", "flash_attn": "", "triton": "__version__ = '3'\n"}
    )
    begin = time.monotonic()
    document = stubs.run_import_lane(site, mark, ["torch", "transformers", "flash-attn", "triton"], 3.0)
    assert time.monotonic() - begin < 60, "the stubs hang for longer"
    outcomes = stubs.outcomes_by_module(document)
    assert outcomes["torch"]["outcome"] == ending
    assert outcomes["triton"]["outcome"] == "ok"
    for module in ("transformers", "flash_attn"):
        assert (outcomes[module]["outcome"], outcomes[module]["message"]) == ("skipped", reason)
    assert f"torch {ending} on import" in document["torch"]["arch_list"]["unreadable"]
    assert "on import" in document["interfaces"]["attention_functions"]["unreadable"] or ending


@linux
def test_a_broken_flash_module_of_transformers_does_not_stop_the_others(tmp_path: Path, mark: str) -> None:
    modules = {
        "transformers.__init__": "",
        "transformers.modeling_flash_attention_utils": stubs.SEGFAULT,
        "transformers.modeling_utils": "import transformers.modeling_flash_attention_utils\n",
        "peft": "import transformers\n",
    }
    outcomes = import_outcomes(stubs.write_site(tmp_path, modules), mark, ["torch", "transformers", "peft"])
    assert outcomes["transformers"]["outcome"] == "ok"
    assert outcomes["transformers.modeling_flash_attention_utils"]["signal"] == "SIGSEGV"
    assert outcomes["transformers.modeling_utils"]["signal"] == "SIGSEGV"
    assert outcomes["peft"]["outcome"] == "ok"


@linux
def test_what_fails_only_in_a_fork_is_tried_again_from_nothing(tmp_path: Path, mark: str) -> None:
    torch = "import os\nmaker = os.getpid()\n"
    crash = "import os, torch\nif torch.maker != os.getpid():\n    os.abort()\n"
    message = "Cannot re-initialize CUDA in forked subprocess"
    refuse = f"import os, torch\nif torch.maker != os.getpid():\n    raise RuntimeError({message!r})\n"
    site = stubs.write_site(tmp_path, {"torch": torch, "flash_attn": crash, "yunchang": refuse})
    outcomes = import_outcomes(site, mark, ["torch", "flash-attn", "yunchang"])
    assert outcomes["flash_attn"]["outcome"] == outcomes["yunchang"]["outcome"] == "ok"


@linux
def test_a_torch_that_started_cuda_is_not_forked_from(tmp_path: Path, mark: str) -> None:
    torch = "import os\nmaker = os.getpid()\nclass cuda:\n    is_initialized = staticmethod(lambda: True)\n"
    site = stubs.write_site(
        tmp_path, {"torch": torch, "kernels": "import os, torch\n__version__ = str(torch.maker == os.getpid())\n"}
    )
    assert import_outcomes(site, mark, ["torch", "kernels"])["kernels"]["version"] == "True"


@linux
def test_a_process_that_lost_cuda_by_forking_is_not_asked(tmp_path: Path, mark: str) -> None:
    torch = (
        "import os\nmaker = os.getpid()\n"
        "class _C:\n    _cuda_isInBadFork = staticmethod(lambda: os.getpid() != maker)\n"
    )
    kernels = "import os, torch\n__version__ = str(torch.maker == os.getpid())\n"
    site = stubs.write_site(tmp_path, {"torch": torch, "transformers.__init__": kernels, "kernels": kernels})
    outcomes = import_outcomes(site, mark, ["torch", "transformers", "kernels"])
    assert outcomes["kernels"]["version"] == outcomes["transformers"]["version"] == "True"


@linux
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_process_that_asked(signal_number: signal.Signals, tmp_path: Path, mark: str) -> None:
    site = stubs.write_site(
        tmp_path, {"torch": "", "flash_attn": stubs.GRANDCHILDREN + stubs.HANG, "triton": stubs.HANG}
    )
    process = subprocess.Popen(
        **stubs.lane_command(site, mark, ["torch", "flash-attn", "triton"], 60.0), stderr=subprocess.PIPE
    )
    # The main process, the supervisor, torch, flash_attn, triton and two sleepers. Counted once a round: a process
    # that is just replacing its image has no environment to be known by.
    end = time.monotonic() + 60
    while (running := len(stubs.list_marked_processes(mark))) < 7 and time.monotonic() < end:
        time.sleep(0.05)
    assert running >= 7
    process.send_signal(signal_number)
    process.communicate(timeout=20)
    assert stubs.wait_until_gone(mark), stubs.list_marked_processes(mark)


def test_what_is_not_installed_is_not_tried(tmp_path: Path, mark: str) -> None:
    outcomes = import_outcomes(stubs.write_site(tmp_path, {"kernels": ""}), mark, ["kernels"])
    assert set(outcomes) == {"torch", "transformers", "kernels"}
    assert outcomes["torch"]["outcome"] == outcomes["transformers"]["outcome"] == "skipped"
    assert outcomes["torch"]["message"] == "torch is not installed"
    assert outcomes["kernels"]["outcome"] == "ok"


def test_without_fork_everything_is_skipped_with_the_reason(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attncheck.doctor.probes.payload.imports import lane

    monkeypatch.delattr(os, "fork")
    document = lane.run_import_lane(["torch"], 5.0)
    assert {outcome["outcome"] for outcome in document["imports"]} == {"skipped"}
    assert "cannot fork" in document["imports"][0]["message"]


def test_further_questions_are_asked_where_transformers_is(tmp_path: Path, mark: str) -> None:
    script = (
        "import json\nfrom attncheck.doctor.probes.payload.imports import lane\n"
        "import sys\nqueries = {'where': lambda: 'transformers' in sys.modules, 'no': lambda: 1 / 0}\n"
        "print(json.dumps(lane.run_import_lane(['transformers'], 20.0, queries)['answers']))\n"
    )
    command = stubs.lane_command(stubs.write_site(tmp_path, {"transformers.__init__": ""}), mark, [], 0.0)
    command["args"][2] = script
    answers = json.loads(subprocess.run(**command, stdout=subprocess.PIPE, timeout=60, check=True).stdout)
    assert answers["where"] == {"known": True}
    assert answers["no"]["unreadable"].startswith("ZeroDivisionError")


def test_nothing_is_written_beside_what_is_imported(tmp_path: Path, mark: str) -> None:
    site = stubs.write_site(tmp_path, {"flash_attn": stubs.ABORT, "kernels": ""})
    before = sorted(site.rglob("*"))
    stubs.run_import_lane(site, mark, ["torch", "flash-attn", "kernels"])
    assert sorted(site.rglob("*")) == before


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.13", "3.14"])
def test_other_interpreters(version: str, tmp_path: Path, mark: str) -> None:
    python = find_python(version)
    site = stubs.write_site(tmp_path, {"flash_attn": stubs.ABORT, "kernels": ""})
    outcomes = import_outcomes(site, mark, ["torch", "flash-attn", "kernels"], 20.0, python)
    assert outcomes["flash_attn"]["signal"] == "SIGABRT" and outcomes["kernels"]["outcome"] == "ok"


def test_the_real_torch_of_this_interpreter_gives_facts(tmp_path: Path, mark: str) -> None:
    torch = pytest.importorskip("torch")
    document = stubs.run_import_lane(tmp_path, mark, ["torch"], 60.0)
    facts = document["torch"]
    assert stubs.outcomes_by_module(document)["torch"]["version"] == torch.__version__
    assert set(facts["sdpa_switches"]["known"]) == set(introspect.SDPA_SWITCHES)
    assert facts["cuda_available"] == {"known": torch.cuda.is_available()}
    if torch.version.cuda is None:
        assert facts["arch_list"] == {"known": []}
        assert "absent" in facts["nccl"] and "absent" in facts["cudnn"] and "absent" in facts["cuda_error"]


@linux
def test_importing_torch_starts_no_thread_that_a_fork_would_lose() -> None:
    pytest.importorskip("torch")
    code = "import os, torch; print(len(os.listdir('/proc/self/task')))"
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # OpenBLAS starts threads and restarts them after a fork
    count = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert int(count.stdout) <= 2


def test_parents_come_before_children_in_the_plan() -> None:
    modules: set[str] = {""}
    for planned in plan.PLAN:
        assert planned.parent in modules
        modules.add(planned.module)
