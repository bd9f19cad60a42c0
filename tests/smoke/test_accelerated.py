"""Liger, cross-entropy, checkpointing and compilation: right ones pass, planted faults are found by name."""

from __future__ import annotations

import operator
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from attncheck.core.plan import Plan  # noqa: E402
from attncheck.core.results.smoke import CheckResult, answer, deciding_reason  # noqa: E402
from attncheck.smoke.checks import Proving, load  # noqa: E402
from attncheck.smoke.worker import liger_model, liger_patches, losses, trainer  # noqa: E402
from attncheck.smoke.worker.checks import checkpointing, compiled, cross_entropy, liger  # noqa: E402
from attncheck.smoke.worker.data.packing import IGNORED  # noqa: E402
from attncheck.smoke.worker.models import build  # noqa: E402
from attncheck.smoke.worker.testbed import Bed  # noqa: E402
from tests.smoke import liger_torch  # noqa: E402

PLAN = Plan(precision="fp32", attn_implementation="sdpa", batch=2)
FAMILY = {"liger": "ATN341", "cross_entropy": "ATN342", "checkpointing": "ATN343", "compiled": "ATN344"}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def bed(shape: str = "llama", device: str = "cpu", **fields: Any) -> Bed:
    return Bed(build.architecture(shape), replace(PLAN, **fields), device)


def proving(name: str) -> Proving:
    return load()[0][name]


def failed(proof: CheckResult, words: str) -> None:
    assert proof.outcome == "ok" and answer(proof) == "fail", proof
    assert words in deciding_reason(proof), deciding_reason(proof)


# --- liger


