"""Liger, cross-entropy, checkpointing and compilation: right ones pass, injected faults are found by name."""

from __future__ import annotations

import operator
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from attncheck.core.plan import Plan  # noqa: E402
from attncheck.core.results.smoke import CheckResult, deciding_reason, judge_result  # noqa: E402
from attncheck.smoke.checks import SmokeCheck, load  # noqa: E402
from attncheck.smoke.worker import liger_model, liger_patches, losses, trainer  # noqa: E402
from attncheck.smoke.worker import testbed as testbeds  # noqa: E402
from attncheck.smoke.worker.checks import checkpointing, compiled, cross_entropy, liger  # noqa: E402
from attncheck.smoke.worker.data.packing import IGNORE_INDEX  # noqa: E402
from attncheck.smoke.worker.models import build  # noqa: E402
from tests.smoke import liger_torch  # noqa: E402

PLAN = Plan(precision="fp32", attn_implementation="sdpa", batch=2)
FAMILY = {"liger": "ATN341", "cross_entropy": "ATN342", "checkpointing": "ATN343", "compiled": "ATN344"}


def make_testbed(shape: str = "llama", device: str = "cpu", **fields: Any) -> testbeds.Testbed:
    return testbeds.Testbed(build.load_architecture(shape), replace(PLAN, **fields), device)


def get_check(name: str) -> SmokeCheck:
    return load()[0][name]


def assert_failed(result: CheckResult, message: str) -> None:
    assert result.outcome == "ok" and judge_result(result) == "fail", result
    assert message in deciding_reason(result), deciding_reason(result)


# --- liger


