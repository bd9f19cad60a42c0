"""torch's ring over real gloo ranks: its templates are right, spoilt ones are seen, and the rest is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attncheck.attention.backend import Device
from attncheck.attention.backends import torch_context_parallel, torch_ring_templates
from attncheck.core.cases import Case, with_name
from attncheck.core.verdicts import FAIL_FACTOR, Run, budget_ratio, judge_run
from tests.plugins import write_plugin
from tests.ring.on_ranks import measure_items

torch = pytest.importorskip("torch")
RANKS = 4
CPU = Device("cpu", torch=(99, 0), ranks=RANKS)
H200 = Device("cuda", "H200", (9, 0), (99, 0), ranks=RANKS)
HEAD = """
from dataclasses import replace
from unittest import mock
from attncheck.attention.backends import torch_ring_templates
from attncheck.attention.calls import torch_context_parallel
from torch.distributed.tensor.experimental._context_parallel import _attention as ring

"""
TAIL = """
BACKEND = replace(torch_ring_templates.BACKEND, name="{name}", run=run)
"""
FAULTS: dict[str, tuple[str, set[str]]] = {
    "unbalanced": (  # tokens lie by zigzag, the ring holds them to be contiguous
        "def run(inputs, deterministic):\n"
        "    with mock.patch.object(ring._cp_options, 'enable_load_balance', False):\n"
        "        return torch_context_parallel.run_templates(inputs)",
        {"out", "lse", "dq", "dk", "dv"},
    ),
    "never_partial": (
        "merged = ring._SDPAMerger.step\n"
        "def step(self, out, lse, partial):\n"
        "    if not partial:\n"
        "        merged(self, out, lse, partial)\n"
        "def run(inputs, deterministic):\n"
        "    with mock.patch.object(ring._SDPAMerger, 'step', step):\n"
        "        return torch_context_parallel.run_templates(inputs)",
        {"out", "lse"},
    ),
    "stale_gradients": (  # dk and dv come home to another rank
        "class Rotater(ring._AllToAllRotater):\n"
        "    def exchange_buffers(self, buffer):\n"
        "        self._buffer = buffer.contiguous()\n"
        "def run(inputs, deterministic):\n"
        "    with mock.patch.object(ring, '_AllToAllRotater', Rotater):\n"
        "        return torch_context_parallel.run_templates(inputs)",
        {"dk", "dv"},
    ),
}
PUBLIC = """
def run(inputs, deterministic):
    return torch_context_parallel.run_context_parallel(inputs, deterministic)
"""


def make_cases() -> tuple[Case, ...]:
    """Return a dense row with shared kv heads, and a batch in float16 without."""
    dense = Case("dense", (512,), (512,), num_kv_heads=2, context_parallel_size=RANKS)
    batch = replace(dense, seqlens_q=(256, 256), seqlens_k=(256, 256), num_kv_heads=4, dtype="float16")
    return with_name(dense), with_name(batch)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Run]:
    """Return all runs: of one group of ranks, and of the one that the public interface loses, last."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < torch_ring_templates.MIN_TORCH:
        pytest.skip("the templates of this torch are not known")
    folder = tmp_path_factory.mktemp("faults")
    for name, (source, _) in FAULTS.items():
        write_plugin(folder, name, HEAD + source + TAIL.format(name=name))
    write_plugin(folder, "public_on_the_cpu", HEAD + PUBLIC + TAIL.format(name="public_on_the_cpu"))
    right = [("torch_ring_templates", case.name) for case in make_cases()]
    wrong = [(name, make_cases()[0].name) for name in (*FAULTS, "public_on_the_cpu")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        return measure_items(RANKS, right + wrong, make_cases())


@pytest.mark.parametrize("case", make_cases(), ids=lambda case: case.name)
def test_the_templates_are_right(case: Case, runs: dict[tuple[str, str], Run]) -> None:
    run = runs["torch_ring_templates", case.name]
    assert judge_run(run).answer == "pass", judge_run(run)
    assert run.class_factor == 1.25 and {score.tensor for score in run.scores} == {"out", "lse", "dq", "dk", "dv"}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_seen_where_it_is(name: str, runs: dict[tuple[str, str], Run]) -> None:
    run = runs[name, make_cases()[0].name]
    assert run.outcome == "ok", run.reason
    wrong = {score.tensor for score in run.scores if budget_ratio(run.case, score, run.class_factor) > FAIL_FACTOR}
    assert FAULTS[name][1] <= wrong, run.scores
    if "out" not in FAULTS[name][1]:
        assert wrong == FAULTS[name][1]


def test_the_public_interface_fails_on_the_cpu_as_the_refusal_says(runs: dict[tuple[str, str], Run]) -> None:
    run = runs["public_on_the_cpu", make_cases()[0].name]
    assert run.outcome == "raised"
    assert "_scaled_dot_product_flash_attention_for_cpu" in run.reason and "sharding strategy" in run.reason
    assert "sharding strategy" in torch_context_parallel.refuse(make_cases()[0], CPU)


def test_what_they_refuse() -> None:
    plain = make_cases()[0]
    for changed, message in (
        ({"causal": False}, "Load balancing requires `is_causal=True`"),
        ({"layout": "packed"}, "no packed documents"),
        ({"window_size": (40, 0)}, "no window"),
        ({"dropout": 0.1}, "random state"),
        ({"operands": "kvpacked"}, "separate"),
        ({"seqlens_q": (516,), "seqlens_k": (516,)}, "not divisible by 8"),
        ({"seqlens_k": (1024,)}, "same query and context"),
        ({"softcap": 20.0}, "soft-cap"),
        ({"sinks": True}, "sinks"),
    ):
        assert message in torch_context_parallel.refuse(replace(plain, **changed), H200)
        assert message in torch_ring_templates.refuse(replace(plain, **changed), CPU)
    assert not torch_context_parallel.refuse(plain, H200) and not torch_ring_templates.refuse(plain, CPU)
    assert "16-bit" in torch_context_parallel.refuse(replace(plain, dtype="float32"), H200)
    assert "public interface" in torch_ring_templates.refuse(plain, H200)
    assert "2.11" in torch_ring_templates.refuse(plain, replace(CPU, torch=(2, 9)))
    assert "--ring-size" in torch_ring_templates.refuse(plain, replace(CPU, ranks=0))
