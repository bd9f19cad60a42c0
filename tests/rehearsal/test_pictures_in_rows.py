"""Pictures in the rows of a rehearsal: what a wrong batch computes is found, and right ones of several classes pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attncheck.core.results.smoke import judge_result
from tests.rehearsal.staging import SCRIPTS, ForkServer, ask_for_materials, list_failures, rehearse
from tests.smoke.multimodal_configs import CONFIGS

pytest.importorskip("PIL")  # of which pictures are made

SCRIPT = SCRIPTS / "train_pictures.py"
STEPS = 3
JUDGED = ("batch", "documents", "loss", "gradients")


def make_stage(folder: Path, name: str) -> Path:
    """Fill a folder with a small model of a class, its processor and rows with pictures."""
    (folder / "job").mkdir(parents=True)
    (folder / "job" / "config.json").write_text(json.dumps(CONFIGS[name]))
    stage = folder / "stage"
    answer = ask_for_materials(stage, 0, str(folder / "job"), "messages", documents=24, takes_pictures=True)
    assert (stage / "pictures").exists(), answer
    return stage


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_stage(tmp_path_factory.mktemp("llava"), "llava")


@pytest.mark.parametrize("options", ["", pytest.param("--packing", marks=pytest.mark.nightly)])
def test_right_rows_pass(server: ForkServer, stage: Path, tmp_path: Path, options: str) -> None:
    results = rehearse(server, stage, tmp_path / "watch", options, steps=STEPS, script=SCRIPT)
    assert {name: judge_result(results[name]) for name in JUDGED} == dict.fromkeys(JUDGED, "pass"), results
    assert any("documents have a picture" in note for note in results["batch"].notes)


@pytest.mark.parametrize(
    ("fault", "options", "code", "message"),
    [
        pytest.param(
            "other_picture", "", "ATN432", "its picture is that of another document", marks=pytest.mark.nightly
        ),
        pytest.param("no_pixels", "", "ATN432", "", marks=pytest.mark.nightly),
        pytest.param(
            "positions_run_on", "--packing", "ATN432", "attend to earlier documents", marks=pytest.mark.nightly
        ),
    ],
)
def test_a_fault_is_found(
    server: ForkServer, stage: Path, tmp_path: Path, fault: str, options: str, code: str, message: str
) -> None:
    found = list_failures(rehearse(server, stage, tmp_path / "watch", options, fault, steps=STEPS, script=SCRIPT))
    assert list(found) == [code], found
    assert message in found[code]
