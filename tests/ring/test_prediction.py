"""`attncheck bench --ring-size N --predict`: the fit, the links, refusals, memory, the report, and wrong input."""

from __future__ import annotations

import glob
import json
from dataclasses import replace
from itertools import pairwise

import jsonschema
import pytest

from attncheck.core.cases import Case
from attncheck.core.io.errors import BadUsage, Unanswered
from attncheck.core.report import Report
from attncheck.core.results.prediction import BlockTiming, PredictionSection
from attncheck.core.sharding import explain_indivisible
from attncheck.core.verdicts import MeasuredOn
from attncheck.report.document import to_document
from attncheck.report.formats import markdown, text
from attncheck.report.schema import make_report_schema
from attncheck.ring.predict import answers, prediction, run, schedules
from attncheck.ring.predict.block_times import Block, fit_blocks
from attncheck.ring.predict.cluster import Cluster, parse_links
from attncheck.ring.predict.memory import estimate_memory
from attncheck.ring.predict.prediction import Question
from attncheck.ring.predict.simulation import Machine
from tests import snapshots
from tests.conftest import Run
from tests.ring.recorded_rings import FOUR_H200, LLAMA3_MIB, SHAPE

QUESTION = Question(131072, 16, 32, 8, 128, "bfloat16", schedules.SCHEMES)


def make_cluster_machine(links: str = "nvlink=450,ib=50") -> Machine:
    machine = FOUR_H200.make_machine()
    return replace(machine, cluster=Cluster(8, *parse_links(links)))


def test_the_fit_goes_through_what_was_measured_and_its_rate_rises() -> None:
    times_ms = {1024: 0.06, 2048: 0.15, 4096: 0.45, 8192: 1.63}
    fit = fit_blocks([BlockTiming("causal", "forward", n, ms=ms) for n, ms in times_ms.items()], SHAPE)
    for n, ms in times_ms.items():
        assert fit.estimate(Block("causal", 2.0 * 128 * 32 * n**2), "forward")[0] == pytest.approx(ms)
    between, error = fit.estimate(Block("causal", 2.0 * 128 * 32 * 3000**2), "forward")
    assert 0.15 < between < 0.45 and 0 < error < 0.1
    beyond, far_error = fit.estimate(Block("causal", 2.0 * 128 * 32 * 65536**2), "forward")
    assert beyond == pytest.approx(64 * 1.63) and far_error > error
    tiny, _ = fit.estimate(Block("causal", 2.0), "forward")
    assert tiny == 0.01, "a launch takes its time whatever it computes"


def test_backward_is_both_passes_less_the_forward_and_noise_makes_no_step_down() -> None:
    blocks = [BlockTiming("causal", "forward", 64, ms=0.2), BlockTiming("causal", "forward", 128, ms=0.1)]
    fit = fit_blocks([*blocks, BlockTiming("causal", "forward_backward", 64, ms=0.7)], SHAPE)
    assert all(a.ms <= b.ms for series in fit.points.values() for a, b in pairwise(series))
    assert [point.ms for point in fit.points["causal", "backward"]] == pytest.approx([0.5])
    lost = fit_blocks([BlockTiming("causal", "forward", 64, "raised", "boom")], SHAPE)
    assert lost.points == {}


def test_links_are_read_with_their_intervals() -> None:
    inner, outer = parse_links("nvlink=136+-14,ib=50")
    assert (inner.low_gb_per_s, inner.gb_per_s, inner.high_gb_per_s) == (122, 136, 150)
    assert (outer.low_gb_per_s, outer.gb_per_s, outer.high_gb_per_s) == (15, 50, 50), "a data sheet's is seldom reached"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("foo=1", "--link 'foo' is not one of nvlink"),
        ("nvlink", "has no rate in GB/s"),
        ("nvlink=0", "has no rate in GB/s"),
        ("nvlink=fast", "has no rate in GB/s"),
        ("nvlink=-5", "has no rate in GB/s"),
        ("nvlink=5+-5", "is not below the rate itself"),
        ("nvlink=450,pcie=30", "names nvlink and pcie"),
        ("", "is not one of"),
    ],
)
def test_wrong_links_are_one_clear_line(given: str, complaint: str) -> None:
    with pytest.raises(BadUsage) as caught:
        parse_links(given)
    assert complaint in str(caught.value) and "\n" not in str(caught.value)


