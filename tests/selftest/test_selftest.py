"""`attncheck selftest`: real checks in sandboxes catch injected faults, and selftest itself can fail."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.core.io.errors import BadUsage, Unanswered
from attncheck.doctor import engine
from attncheck.doctor.probes.payload.binaries.elf import Elf
from attncheck.selftest import faults, run, table
from attncheck.selftest.faults import Fault, running
from attncheck.selftest.faults.running import CheckOutcome
from attncheck.selftest.run import SelftestResult
from tests.conftest import all_processes_gone, find_marked_processes
from tests.selftest.planted import compiled, get_fault, load_faults
from tests.selftest.planted.job import ENVIRONMENT

STATIC = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a throwaway environment needs Linux")
SOME_FAULTS: tuple[str, ...] = (
    "pytorch-alloc-conf-555",
    "cublas-workspace-config-702",
    "metadata-missing",
    "transformers-twice",
    "flash-attn-of-another-torch",
)
SOME_FAULTS += ("torch-dies", "mixed-gpus", "ring-window", "extension-cut")


def ignore_progress(text: str) -> None:
    """Show no progress."""


def run_faults(*selected: Fault) -> SelftestResult:
    return run.run_faults(selected, None, "cpu", 60.0, ignore_progress)


@STATIC
def test_planted_faults_are_caught_and_their_controls_silent(
    marker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    selected = [fault for fault in load_faults() if fault.name.startswith(SOME_FAULTS)]
    result = run_faults(*selected)
    assert len(selected) == 9
    assert {fault.status for fault in result.results} == {"caught"}, table.as_text(result)
    assert [control.status for control in result.controls] == ["silent", "silent"]
    assert result.exit_code == 0
    assert list(tmp_path.iterdir()) == [], "nothing of it is left"
    text = table.as_text(result)
    assert f"{len(selected)} faults: {len(selected)} caught, 0 missed, 0 skipped · 2 controls: 2 silent" in text
    document = json.loads(table.as_json(result))
    assert document["results"][0]["because"] and document["controls"][0]["codes"]


@STATIC
def test_a_fault_that_nobody_sees_is_called_missed() -> None:
    """The same fault without its injection: the real check finds nothing, and selftest must say so."""
    result = run_faults(replace(get_fault("metadata-missing"), inject=lambda sandbox: None), get_fault("mixed-gpus"))
    assert [fault.status for fault in result.results] == ["missed", "caught"]
    assert "ATN117 did not fire" in result.results[0].because
    assert result.exit_code == 1 and "1 missed" in table.as_text(result)


@STATIC
def test_a_check_that_is_switched_off_is_found_out(tmp_path: Path) -> None:
    """The rule ATN116 replaced by one that never complains, in the interpreter that runs the check."""
    fault = get_fault("transformers-twice")
    switch_off = "import attncheck.doctor.rules.torch.duplicate_distribution as rule\nfrom dataclasses import replace\n"
    switch_off += "rule.RULE = replace(rule.RULE, check=lambda snapshot: ())\n"
    root = Path(run.__file__).parents[2]

    def disabled(sandbox: faults.Sandbox) -> None:
        fault.inject(sandbox)
        sandbox.write_file("off/sitecustomize.py", f"import sys\nsys.path.append({str(root)!r})\n{switch_off}")
        sandbox.prepend_pythonpath(sandbox.folder / "off")

    result = run_faults(replace(fault, inject=disabled))
    assert result.results[0].status == "missed" and result.exit_code == 1, table.as_text(result)
    assert "ATN116 did not fire; the check found nothing" in result.results[0].because


@STATIC
def test_a_control_that_raises_an_alarm_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A healthy state that is not healthy: the fault is caught, and proves nothing."""
    fault = get_fault("metadata-missing")

    def setup(sandbox: faults.Sandbox) -> None:
        ENVIRONMENT.setup(sandbox)
        fault.inject(sandbox)

    family = replace(ENVIRONMENT, setup=setup)
    family_fault = replace(fault, family=family, inject=lambda sandbox: None)
    monkeypatch.setattr(faults, "load", lambda: ((family_fault,), ()))
    result = run_faults(family_fault)
    assert result.results[0].status == "caught" and result.controls[0].status == "alarm"
    assert "METADATA is missing" in result.controls[0].because and result.exit_code == 1


