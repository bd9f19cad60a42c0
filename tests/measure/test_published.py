"""The table of published speeds is whole, and a measurement is compared with the anchor that stands for it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from attncheck.core.cases import Case, with_name
from attncheck.core.io.errors import BadUsage, Unanswered
from attncheck.core.results.timings import DeviceRates, Timing
from attncheck.core.verdicts import MeasuredOn
from attncheck.measure import bench, published
from attncheck.measure.bench_shapes import Request
from tests.snapshots import laptop

H200 = "NVIDIA H200"
FORWARD = with_name(
    Case("bench", (32768,), (32768,), num_heads=64, num_kv_heads=8, head_dim=128, v_head_dim=128, backward=False)
)
BOTH = with_name(replace(FORWARD, backward=True))


def test_every_anchor_has_a_shape_a_speed_and_a_dated_source() -> None:
    table = json.loads(published.TABLE.read_text(encoding="utf-8"))
    assert len(table["anchors"]) >= 25
    for source in table["sources"].values():
        assert source["url"].startswith("https://") and source["version"] and source["date"] and source["note"]
    keys = [tuple(value for name, value in row.items() if name != "tflops") for row in table["anchors"]]
    assert len(set(keys)) == len(keys), "no anchor is there twice"
    assert all(100 < anchor.tflops < 2250 and anchor.seqlen >= 4096 for anchor in published.load_anchors())


def test_the_nearest_anchor_of_the_same_mask_and_gpu_is_taken() -> None:
    best = published.find_best(FORWARD, H200)
    assert best is not None and (best.kernel, best.tflops, best.gpu) == ("FlashAttention-3", 680, "H100")
    short = published.find_best(with_name(replace(FORWARD, seqlens_q=(2048,), seqlens_k=(2048,))), H200)
    assert short is not None and (short.seqlen, short.tflops) == (4096, 662)
    both = published.find_best(BOTH, "NVIDIA H100 80GB HBM3")
    assert both is not None and both.tflops == round(3.5 / (1 / 680 + 2.5 / 586), 1)
    ring = published.find_best(replace(FORWARD, seqlens_q=(65536,), seqlens_k=(65536,)), H200, 8)
    assert ring is not None and ring.kernel == "MagiAttention native"


@pytest.mark.parametrize(
    "case",
    [
        replace(FORWARD, causal=False),
        replace(FORWARD, dtype="float32"),
        replace(FORWARD, head_dim=64, v_head_dim=64),
        replace(FORWARD, window_size=(1023, 0)),
        replace(FORWARD, seqlens_q=(512,), seqlens_k=(512,)),
    ],
)
def test_no_anchor_stands_for_another_problem(case: Case) -> None:
    assert published.find_best(case, H200) is None
    assert published.find_best(FORWARD, "NVIDIA A100-SXM4-80GB") is None


def make_timing(ms: float, answer: str = "pass") -> Timing:
    return Timing("sdpa_cudnn", FORWARD, "forward", "default", "ok", answer=answer, median_ms=ms)  # type: ignore[arg-type]


def judge(*timings: Timing, required: float = 0.0, gpu: str = H200) -> tuple[list[str], list[str]]:
    measured_on = MeasuredOn("cuda", gpu, "2.13.0")
    report = bench.make_report(laptop(), (), (), timings, DeviceRates(), measured_on, required)
    shares = report.sections["bench"].published  # type: ignore[attr-defined]
    return [finding.code for finding in report.findings], [share.description for share in shares]


def test_the_fastest_right_backend_is_compared_and_held_to_a_share() -> None:
    slow, wrong = make_timing(40.0), make_timing(20.0, "fail")  # 440 and 880 TFLOP/s
    codes, (line,) = judge(slow, wrong, required=0.8)
    assert codes == ["ATN807"] and "65% of the best published speed for H100" in line and "about 680 TFLOP/s" in line
    assert judge(slow, required=0.6)[0] == []
    assert judge(slow, gpu="NVIDIA A100")[1] == []
    with pytest.raises(Unanswered, match="no speed is published"):
        judge(slow, required=0.8, gpu="NVIDIA A100")


def test_the_published_shape_is_that_of_the_best_anchor() -> None:
    from attncheck.cli.commands.bench import read_published_shape

    request = read_published_shape(Request(), None, True)
    assert (request.seqlen, request.num_heads, request.num_kv_heads, request.causal) == (32768, 64, 8, True)
    with pytest.raises(BadUsage):
        read_published_shape(Request(seqlen=512), None, True)
    with pytest.raises(BadUsage):
        read_published_shape(Request(), "llama", True)
    with pytest.raises(Unanswered):
        read_published_shape(Request(), None, False)
