"""On GPUs: scripts of a user's own, on transformers' Trainer and with a class of their own, on one GPU and on two."""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from attncheck.rehearsal.watcher.saved import READ_BACK
from tests.conftest import Run

SCRIPTS = Path(__file__).parent / "scripts"
OPTIONS = (
    "trainer.py --model_name_or_path Qwen/Qwen2.5-7B --data_path data.jsonl --output_dir out --bf16 true "
    "--per_device_train_batch_size 4 --gradient_accumulation_steps 8 --learning_rate 2e-5 --max_length 2048"
)
OWN_CLASS = (
    "own_class.py --model Qwen/Qwen2.5-0.5B --data data.jsonl --out out --lr 5e-3 --accum 2 --seq-len 256 --steps 40"
)
FLATTENED = f"{OPTIONS} --flattening true --attn_implementation flash_attention_2"


def require_gpus(count: int) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    if torch.cuda.device_count() < count:
        if os.environ.get("ATTNCHECK_REQUIRE_GPU") == "1":
            pytest.fail(f"ATTNCHECK_REQUIRE_GPU=1, and there are {torch.cuda.device_count()} GPUs")
        pytest.skip("no GPU here" if count == 1 else "there are not two GPUs here")


def rehearse(
    attncheck: Run, folder: Path, options: str, launcher: str = "", fault: str = "", gpus: int = 1
) -> dict[str, Any]:
    """Return the report on a launch of the script that sees so many GPUs."""
    with suppress(FileNotFoundError):  # a script that the test writes
        shutil.copy(SCRIPTS / options.split()[0], folder)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")[:gpus]
    environment = {**os.environ, "PLANTED_FAULT": fault, "CUDA_VISIBLE_DEVICES": ",".join(visible)}
    command = [sys.executable, *launcher.split(), *options.split()]
    process = attncheck("smoke", "--no-fix", "--format", "json", "--", *command, timeout=500, env=environment)
    assert process.stdout, process.stderr
    report: dict[str, Any] = json.loads(process.stdout)
    return report


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [
        FLATTENED,
        FLATTENED.replace("flash_attention_2", "sdpa"),
        OPTIONS,
        f"{FLATTENED} --gradient_checkpointing true",
    ],
)
def test_a_launch_that_is_right_passes(options: str, attncheck: Run, tmp_path: Path, marker: str) -> None:
    require_gpus(1)
    report = rehearse(attncheck, tmp_path, options)
    results = report["rehearsal"]["launches"][0]["results"]
    assert report["findings"] == []
    assert {result["outcome"] for result in results} == {"ok"}, results
    assert "repeat" in {result["check"] for result in results}, results  # answered without the GPU
    assert report["rehearsal"]["measured_on"]["device"] == "cuda"
    if "flash_attention_2" in options:
        documents = next(result for result in results if result["check"] == "documents")
        assert any("flash_attention_2" in name for layer in documents["layers"] for name in layer["ran"]), documents[
            "layers"
        ]


@pytest.mark.gpu
def test_positions_that_are_lost_are_named(attncheck: Run, tmp_path: Path, marker: str) -> None:
    require_gpus(1)
    report = rehearse(attncheck, tmp_path, FLATTENED, fault="positions")
    findings = [finding for finding in report["findings"] if finding["code"] == "ATN432"]
    assert findings and "attend to earlier documents in the row" in findings[0]["message"]


@pytest.mark.gpu
@pytest.mark.parametrize(("fault", "code"), [("", ""), ("mask", "ATN432"), ("gradients", "ATN434")])
def test_a_class_of_the_script_is_its_own_reference(
    fault: str, code: str, attncheck: Run, tmp_path: Path, marker: str
) -> None:
    require_gpus(1)
    report = rehearse(attncheck, tmp_path, OWN_CLASS, fault=fault)
    assert report["rehearsal"]["measured_on"]["device"] == "cuda"
    assert [finding["code"] for finding in report["findings"]] == ([code] if code else []), report["findings"]


@pytest.mark.gpu
@pytest.mark.parametrize(("prefix", "code"), [("", ""), ("module.", "ATN438")])
def test_what_is_saved_is_loaded_again_without_the_gpu(
    prefix: str, code: str, attncheck: Run, tmp_path: Path, marker: str
) -> None:
    require_gpus(1)
    script = (SCRIPTS / "plain.py").read_text(encoding="utf-8")
    for plain, on_gpu in (
        ("model.train()", "model.cuda().train()"),
        ("model(**batch)", "model(**{name: value.cuda() for name, value in batch.items()})"),
        ('"out")', f'"out", state_dict={{"{prefix}" + name: value for name, value in model.state_dict().items()}})'),
    ):
        assert plain in script
        script = script.replace(plain, on_gpu)
    (tmp_path / "moved.py").write_text(script, encoding="utf-8")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.jsonl").write_text("".join(f'{{"text": "row {n} of many"}}\n' for n in range(90)))
    report = rehearse(attncheck, tmp_path, "moved.py")
    assert report["rehearsal"]["measured_on"]["device"] == "cuda"
    assert [finding["code"] for finding in report["findings"]] == ([code] if code else []), report["findings"]
    notes = [note for result in report["rehearsal"]["launches"][0]["results"] for note in result["notes"]]
    assert any(READ_BACK in note for note in notes) is not bool(code), notes


@pytest.mark.gpu
def test_a_launch_that_asks_for_determinism_is_alike_twice(attncheck: Run, tmp_path: Path, marker: str) -> None:
    require_gpus(1)
    report = rehearse(attncheck, tmp_path, f"{FLATTENED} --full_determinism true")
    results = report["rehearsal"]["launches"][0]["results"]
    [repeat] = [result for result in results if result["check"] == "repeat"]
    assert repeat["outcome"] == "ok" and not repeat["violations"], repeat


@pytest.mark.multigpu
def test_two_gpus_train_as_one(attncheck: Run, tmp_path: Path, marker: str) -> None:
    require_gpus(2)
    launcher = "-m torch.distributed.run --standalone --nproc-per-node 2"
    report = rehearse(attncheck, tmp_path, FLATTENED, launcher, gpus=2)
    launch = report["rehearsal"]["launches"][0]
    assert (report["findings"], launch["ranks"]) == ([], 2)
    assert {result["outcome"] for result in launch["results"]} == {"ok"}, launch["results"]


@pytest.mark.multigpu
def test_copies_on_two_gpus_are_said_not_to_be_watched(attncheck: Run, tmp_path: Path, marker: str) -> None:
    """transformers' Trainer copies a model to every GPU that its one process sees."""
    require_gpus(2)
    report = rehearse(attncheck, tmp_path, OPTIONS, gpus=2)
    [result] = report["rehearsal"]["launches"][0]["results"]
    assert (result["check"], result["outcome"], report["findings"]) == ("run", "skipped", [])
    assert "torchrun --nproc-per-node 2" in result["reason"]