@STATIC
def test_a_check_that_ends_otherwise_than_with_a_report_catches_nothing() -> None:
    def breaks(sandbox: faults.Sandbox) -> None:
        sandbox.arguments[:] = ["doctor", "--no-such-option"]

    def hangs(sandbox: faults.Sandbox) -> None:
        sandbox.arguments[:] = ["doctor", "--facts", str(sandbox.folder / "pipe")]
        os.mkfifo(sandbox.folder / "pipe")

    first, second = replace(get_fault("mixed-gpus"), inject=breaks), replace(get_fault("mig"), inject=hangs)
    result = run.run_faults((first, second), None, "cpu", 4.0, ignore_progress)
    assert "wrote no report: it ended with exit status 2" in result.results[0].because
    assert "had not ended after 4 s" in result.results[1].because
    assert result.exit_code == 1


def test_what_is_missing_is_a_reason_to_skip() -> None:
    fault = replace(get_fault("mixed-gpus"), needs=("a-package-of-nobody",))
    result = run_faults(fault)
    assert result.results[0].status == "skipped" and "a-package-of-nobody" in result.results[0].because
    assert result.exit_code == 3 and result.controls == ()


def test_codes_are_chosen_by_beginning_and_unknown_ones_refused() -> None:
    all_faults = run.select_faults(("all",))
    assert all_faults == run.select_faults(()) and len({fault.name for fault in all_faults}) == len(all_faults) > 40
    assert {code for fault in run.select_faults(("atn102",)) for code in fault.codes} == {"ATN102"}
    assert len(run.select_faults(("ATN6",))) > 10
    with pytest.raises(BadUsage, match="no rule's code starts with 'ATN000'"):
        run.select_faults(("ATN000",))
    with pytest.raises(Unanswered, match="no fault is injected for ATN901"):
        run.select_faults(("ATN901",))


def test_every_fault_expects_a_code_that_exists_and_says_what_it_imitates() -> None:
    known = {rule.code for rule in engine.all_rules()[0]}
    machine_faults, broken = faults.load()
    assert broken == ()
    all_faults = (*machine_faults, *load_faults())
    assert len({fault.name for fault in all_faults}) == len(all_faults) > 190
    for fault in all_faults:
        assert fault.codes and set(fault.codes) <= known, fault.name
        assert fault.title and fault.imitates and fault.family.title
    listed = json.loads(table.list_faults(machine_faults, "json"))
    assert [fault["fault"] for fault in listed["faults"]] == [fault.name for fault in machine_faults]


@STATIC
@pytest.mark.nightly
def test_every_fault_of_an_environment_is_caught() -> None:
    result = run.run_faults(load_faults(), None, "cpu", 150.0, ignore_progress)
    assert {fault.status for fault in result.results} == {"caught"}, table.as_text(result)
    assert {control.status for control in result.controls} == {"silent"}, table.as_text(result)


@STATIC
def test_imports_are_checked_on_this_machine() -> None:
    result = run.run(("ATN102", "ATN902"), None, "cpu", 60.0, ignore_progress)
    assert [fault.status for fault in result.results] == ["caught"] * 4, table.as_text(result)
    assert [control.status for control in result.controls] == ["silent"], table.as_text(result)


@STATIC
def test_an_interrupt_leaves_no_process_and_no_folder(marker: str, tmp_path: Path) -> None:
    code = "from attncheck.core.io import interrupts; from attncheck.selftest import run as selftest\n"
    code += "interrupts.install_handlers(); "
    code += "selftest.run(('ATN102',), None, 'cpu', 60.0, print)"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 20
    while not list(tmp_path.glob("attncheck-selftest-*/*/packages")) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    assert find_marked_processes(marker)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) != 0
    assert all_processes_gone(marker) and list(tmp_path.iterdir()) == []


