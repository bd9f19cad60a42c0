"""ring-flash-attn's own Hugging Face adapter over real gloo ranks: its effect under each implementation, and broken.

flash-attn's kernels are emulated; the adapter, the scheme beneath it and transformers' models are the genuine ones.
"""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.core import codec
from attncheck.core.facts import Absent, Known
from attncheck.core.findings import Finding
from attncheck.core.results.hf_adapter import SHAPES, AdapterRun
from attncheck.ring import hf_adapter
from attncheck.ring.hf_adapter import Request
from tests import snapshots
from tests.ring.on_ranks import run_items

pytest.importorskip("torch")
pytest.importorskip("transformers")
if importlib.util.find_spec("ring_flash_attn") is None:
    pytest.skip("ring-flash-attn is not installed", allow_module_level=True)
Runs = dict[tuple[str, str], AdapterRun]
HOOK = "flash_attention_2"


def measure_adapter(ranks: int, items: tuple[tuple[str, str], ...]) -> Runs:
    events = run_items(ranks, items, task="attncheck.ring.worker.hf_adapter:adapter")
    runs = [
        codec.read(AdapterRun, e.answer) if e.kind == "answer" else hf_adapter._make_lost_run(e, ranks) for e in events
    ]
    return {(run.implementation, run.shape): run for run in runs}


def findings_by_code(request: Request, runs: Runs) -> dict[str, Finding]:
    findings = hf_adapter.make_findings(snapshots.h200(), request, tuple(runs.values()))
    assert len({finding.code for finding in findings}) == len(findings)
    return {finding.code: finding for finding in findings}


def llama_request(**fields: object) -> Request:
    model = snapshots.with_model(snapshots.h200(), **fields).model
    assert isinstance(model, Known)
    return Request(model=model.value)


@pytest.fixture(scope="module")
def genuine() -> Runs:
    """Return the whole matrix, on two ranks."""
    return measure_adapter(2, Request().items)


def test_the_implementation_it_replaces_is_right(genuine: Runs) -> None:
    run = genuine[HOOK, "plain"]
    assert run.outcome == "ok" and run.entered == run.layers == 2 and run.reaches and not run.leaks
    assert run.error <= 2 * run.rounding and run.gradient_error <= 2 * run.gradient_rounding
    assert hf_adapter.judge_run(run).answer == "pass"
    assert "written into the configuration" in run.selected, "the way around transformers' refusal is told"


@pytest.mark.nightly
def test_four_ranks_are_right_too() -> None:
    run = measure_adapter(4, ((HOOK, "plain"),))[HOOK, "plain"]
    assert run.ranks == 4 and hf_adapter.judge_run(run).answer == "pass", run


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_another_implementation_switches_the_ring_off(implementation: str, genuine: Runs) -> None:
    run = genuine[implementation, "plain"]
    assert not run.entered and not run.reaches and run.nearest == "each shard in isolation"
    row = hf_adapter.judge_run(run)
    assert row.answer == "warn" and row.reason.endswith("each rank attends only to its own shard")


def test_what_is_not_installed_is_skipped_with_the_reason(genuine: Runs) -> None:
    row = hf_adapter.judge_run(genuine["flash_attention_3", "plain"])
    assert row.answer == "skipped" and "FlashAttention3" in row.reason


def test_windows_and_sinks_are_named_for_what_is_lost(genuine: Runs) -> None:
    nearest = {shape: genuine[HOOK, shape].nearest for shape in SHAPES if shape != "plain"}
    assert nearest == {
        "short_window": "with a window one token wider",
        "long_window": "without its window",
        "sinks": "without its sinks",
    }
    for shape in nearest:
        row = hf_adapter.judge_run(genuine[HOOK, shape])
        assert row.answer == "fail" and nearest[shape] in row.reason


def test_who_trains_a_plain_model_with_flash_attention_2_hears_nothing(genuine: Runs) -> None:
    request = llama_request()
    assert request.shapes == ("plain",) and findings_by_code(request, {k: genuine[k] for k in request.items}) == {}


def test_findings_are_as_grave_as_they_concern(genuine: Runs) -> None:
    unnamed = findings_by_code(Request(), genuine)
    assert {code: finding.severity for code, finding in unnamed.items()} == {"ATN532": "warning", "ATN533": "warning"}
    windowed = llama_request(sliding_window=Known(4096), layer_types=("sliding_attention",) * 2, model_type="mistral")
    assert windowed.shapes == ("plain", "short_window", "long_window")
    findings = findings_by_code(windowed, {k: genuine[k] for k in windowed.items})
    assert {code: finding.severity for code, finding in findings.items()} == {"ATN532": "error"}
    assert any("without its window" in line for line in findings["ATN532"].evidence)
    assert any("one token wider" in line for line in findings["ATN532"].evidence)
    sinks = llama_request(sinks=True, sliding_window=Absent(), model_type="gpt_oss")
    findings = findings_by_code(sinks, {k: genuine[k] for k in sinks.items})
    assert {code: finding.severity for code, finding in findings.items()} == {"ATN533": "error"}


