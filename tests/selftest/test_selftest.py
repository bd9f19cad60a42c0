"""`attncheck selftest`: real checks on planted ground catch what is planted, and selftest itself can fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.core.errors import BadUsage, Unanswered
from attncheck.doctor import engine
from attncheck.doctor.probes.payload.binaries.elf import Elf
from attncheck.selftest import faults, run
from attncheck.selftest import table as shown
from attncheck.selftest.faults import Fault, compiled, nothing, running
from attncheck.selftest.faults.job import ENVIRONMENT
from attncheck.selftest.run import Outcome
from tests.conftest import all_gone, processes_marked

STATIC = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a throwaway environment is laid on Linux")
FEW: tuple[str, ...] = (
    "pytorch-alloc-conf-555",
    "cublas-workspace-config-702",
    "metadata-missing",
    "transformers-twice",
    "flash-attn-of-another-torch",
)
FEW += ("torch-dies", "mixed-gpus", "ring-window", "extension-cut")


def quiet(text: str) -> None:
    """Show no progress."""


def prove(*planted: Fault) -> Outcome:
    return run.prove(planted, None, "cpu", 60.0, quiet)


def fault(name: str) -> Fault:
    return next(each for each in faults.load()[0] if each.name == name)


@STATIC
def test_planted_faults_are_caught_and_their_controls_silent(
    marker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    planted = [each for each in faults.load()[0] if each.name.startswith(FEW)]
    outcome = prove(*planted)
    assert len(planted) == 9
    assert {result.status for result in outcome.results} == {"caught"}, shown.as_text(outcome)
    assert [control.status for control in outcome.controls] == ["silent", "silent"]
    assert outcome.exit_code == 0
    assert list(tmp_path.iterdir()) == [], "nothing of it is left"
    text = shown.as_text(outcome)
    assert f"{len(planted)} faults: {len(planted)} caught, 0 missed, 0 skipped · 2 controls: 2 silent" in text
    document = json.loads(shown.as_json(outcome))
    assert document["results"][0]["because"] and document["controls"][0]["codes"]


@STATIC
def test_a_fault_that_nobody_sees_is_called_missed() -> None:
    """The same fault with its planting left out: the real check finds nothing, and selftest must say so."""
    outcome = prove(replace(fault("metadata-missing"), plant=nothing), fault("mixed-gpus"))
    assert [result.status for result in outcome.results] == ["missed", "caught"]
    assert "ATN117 did not fire" in outcome.results[0].because
    assert outcome.exit_code == 1 and "1 missed" in shown.as_text(outcome)


@STATIC
def test_a_check_that_is_switched_off_is_found_out(tmp_path: Path) -> None:
    """The rule ATN116 replaced by one that never complains, in the interpreter that runs the check."""
    planted = fault("transformers-twice")
    off = "import attncheck.doctor.rules.torch.duplicate_distribution as rule\nfrom dataclasses import replace\n"
    off += "rule.RULE = replace(rule.RULE, check=lambda snapshot: ())\n"
    root = Path(run.__file__).parents[2]

    def disabled(ground: faults.Ground) -> None:
        planted.plant(ground)
        ground.write("off/sitecustomize.py", f"import sys\nsys.path.append({str(root)!r})\n{off}")
        ground.before_all(ground.folder / "off")

    outcome = prove(replace(planted, plant=disabled))
    assert outcome.results[0].status == "missed" and outcome.exit_code == 1, shown.as_text(outcome)
    assert "ATN116 did not fire; the check found nothing" in outcome.results[0].because


@STATIC
def test_a_control_that_raises_an_alarm_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary state that is not ordinary: the fault is caught, and proves nothing."""
    spoilt = fault("metadata-missing")

    def lay(ground: faults.Ground) -> None:
        ENVIRONMENT.lay(ground)
        spoilt.plant(ground)

    family = replace(ENVIRONMENT, lay=lay)
    planted = replace(spoilt, family=family, plant=nothing)
    monkeypatch.setattr(faults, "load", lambda: ((planted,), ()))
    outcome = prove(planted)
    assert outcome.results[0].status == "caught" and outcome.controls[0].status == "alarm"
    assert "METADATA is missing" in outcome.controls[0].because and outcome.exit_code == 1