def test_variables_of_the_user_and_of_launchers_are_kept_out() -> None:
    user_environ = {"PATH": "/bin", "RANK": "0", "SLURM_PROCID": "3", "NCCL_P2P_DISABLE": "1"}
    sandbox = faults.Sandbox(Path("/nowhere"), "python", environ={"PATH": None, "A": "1"})
    assert running.check_environment(sandbox, user_environ) == {"NCCL_P2P_DISABLE": "1", "A": "1"}
    sandbox.hermetic = True
    assert running.check_environment(sandbox, user_environ) == {"A": "1"}


@pytest.mark.skipif(not compiled.is_supported(), reason="no libraries can be written for this machine")
def test_a_written_library_asks_and_offers_what_it_was_told_to(tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(
        compiled.build_library(("ours", "too"), ("theirs",), ("libm.so.6",), "x.so", ("libc.so.6", "GLIBC_9.9"))
    )
    with Elf(str(path)) as library:
        assert library.needed_libraries() == ["libm.so.6", "libc.so.6"] and library.undefined_symbols() == ["theirs"]
        assert library.defines_symbol("ours") and library.defines_symbol("too") and not library.defines_symbol("theirs")
        assert library.required_versions()["GLIBC"] == "9.9"


HEAVY_FAMILY = replace(ENVIRONMENT, heavy=True)


@pytest.mark.parametrize(("cores", "heavy", "light"), [(1, 2, 1), (2, 2, 1), (16, 5, 6), (128, 6, 116)])
def test_light_checks_take_the_cores_that_heavy_ones_leave(
    cores: int, heavy: int, light: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class EndedCheck:
        """A check that has ended when it is looked at."""

        def poll(self, timeout: float) -> CheckOutcome:
            return CheckOutcome(0.0, 0, ())

    turns: list[list[run.Task]] = [[]]

    def start_task(task: run.Task) -> EndedCheck:
        turns[-1].append(task)
        return EndedCheck()

    monkeypatch.setattr(run, "_start_task", start_task)
    monkeypatch.setattr(run, "count_cores", lambda: cores)
    monkeypatch.setattr("attncheck.selftest.run.time.sleep", lambda seconds: turns.append([]))
    sandbox, fault = faults.Sandbox(tmp_path / "none", "python"), faults.load()[0][0]
    light_tasks = [run.Task(f"light {number}", ENVIRONMENT, (), sandbox) for number in range(1000)]
    heavy_tasks = [run.Task(f"heavy {number}", HEAVY_FAMILY, (fault,) * number, sandbox) for number in range(20)]
    outcomes = run.run_tasks([*light_tasks, *heavy_tasks], 1.0, lambda text: None)
    assert len(outcomes) == 1020
    assert [task.name for task in turns[0][:heavy]] == [f"heavy {19 - index}" for index in range(heavy)], (
        "what plants most faults takes longest, and begins first"
    )
    assert len(turns[0]) == heavy + light
    assert max(sum(task.family.heavy for task in turn) for turn in turns) == heavy
    assert any(len(turn) == cores for turn in turns), "light ones alone take every core"


def test_what_the_user_has_on_pythonpath_stays_in_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/packages")
    sandbox = faults.Sandbox(tmp_path, "python")
    sandbox.prepend_pythonpath(tmp_path / "plugins")
    sandbox.prepend_pythonpath(tmp_path / "start")
    assert sandbox.environ["PYTHONPATH"] == f"{tmp_path}/start:{tmp_path}/plugins:/packages"
    alone = faults.Sandbox(tmp_path, "python", hermetic=True)
    alone.prepend_pythonpath(tmp_path / "plugins")
    assert alone.environ["PYTHONPATH"] == f"{tmp_path}/plugins"


def test_what_was_judged_before_an_interrupt_is_kept(marker: str) -> None:
    def interrupt(text: str) -> None:
        if re.match(r"[1-9]\d* of ", text):
            raise KeyboardInterrupt

    chosen = run.select_faults(("ATN52", "ATN43"))
    result = run.run_faults(chosen, None, "cpu", 60.0, interrupt)
    assert result.interrupted and result.exit_code == 130
    reasons = {outcome.because for outcome in result.results if outcome.status == "skipped"}
    assert "not reached: interrupted" in reasons
    assert len(result.results) == len(chosen)
    assert result.controls or result.count_status("caught")  # whichever ended first