def test_who_asks_for_sdpa_is_told_that_the_ring_is_off(genuine: Runs) -> None:
    findings = findings_by_code(replace(llama_request(), implementation="sdpa"), genuine)
    assert {code: finding.severity for code, finding in findings.items()} == {"ATN530": "error"}
    assert 'attn_implementation="flash_attention_2"' in findings["ATN530"].fixes[0].text


def test_names_put_back_are_told(genuine: Runs) -> None:
    run = genuine[HOOK, "plain"]
    is_reported = any("restored in transformers" in line for line in hf_adapter.judge_run(run).evidence)
    assert is_reported == bool(run.shimmed_names)


PREPARE = "llama3_flash_attn_prepare_cu_seqlens(cu_seqlens{}, True"
HOOKED = 'ALL_ATTENTION_FUNCTIONS["flash_attention_2"] = {}'
SCALE = "softmax_scale={}softmax_scale,\n            causal"
# What is replaced by what in the adapter, the rule that must see it, and words of its finding.
FAULTS: dict[str, tuple[tuple[str, str], str, str]] = {
    "inactive": (
        (HOOKED.format("flash_attention_forward"), HOOKED.format('ALL_ATTENTION_FUNCTIONS["sdpa"]')),
        "ATN530",
        "the ring is silently off",
    ),
    "leaks": ((PREPARE.format(""), PREPARE.format("[[0, -1]]")), "ATN531", "changes the logits of another"),
    "no_gradient": (("value_states.squeeze", "value_states.detach().squeeze"), "ATN531", "gradients are off"),
    "softer": ((SCALE.format(""), SCALE.format("0.8 * ")), "ATN531", "logits are off"),
    "signature": (("return len(inspect", "return False and len(inspect"), "ATN534", "is not supported"),
}


def break_adapter(folder: Path, old: str, new: str) -> str:
    """Copy the installed package with one line of its adapter changed; return the folder."""
    spec = importlib.util.find_spec("ring_flash_attn")
    assert spec is not None and spec.origin is not None
    shutil.copytree(Path(spec.origin).parent, folder / "ring_flash_attn", ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "ring_flash_attn/adapters/hf_adapter.py"
    text = path.read_text()
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new))
    return str(folder)


EVERY_TIME = ("leaks",)  # each takes two ranks and their start: the others at night
NAMES = [name if name in EVERY_TIME else pytest.param(name, marks=pytest.mark.nightly) for name in FAULTS]


@pytest.mark.parametrize("name", NAMES)
def test_a_spoilt_adapter_is_seen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit, code, message = FAULTS[name]
    monkeypatch.setenv("PYTHONPATH", break_adapter(tmp_path, *edit))
    runs = measure_adapter(2, ((HOOK, "plain"),))
    findings = findings_by_code(Request(), runs)
    assert list(findings) == [code] and findings[code].severity == "error", runs
    assert message in findings[code].message + str(findings[code].evidence)


@pytest.mark.nightly
def test_an_adapter_that_keeps_the_window_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = break_adapter(tmp_path, "and key_states.shape[1] > sliding_window", "")
    path = Path(folder, "ring_flash_attn/adapters/hf_adapter.py")
    path.write_text(path.read_text().replace("(sliding_window, sliding_window)", "(sliding_window - 1, 0)"))
    monkeypatch.setenv("PYTHONPATH", folder)
    runs = measure_adapter(2, ((HOOK, "short_window"), (HOOK, "long_window")))
    assert {hf_adapter.judge_run(run).answer for run in runs.values()} == {"pass"}, runs


RIGHT = AdapterRun(
    HOOK,
    "plain",
    "ok",
    ranks=2,
    layers=2,
    entered=2,
    reaches=True,
    error=0.02,
    rounding=0.02,
    gradient_error=0.03,
    gradient_rounding=0.03,
    nearest="each shard in isolation",
    nearest_error=0.7,
)


@pytest.mark.parametrize(
    ("changed", "answer", "code"),
    [
        ({}, "pass", ""),
        ({"reaches": False}, "fail", "ATN531"),
        ({"entered": 1}, "fail", "ATN530"),
        ({"entered": 0, "implementation": "sdpa"}, "warn", "ATN530"),
        ({"error": 0.061}, "fail", "ATN531"),
        ({"error": 1e30, "nearest_error": 1e30}, "fail", "ATN531"),
        ({"outcome": "timed_out", "reason": "rank 1 hangs"}, "lost", "ATN534"),
        ({"outcome": "raised", "reason": "ImportError"}, "fail", "ATN534"),
        ({"outcome": "skipped", "reason": "not installed"}, "skipped", ""),
    ],
)
def test_judging(changed: dict[str, object], answer: str, code: str) -> None:
    run = replace(RIGHT, **changed)  # type: ignore[arg-type]
    assert hf_adapter.judge_run(run).answer == answer
    request = Request(implementation=run.implementation)
    assert list(findings_by_code(request, {(run.implementation, run.shape): run})) == ([code] if code else [])
