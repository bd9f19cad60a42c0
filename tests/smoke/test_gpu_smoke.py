"""On a GPU: smoke's checks with real kernels, flash-attn, liger; what is right passes, injected faults are named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from attncheck.core.plan import CROSS_ENTROPIES, Plan
from attncheck.core.results.smoke import CheckResult, deciding_reason, judge_result
from attncheck.smoke import checks

pytestmark = pytest.mark.gpu
FLASH = Plan(attn_implementation="flash_attention_2")
PACKAGES = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
QUICK = ("what_ran", "implementation", "isolation", "padding")


@pytest.fixture(scope="module", autouse=True)
def require_gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        if os.environ.get("ATTNCHECK_REQUIRE_GPU") == "1":
            pytest.fail("ATTNCHECK_REQUIRE_GPU=1, and there is no GPU")
        pytest.skip("no GPU here")


def run_check(check_name: str, shape: str, plan: Plan) -> CheckResult:
    from attncheck.attention.device import prepare_device
    from attncheck.smoke.worker import testbed as testbeds
    from attncheck.smoke.worker.models import build

    build.stay_offline()
    prepare_device("cuda")
    return checks.load()[0][check_name].run(testbeds.Testbed(build.load_architecture(shape), plan, "cuda"))


CLEAN = [
    *[("llama", replace(FLASH, seed=seed)) for seed in range(4)],
    *[("qwen2", replace(FLASH, seed=seed, packing="cu_seqlens")) for seed in range(4, 7)],
    *[("mistral", replace(FLASH, seed=seed)) for seed in range(7, 10)],
    *[("gemma2", replace(FLASH, seed=seed)) for seed in range(10, 13)],
    ("gemma3", replace(FLASH, seed=13)),
    ("mixtral", replace(FLASH, seed=14)),
    ("llama", replace(FLASH, seed=15, precision="autocast")),
    ("llama", replace(FLASH, seed=16, packing="padding", padding_side="left")),
    ("llama", Plan("flash_attention_3", seed=17)),  # which no check may run in float32: it ends in SIGSEGV
    ("qwen2", Plan("flash_attention_3", seed=18, packing="padding", padding_side="left")),
    *[("llama", Plan("sdpa", seed=seed)) for seed in range(20, 23)],
    ("qwen3", Plan("sdpa", seed=24, packing="mask_4d")),
    ("gemma2", Plan("eager", seed=25)),
    ("deepseek_v3", Plan("sdpa", seed=26)),
]


@pytest.mark.parametrize(("shape", "plan"), CLEAN, ids=[f"{s}-{p.attn_implementation}-{p.seed}" for s, p in CLEAN])
def test_what_is_right_raises_no_alarm(shape: str, plan: Plan) -> None:
    if plan.attn_implementation in PACKAGES:
        pytest.importorskip(PACKAGES[plan.attn_implementation])
    for check_name in QUICK:
        if not checks.load()[0][check_name].applies(plan):
            result = run_check(check_name, shape, plan)
            assert judge_result(result) in ("pass", "warn"), (check_name, deciding_reason(result), result.measures)


def test_flash_attention_is_seen_packed_and_keeps_poison_out() -> None:
    pytest.importorskip("flash_attn")
    layers = run_check("what_ran", "llama", FLASH).layers
    assert {layer.ran for layer in layers} == {("flash_attention_2 packed",)}
    notes = run_check("isolation", "llama", FLASH).notes
    assert "NaN and infinity in neighbours do not spread" in notes


@pytest.mark.parametrize("backend", ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"])
def test_what_sdpa_chose_is_told(backend: str) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    # A mask rules FLASH out: with whole rows there is none.
    plan = Plan("sdpa", packing="padding" if backend != "FLASH_ATTENTION" else "position_ids")
    with sdpa_kernel(getattr(SDPBackend, backend)):
        if backend == "FLASH_ATTENTION":
            from attncheck.smoke.worker import testbed as testbeds
            from attncheck.smoke.worker.attention_trace import AttentionTrace
            from attncheck.smoke.worker.models import build

            testbed = testbeds.Testbed(build.load_architecture("llama"), plan, "cuda")
            model = testbed.build_model()
            trace = AttentionTrace(model, "sdpa")
            trace.record(lambda: testbed.run_batch(model, testbed.make_batch([[testbed.documents[2]]])))
            ran = {layer.ran for layer in trace.collect_layers()}
        else:
            ran = {layer.ran for layer in run_check("what_ran", "llama", plan).layers}
    assert ran == {(f"sdpa {backend}",)}


FAULTS: list[tuple[str, Plan, Callable[[], Any], str]] = [
    ("positions-not-reset", replace(FLASH, positions="running"), nullcontext, "isolation"),
    ("two-packed-rows", replace(FLASH, batch=2), nullcontext, "isolation"),
    ("flash-not-deterministic", replace(FLASH, deterministic=False), nullcontext, "reproducible"),
]


@pytest.mark.parametrize(("plan", "inject_fault", "check_name"), [p[1:] for p in FAULTS], ids=[p[0] for p in FAULTS])
def test_a_planted_fault_is_named(plan: Plan, inject_fault: Callable[[], Any], check_name: str) -> None:
    pytest.importorskip("flash_attn")
    with inject_fault():
        result = run_check(check_name, "llama", plan)
    if check_name == "reproducible":  # noted, since the plan does not ask for the same bits; and a switch fixes it
        assert "runs part at step" in result.notes[0] and "fixes it" in result.notes[1], result
    else:
        assert judge_result(result) == "fail", result


@pytest.mark.parametrize("shape", ["llama", "gemma2"])
def test_liger(shape: str) -> None:
    pytest.importorskip("liger_kernel")
    attention = "eager" if shape == "gemma2" else "sdpa"
    result = run_check("liger", shape, Plan(attention, liger=True))
    assert judge_result(result) in ("pass", "warn"), (deciding_reason(result), result.measures, result.notes)


@pytest.mark.parametrize("name", CROSS_ENTROPIES)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_losses(name: Any, precision: Any) -> None:
    if name == "flash_attn":
        pytest.importorskip("flash_attn")
    result = run_check("cross_entropy", "llama", Plan("sdpa", precision=precision, cross_entropy=name))
    assert judge_result(result) in ("pass", "warn"), (deciding_reason(result), result.measures)


@pytest.mark.parametrize("implementation", ["sdpa", "flash_attention_2"])
def test_checkpointing(implementation: str) -> None:
    if implementation != "sdpa":
        pytest.importorskip("flash_attn")
    result = run_check("checkpointing", "llama", Plan(implementation, gradient_checkpointing=True))
    assert judge_result(result) == "pass", (deciding_reason(result), result.measures)


def test_compilation() -> None:
    result = run_check("compiled", "llama", Plan("sdpa", compile=True))
    assert judge_result(result) == "pass", (deciding_reason(result), result.measures)


def run_smoke(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "attncheck", "smoke", "--format", "json", *arguments]
    process = subprocess.run(command, capture_output=True, text=True, timeout=580)
    assert process.returncode in (0, 1), process.stderr
    report: dict[str, Any] = json.loads(process.stdout)
    return report


def test_the_default_plan_is_right() -> None:
    report = run_smoke()
    assert report["findings"] == []
    assert {attempt["plan"]["attn_implementation"] for attempt in report["smoke"]["plan_runs"]} == {"flash_attention_2"}
    for attempt in report["smoke"]["plan_runs"]:
        training = next(result for result in attempt["results"] if result["check"] == "training")
        assert training["floor"] < training["steps"][-1]["loss"] < training["bound"]
        assert training["steps"][-1]["peak_memory_bytes"] > 0


def test_a_plan_for_determinism_is_fixed() -> None:
    report = run_smoke("llama", "--deterministic", "--only", "reproducible", "--only", "training")
    results = {result["check"]: result for result in report["smoke"]["plan_runs"][-1]["results"]}
    assert not results["reproducible"]["violations"]


def test_cudnn_is_named_where_it_makes_nan() -> None:
    """cuDNN 9.19: dq of a bool mask with rows that see nothing is NaN below 128 tokens; newer ones may be right."""
    import torch

    arguments = ("llama", "--attn-implementation", "sdpa", "--packing", "padding", "--padding-side", "left")
    report = run_smoke(*arguments, "--only", "padding", "--only", "training")
    if not report["findings"]:
        assert _cudnn_gradient_is_finite(torch)
        return
    assert not _cudnn_gradient_is_finite(torch)
    for finding in report["findings"]:
        assert "cuDNN's SDPA kernel causes it" in finding["message"], finding
        fixes = {fix["text"]: fix["proven"] for fix in finding["fixes"]}
        assert fixes["torch.backends.cuda.enable_cudnn_sdp(False)"]
    others = {fix["text"] for finding in report["findings"] for fix in finding["fixes"]}
    assert others & {'attn_implementation="flash_attention_2"', 'attn_implementation="eager"'}
    assert report["smoke"]["plan_runs"][-1]["plan"]["shims"] == ["no-cudnn-sdpa"]


def _cudnn_gradient_is_finite(torch: Any) -> bool:
    """Say whether dq is finite under a bool mask whose first rows see nothing, as left padding makes it."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(2, 4, 64, 32, device="cuda", dtype=torch.bfloat16, generator=generator, requires_grad=True)
        for _ in range(3)
    )
    mask = torch.ones(2, 1, 64, 64, dtype=torch.bool, device="cuda").tril()
    mask[1, :, :, :40] = False
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    out[:, :, 40:].float().square().sum().backward()
    return bool(q.grad.isfinite().all())


@pytest.mark.parametrize("shape", ["llama", "mixtral"])
def test_asked_twice_nothing_is_random(shape: str) -> None:
    from attncheck.smoke.worker import testbed as testbeds
    from attncheck.smoke.worker.models import build

    build.stay_offline()
    assert testbeds.Testbed(build.load_architecture(shape), Plan("sdpa"), "cuda").random_in_training == ""
