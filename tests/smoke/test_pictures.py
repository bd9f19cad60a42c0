"""Smoke's check of pictures: it passes multimodal classes as they are released, and names every injected fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor

from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult, deciding_reason, judge_result
from attncheck.smoke import trials
from attncheck.smoke.worker.checks import pictures
from attncheck.smoke.worker.data.packing import Batch
from attncheck.smoke.worker.data.pictures import PictureBatches
from attncheck.smoke.worker.models import build
from attncheck.smoke.worker.models.architectures import Architecture
from attncheck.smoke.worker.testbed import Testbed
from tests.smoke.multimodal_configs import CONFIGS
from tests.smoke.smoke_plants import changed_sdpa, replaced_attribute

pytest.importorskip("transformers.models.qwen3_vl")  # a release that has the classes
PACKED = Plan(attn_implementation="sdpa")
PADDED = replace(PACKED, packing="padding", padding_side="left")
QUICK = ("qwen2_vl", "gemma3")
# Rows of text alone differ already: lfm2's convolutions carry over from one document to the next.
LEAKS_ANYWAY = ("lfm2_vl",)
WRONG_PACKED = ("paligemma",)  # one block of prefixes a row: the pictures of its documents see each other


def run_check(name: str, plan: Plan) -> CheckResult:
    build.stay_offline()
    return pictures.run(Testbed(Architecture(name, CONFIGS[name]), plan, "cpu"))


def by_speed(names: Any, quick: tuple[str, ...] = QUICK) -> list[Any]:
    return [name if name in quick else pytest.param(name, marks=pytest.mark.nightly) for name in names]


@pytest.mark.parametrize("name", by_speed(CONFIGS))
def test_a_released_class_is_right_in_padded_rows(name: str) -> None:
    result = run_check(name, PADDED)
    assert judge_result(result) == "pass", deciding_reason(result)
    assert any(measure.what.startswith("the tower's gradients") for measure in result.measures)


@pytest.mark.nightly
@pytest.mark.parametrize("name", CONFIGS)
def test_a_released_class_is_right_in_packed_rows_but_where_it_is_known_not_to_be(name: str) -> None:
    result = run_check(name, PACKED)
    expected = "fail" if name in WRONG_PACKED else "skipped" if name in LEAKS_ANYWAY else "pass"
    assert judge_result(result) == expected, deciding_reason(result)
    assert all("packed" in measure.what for measure in result.measures if measure.beyond)


def test_a_text_model_has_no_answer_at_all() -> None:
    result = pictures.run(Testbed(build.load_architecture("llama"), PACKED, "cpu"))
    assert (result.outcome, result.reason) == ("skipped", "")
    trial = trials.Trial("llama", PACKED, check_names=("pictures",))
    assert trials._collect_results(trial, 0, {(0, "pictures"): result}) == ()


# Faults: what users' stacks get wrong.


@contextmanager
def causal_inside_pictures() -> Iterator[None]:
    from transformers.models.gemma3 import modeling_gemma3

    def no_blocks(token_type_ids: Tensor, device: Any = None) -> Tensor:
        return torch.full_like(token_type_ids, -1)

    with replaced_attribute(modeling_gemma3, "get_block_sequence_ids_for_mask", no_blocks):
        yield


@contextmanager
def positions_of_text() -> Iterator[None]:
    """Pack as for a text model: time, height and width are the token's number in its document."""

    def pack(self: PictureBatches, documents: Any, batch: Batch, plan: Plan) -> Tensor:
        plain: Tensor = batch.inputs["position_ids"]
        return plain.expand(4, *plain.shape)

    with replaced_attribute(PictureBatches, "_pack_positions", pack):
        yield


