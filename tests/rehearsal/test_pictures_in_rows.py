"""Pictures in the rows of a rehearsal: what a wrong batch computes is found, and right ones of several classes pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attncheck.core.results.smoke import judge_result
from attncheck.rehearsal.worker.truth import TruthModel
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
    answer = ask_for_materials(stage, 0, str(folder / "job"), "messages", documents=24, pictures="column")
    assert (stage / "pictures").exists(), answer
    return stage


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_stage(tmp_path_factory.mktemp("llava"), "llava")


@pytest.fixture(scope="module")
def qwen_stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torchvision")  # which its processor of videos wants
    return make_stage(tmp_path_factory.mktemp("qwen2_vl"), "qwen2_vl")


def test_a_document_without_all_of_its_placeholders_has_no_image_to_compare_with(stage: Path) -> None:
    book = TruthModel(stage / "model").pictures
    assert book is not None
    words = book.index.words[0]
    whole = [book.token] * book.count_tokens(0)
    assert book.find_documents([*whole, *words]) == [0]
    assert book.find_documents([*whole[1:], *words]) == []


@pytest.mark.nightly
@pytest.mark.parametrize("options", ["", "--packing"])
def test_right_rows_pass(server: ForkServer, stage: Path, tmp_path: Path, options: str) -> None:
    results = rehearse(server, stage, tmp_path / "watch", options, steps=STEPS, script=SCRIPT)
    assert {name: judge_result(results[name]) for name in JUDGED} == dict.fromkeys(JUDGED, "pass"), results
    assert any("documents have an image" in note for note in results["batch"].notes)


@pytest.mark.parametrize(
    ("fault", "options", "code", "message"),
    [
        pytest.param("other_picture", "", "ATN432", "its image belongs to another document", marks=pytest.mark.nightly),
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


@pytest.mark.nightly
def test_a_rank_whose_rows_have_no_images_must_give_the_tower_a_gradient(
    server: ForkServer, stage: Path, tmp_path: Path
) -> None:
    """One of three rows has no image: without a zero from the tower, DDP waits for gradients that never come."""
    options = "--per_device_train_batch_size 1"
    results = rehearse(server, stage, tmp_path / "right", options, ranks=2, steps=STEPS, script=SCRIPT)
    assert {name: judge_result(results[name]) for name in JUDGED} == dict.fromkeys(JUDGED, "pass"), results
    with pytest.raises(AssertionError, match="Expected to have finished reduction"):
        rehearse(server, stage, tmp_path / "wrong", options, "tower_skipped", 2, steps=STEPS, script=SCRIPT)


# What packed rows of a model with three axes of positions met in threads of 2025 and 2026, and what is reported.
THREADS = {
    # Positions of text alone: the model looks for documents in a fourth row of positions.
    "axolotl-ai-cloud/axolotl#3817, areal-project/AReaL#217, NVIDIA-NeMo/Automodel#2172": "positions_of_text",
    "huggingface/transformers#38007": "positions_of_axes",
    # The time axis was read as the text's positions, so that a picture's tokens began a document each.
    "huggingface/transformers#40490": "text_by_time",
    # The mask of a packed row counts its documents, and get_rope_index gives positions to those of number 1 only.
    "hiyouga/LlamaFactory#7754": "axes_of_first",
    # Positions of the whole row, from which no kernel finds a document.
    "hiyouga/LlamaFactory#10283": "row_as_one_document",
}


@pytest.mark.nightly
@pytest.mark.parametrize("options", ["", "--packing"])
def test_right_rows_of_three_axes_pass(server: ForkServer, qwen_stage: Path, tmp_path: Path, options: str) -> None:
    results = rehearse(server, qwen_stage, tmp_path / "watch", options, steps=STEPS, script=SCRIPT)
    assert {name: judge_result(results[name]) for name in JUDGED} == dict.fromkeys(JUDGED, "pass"), results


@pytest.mark.nightly
@pytest.mark.parametrize("thread", THREADS)
def test_threads_of_packed_pictures_are_found(
    server: ForkServer, qwen_stage: Path, tmp_path: Path, thread: str
) -> None:
    found = list_failures(
        rehearse(server, qwen_stage, tmp_path / "watch", "--packing", THREADS[thread], steps=STEPS, script=SCRIPT)
    )
    assert "ATN432" in found, found


@pytest.mark.nightly
def test_positions_that_are_not_packed_stop_the_model(server: ForkServer, qwen_stage: Path, tmp_path: Path) -> None:
    """As alibaba/ROLL#452 met: a rehearsal ends with the launch's own error."""
    with pytest.raises(AssertionError, match=r"rotary_pos_emb.* size of tensor"):
        rehearse(server, qwen_stage, tmp_path / "watch", "--packing", "positions_not_packed", steps=1, script=SCRIPT)
