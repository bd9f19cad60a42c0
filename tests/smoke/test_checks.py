"""Smoke's checks in this process: they pass what is right, and name every fault that is injected."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from attncheck.core import registry
from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult, Layer, Measure, deciding_reason, judge_result
from attncheck.smoke import checks
from attncheck.smoke.run import collect_evidence
from attncheck.smoke.worker import testbed as testbeds
from attncheck.smoke.worker import trainer
from attncheck.smoke.worker.checks import determinism, training, what_ran
from attncheck.smoke.worker.data.language import CERTAINTY, LANGUAGE_VOCABULARY, Language, language_entropy
from attncheck.smoke.worker.data.packing import make_batch, pack_rows
from attncheck.smoke.worker.models import architectures, build, shrink
from tests.smoke import smoke_plants as plants

SDPA = Plan(attn_implementation="sdpa")
InjectFault = Callable[[], Any]
SHORT = replace(SDPA, steps=2)  # the first step's gradients show it
EAGER = Plan(attn_implementation="eager")
QUICK = ("what_ran", "implementation", "isolation", "padding")


def run_check(check_name: str, shape: str, plan: Plan) -> CheckResult:
    build.stay_offline()
    return checks.load()[0][check_name].run(testbeds.Testbed(build.load_architecture(shape), plan, "cpu"))


# What is proposed if a kernel raises.


@pytest.mark.parametrize(
    ("reason", "first"),
    [
        (
            "ValueError: Expected IntTuple, whose leaves are integers, but got 64",
            "pass document boundaries as cu_seqlens",
        ),
        ("ImportError: the package for FlashAttention4 doesn't seem to be installed", "attention by flash_attention_2"),
    ],
)
def test_lengths_are_given_as_numbers_to_a_kernel_that_raises(reason: str, first: str) -> None:
    plan = Plan(attn_implementation="flash_attention_4")
    changes = [*checks.load()[0]["what_ran"].changes(plan, CheckResult("what_ran", "raised", reason))]
    assert changes[0].title == first


# What a job does not ask for, a check does not run: flash-attn-3 dies of float32.


@pytest.mark.parametrize("name", ["flash_attention_3", "flash_attention_4", "kernels-community/flash-attn3"])
def test_no_check_runs_a_flash_kernel_in_float32_unless_the_plan_does(name: str) -> None:
    build.stay_offline()
    plan = Plan(attn_implementation=name)
    testbed = testbeds.Testbed(build.load_architecture("llama"), plan, "cpu")
    with pytest.raises(ValueError, match="float16 and bfloat16"):
        testbed.build_model(plan.without_optimizations("fp32"))
    assert testbed.build_model(plan.without_optimizations("fp32"), "eager") is not None
    asked = testbeds.Testbed(build.load_architecture("llama"), replace(plan, precision="fp32"), "cpu")
    with pytest.raises((ImportError, ValueError), match=r"installed|kernels"):  # transformers' own words
        asked.build_model()


def hub_layer(dispatched: str, *ran: str) -> Layer:
    return Layer("model.layers.0.self_attn", "", "flash_attention_2", dispatched, ran)


HUB = "kernels-community/flash-attn2"


@pytest.mark.parametrize(
    ("layer", "replacement", "answer"),
    [
        (hub_layer(HUB, "hub kernel packed"), HUB, "warn"),
        (hub_layer(HUB), HUB, "warn"),  # its operators may not be known
        (hub_layer(HUB, "hub kernel packed"), "", "fail"),  # flash-attn is installed
        (hub_layer(HUB, "eager"), HUB, "fail"),
        (hub_layer("kernels-community/vllm-flash-attn3", "hub kernel"), HUB, "fail"),
        (hub_layer("sdpa", "sdpa MATH"), HUB, "fail"),
        (hub_layer("flash_attention_2", "flash_attention_2 packed"), "", "pass"),
        (hub_layer("flash_attention_2", "eager"), "", "fail"),
    ],
)
def test_the_hubs_build_of_what_is_asked_for_is_no_other_attention(layer: Layer, replacement: str, answer: str) -> None:
    assert judge_result(what_ran.judge_layers((layer,), "flash_attention_2", replacement)) == answer


# The record of a check: which function runs it.

OWN_CHECK = checks.SmokeCheck(
    "own", "a check of a plugin", "ATN430", 12, lambda plan: "", lambda testbed: CheckResult("own"), deciding_reason
)


def test_every_check_names_a_function_that_exists() -> None:
    named = [check.worker for check in checks.load()[0].values() if isinstance(check.worker, str)]
    assert len(named) == 11 and all(callable(pkgutil.resolve_name(name)) for name in named)


def test_a_check_is_run_by_a_function_or_by_the_name_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    testbed: Any = object()
    assert OWN_CHECK.run(testbed) == CheckResult("own")
    monkeypatch.setattr(training, "run", lambda given: CheckResult("named", notes=(str(given is testbed),)))
    named = replace(OWN_CHECK, worker="attncheck.smoke.worker.checks.training:run")
    assert named.run(testbed) == CheckResult("named", notes=("True",))


@pytest.mark.parametrize("constant", ["CHECK", "PROVING"])
def test_a_plugin_may_keep_the_constants_old_name(constant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = ModuleType("own_plugin")
    vars(plugin)[constant] = OWN_CHECK
    monkeypatch.setattr(registry, "load", lambda room, group: ([registry.Extension("own", plugin)], []))
    assert checks.load.__wrapped__() == ({"own": OWN_CHECK}, ())


# What is right: every check passes.

CLEAN = [
    *[("llama", replace(SDPA, seed=seed)) for seed in range(1, 13)],
    *[("llama", replace(SDPA, seed=seed, packing="mask_4d")) for seed in range(13, 17)],
    *[("llama", replace(SDPA, seed=seed, batch=2)) for seed in range(17, 21)],
    *[("qwen2", replace(SDPA, seed=seed, precision="autocast")) for seed in range(21, 27)],
    *[("qwen3", replace(EAGER, seed=seed)) for seed in range(27, 33)],
    *[("mistral", replace(SDPA, seed=seed)) for seed in range(33, 37)],
    *[("gemma2", replace(EAGER, seed=seed)) for seed in range(37, 41)],
    *[("gemma3", replace(SDPA, seed=seed)) for seed in range(41, 45)],
    *[("mixtral", replace(SDPA, seed=seed, precision="fp32")) for seed in range(45, 48)],
    *[("deepseek_v3", replace(SDPA, seed=seed)) for seed in range(48, 51)],
    *[("qwen2_5_vl", replace(SDPA, seed=seed, positions="reset_4d")) for seed in range(61, 64)],
    *[("gpt_oss", replace(EAGER, seed=seed, packing="padding")) for seed in range(51, 54)],
    *[("qwen3_next", replace(SDPA, seed=seed, packing="padding", padding_side="left")) for seed in range(54, 56)],
]


FIRST_SEEDS = {(shape, replace(plan, seed=0)): plan.seed for shape, plan in reversed(CLEAN)}.values()


@pytest.mark.parametrize(
    ("shape", "plan"),
    [
        pytest.param(
            shape, plan, id=f"{shape}-{plan.seed}", marks=[pytest.mark.nightly] * (plan.seed not in FIRST_SEEDS)
        )
        for shape, plan in CLEAN
    ],
)
def test_what_is_right_raises_no_alarm(shape: str, plan: Plan) -> None:
    build.stay_offline()
    testbed = testbeds.Testbed(build.load_architecture(shape), plan, "cpu")
    for check_name in QUICK:
        check = checks.load()[0][check_name]
        if not check.applies(plan):
            result = check.run(testbed)
            assert judge_result(result) == "pass", (check_name, deciding_reason(result))
            assert max((measure.budget_ratio for measure in result.measures), default=0) < 0.8, result.measures


@pytest.mark.parametrize(
    ("shape", "plan"),
    [
        ("llama", SDPA),
        pytest.param("gpt_oss", replace(EAGER, packing="padding", seed=2), marks=pytest.mark.nightly),
        pytest.param("gemma2", replace(EAGER, precision="autocast", seed=3), marks=pytest.mark.nightly),
        pytest.param("qwen2", replace(SDPA, packing="padding", seed=1), marks=pytest.mark.nightly),
        pytest.param("deepseek_v3", replace(SDPA, precision="fp32", seed=4), marks=pytest.mark.nightly),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_right_learns_down_to_the_entropy(shape: str, plan: Plan) -> None:
    result = run_check("training", shape, plan)
    assert judge_result(result) == "pass", deciding_reason(result)
    assert result.floor < trainer.mean_last_loss([step.loss for step in result.steps]) < result.bound
    assert len(result.steps) == plan.steps
    assert all(step.tokens_per_s > 0 and step.grad_norm > 0 for step in result.steps)


def test_a_run_that_is_too_short_is_not_called_wrong() -> None:
    result = run_check("training", "llama", replace(SDPA, steps=2, precision="fp32"))
    assert judge_result(result) == "pass" and "2 steps are too few" in result.notes[0]


def test_two_runs_have_the_same_bits() -> None:
    result = run_check("reproducible", "llama", replace(SDPA, deterministic=True))
    assert judge_result(result) == "pass" and "bitwise identical" in result.notes[0]


@pytest.mark.parametrize("inject_fault", [lambda: plants.nan_at_a_step(0), plants.nan_gradients])
def test_bits_of_nan_are_not_called_reproducible(inject_fault: InjectFault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(determinism, "STEPS", 1)  # after the last one, no loss shows what its gradients were
    with inject_fault():
        result = run_check("reproducible", "llama", SDPA)
    assert result.outcome == "skipped" and "not finite" in result.reason


def test_a_pure_float16_run_that_becomes_nan_is_told_why() -> None:
    result = run_check("training", "llama", replace(SHORT, precision="fp16"))
    assert judge_result(result) == "fail" and "AdamW's eps of 1e-8 is 0" in result.violations[0]


# What is wrong: the check for it fails, and says where.

FAULTS: list[tuple[str, str, str, Plan, InjectFault, str]] = [
    ("positions-not-reset", "isolation", "llama", replace(SDPA, positions="running"), nullcontext, "document"),
    ("all-ones-mask", "isolation", "llama", replace(SDPA, packing="mask_2d"), nullcontext, "document"),
    ("cache-left-on", "isolation", "qwen2", replace(SDPA, use_cache=True), nullcontext, "document"),
    ("cache-left-on-eager", "isolation", "gemma2", replace(EAGER, use_cache=True), nullcontext, "document"),
    ("boundary-off-by-one", "isolation", "llama", SDPA, plants.boundary_off_by_one, "document"),
    ("labels-across-documents", "training", "llama", SHORT, plants.labels_across_documents, "the loss is wrong"),
    ("mask-dropped", "isolation", "llama", SDPA, plants.mask_dropped, "document"),
    ("unregistered-name-gets-no-mask", "isolation", "llama", Plan("my_attention"), plants.without_mask, "document"),
    ("rows-of-a-batch-joined", "isolation", "llama", replace(SDPA, batch=2), plants.rows_joined, "document"),
    ("gpt-oss-positions-do-not-reach-the-mask", "isolation", "gpt_oss", EAGER, nullcontext, "document"),
    ("recurrent-state-leaks", "isolation", "qwen3_next", SDPA, nullcontext, "document"),
    ("multimodal-positions-in-2d", "isolation", "qwen2_5_vl", EAGER, nullcontext, "document"),
    ("multimodal-positions-in-3d", "isolation", "qwen2_5_vl", replace(SDPA, positions="reset_3d"), nullcontext,
     "document"),
    ("4d-mask-without-the-window", "isolation", "mistral", replace(SDPA, packing="mask_4d"), nullcontext, "off by"),
    ("window-ignored", "implementation", "mistral", SDPA, plants.window_ignored, "off by"),
    ("softcap-ignored", "implementation", "gemma2", SDPA, nullcontext, "off by"),
    ("rope-twice", "implementation", "llama", SDPA, plants.rope_twice, "off by"),
    ("kv-heads-tiled", "implementation", "qwen2", SDPA, plants.kv_tiled, "off by"),
    ("scale-one-per-cent-off", "implementation", "llama", SDPA, lambda: plants.scaled_queries(1.01), "off by"),
    ("gradient-of-k-lost", "implementation", "llama", SDPA, plants.key_gradient_lost, "gradients"),
    ("sees-one-key-ahead", "implementation", "llama", SDPA, plants.looks_ahead, "it is not causal under sdpa"),
    ("sees-one-key-ahead-training", "training", "llama", SHORT, plants.looks_ahead, "first step"),
    ("backend-becomes-another", "what_ran", "llama", SDPA, plants.becomes_eager, "used eager"),
    ("padding-attended", "padding", "llama", replace(SDPA, packing="padding", padding_side="left"),
     plants.padding_attended, "left padding"),
    ("nan-in-rows-of-padding", "padding", "llama", replace(SDPA, packing="padding", padding_side="left"),
     plants.nan_in_masked_rows, "NaN"),
    ("loss-is-nan", "training", "llama", replace(SDPA, steps=8), lambda: plants.nan_at_a_step(4), "NaN at step"),
    ("mean-of-means", "training", "llama", SHORT,
     plants.mean_of_means, "the loss is wrong"),
    ("accumulation-not-divided", "training", "llama", SHORT, plants.accumulation_not_divided, "4 times what it should"),
    ("kernel-not-deterministic", "reproducible", "llama", replace(SDPA, deterministic=True),
     plants.noisy_backward, "runs part at step 1, first in the gradient of"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("check_name", "shape", "plan", "inject_fault", "message"),
    [row[1:] for row in FAULTS],
    ids=[row[0] for row in FAULTS],
)
def test_a_planted_fault_is_named(
    check_name: str, shape: str, plan: Plan, inject_fault: InjectFault, message: str
) -> None:
    with inject_fault():
        result = run_check(check_name, shape, plan)
    assert judge_result(result) == "fail", result
    assert any(message in line for line in collect_evidence(result)), collect_evidence(result)


@pytest.mark.nightly
def test_a_loss_below_the_entropy_is_said_to_look_ahead() -> None:
    with plants.looks_ahead():
        build.stay_offline()
        testbed = testbeds.Testbed(build.load_architecture("llama"), replace(SDPA, steps=50), "cpu")
        steps = list(trainer.train(testbed, lambda number, step: None))
    assert "sees future tokens" in training.find_violations(testbed, steps)[0]


def test_a_fault_that_is_not_determinisms_is_told_without_a_plan_for_it() -> None:
    with plants.noisy_backward():
        result = run_check("reproducible", "llama", SDPA)
    assert judge_result(result) == "pass"
    assert "runs part at step 1" in result.notes[0] and "does not fix it" in result.notes[-1]


def test_a_configuration_that_was_changed_after_construction_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    build_model = testbeds.Testbed.build_model

    def build_as_eager(self: testbeds.Testbed, *arguments: Any, **kwargs: Any) -> Any:
        model = build_model(self, *arguments, **kwargs)
        model.config._attn_implementation = "eager"  # type: ignore[union-attr]
        return model

    monkeypatch.setattr(testbeds.Testbed, "build_model", build_as_eager)
    result = run_check("what_ran", "llama", SDPA)
    assert judge_result(result) == "fail" and "its configuration says eager" in deciding_reason(result)


def test_a_model_that_hardly_attends_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    build_model = testbeds.Testbed.build_model

    def build_without_attention(self: testbeds.Testbed, *arguments: Any, **kwargs: Any) -> Any:
        model = build_model(self, *arguments, **kwargs)
        for name, parameter in model.named_parameters():
            if name.endswith("o_proj.weight"):
                parameter.data.zero_()
        return model

    monkeypatch.setattr(testbeds.Testbed, "build_model", build_without_attention)
    result = run_check("isolation", "llama", SDPA)
    assert result.outcome == "skipped" and "cannot show a leak" in result.reason


@pytest.mark.nightly
def test_flex_has_no_backward_on_a_cpu_and_is_measured_forward() -> None:
    plan = Plan(attn_implementation="flex_attention", precision="fp32")
    build.stay_offline()
    testbed = testbeds.Testbed(build.load_architecture("llama"), plan, "cpu")
    results = {name: checks.load()[0][name].run(testbed) for name in ("what_ran", "isolation", "training")}
    assert results["what_ran"].layers[0].ran == ("flex_attention",)
    assert judge_result(results["isolation"]) == "pass" and any(
        "forward only" in note for note in results["isolation"].notes
    )
    assert judge_result(results["training"]) == "refused" and "backward on CPU" in results["training"].reason


# The language and the packer.


def test_the_language_has_the_entropy_it_says() -> None:
    language = Language(5)
    document = language.next_document(40000)
    permutation = torch.randperm(LANGUAGE_VOCABULARY, generator=torch.Generator().manual_seed(1234))
    follows = (document[2:] == permutation[document[:-2]]).float().mean()
    likely = CERTAINTY + (1 - CERTAINTY) / LANGUAGE_VOCABULARY
    assert float(follows) == pytest.approx(likely, abs=0.01)
    assert language_entropy() == pytest.approx(1.157, abs=0.001)
    assert torch.equal(Language(5).next_document(50), Language(5).next_document(50))


def test_documents_are_packed_best_fit_and_none_is_lost() -> None:
    documents = Language(1).take_documents(5000)
    rows = pack_rows([*documents, torch.arange(1100) % LANGUAGE_VOCABULARY], 512)
    assert all(sum(map(len, row)) <= 512 for row in rows)
    assert sum(len(piece) for row in rows for piece in row) == 6100
    assert len(rows) <= -(-6100 // 512) + 1


@pytest.mark.parametrize("packing", ["position_ids", "cu_seqlens", "mask_2d", "mask_4d", "padding"])
def test_labels_never_cross_a_document(packing: Any) -> None:
    documents = [torch.arange(10), torch.arange(20, 25), torch.arange(30, 31)]
    batch = make_batch([documents], Plan(packing=packing), "cpu", 63, torch.float32)
    assert batch.predicted_tokens == 9 + 4 + 0
    for span, document in zip(batch.spans, documents, strict=True):
        assert torch.equal(batch.inputs["input_ids"][span.row, span.start : span.stop], document)
        assert torch.equal(batch.labels[span.row, span.start : span.stop - 1], document[1:])
        assert int(batch.labels[span.row, span.stop - 1]) == -100


# Models are cut, and what decides attention is kept.


def test_a_large_model_is_cut_and_keeps_its_attention() -> None:
    document = {
        "model_type": "qwen3", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "num_hidden_layers": 36, "intermediate_size": 12288, "vocab_size": 151936,
        "architectures": ["Qwen3ForCausalLM"], "auto_map": {"AutoModelForCausalLM": "evil.Model"},
    }  # fmt: skip
    build.stay_offline()
    source = build.Architecture("big", document)
    model: Any = build.build_model(source, "eager", torch.float32, "cpu", 512, 0, sharp_weights=False)
    attention = model.model.layers[0].self_attn
    assert attention.q_proj.out_features == 32 * 128 and attention.k_proj.out_features == 8 * 128
    assert model.config.num_hidden_layers == 2 and model.config.hidden_size == shrink.MAX_HIDDEN_SIZE
    assert sum(p.numel() for p in model.parameters()) < 2e7


def test_every_kind_of_layer_and_a_window_are_kept() -> None:
    document = {
        "model_type": "gemma3_text", "hidden_size": 2560, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "num_hidden_layers": 34, "sliding_window": 1024,
    }  # fmt: skip
    build.stay_offline()
    model: Any = build.build_model(
        build.Architecture("big", document), "eager", torch.float32, "cpu", 512, 0, sharp_weights=False
    )
    assert set(model.config.layer_types) == {"sliding_attention", "full_attention"}
    assert model.config.sliding_window == architectures.WINDOW
    assert model.config.num_hidden_layers == len(model.config.layer_types) <= shrink.MAX_LAYERS


def test_a_model_that_nobody_knows_is_one_clear_line() -> None:
    build.stay_offline()
    with pytest.raises(build.Unbuildable, match="does not know model_type 'unheard_of'"):
        shrink.shrink_config(build.Architecture("x", {"model_type": "unheard_of"}), 512)
    with pytest.raises(build.Unbuildable, match="cannot be read"):
        build.load_architecture("/nowhere/at/all")


def test_a_limit_that_decides_nothing_is_no_pass() -> None:
    coarse = Measure("gradients, bf16", 0.65, 1.3)
    result = CheckResult("training", measures=(coarse,))
    assert judge_result(result) == "warn" and "cannot be judged" in deciding_reason(result)
    finer = replace(result, measures=(coarse, Measure("gradients, fp32", 1e-7, 1e-5)))
    assert judge_result(finer) == "pass", "float32 decides the same quantity"
    assert judge_result(replace(result, measures=(replace(coarse, limit=0.06, value=0.03),))) == "pass"
    assert judge_result(replace(result, measures=(replace(coarse, value=0.05),))) == "pass"
    assert judge_result(replace(result, measures=(replace(coarse, value=2.0),))) == "fail"
    assert judge_result(replace(result, measures=(Measure("log p, nats a token", 0.1, 0.3),))) == "pass"
