"""Upgrades that are read from wheels and run from a temporary folder, in environments of small planted packages."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.findings import Finding, Problem
from attncheck.core.io.errors import Unanswered
from attncheck.core.report import Report
from attncheck.core.results.upgrade import UpgradeSection
from attncheck.doctor import engine
from attncheck.doctor.repair.overlays import complete_overlay
from attncheck.stacks.upgrade.compare import Judging
from attncheck.stacks.upgrade.trial import TrialOutcome, _try_run
from attncheck.workers.execution import ExecutionTarget
from tests import snapshots as s
from tests.conftest import Run
from tests.stacks.upgrade_wheels import list_files, make_environment, write_wheel

# A framework that takes two names of transformers, one if it is imported and one in a module that jobs import.
TRL = {
    "trl/__init__.py": "from transformers.trainer import Trainer, kept_name\n",
    "trl/trainer/__init__.py": "from transformers.utils import helper\n",
}
KEPT = {
    "transformers/__init__.py": "__version__ = '{}'\n",
    "transformers/trainer.py": "class Trainer: ...\ndef kept_name(): ...\n",
    "transformers/utils/__init__.py": "def helper(): ...\n",
}
DROPPED = {**KEPT, "transformers/trainer.py": "class Trainer: ...\n"}
HANGING = {**KEPT, "transformers/__init__.py": "import time\ntime.sleep(600)\n"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheels of all releases."""
    folder = tmp_path_factory.mktemp("wheels")
    for version, files in (("5.17.0", KEPT), ("5.18.0", KEPT), ("5.90.0", DROPPED), ("5.91.0", HANGING)):
        named = {path: text.replace("{}", version) for path, text in files.items()}
        write_wheel(folder, "transformers", version, named)
    write_wheel(folder, "transformers", "5.92.0", KEPT, requires=("small-helper>=2",))
    write_wheel(folder, "transformers", "5.93.0", KEPT, requires=("nowhere-to-be-had>=2",))
    for version in ("1.0", "2.0"):
        requires = ("deeper",) if version == "2.0" else ()
        write_wheel(folder, "small-helper", version, {"small_helper.py": ""}, requires)
    write_wheel(folder, "deeper", "1.0", {"deeper.py": ""})
    write_wheel(folder, "trl", "1.0", TRL, requires=("transformers>=5",))
    return folder


