"""A rehearsal keeps the job's multimodal class: a small model of it, a processor made for it, the truth about text."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attncheck.core.rehearsal import TEXT_ONLY
from attncheck.rehearsal.worker import materials, multimodal
from attncheck.rehearsal.worker.truth import TruthModel
from attncheck.smoke.worker.models import towers
from attncheck.smoke.worker.models.architectures import Unbuildable
from attncheck.smoke.worker.models.shrink import read_full_config
from tests.smoke.multimodal_configs import CONFIGS

Image = pytest.importorskip("PIL.Image")  # of which image processors are made


def make_model(folder: Path, name: str = "gemma3") -> list[str]:
    (folder / "job").mkdir()
    (folder / "job" / "config.json").write_text(json.dumps(CONFIGS[name]))
    message = {"model": str(folder / "job"), "dtype": "float32", "seed": 0, "has_padding_token": True}
    return materials.make_small_model(message, folder)[2]


def read_class(folder: Path) -> str:
    names: list[str] = json.loads((folder / "model" / "config.json").read_text())["architectures"]
    return names[0]


@pytest.mark.parametrize(
    ("name", "image"),
    [("gemma3", "<image_token>"), pytest.param("llava", "<image>", marks=pytest.mark.nightly)],
)
def test_the_class_stays_and_gets_a_processor(name: str, image: str, tmp_path: Path) -> None:
    from transformers import AutoProcessor

    assert make_model(tmp_path, name) == [materials.TEXT_ALONE]
    assert read_class(tmp_path).endswith("ForConditionalGeneration")
    processor = AutoProcessor.from_pretrained(tmp_path / "model", local_files_only=True)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert processor.tokenizer.convert_tokens_to_ids(image) == config["image_token_index"]
    parts: list[Any] = [{"type": "text", "text": "w1 w2"}]
    texts = [
        processor.apply_chat_template([{"role": "user", "content": content}], tokenize=False)
        for content in ("w1 w2", parts)
    ]
    assert texts[0] == texts[1]
    truth = TruthModel(tmp_path / "model").describe([1, 2, 3, 4])
    assert truth.log_probabilities.shape[0] == 4


def test_a_part_keeps_the_size_of_its_heads() -> None:
    """It is not always saved, and another one is derived from the other sizes then."""
    config = SimpleNamespace(text_config=SimpleNamespace(head_dim=128), vision_config=SimpleNamespace(), image_size=32)
    document: dict[str, Any] = {"text_config": {"hidden_size": 64}, "vision_config": {}, "image_size": 32}
    assert materials.keep_head_sizes(document, config) == {
        "text_config": {"hidden_size": 64, "head_dim": 128},
        "vision_config": {},
        "image_size": 32,
    }


def test_the_reference_is_of_the_class_that_the_job_loads(tmp_path: Path) -> None:
    """mllama has two: AutoModelForCausalLM makes one for text of the same configuration and weights."""
    pytest.importorskip("transformers", "5")
    (tmp_path / "job").mkdir()
    message = {"stand_in_for": "meta-llama/Llama-3.2-11B-Vision", "dtype": "float32", "seed": 0}
    materials.make_small_model({"model": "llama", "has_padding_token": True, **message}, tmp_path)
    assert read_class(tmp_path) == "MllamaForConditionalGeneration"
    whole = TruthModel(tmp_path / "model")
    text = TruthModel(tmp_path / "model", used="transformers.models.mllama.modeling_mllama.MllamaForCausalLM")
    assert type(whole.model).__name__ == "MllamaForConditionalGeneration"
    assert type(text.model).__name__ == "MllamaForCausalLM"
    first, second = (truth.describe([3, 4, 5, 6]).log_probabilities for truth in (whole, text))
    assert torch.allclose(first, second, atol=1e-5)


def test_without_a_processor_its_text_part_is_trained_and_that_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise Unbuildable("no processor")

    monkeypatch.setattr(multimodal, "save_processor", refuse)
    (remark,) = make_model(tmp_path)
    assert "no processor" in remark and remark.startswith(TEXT_ONLY)  # images are not asked of it
    assert read_class(tmp_path) == "Gemma3ForCausalLM"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2_5_vl"),
        ("/data/ckpt/qwen2_vl_sft", "qwen2_vl"),
        ("llava-hf/llava-1.5-7b-hf", "llava"),
        ("mistralai/Mistral-3B", "mistral"),  # no mistral3
        ("Qwen/Qwen2.5-7B", "qwen2"),
        ("own/digits", ""),  # no git
        ("", ""),
    ],
)
def test_a_model_that_is_not_cached_is_known_by_its_name(name: str, kind: str) -> None:
    from attncheck.smoke.worker.models import towers

    assert towers.find_type(name) == kind


@pytest.mark.parametrize(
    ("kind", "sections"),
    [("qwen2_vl", [16, 24, 24]), ("qwen2_5_vl", [4, 6, 6]), ("qwen3_vl", [16, 24, 24]), ("llava", None)],
)
def test_a_type_alone_has_what_its_class_reads(kind: str, sections: list[int] | None) -> None:
    """Released Qwen2-VL has sections of rotary positions, and a default configuration lacks them before 5.6."""
    from attncheck.smoke.worker.models import towers

    document = towers.load_type(kind).document
    rope = document.get("rope_scaling") or document.get("text_config", {}).get("rope_scaling", {})
    assert rope.get("mrope_section") == sections


@pytest.mark.parametrize(
    "name", ["gemma3", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("llava", "qwen2_vl", "qwen3_vl"))]
)
def test_images_are_as_large_as_their_processor_makes_them(name: str, tmp_path: Path) -> None:
    """Frameworks that resize an image themselves do so with another library: ms-swift by qwen_vl_utils."""
    from transformers import AutoProcessor

    if name.startswith("qwen"):
        pytest.importorskip("torchvision")
    make_model(tmp_path, name)
    (tmp_path / multimodal.FOLDER).mkdir()
    multimodal.lay_pictures([{}], tmp_path)
    with Image.open(tmp_path / multimodal.FOLDER / "0.png") as picture:
        process = AutoProcessor.from_pretrained(tmp_path / "model", local_files_only=True).image_processor
        made = [process(images=[picture], return_tensors="pt", do_resize=on)["pixel_values"] for on in (True, False)]
    assert made[0].shape == made[1].shape and bool((made[0] == made[1]).all())


def test_a_marker_that_only_releases_have_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers 4.49.0 models/qwen2_5_vl: the class reads config.image_token_id, which the configuration lacks."""
    source = towers.load_type("llava")
    config = read_full_config(source)
    monkeypatch.setattr(towers, "_read_modeling", lambda kind: "self.config.video_start_token_id; config.pad_token_id")
    towers.set_markers(config, source)
    markers = towers.list_markers(config)
    assert "video_start_token_id" in markers and "pad_token_id" not in markers
    assert len(set(markers.values())) == len(markers) and max(markers.values()) < source.vocabulary_size