@pytest.mark.parametrize(
    ("shape", "precision", "seed"),
    [(shape, "fp32", seed) for shape in ("llama", "qwen2", "gemma2") for seed in range(3)]
    + [("llama", "bf16", 0), ("gemma2", "bf16", 1), ("qwen2", "autocast", 0)],
)
def test_a_right_liger_passes(shape: str, precision: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    liger_torch.install(monkeypatch)
    proof = liger.prove(bed(shape, precision=precision, seed=seed, liger=True))
    assert proof.outcome == "ok" and answer(proof) == "pass", deciding_reason(proof)
    assert "rope: 2 × apply_rotary_pos_emb" in proof.notes
    assert {m.what.partition(",")[0] for m in proof.measures} == {"logits", "loss", "gradients"}


LIGER_FAULTS = [
    ("rope_misses", "llama", "liger's patch rope does nothing"),
    ("norms_of_the_model_left", "llama", "liger's patch rms_norm does nothing"),
    ("epsilon", "llama", "off by"),
    ("offset", "qwen2", "off by"),
    ("ignored_labels_counted", "llama", "loss"),
    ("upstream_forgotten", "llama", "gradients"),
    ("softcap_forgotten", "gemma2", "off by"),
    ("logits_made", "llama", "liger's patch fused_linear_cross_entropy does nothing"),
    ("raises", "llama", "liger's patch rope raises: AttributeError"),
]


@pytest.mark.parametrize(("fault", "shape", "words"), LIGER_FAULTS)
def test_a_spoilt_liger_is_found(fault: str, shape: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    liger_torch.install(monkeypatch, fault)
    proof = liger.prove(bed(shape, liger=True))
    assert answer(proof) == "fail"
    if fault == "raises":
        assert words in proof.violations[0]
    else:
        failed(proof, words)
    assert proving("liger").message(proof).startswith("liger-kernel ")


def test_a_patch_that_misses_only_models_to_come_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    liger_torch.install(monkeypatch, "norms_of_the_classes_left")
    proof = liger.prove(bed(liger=True))
    assert answer(proof) == "warn"
    assert "rms_norm does nothing, applied before the model is built" in deciding_reason(proof)


def test_a_model_that_liger_does_not_know_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    liger_torch.install(monkeypatch)
    failed(liger.prove(bed("qwen3", liger=True)), "no patches for qwen3")


def test_nothing_of_liger_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    liger_torch.install(monkeypatch)
    rope, forward = modeling_llama.apply_rotary_pos_emb, modeling_llama.LlamaRMSNorm.forward
    liger.prove(bed(liger=True))
    with liger_patches.undone():
        modeling_llama.brand_new = 1  # type: ignore[attr-defined]
    assert not hasattr(modeling_llama, "brand_new")
    assert modeling_llama.apply_rotary_pos_emb is rope and modeling_llama.LlamaRMSNorm.forward is forward


def test_a_patched_model_runs_liger_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    liger_torch.install(monkeypatch)
    entered: list[int] = []
    monkeypatch.setattr(liger_torch, "rotary", telling(liger_torch.rotary, entered))
    rope, where = modeling_llama.apply_rotary_pos_emb, bed(liger=True)
    model, batch = where.model(), where.batch(where.rows())
    liger_model.patch(model)
    assert modeling_llama.apply_rotary_pos_emb is rope and liger_torch.gated in liger_torch.forwards(model)
    right = where.run(where.model(), batch)
    assert not entered, "another model is patched too"
    loss = float(liger_model.loss(model, batch).detach()) / batch.tokens
    assert len(entered) == 2 and loss == pytest.approx(right.loss, rel=1e-5)


def telling(inner: Callable[..., Any], heard: list[int]) -> Callable[..., Any]:
    def entered(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        heard.append(1)
        return inner(q, k, cos, sin, unsqueeze_dim)

    return entered


def test_without_liger_it_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    proof = liger.prove(bed(liger=True))
    assert answer(proof) == "refused" and "liger-kernel cannot be imported: " in deciding_reason(proof)


def no_driver(*arguments: Any) -> None:
    raise RuntimeError("0 active drivers ([]). There should only be one.")


@pytest.mark.parametrize("fault", ["", "rope_misses"])
def test_kernels_that_need_a_gpu_do_not_hide_a_patch_that_does_nothing(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    liger_torch.install(monkeypatch, fault)
    code = compile("def launch(tell): tell()", "triton/runtime/jit.py", "exec")
    triton: dict[str, Any] = {"__name__": "triton.runtime.jit"}
    exec(code, triton)
    monkeypatch.setattr(liger_torch, "gated", lambda self, x: triton["launch"](no_driver))
    proof = liger.prove(bed(liger=True))
    if fault:
        failed(proof, "liger's patch rope does nothing")
        assert any("need a GPU" in note for note in proof.notes)
    else:
        assert answer(proof) == "refused" and "triton kernels need a GPU: RuntimeError: 0 active" in deciding_reason(
            proof
        )
        assert "swiglu: 2 × LlamaMLP" in proof.notes


# --- cross-entropy


@pytest.mark.parametrize("name", ["torch", "chunked"])
@pytest.mark.parametrize(("precision", "seed"), [("fp32", 0), ("bf16", 1), ("fp16", 2), ("autocast", 3)])
def test_right_losses_pass(name: str, precision: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if (name, seed) != ("chunked", 0):  # the large vocabulary once
        monkeypatch.setattr(cross_entropy, "VOCABULARIES", (64, 1031))
    proof = cross_entropy.prove(bed(cross_entropy=name, precision=precision, seed=seed))
    assert answer(proof) == "pass", deciding_reason(proof)


def forgets_ignored(logits: Any, labels: Any) -> Any:
    return losses.chunked(logits, labels.clamp(min=0))


def drops_the_last_words(logits: Any, labels: Any) -> Any:
    kept = logits.shape[1] - logits.shape[1] % 64 if logits.shape[1] > 64 else logits.shape[1]
    lse = logits[:, :kept].float().logsumexp(-1)
    chosen = logits.gather(1, labels.clamp(min=0)[:, None])[:, 0].float()
    return torch.where(labels == IGNORED, 0.0, lse - chosen).sum()


def drops_the_last_rows(logits: Any, labels: Any) -> Any:
    whole = len(logits) - len(logits) % losses.CHUNK
    return losses.chunked(logits[:whole], labels[:whole])


def unguarded(logits: Any, labels: Any) -> Any:
    chosen = logits.gather(1, labels.clamp(min=0)[:, None])[:, 0].float()
    return torch.where(labels == IGNORED, 0.0, logits.float().exp().sum(-1).log() - chosen).sum()


def scaled_gradient(logits: Any, labels: Any) -> Any:
    loss = losses.plain(logits, labels)
    return loss.detach() + 1.01 * (loss - loss.detach())


def mean(logits: Any, labels: Any) -> Any:
    return losses.plain(logits, labels) / (labels != IGNORED).sum()


def in_half(logits: Any, labels: Any) -> Any:
    return torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum").bfloat16().float()


def leaks_ignored(logits: Any, labels: Any) -> Any:
    ignored = logits[labels == IGNORED].float().sum()
    return losses.plain(logits, labels) + 1e-9 * (ignored - ignored.detach())


LOSS_FAULTS: list[tuple[Callable[..., Any], str]] = [
    (forgets_ignored, "labels have a gradient"),
    (drops_the_last_words, "off by"),
    (drops_the_last_rows, "off by"),
    (unguarded, ""),
    (scaled_gradient, "gradient"),
    (mean, "every label is ignored"),
    (in_half, "loss"),
    (leaks_ignored, "labels have a gradient"),
]


@pytest.mark.parametrize(("loss", "words"), LOSS_FAULTS, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_wrong_loss_is_found(
    loss: Callable[..., Any], words: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_entropy, "VOCABULARIES", (64, 1031))
    failed(cross_entropy.judged(bed(precision=precision), loss, "torch"), words)


def test_a_loss_that_does_not_repeat_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "VOCABULARIES", (64,))
    calls = iter(range(1, 10_000))

    def drifting(logits: Any, labels: Any) -> Any:
        return losses.plain(logits, labels) * (1 + 2e-7 * (next(calls) % 3))

    assert answer(cross_entropy.judged(bed(), drifting, "flash_attn")) == "warn"
    failed(cross_entropy.judged(bed(deterministic=True), drifting, "flash_attn"), "repeats differ")


def test_flash_attn_s_loss_is_refused_without_it_or_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    proof = cross_entropy.prove(bed(cross_entropy="flash_attn"))
    assert answer(proof) == "refused" and "cannot be imported" in deciding_reason(proof)
    monkeypatch.setattr(cross_entropy, "loss_function", lambda name: no_driver)
    proof = cross_entropy.prove(bed(cross_entropy="flash_attn"))
    assert answer(proof) == "refused" and "0 active drivers" in deciding_reason(proof)


def test_the_chunked_loss_may_be_asked_for_no_gradient_and_for_one_row() -> None:
    logits, labels = torch.randn(1, 5), torch.tensor([3])
    assert float(losses.chunked(logits, labels)) == pytest.approx(float(losses.plain(logits, labels)))


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
    proof = checkpointing.prove(bed(shape, precision=precision, seed=seed, gradient_checkpointing=True))
    assert answer(proof) == "pass", deciding_reason(proof)
    assert proof.notes == ("on and off are equal bit for bit",)


def test_checkpointing_that_silently_does_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "enable_checkpointing", lambda model: None)
    proof = checkpointing.prove(bed(gradient_checkpointing=True))
    failed(proof, "all 2 layers are not run again on the way back")
    assert proof.measures and all(measure.value == 0 for measure in proof.measures), "the numbers cannot show it"


def test_one_layer_that_is_not_run_again_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def partly(model: Any) -> None:
        trainer.enable_checkpointing(model)
        model.model.layers[1].gradient_checkpointing = False

    monkeypatch.setattr(checkpointing, "enable_checkpointing", partly)
    failed(checkpointing.prove(bed(gradient_checkpointing=True)), "model.layers.1 of 2 layers are not run again")


def test_other_random_numbers_on_the_way_back_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(model: Any) -> None:
        words = {"use_reentrant": False, "preserve_rng_state": False}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=words)

    monkeypatch.setattr(checkpointing, "enable_checkpointing", forgetful)
    failed(checkpointing.prove(bed(gradient_checkpointing=True)), "random numbers differ when all 2 layers")


def test_another_function_on_the_way_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is scaled only the second time."""

    def scaling(model: Any) -> None:
        trainer.enable_checkpointing(model)
        for layer in model.model.layers:
            runs = iter((False, True))
            layer.input_layernorm.register_forward_hook(
                lambda module, inputs, output, runs=runs: output * 1.05 if next(runs, True) else output
            )

    monkeypatch.setattr(checkpointing, "enable_checkpointing", scaling)
    failed(checkpointing.prove(bed(gradient_checkpointing=True)), "gradients")


def test_an_implementation_without_a_backward_is_left_out() -> None:
    where = bed(gradient_checkpointing=True, precision="bf16")
    where.__dict__["untrainable"] = "flex_attention has no backward on a CPU"
    proof = checkpointing.prove(where)
    assert answer(proof) == "pass" and len(proof.measures) == 3 and "eager attention only: flex" in proof.notes[1]


def test_a_model_that_cannot_checkpoint_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(model: Any) -> None:
        raise ValueError("ToyForCausalLM does not support gradient checkpointing.\nmore")

    monkeypatch.setattr(checkpointing, "enable_checkpointing", refusing)
    proof = checkpointing.prove(bed(gradient_checkpointing=True))
    assert proof.outcome == "raised" and deciding_reason(proof).endswith("does not support gradient checkpointing.")


# --- compilation


@pytest.mark.parametrize(
    ("shape", "precision", "seed"), [("llama", "fp32", 0), ("qwen2", "bf16", 1), ("gemma2", "fp32", 2)]
)
def test_right_compilation_passes(shape: str, precision: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    proof = compiled.prove(bed(shape, precision=precision, seed=seed, compile=True))
    assert answer(proof) == "pass", deciding_reason(proof)
    assert "1 graphs compiled, 0 graph breaks" in proof.notes[0]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_passes() -> None:
    proof = compiled.prove(bed(precision="bf16", compile=True))
    assert answer(proof) == "pass", deciding_reason(proof)


def spoiling(graph: Any, inputs: Any) -> Any:
    """A compiler that multiplies wrongly once."""
    for node in graph.graph.nodes:
        if node.target in (operator.mul, torch.mul) and len(node.args) == 2:
            node.target = lambda a, b: a * b * 1.001
            break
    graph.recompile()
    return graph.forward


def broken(graph: Any, inputs: Any) -> Any:
    raise NotImplementedError("no lowering for aten.toy\nmany lines")


def without_compiler(graph: Any, inputs: Any) -> Any:
    from torch._inductor.exc import InvalidCxxCompiler

    raise InvalidCxxCompiler


def test_a_compiler_that_changes_the_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BACKEND", spoiling)
    failed(compiled.prove(bed(compile=True)), "off by")


def test_a_compiler_that_compiles_nothing_is_found() -> None:
    with torch._dynamo.config.patch(disable=True):
        failed(compiled.prove(bed(compile=True)), "nothing was compiled")


def test_a_compiler_that_fails_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BACKEND", broken)
    proof = compiled.prove(bed(compile=True))
    assert (
        proof.outcome == "raised"
        and "no lowering for aten.toy" in deciding_reason(proof)
        and "\n" not in deciding_reason(proof)
    )


def test_a_missing_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BACKEND", without_compiler)
    proof = compiled.prove(bed(compile=True))
    assert answer(proof) == "refused" and deciding_reason(proof).startswith("torch.compile needs a C++ compiler")


def test_graph_breaks_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    plain = compiled.switch

    def switch(model: Any) -> None:
        model.model.norm.register_forward_hook(lambda *arguments: torch._dynamo.graph_break())
        plain(model)

    monkeypatch.setattr(compiled, "switch", switch)
    proof = compiled.prove(bed(compile=True))
    assert answer(proof) == "pass" and "graph breaks: " in proof.notes[0], proof.notes


# --- what all have in common


def test_the_family_is_loaded_in_order_and_applies_where_the_plan_asks() -> None:
    proofs = {name: proving(name) for name in FAMILY}
    assert {name: p.code for name, p in proofs.items()} == FAMILY
    assert [p.order for p in proofs.values()] == [50, 55, 60, 65]
    assert [name for name, p in proofs.items() if not p.applies(Plan())] == ["cross_entropy"]
    whole = Plan(liger=True, gradient_checkpointing=True, compile=True)
    assert not any(p.applies(whole) for p in proofs.values())


def test_changes_switch_off_what_failed() -> None:
    plan = Plan(liger=True, gradient_checkpointing=True, compile=True, cross_entropy="flash_attn")
    wrong = CheckResult("x", violations=("x",))
    changed = {name: [change.plan for change in proving(name).changes(plan, wrong)] for name in FAMILY}
    assert changed["liger"] == [replace(plan, liger=False)]
    assert changed["cross_entropy"] == [replace(plan, cross_entropy=name) for name in ("chunked", "torch")]
    assert changed["checkpointing"] == [replace(plan, gradient_checkpointing=False)]
    assert changed["compiled"] == [replace(plan, compile=False)]
    assert list(proving("liger").changes(Plan(), wrong)) == []
