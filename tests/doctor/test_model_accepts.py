"""Which attn_implementation a model's class accepts, as the installed transformers answers in a child process."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attncheck.doctor.probes.payload.model import accepts, config
from tests.doctor.test_model_config import (
    BLOOM,
    CHATGLM,
    DEEPSEEK_V3,
    GEMMA2,
    GEMMA3,
    GPT_OSS,
    LLAMA,
    LLAMA4,
    MISTRAL,
    QWEN2,
)

ROOT = Path(__file__).parents[2]
CHILD_SCRIPT = """
import json, sys
from attncheck.doctor.probes.payload.model import accepts
print(json.dumps([accepts.query_attention_support(document) for document in json.load(sys.stdin)]))
"""
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None or importlib.util.find_spec("torch") is None,
    reason="transformers and torch are not installed here",
)


def query_in_child(*documents: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the answers of `query_attention_support` for `documents`, from a child process of this interpreter."""
    child = subprocess.run(
        [sys.executable, "-c", CHILD_SCRIPT],
        input=json.dumps(documents),
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        check=True,
    )
    answers: list[dict[str, Any]] = json.loads(child.stdout.splitlines()[-1])
    return answers


# What one child is queried about: each start of transformers takes seconds.
DOCUMENTS: dict[str, dict[str, Any]] = {
    "llama": {**LLAMA, "architectures": ["LlamaForCausalLM"]},
    "bloom": BLOOM,
    "llama4": LLAMA4,
    "oss": GPT_OSS,
    "mla": {**DEEPSEEK_V3, "n_routed_experts": 256},
    "unknown": {"model_type": "no_such_type"},
    "remote": CHATGLM,
    "damaged": {**LLAMA, "hidden_size": "x", "num_attention_heads": []},
    "nameless": {},
    "gemma2": GEMMA2,
    "qwen2": QWEN2,
}
NIGHTLY_DOCUMENTS: dict[str, dict[str, Any]] = {"gemma3": GEMMA3, "mistral": MISTRAL, "deepseek": DEEPSEEK_V3}


@pytest.fixture(scope="module")
def answers_by_name() -> dict[str, dict[str, Any]]:
    return dict(zip(DOCUMENTS, query_in_child(*DOCUMENTS.values())))


@needs_transformers
def test_classes_are_told_from_packages(answers_by_name: dict[str, dict[str, Any]]) -> None:
    llama, bloom, llama4, oss, mla = (answers_by_name[name] for name in ("llama", "bloom", "llama4", "oss", "mla"))
    answers = llama["accepts"]["known"]
    assert (answers["eager"], answers["sdpa"], answers["flex_attention"]) == ("", "", "")
    assert answers["flash_attention_2"] == "" or answers["flash_attention_2"].startswith("not installed: ")
    answers = bloom["accepts"]["known"]
    assert answers["eager"] == ""
    assert all(answers[name].startswith("refused: ") for name in ("sdpa", "flash_attention_2", "flex_attention"))
    assert llama4["accepts"]["known"]["flash_attention_2"].startswith("refused: ")
    assert oss["accepts"]["known"]["sdpa"].startswith("refused: ")
    assert oss["accepts"]["known"]["flash_attention_2"] != "refused: "
    assert mla["accepts"]["known"]["sdpa"] == ""


@needs_transformers
def test_what_cannot_be_asked_says_why(answers_by_name: dict[str, dict[str, Any]]) -> None:
    unknown, remote, damaged, nameless = (
        answers_by_name[name] for name in ("unknown", "remote", "damaged", "nameless")
    )
    assert "does not know model_type 'no_such_type'" in unknown["accepts"]["unreadable"]
    assert remote["accepts"]["unreadable"] == "the model brings its own code, which attncheck never runs"
    assert damaged["accepts"]["unreadable"]
    assert "model_type" in nameless["accepts"]["unreadable"]


@needs_transformers
@pytest.mark.parametrize("name", ["gemma2", "qwen2", "oss", "llama4"])
def test_the_class_agrees_with_what_was_derived(name: str, answers_by_name: dict[str, dict[str, Any]]) -> None:
    check_agreement(answers_by_name[name], DOCUMENTS[name])


@needs_transformers
@pytest.mark.nightly
@pytest.mark.parametrize("name", NIGHTLY_DOCUMENTS)
def test_more_classes_agree_with_what_was_derived(name: str) -> None:
    (answer,) = query_in_child(NIGHTLY_DOCUMENTS[name])
    check_agreement(answer, NIGHTLY_DOCUMENTS[name])


def check_agreement(answer: dict[str, Any], document: dict[str, Any]) -> None:
    derived = config.derive_model(document)
    merged = accepts.merge_resolved(answer, derived)
    for name in ("num_heads", "num_kv_heads", "head_dim", "v_head_dim", "softcap", "sliding_window", "layer_types"):
        assert merged[name] == derived[name], name
    assert merged["use_cache"] == {"known": True}