def test_a_ring_beyond_a_node_needs_the_network() -> None:
    with pytest.raises(BadUsage, match="64 ranks with 8 GPUs per node are 8 nodes"):
        run.check_request(run.Request(parse_links("nvlink=450")), 64, False)
    run.check_request(run.Request(parse_links("nvlink=450,ib=50")), 64, True)
    run.check_request(run.Request(parse_links("nvlink=450"), 72), 64, True)
    with pytest.raises(BadUsage, match="has no schedule for eager"):
        run.choose_schemes(["eager"])


def test_refusals_have_the_words_of_the_schemes_themselves() -> None:
    def refuse(scheme: str, question: Question, stride: int = 0) -> str:
        return prediction.explain_refusal(question, scheme, question.ring_size, stride)

    odd = replace(QUESTION, seqlen=131072 + 16)
    case = Case("predict", (odd.seqlen,), (odd.seqlen,), context_parallel_size=16)
    assert refuse("zigzag_ring_flash_attn", odd) == explain_indivisible("zigzag", case) != ""
    assert refuse("ring_flash_attn", odd) == ""
    uneven = replace(QUESTION, seqlen=131073)
    assert "is not divisible by 16 (16 ranks)" in refuse("ring_flash_attn", uneven)
    assert "is not divisible by 16 (16 ranks)" in refuse("stripe_flash_attn", uneven)
    assert "is not divisible by 16 (16 ranks)" in refuse(schedules.LLAMA3, uneven)
    many = replace(QUESTION, ring_size=64)
    assert refuse(schedules.ULYSSES, many) == "distributes heads across ranks: 32 heads are not divisible by 64 ranks"
    assert refuse(schedules.LLAMA3, QUESTION, 3) == "heads_k_stride 3 does not divide 8 kv heads"
    assert all(refuse(scheme, QUESTION) == "" for scheme in schedules.SCHEMES)


def test_memory_is_what_was_measured() -> None:
    local = estimate_memory("", "forward_backward", SHAPE, 1)
    assert local / (1 << 20) == pytest.approx(419, rel=0.01), "flash_attention_2 on one H200"
    for stride, mib in LLAMA3_MIB.items():
        llama3 = estimate_memory(schedules.LLAMA3, "forward_backward", SHAPE, 4, stride)
        assert llama3 / (1 << 20) == pytest.approx(mib, rel=0.03)


def make_report(question: Question = QUESTION) -> Report:
    machine = make_cluster_machine()
    rows = prediction.predict_all(question, machine)
    blocks = (BlockTiming("causal", "forward", 8192, ms=1.62), BlockTiming("full", "forward", 8192, "raised", "boom"))
    conclusions = answers.draw_conclusions(question, machine, rows, 141 << 30)
    section = PredictionSection(
        MeasuredOn("cuda", "NVIDIA H200", "2.11.0"),
        (),
        "flash_attention_2",
        8,
        links=parse_links("nvlink=450,ib=50"),
        blocks=blocks,
        predictions=rows,
        conclusions=conclusions,
    )
    return Report("bench", snapshots.h200(), sections={"prediction": section})


def test_the_report_has_every_scheme_stride_and_ring_size_and_one_line_that_answers() -> None:
    report = make_report()
    section = report.section(PredictionSection)
    assert section is not None
    largest = [row for row in section.predictions if row.ring_size == 16]
    assert len(largest) == 2 * (4 + 4), "four schemes and llama3's four strides, both kinds of pass"
    assert {row.ring_size for row in section.predictions} == {16, 8, 4, 2}
    assert {row.nodes for row in largest} == {2}
    for row in section.predictions:
        parts_ms = row.compute_ms + row.merge_ms + row.exposed_ms + row.slowed_ms
        assert row.ms == pytest.approx(parts_ms, rel=1e-4) and row.low_ms < row.ms < row.high_ms
        assert row.launch_ms < row.ms, "rows of this length are not bound by launching"
    ring = next(row for row in largest if row.scheme == "ring_flash_attn" and row.passes == "forward")
    assert ring.limited_by == "uneven causal work" and 0.4 < ring.efficiency < 0.6
    fastest = min((row for row in largest if row.passes == "forward_backward"), key=lambda row: row.ms)
    assert section.conclusions[0].startswith(f"131072 tokens on 16 GPUs: {fastest.title} is the fastest")
    assert any("faster than one GPU from about" in line for line in section.conclusions)
    assert any("heads_k_stride" in line for line in section.conclusions)
    assert any("fits into one GPU" in line for line in section.conclusions)
    jsonschema.validate(json.loads(json.dumps(to_document(report))), make_report_schema())
    for shown in (text.render_plain(report, False), markdown.render(report, False)):
        assert "16 ranks, 2 nodes × 8 GPUs" in shown and section.conclusions[0] in shown.replace("\\_", "_")
        assert "8192 per rank" in shown and "uneven causal work: ring" in shown.replace("\\_", "_")


