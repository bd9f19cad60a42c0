"""Smoke against the independent judge, over the causal types of the installed transformers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("transformers")

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from attncheck.core.plan import Plan
from attncheck.core.results.smoke import judge_result
from attncheck.smoke.worker import testbed as testbeds
from attncheck.smoke.worker.checks import implementation as implementation_check
from attncheck.smoke.worker.checks import isolation
from attncheck.smoke.worker.models.build import Architecture
from tests.smoke.types.judge import judge
from tests.smoke.types.test_table import LIMIT
from tests.smoke.types.tiny import tiny_config, tiny_model

# Both ways: types that pack soundly, and those whose documents see each other.
_SAMPLE = """
    llama afmoe gpt2 opt qwen2 qwen3_moe phi3 cohere gemma3_text bloom olmo2 gptj granite stablelm
    starcoder2 mpt deepseek_v3 arcee falcon gpt_neox glm4 helium lfm2 exaone4 jais2
"""
SAMPLE = _SAMPLE.split()
# Why no tiny model can be made of a type, or no question asked of it.
NOT_JUDGED = {
    "blt": "smoke: its parts have sizes of their own",
    "cpmant": "prompts before each text; no two lengths give the same model",
    "dbrx": "its default attn_config lacks rope_theta and clip_qkv",
    "gemma3n": "needs timm",
    "gemma4_assistant": "drafts for another model, whose keys and values it takes",
    "gemma4_unified_assistant": "drafts for another model, whose keys and values it takes",
    "musicgen": "predicts codebooks of sound",
    "musicgen_melody": "predicts codebooks of sound",
    "prophetnet": "smoke: its layers cannot be counted",
    "qwen4_exp": "the composite's parts do not fit together; its text model is judged",
    "reformer": "random hashes, and training mode only",
    "xlnet": "smoke: it has no longest length",
    "zamba2": "smoke: head sizes follow from the hidden size",
}


def disagreements(model_type: str, implementation: str, full: bool) -> Iterator[str]:
    """Yield how smoke's answer on packed documents differs from the judge's; `full` runs the check to its end."""
    try:
        model = tiny_model(model_type, implementation)
    except ValueError as error:
        if "does not support an attention implementation" in str(error):
            return
        raise
    answers = judge(model)
    wrong = any(isinstance(value := answers[name], str) or value > LIMIT for name in ("packed", "leak"))
    plan = Plan(attn_implementation=implementation, precision="fp32", max_length=200)
    testbed = testbeds.Testbed(Architecture(model_type, tiny_config(model_type).to_dict()), plan, "cpu")
    if full:
        result = isolation.run(testbed)
        verdict = judge_result(result)
        if verdict == "skipped" and "not causal" in result.reason:  # a document alone is wrong: packing is not blamed
            verdict = judge_result(implementation_check.run(testbed))
    else:
        leaks = any(isolation.find_replacement_leaks(testbed))
        verdict = "fail" if leaks or isolation.compare_with_unpacked(testbed, plan).beyond else "pass"
    if verdict != ("fail" if wrong else "pass"):
        yield f"{model_type} under {implementation}: smoke {verdict}, the judge {answers}"


@pytest.mark.nightly
def test_a_sample_of_types() -> None:
    assert len(SAMPLE) == 25
    eager = ("bloom", "gptj", "mpt")
    assert [d for name in SAMPLE for d in disagreements(name, "eager" if name in eager else "sdpa", full=False)] == []


@pytest.mark.nightly
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("model_type", sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
def test_every_type(model_type: str, implementation: str) -> None:
    if model_type in NOT_JUDGED:
        pytest.skip(NOT_JUDGED[model_type])
    assert list(disagreements(model_type, implementation, full=True)) == []