@pytest.mark.parametrize(
    ("shape", "precision", "seed"),
    [(shape, "fp32", 0) for shape in ("llama", "qwen2", "gemma2")]
    + [("llama", "bf16", 0), ("qwen2", "autocast", 0), pytest.param("gemma2", "bf16", 1, marks=pytest.mark.nightly)]
    + [
        pytest.param(shape, "fp32", seed, marks=pytest.mark.nightly)
        for shape in ("llama", "qwen2", "gemma2")
        for seed in (1, 2)
    ],
)
def test_a_right_liger_passes(shape: str, precision: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    liger_torch.install_liger(monkeypatch)
    result = liger.run(make_testbed(shape, precision=precision, seed=seed, liger=True))
    assert result.outcome == "ok" and judge_result(result) == "pass", deciding_reason(result)
    assert "rope: 2 × apply_rotary_pos_emb" in result.notes
    assert {m.what.partition(",")[0] for m in result.measures} == {"logits", "loss", "gradients"}


LIGER_FAULTS = [
    ("rope_misses", "llama", "liger's patch rope has no effect"),
    ("norms_of_the_model_left", "llama", "liger's patch rms_norm has no effect"),
    ("epsilon", "llama", "off by"),
    ("offset", "qwen2", "off by"),
    ("ignored_labels_counted", "llama", "loss"),
    ("upstream_forgotten", "llama", "gradients"),
    ("softcap_forgotten", "gemma2", "off by"),
    ("logits_made", "llama", "liger's patch fused_linear_cross_entropy has no effect"),
    ("raises", "llama", "liger's patch rope raises: AttributeError"),
]


@pytest.mark.parametrize(("fault", "shape", "message"), LIGER_FAULTS)
def test_a_spoilt_liger_is_found(fault: str, shape: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    liger_torch.install_liger(monkeypatch, fault)
    result = liger.run(make_testbed(shape, liger=True))
    assert judge_result(result) == "fail"
    if fault == "raises":
        assert message in result.violations[0]
    else:
        assert_failed(result, message)
    assert get_check("liger").message(result).startswith("liger-kernel ")


def test_a_patch_that_misses_only_models_to_come_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    liger_torch.install_liger(monkeypatch, "norms_of_the_classes_left")
    result = liger.run(make_testbed(liger=True))
    assert judge_result(result) == "warn"
    assert "rms_norm has no effect, applied before the model is built" in deciding_reason(result)


def test_a_model_that_liger_does_not_know_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    liger_torch.install_liger(monkeypatch)
    assert_failed(liger.run(make_testbed("qwen3", liger=True)), "no patches for qwen3")


def test_nothing_of_liger_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    liger_torch.install_liger(monkeypatch)
    rope, forward = modeling_llama.apply_rotary_pos_emb, modeling_llama.LlamaRMSNorm.forward
    liger.run(make_testbed(liger=True))
    with liger_patches.undo_on_exit():
        modeling_llama.brand_new = 1  # type: ignore[attr-defined]
    assert not hasattr(modeling_llama, "brand_new")
    assert modeling_llama.apply_rotary_pos_emb is rope and modeling_llama.LlamaRMSNorm.forward is forward


def test_a_patched_model_runs_liger_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    liger_torch.install_liger(monkeypatch)
    calls: list[int] = []
    monkeypatch.setattr(liger_torch, "apply_rotary", record_calls(liger_torch.apply_rotary, calls))
    rope, testbed = modeling_llama.apply_rotary_pos_emb, make_testbed(liger=True)
    model, batch = testbed.build_model(), testbed.make_batch(testbed.make_rows())
    liger_model.patch_model(model)
    assert (
        modeling_llama.apply_rotary_pos_emb is rope
        and liger_torch.gated_mlp_forward in liger_torch.forward_functions(model)
    )
    unpatched = testbed.run_batch(testbed.build_model(), batch)
    assert not calls, "another model is patched too"
    loss = float(liger_model.summed_loss(model, batch).detach()) / batch.predicted_tokens
    assert len(calls) == 2 and loss == pytest.approx(unpatched.loss, rel=1e-5)


def record_calls(function: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
    def wrapper(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        calls.append(1)
        return function(q, k, cos, sin, unsqueeze_dim)

    return wrapper


def test_without_liger_it_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    result = liger.run(make_testbed(liger=True))
    assert judge_result(result) == "refused" and "liger-kernel cannot be imported: " in deciding_reason(result)


def raise_no_driver(*arguments: Any) -> None:
    raise RuntimeError("0 active drivers ([]). There should only be one.")


@pytest.mark.parametrize("fault", ["", "rope_misses"])
def test_kernels_that_need_a_gpu_do_not_hide_a_patch_that_does_nothing(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    liger_torch.install_liger(monkeypatch, fault)
    code = compile("def launch(callback): callback()", "triton/runtime/jit.py", "exec")
    triton: dict[str, Any] = {"__name__": "triton.runtime.jit"}
    exec(code, triton)
    monkeypatch.setattr(liger_torch, "gated_mlp_forward", lambda self, x: triton["launch"](raise_no_driver))
    result = liger.run(make_testbed(liger=True))
    if fault:
        assert_failed(result, "liger's patch rope has no effect")
        assert any("need a GPU" in note for note in result.notes)
    else:
        assert judge_result(
            result
        ) == "refused" and "triton kernels need a GPU: RuntimeError: 0 active" in deciding_reason(result)
        assert "swiglu: 2 × LlamaMLP" in result.notes


# --- cross-entropy


@pytest.mark.parametrize("name", ["torch", "chunked"])
@pytest.mark.parametrize(("precision", "seed"), [("fp32", 0), ("bf16", 1), ("fp16", 2), ("autocast", 3)])
def test_right_losses_pass(name: str, precision: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if (name, seed) != ("chunked", 0):  # the large vocabulary once
        monkeypatch.setattr(cross_entropy, "VOCABULARY_SIZES", (64, 1031))
    result = cross_entropy.run(make_testbed(cross_entropy=name, precision=precision, seed=seed))
    assert judge_result(result) == "pass", deciding_reason(result)


def forgets_ignored(logits: Any, labels: Any) -> Any:
    return losses.chunked_cross_entropy(logits, labels.clamp(min=0))


def drops_the_last_words(logits: Any, labels: Any) -> Any:
    kept = logits.shape[1] - logits.shape[1] % 64 if logits.shape[1] > 64 else logits.shape[1]
    lse = logits[:, :kept].float().logsumexp(-1)
    chosen = logits.gather(1, labels.clamp(min=0)[:, None])[:, 0].float()
    return torch.where(labels == IGNORE_INDEX, 0.0, lse - chosen).sum()


def drops_the_last_rows(logits: Any, labels: Any) -> Any:
    kept = len(logits) - len(logits) % losses.CHUNK_ROWS
    return losses.chunked_cross_entropy(logits[:kept], labels[:kept])


def unguarded(logits: Any, labels: Any) -> Any:
    chosen = logits.gather(1, labels.clamp(min=0)[:, None])[:, 0].float()
    return torch.where(labels == IGNORE_INDEX, 0.0, logits.float().exp().sum(-1).log() - chosen).sum()


def scaled_gradient(logits: Any, labels: Any) -> Any:
    loss = losses.torch_cross_entropy(logits, labels)
    return loss.detach() + 1.01 * (loss - loss.detach())


def mean(logits: Any, labels: Any) -> Any:
    return losses.torch_cross_entropy(logits, labels) / (labels != IGNORE_INDEX).sum()


def in_half(logits: Any, labels: Any) -> Any:
    return (
        torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum").bfloat16().float()
    )


def leaks_ignored(logits: Any, labels: Any) -> Any:
    ignored = logits[labels == IGNORE_INDEX].float().sum()
    return losses.torch_cross_entropy(logits, labels) + 1e-9 * (ignored - ignored.detach())


LOSS_FAULTS: list[tuple[Callable[..., Any], str]] = [
    (forgets_ignored, "labels have a gradient"),
    (drops_the_last_words, "off by"),
    (drops_the_last_rows, "off by"),
    (unguarded, ""),
    (scaled_gradient, "gradient"),
    (mean, "every label ignored"),
    (in_half, "loss"),
    (leaks_ignored, "labels have a gradient"),
]


@pytest.mark.parametrize(("loss", "message"), LOSS_FAULTS, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_wrong_loss_is_found(
    loss: Callable[..., Any], message: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_entropy, "VOCABULARY_SIZES", (64, 1031))
    assert_failed(cross_entropy.check_loss(make_testbed(precision=precision), loss, "torch"), message)


def test_a_loss_that_does_not_repeat_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "VOCABULARY_SIZES", (64,))
    calls = iter(range(1, 10_000))

    def drifting_loss(logits: Any, labels: Any) -> Any:
        return losses.torch_cross_entropy(logits, labels) * (1 + 2e-7 * (next(calls) % 3))

    assert judge_result(cross_entropy.check_loss(make_testbed(), drifting_loss, "flash_attn")) == "warn"
    assert_failed(
        cross_entropy.check_loss(make_testbed(deterministic=True), drifting_loss, "flash_attn"),
        "repeats are not bitwise",
    )


def test_flash_attn_s_loss_is_refused_without_it_or_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    result = cross_entropy.run(make_testbed(cross_entropy="flash_attn"))
    assert judge_result(result) == "refused" and "cannot be imported" in deciding_reason(result)
    monkeypatch.setattr(cross_entropy, "load_loss_function", lambda name: raise_no_driver)
    result = cross_entropy.run(make_testbed(cross_entropy="flash_attn"))
    assert judge_result(result) == "refused" and "0 active drivers" in deciding_reason(result)


def test_the_chunked_loss_may_be_asked_for_no_gradient_and_for_one_row() -> None:
    logits, labels = torch.randn(1, 5), torch.tensor([3])
    assert float(losses.chunked_cross_entropy(logits, labels)) == pytest.approx(
        float(losses.torch_cross_entropy(logits, labels))
    )


# --- checkpointing


@pytest.mark.parametrize(
    ("shape", "precision", "seed"),
    [
        ("llama", "fp32", 0),
        ("llama", "bf16", 1),
        ("qwen2", "fp32", 2),
        ("gemma2", "autocast", 3),
        ("mixtral", "fp32", 4),
    ],
)
def test_right_checkpointing_passes_and_is_equal(shape: str, precision: str, seed: int) -> None:
    result = checkpointing.run(make_testbed(shape, precision=precision, seed=seed, gradient_checkpointing=True))
    assert judge_result(result) == "pass", deciding_reason(result)
    assert result.notes == ("on and off are bitwise identical",)


def test_checkpointing_that_silently_does_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "enable_checkpointing", lambda model: None)
    result = checkpointing.run(make_testbed(gradient_checkpointing=True))
    assert_failed(result, "all 2 layers are not run again in the backward pass")
    assert result.measures and all(measure.value == 0 for measure in result.measures), "the numbers cannot show it"


def test_one_layer_that_is_not_run_again_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def enable_all_but_one(model: Any) -> None:
        trainer.enable_checkpointing(model)
        model.model.layers[1].gradient_checkpointing = False

    monkeypatch.setattr(checkpointing, "enable_checkpointing", enable_all_but_one)
    assert_failed(
        checkpointing.run(make_testbed(gradient_checkpointing=True)), "model.layers.1 of 2 layers are not run again"
    )


def test_other_random_numbers_on_the_way_back_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def enable_without_rng(model: Any) -> None:
        kwargs = {"use_reentrant": False, "preserve_rng_state": False}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs)

    monkeypatch.setattr(checkpointing, "enable_checkpointing", enable_without_rng)
    assert_failed(
        checkpointing.run(make_testbed(gradient_checkpointing=True)), "random numbers differ when all 2 layers"
    )


def test_another_function_on_the_way_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is scaled only the second time."""

    def enable_and_scale(model: Any) -> None:
        trainer.enable_checkpointing(model)
        for layer in model.model.layers:
            runs = iter((False, True))
            layer.input_layernorm.register_forward_hook(
                lambda module, inputs, output, runs=runs: output * 1.05 if next(runs, True) else output
            )

    monkeypatch.setattr(checkpointing, "enable_checkpointing", enable_and_scale)
    assert_failed(checkpointing.run(make_testbed(gradient_checkpointing=True)), "gradients")


def test_an_implementation_without_a_backward_is_left_out() -> None:
    testbed = make_testbed(gradient_checkpointing=True, precision="bf16")
    testbed.__dict__["no_backward_reason"] = "flex_attention has no backward on a CPU"
    result = checkpointing.run(testbed)
    assert (
        judge_result(result) == "pass" and len(result.measures) == 3 and "eager attention only: flex" in result.notes[1]
    )


def test_a_model_that_cannot_checkpoint_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: Any) -> None:
        raise ValueError("ToyForCausalLM does not support gradient checkpointing.\nmore")

    monkeypatch.setattr(checkpointing, "enable_checkpointing", refuse)
    result = checkpointing.run(make_testbed(gradient_checkpointing=True))
    assert result.outcome == "raised" and deciding_reason(result).endswith("does not support gradient checkpointing.")


# --- compilation


@pytest.mark.parametrize(
    ("shape", "precision", "seed"), [("llama", "fp32", 0), ("qwen2", "bf16", 1), ("gemma2", "fp32", 2)]
)
def test_right_compilation_passes(shape: str, precision: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    result = compiled.run(make_testbed(shape, precision=precision, seed=seed, compile=True))
    assert judge_result(result) == "pass", deciding_reason(result)
    assert "1 graphs compiled, 0 graph breaks" in result.notes[0]


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_passes() -> None:
    result = compiled.run(make_testbed(precision="bf16", compile=True))
    assert judge_result(result) == "pass", deciding_reason(result)


def spoiling_backend(graph: Any, inputs: Any) -> Any:
    """A compiler that multiplies wrongly once."""
    for node in graph.graph.nodes:
        if node.target in (operator.mul, torch.mul) and len(node.args) == 2:
            node.target = lambda a, b: a * b * 1.001
            break
    graph.recompile()
    return graph.forward


def failing_backend(graph: Any, inputs: Any) -> Any:
    raise NotImplementedError("no lowering for aten.toy\nmany lines")


def backend_without_compiler(graph: Any, inputs: Any) -> Any:
    from torch._inductor.exc import InvalidCxxCompiler

    raise InvalidCxxCompiler


def test_a_compiler_that_changes_the_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BACKEND", spoiling_backend)
    assert_failed(compiled.run(make_testbed(compile=True)), "off by")


def test_a_compiler_that_compiles_nothing_is_found() -> None:
    with torch._dynamo.config.patch(disable=True):
        assert_failed(compiled.run(make_testbed(compile=True)), "nothing was compiled")


def test_a_compiler_that_fails_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BACKEND", failing_backend)
    result = compiled.run(make_testbed(compile=True))
    assert (
        result.outcome == "raised"
        and "no lowering for aten.toy" in deciding_reason(result)
        and "\n" not in deciding_reason(result)
    )


def test_a_missing_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BACKEND", backend_without_compiler)
    result = compiled.run(make_testbed(compile=True))
    assert judge_result(result) == "refused" and deciding_reason(result).startswith(
        "torch.compile needs a C++ compiler"
    )


@pytest.mark.nightly
def test_graph_breaks_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    compile_model = compiled.compile_model

    def compile_with_break(model: Any) -> None:
        model.model.norm.register_forward_hook(lambda *arguments: torch._dynamo.graph_break())
        compile_model(model)

    monkeypatch.setattr(compiled, "compile_model", compile_with_break)
    result = compiled.run(make_testbed(compile=True))
    assert judge_result(result) == "pass" and "graph breaks: " in result.notes[0], result.notes


# --- what all have in common


def test_the_family_is_loaded_in_order_and_applies_where_the_plan_asks() -> None:
    family = {name: get_check(name) for name in FAMILY}
    assert {name: p.code for name, p in family.items()} == FAMILY
    assert [p.order for p in family.values()] == [50, 55, 60, 65]
    assert [name for name, p in family.items() if not p.applies(Plan())] == ["cross_entropy"]
    full_plan = Plan(liger=True, gradient_checkpointing=True, compile=True)
    assert not any(p.applies(full_plan) for p in family.values())


def test_changes_switch_off_what_failed() -> None:
    plan = Plan(liger=True, gradient_checkpointing=True, compile=True, cross_entropy="flash_attn")
    wrong = CheckResult("x", violations=("x",))
    changed = {name: [change.plan for change in get_check(name).changes(plan, wrong)] for name in FAMILY}
    assert changed["liger"] == [replace(plan, liger=False)]
    assert changed["cross_entropy"] == [replace(plan, cross_entropy=name) for name in ("chunked", "torch")]
    assert changed["checkpointing"] == [replace(plan, gradient_checkpointing=False)]
    assert changed["compiled"] == [replace(plan, compile=False)]
    assert list(get_check("liger").changes(Plan(), wrong)) == []