def test_a_slow_network_is_named_and_a_row_that_no_scheme_takes_too() -> None:
    machine = make_cluster_machine("nvlink=450,ib=1")
    rows = prediction.predict_all(QUESTION, machine)
    zigzag = next(row for row in rows if row.scheme == "zigzag_ring_flash_attn" and row.ring_size == 16)
    assert zigzag.limited_by == "communication that compute cannot hide"
    odd = replace(QUESTION, seqlen=131073)
    refused = prediction.predict_all(odd, machine)
    assert {row.outcome for row in refused if row.ring_size == 16} == {"refused"}
    assert answers.draw_conclusions(odd, machine, refused, 0)[0] == "no scheme can run 131073 tokens across 16 ranks"


def test_missing_gpus_bring_the_offer_to_predict() -> None:
    from attncheck.cli.commands.bench import offer_prediction

    with (
        pytest.raises(Unanswered, match="4 are visible; attncheck bench --ring-size 64 --predict"),
        offer_prediction(64),
    ):
        raise Unanswered("a ring of 64 needs one GPU per rank; 4 are visible")
    with pytest.raises(Unanswered, match=r"^another$"), offer_prediction(64):
        raise Unanswered("another")


@pytest.mark.skipif(bool(glob.glob("/dev/nvidia[0-9]*")), reason="a GPU is here")
@pytest.mark.parametrize("words", [(), ("--predict", "--link", "nvlink=450"), ("--no-emulate",)])
def test_a_ring_without_a_gpu_is_refused_at_once_with_the_commands_that_help(
    attncheck: Run, words: tuple[str, ...]
) -> None:
    done = attncheck("bench", "--ring-size", "8", *words)
    assert done.returncode == 3 and not done.stdout and done.stderr.count("\n") == 1, done.stderr
    for command in ("parity --ring-size 8", "bench --ring-size 8 --predict", "--device cpu"):
        assert command in done.stderr


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("--predict",), "--predict is for --ring-size"),
        (("--link", "nvlink=1"), "--link is for --ring-size"),
        (("--ring-size", "2", "--link", "nvlink=1"), "--link is for --predict"),
        (("--ring-size", "2", "--predict", "--link", "foo=1"), "--link 'foo' is not one of"),
        (("--ring-size", "2", "--predict", "--sweep", "seqlen"), "--sweep is not for --predict"),
        (("--ring-size", "16", "--predict"), "16 ranks with 8 GPUs per node are 2 nodes"),
    ],
)
def test_wrong_use_is_one_line(attncheck: Run, argv: tuple[str, ...], complaint: str) -> None:
    done = attncheck("bench", "--device", "cpu", *argv)
    assert done.returncode == 2 and complaint in done.stderr and done.stderr.count("\n") == 1


def test_a_row_that_no_scheme_takes_leaves_the_question_unanswered() -> None:
    refused = make_report(replace(QUESTION, seqlen=131073))
    assert [question.name for question in refused.unanswered] == ["prediction"]
    assert "is not divisible by 16 (16 ranks)" in refused.unanswered[0].reason
    assert "refused: the length 131073 is not divisible by 16" in text.render_plain(refused, False)
    assert not make_report().unanswered


def test_the_command_on_a_cpu(attncheck: Run) -> None:
    arguments = ("--ring-size", "8", "--predict", "--seqlen", "1024", "--link", "host=1", "--format", "json")
    done = attncheck("bench", "--device", "cpu", *arguments, "--backend", "zigzag_ring_flash_attn")
    assert done.returncode == 0, done.stderr
    section = json.loads(done.stdout)["prediction"]
    assert {block["outcome"] for block in section["blocks"]} == {"ok"}
    assert {block["kind"] for block in section["blocks"]} == {"causal", "half_keys", "half_queries"}
    rows = section["predictions"]
    assert [row["ring_size"] for row in rows] == [8, 8, 4, 2] and all(row["ms"] > 0 for row in rows)
    assert section["conclusions"] == [run.CPU_TIMES]