@contextmanager
def changed_features(change: Any) -> Iterator[None]:
    """Change the features of each picture, a list, in qwen2_vl."""
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel

    original = Qwen2VLModel.get_image_features

    def get_image_features(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = original(self, *args, **kwargs)
        output.pooler_output = change(list(output.pooler_output))
        return output

    with replaced_attribute(Qwen2VLModel, "get_image_features", get_image_features):
        yield


def swap_features(features: list[Tensor]) -> list[Tensor]:
    rows = torch.cat(features)
    lengths = [len(part) for part in features]
    return list(rows.roll(lengths[0], 0).split(lengths)) if len(features) > 1 else features


@contextmanager
def frozen_tower() -> Iterator[None]:
    """Run gemma3's tower without gradients: its projection still has some."""
    from transformers.models.siglip.modeling_siglip import SiglipVisionModel

    original = SiglipVisionModel.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return original(self, *args, **kwargs)

    with replaced_attribute(SiglipVisionModel, "forward", forward):
        yield


@contextmanager
def types_lost_in_batches() -> Iterator[None]:
    """Collate several rows without the types of their tokens, as a collator for text does."""
    original = PictureBatches.make_padded

    def make_padded(self: PictureBatches, documents: Any, side: str) -> Batch:
        batch = original(self, documents, side)
        if len(documents) > 1:
            batch.inputs[self.types.name] = torch.zeros_like(batch.inputs[self.types.name])
        return batch

    with replaced_attribute(PictureBatches, "make_padded", make_padded):
        yield


def without_mask(attention: Any) -> Any:
    def sdpa(module: Any, q: Tensor, k: Tensor, v: Tensor, attention_mask: Any, **kwargs: Any) -> Any:
        own = kwargs if attention_mask is None else {**kwargs, "is_causal": True}  # without a mask, the layer decides
        return attention(module, q, k, v, None, **own)

    return sdpa


@pytest.mark.parametrize(
    ("name", "plan", "fault", "words"),
    [
        ("gemma3", PADDED, causal_inside_pictures, "causal inside an image"),
        ("qwen2_vl", PACKED, positions_of_text, "packed"),
        ("qwen2_vl", PADDED, lambda: changed_features(swap_features), "padding"),
        ("qwen2_vl", PADDED, lambda: changed_features(lambda parts: [part.detach() for part in parts]), "no gradient"),
        ("gemma3", PADDED, frozen_tower, "no gradient"),
        ("gemma3", PADDED, types_lost_in_batches, "padding"),
        pytest.param("llava", PADDED, lambda: changed_sdpa(without_mask), "padding", marks=pytest.mark.nightly),
    ],
    ids=["causal-pictures", "text-positions", "swapped", "detached", "frozen-tower", "types-lost", "no-padding-mask"],
)
def test_an_injected_fault_is_named(name: str, plan: Plan, fault: Any, words: str) -> None:
    with fault():
        result = run_check(name, plan)
    assert judge_result(result) == "fail", deciding_reason(result)
    assert words in deciding_reason(result)


@contextmanager
def tower_in_rows_of_text(change: Any) -> Iterator[None]:
    """Add a zero to the logits of rows without an image, which depends on the tower's first weights."""
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLForConditionalGeneration

    original = Qwen2VLForConditionalGeneration.forward

    @wraps(original)  # the inputs are those that its signature names
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = original(self, *args, **kwargs)
        is_text = (kwargs["input_ids"] != self.config.image_token_id).all(1)
        zero = change(0.0 * self.model.visual.patch_embed.proj.weight.sum())
        output.logits = torch.where(is_text[:, None, None], output.logits + zero, output.logits)
        return output

    with replaced_attribute(Qwen2VLForConditionalGeneration, "forward", forward):
        yield


@pytest.mark.parametrize(
    ("fault", "outcome", "words"),
    [
        (nullcontext, "pass", "a batch without images gives the tower no gradient"),  # as released
        (lambda: tower_in_rows_of_text(lambda zero: zero), "pass", ""),
        (lambda: tower_in_rows_of_text(torch.sqrt), "fail", "is not finite in a batch of rows with and without images"),
    ],
    ids=["skipped", "zero", "infinite"],
)
def test_the_towers_gradient_of_rows_without_images_is_judged(fault: Any, outcome: str, words: str) -> None:
    with fault():
        result = run_check("qwen2_vl", PADDED)
    assert judge_result(result) == outcome
    lines = [line for line in (*result.violations, *result.notes) if "no gradient" in line or "finite" in line]
    assert len(lines) == bool(words) and all(words in line for line in lines), lines