def test_the_class_overrides_what_was_derived() -> None:
    derived = config.derive_model({**LLAMA, "sliding_window": 4096})
    resolved = {**LLAMA, "num_key_value_heads": 4, "sliding_window": None, "use_cache": False, "head_dim": 64}
    merged = accepts.merge_resolved({"accepts": {"known": {"eager": ""}}, "resolved": resolved}, derived)
    assert merged["accepts"] == {"known": {"eager": ""}}
    assert (merged["num_kv_heads"], merged["head_dim"], merged["head_dims"]) == ({"known": 4}, {"known": 64}, [64])
    assert "absent" in merged["sliding_window"] and merged["use_cache"] == {"known": False}
    assert "known" in derived["sliding_window"], "merge changes nothing in place"


def test_no_answer_changes_nothing_else() -> None:
    derived = config.derive_model(LLAMA)
    merged = accepts.merge_resolved({"accepts": {"unreadable": "it hung"}, "resolved": {}}, derived)
    assert merged == {**derived, "accepts": {"unreadable": "it hung"}}


def test_a_model_is_shrunk_before_it_is_built() -> None:
    small = accepts.shrink_config(
        {
            "num_hidden_layers": 48,
            "layer_types": ["full_attention"] * 48,
            "hybrid_override_pattern": "M" * 48,
            "n_routed_experts": 256,
            "hidden_size": 48,
            "vision_config": {"depth": 27},
        }
    )
    assert (small["num_hidden_layers"], len(small["layer_types"]), small["hybrid_override_pattern"]) == (2, 2, "MM")
    assert (small["n_routed_experts"], small["hidden_size"], small["vision_config"]) == (8, 48, {"depth": 2})


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("X does not support Flash Attention 2 yet"), "refused: "),
        (ImportError("FlashAttention2 has been toggled on, but the package flash_attn is missing"), "not installed: "),
        (ValueError("FlashAttention2 has been toggled on, but it is not available on CPU"), "not installed: "),
        (KeyError("flash_attn"), "error: "),
        (RuntimeError("no"), "error: "),
    ],
)
def test_refusals_are_sorted(error: Exception, kind: str) -> None:
    assert accepts.classify_error(error).startswith(kind)


SMALL_LLAMA = {**LLAMA, "architectures": ["LlamaForCausalLM"], "vocab_size": 32000}
# What breaks a configuration -> the field to blame, and what repairs it.
BROKEN: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "padding past the vocabulary": ({"pad_token_id": 32000}, "pad_token_id", {"pad_token_id": None}),
    "an unknown rope": (
        {"rope_scaling": {"rope_type": "llama9", "factor": 8.0}},
        "rope_scaling",
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ),
    "a rope without its numbers": (
        {"rope_scaling": {"rope_type": "linear"}},
        "rope_scaling",
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ),
    "a size that the heads do not divide": ({"hidden_size": 4100}, "hidden_size", {"hidden_size": 4096}),
    "an unknown activation": ({"hidden_act": "swishy"}, "hidden_act", {"hidden_act": "silu"}),
    "the architecture of another model": (
        {"architectures": ["Qwen2ForCausalLM"]},
        "architectures",
        {"architectures": None},
    ),
}


@needs_transformers
def test_the_field_that_keeps_a_class_from_being_built_is_named_and_correcting_it_helps() -> None:
    broken = [{**SMALL_LLAMA, **fault} for fault, _, _ in BROKEN.values()]
    repaired = [{**SMALL_LLAMA, **fault, **repair} for fault, _, repair in BROKEN.values()]
    answers = query_in_child(*broken, *repaired)
    for (name, (_, field, _)), answer in zip(BROKEN.items(), answers):
        failure = answer["build_failure"]["known"]
        assert list(failure["fields"]) == [field], name
        assert failure["error"] and "unreadable" in answer["accepts"]
    for name, answer in zip(BROKEN, answers[len(broken) :]):
        assert answer["embedding_rows"] == {"known": 32000}, name
        assert "build_failure" not in answer


def test_two_faults_leave_no_field_to_blame() -> None:
    from attncheck.doctor.probes.payload.model.build_failure import describe_build_failure

    def build(document: dict[str, Any]) -> None:
        if "a" in document or "b" in document.get("text_config", {}):
            raise ValueError("both are wrong")

    both = describe_build_failure(ValueError("x"), {"a": 1, "text_config": {"b": 2}}, build)
    assert both == {"error": "ValueError: x", "fields": {}}
    nested = describe_build_failure(ValueError("x"), {"text_config": {"b": 2, "c": 3}}, build)
    assert nested["fields"] == {"text_config.b": "2"}


@needs_transformers
def test_each_part_of_a_model_takes_its_own_implementation() -> None:
    script = """
import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration as Model
config = Qwen2_5_VLConfig()
config.text_config.num_hidden_layers = config.vision_config.depth = 1
with torch.device("meta"):
    Model._from_config(config, attn_implementation={"text_config": "eager", "vision_config": "sdpa"})
print(config.text_config._attn_implementation, config.vision_config._attn_implementation)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split() == ["eager", "sdpa"]