@STATIC
def test_a_check_that_ends_otherwise_than_with_a_report_catches_nothing() -> None:
    def breaks(ground: faults.Ground) -> None:
        ground.words[:] = ["doctor", "--no-such-option"]

    def hangs(ground: faults.Ground) -> None:
        ground.words[:] = ["doctor", "--facts", str(ground.folder / "pipe")]
        os.mkfifo(ground.folder / "pipe")

    first, second = replace(fault("mixed-gpus"), plant=breaks), replace(fault("mig"), plant=hangs)
    outcome = run.prove((first, second), None, "cpu", 4.0, quiet)
    assert "gave no report: it ended with exit status 2" in outcome.results[0].because
    assert "had not ended after 4 s" in outcome.results[1].because
    assert outcome.exit_code == 1


def test_what_is_missing_is_a_reason_to_skip() -> None:
    needy = replace(fault("mixed-gpus"), needs=("a-package-of-nobody",))
    outcome = prove(needy)
    assert outcome.results[0].status == "skipped" and "a-package-of-nobody" in outcome.results[0].because
    assert outcome.exit_code == 3 and outcome.controls == ()


def test_codes_are_chosen_by_beginning_and_unknown_ones_refused() -> None:
    every = run.chosen(("all",))
    assert every == run.chosen(()) and len({each.name for each in every}) == len(every) > 150
    assert {code for each in run.chosen(("atn117",)) for code in each.codes} == {"ATN117"}
    assert len(run.chosen(("ATN5",))) > 30
    with pytest.raises(BadUsage, match="no rule's code starts with 'ATN000'"):
        run.chosen(("ATN000",))
    with pytest.raises(Unanswered, match="no fault is planted for ATN901"):
        run.chosen(("ATN901",))


def test_every_fault_expects_a_code_that_exists_and_says_what_it_imitates() -> None:
    known = {rule.code for rule in engine.all_rules()[0]}
    every, broken = faults.load()
    assert broken == ()
    for each in every:
        assert each.codes and set(each.codes) <= known, each.name
        assert each.title and each.imitates and each.family.title
    listed = json.loads(shown.listing(every, run.uncovered(), "json"))
    covered = {code for each in listed["faults"] for code in each["codes"]}
    assert covered | {each["code"] for each in listed["uncovered"]} == known
    assert covered.isdisjoint(each["code"] for each in listed["uncovered"])
    assert f"{len(known - covered)} codes have no fault" in shown.listing(every, run.uncovered())


@STATIC
def test_an_interrupt_leaves_no_process_and_no_folder(marker: str, tmp_path: Path) -> None:
    code = "from attncheck.core import interrupts; from attncheck.selftest import run as selftest\n"
    code += "interrupts.install(); "
    code += "selftest.run(('ATN102',), None, 'cpu', 60.0, print)"
    started = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 20
    while not list(tmp_path.glob("attncheck-selftest-*/*/env")) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    assert processes_marked(marker)
    started.send_signal(signal.SIGINT)
    assert started.wait(20) != 0
    assert all_gone(marker) and list(tmp_path.iterdir()) == []


def test_variables_of_the_user_and_of_launchers_are_kept_out() -> None:
    own = {"PATH": "/bin", "RANK": "0", "SLURM_PROCID": "3", "NCCL_P2P_DISABLE": "1"}
    ground = faults.Ground(Path("/nowhere"), "python", environ={"PATH": None, "A": "1"})
    assert running.environment(ground, own) == {"NCCL_P2P_DISABLE": "1", "A": "1"}
    ground.hermetic = True
    assert running.environment(ground, own) == {"A": "1"}


@pytest.mark.skipif(not compiled.supported(), reason="no libraries can be written for this machine")
def test_a_written_library_asks_and_offers_what_it_was_told_to(tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(compiled.library(("ours", "too"), ("theirs",), ("libm.so.6",), "x.so", ("libc.so.6", "GLIBC_9.9")))
    with Elf(str(path)) as library:
        assert library.needed() == ["libm.so.6", "libc.so.6"] and library.undefined() == ["theirs"]
        assert library.defines("ours") and library.defines("too") and not library.defines("theirs")
        assert library.glibc_required() == "9.9"