@pytest.fixture(scope="module")
def python(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the Python of an environment with a transformers and a trl that fit each other."""
    names = ("transformers-5.17.0", "trl-1.0", "small_helper-1.0")
    folder = tmp_path_factory.mktemp("environment") / "env"
    return str(make_environment(folder, *(wheels / f"{name}-py3-none-any.whl" for name in names)))


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str) -> Iterator[Path]:
    """Keep temporary folders below one, empty afterwards; the environment is as it was, and nothing asks an index."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    for name, value in {
        "TMPDIR": str(folder),
        "PIP_INDEX_URL": "http://127.0.0.1:9/",
        "PIP_CONFIG_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(name, value)
    environment = Path(python).parents[1]
    before = list_files(environment)
    yield folder
    assert list(folder.glob("attncheck-*")) == [] and list_files(environment) == before


def wheel(wheels: Path, version: str) -> str:
    return str(wheels / f"transformers-{version}-py3-none-any.whl")


def judge(attncheck: Run, python: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the report of `attncheck upgrade`."""
    result = attncheck("upgrade", *arguments, "--python", python, "--format", "json")
    assert result.returncode in (0, 1, 3), result.stderr
    assert "(temporary folder)" not in result.stderr
    return result.returncode, json.loads(result.stdout)


def codes(report: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in report["findings"]]


def test_a_name_that_goes_is_read_in_the_wheel_without_a_run(attncheck: Run, python: str, wheels: Path) -> None:
    code, report = judge(attncheck, python, wheel(wheels, "5.90.0"))
    assert (code, codes(report), report["upgrade"]["basis"]) == (1, ["ATN131"], "read")
    text = json.dumps(report["findings"])
    assert "kept_name" in text and "helper" not in text
    code, report = judge(attncheck, python, "transformers==5.90.0")
    assert (code, codes(report)) == (3, []), "in no table"
    assert any("no wheel was read" in line for line in report["upgrade"]["unknown"])


def test_a_release_that_is_fine_has_no_finding(attncheck: Run, python: str, wheels: Path) -> None:
    code, report = judge(attncheck, python, wheel(wheels, "5.18.0"))
    assert (code, codes(report), report["upgrade"]["breaks"]) == (0, [], [])
    code, report = judge(attncheck, python, wheel(wheels, "5.18.0"), "--try", "--only", "imports")
    assert (code, codes(report), report["upgrade"]["basis"]) == (0, [], "tried")
    assert [stage["outcome"] for stage in report["upgrade"]["stages"]] == ["same", "same"]


def test_a_trial_imports_what_breaks_and_names_no_folder_that_is_gone(
    attncheck: Run, python: str, wheels: Path, temporary_folder: Path, marker: str
) -> None:
    arguments = ("transformers==5.90.0", "--find-links", str(wheels), "--try", "--only", "imports")
    code, report = judge(attncheck, python, *arguments)
    assert code == 1 and report["upgrade"]["basis"] == "tried" and "ATN131" in codes(report)
    assert "cannot import name 'kept_name'" in json.dumps(report["findings"])
    assert f"{temporary_folder}/attncheck-" not in json.dumps(report)


def test_what_is_required_moves_along_at_any_depth(attncheck: Run, python: str, wheels: Path) -> None:
    arguments = ("transformers==5.92.0", "--find-links", str(wheels), "--try", "--only", "imports")
    code, report = judge(attncheck, python, *arguments)
    section = report["upgrade"]
    assert code == 0 and codes(report) == ["ATN925"]
    assert [(p["name"], p["before"], p["after"]) for p in section["packages"] if not p["named"]] == [
        ("deeper", "", "1.0"),
        ("small-helper", "1.0", "2.0"),
    ]


def test_a_folder_is_completed_at_any_depth(python: str, wheels: Path) -> None:
    options = ("--no-index", "--find-links", str(wheels))
    snapshot = s.without_packages(s.laptop(), "transformers")
    with complete_overlay(python, ("transformers==5.92.0",), snapshot, lambda text: None, options) as folder:
        names = {path.name for path in folder.glob("*.py")}
    assert names == {"small_helper.py", "deeper.py"}


def test_what_cannot_be_had_leaves_the_question_open_and_keeps_the_prediction(
    attncheck: Run, python: str, wheels: Path
) -> None:
    code, report = judge(attncheck, python, wheel(wheels, "5.93.0"), "--find-links", str(wheels), "--try")
    (stage,) = report["upgrade"]["stages"]
    assert code == 3 and (stage["name"], stage["outcome"]) == ("install", "not_run")
    assert report["upgrade"]["basis"] == "read" and codes(report) == ["ATN925"]


def test_torch_is_not_tried_and_that_is_said_by_name(attncheck: Run, python: str) -> None:
    code, report = judge(attncheck, python, "torch==2.99.0", "--try", "--only", "imports")
    (stage,) = report["upgrade"]["stages"]
    assert code == 3 and stage["detail"].startswith("torch 2.99.0: it takes gigabytes")


def start(python: str, wheels: Path, folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "attncheck", "upgrade", wheel(wheels, "5.91.0"), "--python", python, "--try"]
    return subprocess.Popen(
        [*command, "--only", "imports", "--timeout", "300", "--format", "json", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
def test_an_interrupt_shows_what_was_judged_and_leaves_nothing(
    number: int, python: str, wheels: Path, temporary_folder: Path, marker: str
) -> None:
    process = start(python, wheels, temporary_folder)
    deadline = time.monotonic() + 90
    # The second folder of packages is the trial's: the first one is read, and removed.
    seen: set[str] = set()
    while len(seen) < 2 and time.monotonic() < deadline and process.poll() is None:
        seen |= {str(path) for path in temporary_folder.glob("attncheck-*/packages-*/transformers")}
        time.sleep(0.05)
    time.sleep(1.0)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    report = json.loads(output)
    assert report["upgrade"]["interrupted"] and report["upgrade"]["basis"] == "read"


def test_a_budget_ends_a_trial_that_hangs(python: str, wheels: Path, temporary_folder: Path, marker: str) -> None:
    process = start(python, wheels, temporary_folder, "--budget", "6")
    output, errors = process.communicate(timeout=90)
    report = json.loads(output)
    assert process.returncode == 3, errors
    assert report["upgrade"]["stages"][-1]["outcome"] == "not_run"
    assert "were used up" in report["upgrade"]["stages"][-1]["detail"]


def make_finding(code: str, subject: str) -> Finding:
    return engine.make_finding_by_code(code, Problem("it is wrong", (), (), subject))


def run_stage(with_versions: list[Finding] | None, without: list[Finding] | None) -> TrialOutcome:
    """Return the outcome of a stage that finds this with the new versions, that without; None: it gives no answer."""

    def run(target: ExecutionTarget) -> Report:
        findings = with_versions if target.extra_path else without
        if findings is None:
            raise Unanswered(f"nothing runs in {target.extra_path or 'the environment'}")
        return Report("smoke", s.laptop(), tuple(findings))

    outcome, target = TrialOutcome(), ExecutionTarget(sys.executable, "cpu")
    _try_run("smoke", run, target, replace(target, extra_path="/tmp/attncheck-folder"), Judging(), outcome)
    return outcome


def test_a_stage_counts_only_what_is_not_there_without_the_new_versions() -> None:
    old, new = make_finding("ATN601", "sdpa_math"), make_finding("ATN601", "eager")
    outcome = run_stage([old, new], [old])
    assert outcome.findings == [new] and outcome.stages[0].outcome == "worse"
    assert run_stage([old], [old]).stages[0].outcome == "same"
    assert run_stage([], None).stages[0].outcome == "same", "what is fine is not run twice"


def test_a_stage_that_gives_no_answer_any_more_is_broken() -> None:
    outcome = run_stage(None, [])
    assert [finding.code for finding in outcome.findings] == ["ATN926"] and outcome.stages[0].outcome == "worse"
    assert outcome.findings[0].message == "smoke no longer runs: nothing runs in (temporary folder)"
    outcome = run_stage(None, None)
    assert outcome.findings == [] and outcome.stages[0].outcome == "not_run"


SMOKE_BREAKS = {
    "transformers/__init__.py": "__version__ = '99.0'\n",
    "transformers/utils/__init__.py": "",
}


@pytest.mark.nightly
def test_parity_and_smoke_really_run_with_the_new_version(attncheck: Run, tmp_path: Path) -> None:
    path = write_wheel(tmp_path / "planted", "transformers", "99.0", SMOKE_BREAKS)
    result = attncheck(
        "upgrade", str(path), "--python", sys.executable, "--try", "--device", "cpu", "--format", "json", timeout=600
    )
    report = json.loads(result.stdout)
    stages = {stage["name"]: stage["outcome"] for stage in report["upgrade"]["stages"]}
    assert result.returncode == 1 and stages["smoke"] == "worse" and stages["parity"] == "same", stages


@pytest.mark.nightly
def test_a_release_that_computes_something_else_in_silence_is_caught(attncheck: Run, tmp_path: Path) -> None:
    import transformers

    site = Path(transformers.__file__).parents[1]
    files = {
        str(path.relative_to(site)): path.read_text(encoding="utf-8") for path in (site / "transformers").rglob("*.py")
    }
    name = "transformers/integrations/sdpa_attention.py"
    wrong = files[name].replace("scale=scaling,", "scale=scaling * 1.5,")
    assert wrong != files[name]
    files |= {name: wrong, "transformers/__init__.py": _with_version(files["transformers/__init__.py"], "5.17.99")}
    path = write_wheel(tmp_path / "planted", "transformers", "5.17.99", files)
    result = attncheck(
        "upgrade", str(path), "--python", sys.executable, "--try", "--only", "smoke", "--device", "cpu", "--format",
        "json", timeout=600,
    )  # fmt: skip
    report = json.loads(result.stdout)
    assert result.returncode == 1, report["upgrade"]
    assert report["upgrade"]["stages"][-1]["outcome"] == "worse"
    assert "ATN345" in codes(report), codes(report)


def _with_version(source: str, version: str) -> str:
    return re.sub(r'__version__ = "[^"]+"', f'__version__ = "{version}"', source)


@pytest.mark.nightly
def test_a_real_release_from_the_index(attncheck: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_INDEX_URL", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name)
    result = attncheck(
        "upgrade", "transformers==5.23.0", "--python", sys.executable, "--try", "--only", "imports", "--format", "json",
        timeout=600,
    )  # fmt: skip
    report = json.loads(result.stdout)
    assert result.returncode == 1 and "ATN141" in codes(report) and report["upgrade"]["basis"] == "tried"


def test_a_section_without_a_trial_has_no_open_question() -> None:
    assert UpgradeSection(unknown=("something",)).unanswered == ()
