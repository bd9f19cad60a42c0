"""Tables: columns are two spaces apart whatever the numbers and however narrow the terminal."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from attncheck.core.report import Report
from attncheck.core.results.bench import BenchSection
from attncheck.core.results.collectives import CollectiveResult, Communication, Operation
from attncheck.core.results.determinism import DeterminismSection
from attncheck.core.results.parity import ParitySection
from attncheck.core.results.ring import RingSection
from attncheck.core.results.ring_timings import LOCAL_FLASH, RingTiming, Stopwatch
from attncheck.core.results.timings import Timing
from attncheck.core.verdicts import BackendState, Difference, Repeats, Verdict
from attncheck.report.blocks import Block
from attncheck.report.columns import Column, Row, layout_table
from attncheck.report.formats.text import format_blocks
from attncheck.report.lines import Line
from attncheck.report.sections import bench as bench_view
from attncheck.report.sections import determinism as determinism_view
from attncheck.report.sections import parity as parity_view
from attncheck.report.sections import ring as ring_view
from tests.measure.test_bench import CASE, CUDNN, FLASH, make_report
from tests.snapshots import laptop

WIDTHS = (20, 40, 60, 76, 80, 100, 110, 200)
SEEDS = 150
TENSORS = ("out", "dq", "dk", "dv")


def read_line(line: Line) -> str:
    return "".join(text for text, _ in line.head) + line.text


def split_columns(line: str) -> list[str]:
    """Return the cells of a line, as a reader tells them apart: by two spaces or more."""
    return re.split(r" {2,}", line.strip())


def without_dashes(cells: Iterable[str]) -> list[str]:
    """Return cells that have a value: a column without one is left out."""
    return [cell for cell in cells if cell != "-"]


def is_part_of(shown: Iterable[str], cells: Iterable[str]) -> bool:
    """Return whether `shown` are some of `cells`, in their order."""
    rest = iter(cells)
    return all(cell in rest for cell in shown)


def draw_magnitude(chance: random.Random, low: float, high: float) -> float:
    """Return a number between powers of ten, all magnitudes alike."""
    return float(10.0 ** chance.uniform(low, high))


def make_timing(chance: random.Random, name: str) -> Timing:
    ms = draw_magnitude(chance, -3, 7)
    return replace(
        FLASH,
        backend=name,
        median_ms=ms,
        p10_ms=ms * chance.uniform(0.01, 1),
        p90_ms=ms * chance.uniform(1, 100),
        interval_ms=ms * draw_magnitude(chance, -4, 2),
        stable=chance.random() < 0.5,
        tflops=draw_magnitude(chance, -4, 5),
        matmul_share=draw_magnitude(chance, -4, 1),
        peak_memory_bytes=int(draw_magnitude(chance, 0, 15)),
        varied=tuple(name for name in TENSORS if chance.random() < 0.5),
        answer=chance.choice(("pass", "warn", "fail", "refused", "skipped")),
    )


def make_ring_timing(chance: random.Random, name: str) -> RingTiming:
    ms = draw_magnitude(chance, -3, 6)
    watch = Stopwatch(ms, ms, ms, draw_magnitude(chance, -4, 2), 9, 0, 1.0, int(draw_magnitude(chance, 0, 15)), ms)
    share, achievable, reached = (draw_magnitude(chance, -3, 1) for _ in range(3))
    return RingTiming(
        name, "batch", "forward", chance.choice((2, 8, 1024)), 8192, chance.choice((0, 4)), stopwatch=watch,
        iterations_per_s=1e3 / ms, efficiency=share, achievable=achievable, reached=reached, communication_ms=1.0,
        overlapped=chance.random(), correct=chance.choice(("pass", "warn", "fail", "skipped")),
    )  # fmt: skip


def make_repeats(chance: random.Random, name: str) -> Repeats:
    differences = tuple(
        Difference(tensor, int(draw_magnitude(chance, 0, 7)), int(draw_magnitude(chance, 0, 7)), 0.0, 1, 1)
        for tensor in TENSORS
    )
    return Repeats(
        name, CASE, "default", "ok", repeats=int(draw_magnitude(chance, 0, 9)), differences=differences,
        batch=differences[:2], call_ms=draw_magnitude(chance, -3, 8), memory_bytes=int(draw_magnitude(chance, 0, 15)),
    )  # fmt: skip


def read_lines(blocks: Iterable[Block], width: int, verbose: bool = False) -> list[str]:
    return [read_line(line) for line in format_blocks(blocks, verbose, width)]


def bench_lines(timings: list[Timing], width: int) -> list[str]:
    section = BenchSection(timings=tuple(timings))
    lines = read_lines(bench_view.blocks(Report("bench", laptop()), section), width)
    start = next(index for index, line in enumerate(lines) if line.startswith("backend "))
    return lines[start : start + 1 + len(timings)]


def ring_lines(timings: list[RingTiming], width: int) -> list[str]:
    lines = read_lines(ring_view.blocks(Report("bench", laptop()), RingSection(timings=tuple(timings))), width)
    start = next(index for index, line in enumerate(lines) if "iter/s" in line)
    return lines[start : start + 1 + len(timings)]


def determinism_lines(repeats: list[Repeats], width: int) -> list[str]:
    section = DeterminismSection(repeats=tuple(repeats))
    lines = read_lines(determinism_view.blocks(Report("determinism", laptop()), section), width)
    start = next(index for index, line in enumerate(lines) if line.startswith("backend "))
    return lines[start : start + 1 + len(repeats)]


def test_numbers_of_any_size_stay_apart_at_any_width() -> None:
    tried = 0
    for seed, width in itertools.product(range(SEEDS), WIDTHS):
        chance = random.Random(seed)
        names = ["eager", "flash_attention_2_varlen", "x" * chance.randint(1, 40)]
        timings = [make_timing(chance, name) for name in names]
        ring_timings = [make_ring_timing(chance, name) for name in (LOCAL_FLASH, *names[1:])]
        tables: list[tuple[list[str], dict[str, tuple[str, ...]]]] = [
            (bench_lines(timings, width), {t.backend: bench_view.format_cells(t) for t in timings}),
            (ring_lines(ring_timings, width), {t.title: ring_view.format_cells(t) for t in ring_timings}),
        ]
        for (header, *lines), cells_by_name in tables:
            assert len(lines) == len(cells_by_name)
            for line in lines:
                name, *shown = split_columns(line)
                assert is_part_of(shown, cells_by_name[name]), (seed, width, line)
                assert (shown[0], shown[-1]) == (cells_by_name[name][0], cells_by_name[name][-1]), (
                    "speed and parity always stay"
                )
                assert len(shown) == len(split_columns(header)) - 1
            tried += len(lines)
    print(f"{tried} rows")
    assert tried > 5000


def test_counts_of_any_size_stay_apart() -> None:
    for seed, width in itertools.product(range(SEEDS), (60, 110)):
        chance = random.Random(seed)
        repeats = [make_repeats(chance, name) for name in ("eager", "sdpa_math")]
        header, *lines = determinism_lines(repeats, width)
        for line, measured in zip(lines, repeats):
            name, *shown = split_columns(line)
            assert name == f"{measured.backend} dense" and len(shown) == len(split_columns(header)) - 1
            assert shown[:4] == [str(difference.distinct) for difference in measured.differences]


def test_pairs_of_ranks_and_rates_of_any_size_stay_apart() -> None:
    exchanges: tuple[tuple[Operation, tuple[int, ...]], ...] = (
        ("reduce_scatter", tuple(range(1024))),
        ("send_recv", (1022, 1023)),
    )
    results = tuple(
        CollectiveResult(operation, ranks, "ok", bytes=size, ms=ms, gb_per_s=rate)
        for operation, ranks in exchanges
        for size, ms, rate in ((8 << 20, 1.0, 400.0), (1 << 45, 123456789.125, 1234567.25))
    )
    communication = Communication(transport="nccl", world_size=1024, exchanges=results)
    for width in WIDTHS:
        lines = read_lines(ring_view.show_communication(communication), width)
        for line, result in zip(lines[-len(results) :], results):
            cells = split_columns(line)
            assert cells[0] == result.operation and cells[1] in ("all of 1024", "1022-1023")
            assert f"{result.gb_per_s:.2f}" in cells and cells[-1] in ("right", "network", "not known")


def test_families_of_long_names_stay_apart() -> None:
    families = ("many_documents", "longer_than_a_shard", "head_dim", "gqa")
    verdicts = tuple(Verdict("parity", "eager", name, name, "pass", "", 0.5) for name in families)
    section = ParitySection(backends=(BackendState("eager", "", ""),), verdicts=verdicts)
    lines = read_lines(parity_view.blocks(Report("parity", laptop()), section), 110, True)
    header = next(line for line in lines if line.startswith("backend "))
    assert split_columns(header) == ["backend", *families]


# What ran together when columns had widths of their own: each of these filled its column or more.
RAN_TOGETHER: tuple[dict[str, Any], ...] = (
    {"median_ms": 12345678.9},
    {"p10_ms": 100000.0, "p90_ms": 1234567.0},
    {"interval_ms": 613.0 * 6.14, "stable": False},
    {"peak_memory_bytes": 1 << 50},
    {"tflops": 1.234e-12},
)


@pytest.mark.parametrize("fields", RAN_TOGETHER)
def test_what_ran_together_is_apart(fields: dict[str, Any]) -> None:
    timing = replace(CUDNN, **fields)
    _, line = bench_lines([timing], 200)
    assert split_columns(line) == ["sdpa_cudnn", *without_dashes(bench_view.format_cells(timing))]


@pytest.mark.parametrize(
    "fields",
    [
        {"iterations_per_s": 123456.0},
        {"efficiency": 12345.0},
        {"stopwatch": Stopwatch(9.0, 9.0, 9.0, 15.96, 9, 0, 1.0)},
    ],
)
def test_what_ran_together_on_a_ring_is_apart(fields: dict[str, Any]) -> None:
    timing = replace(make_ring_timing(random.Random(0), "zigzag_ring_flash_attn"), **fields)
    _, line = ring_lines([timing], 200)
    assert split_columns(line) == [timing.title, *without_dashes(ring_view.format_cells(timing))]


def test_columns_of_the_highest_rank_go_first_and_a_failed_row_keeps_its_reason() -> None:
    columns = (Column("a", 0), Column("b", 5), Column("c", 3), Column("d", 1))
    rows = [Row("one", (("1", ""), ("2", ""), ("3", ""), ("4", ""))), Row("two", note=("died: SIGSEGV", "red"))]

    def titles(width: int) -> Iterator[list[str]]:
        for line in layout_table("name", columns, rows, width):
            yield split_columns(read_line(line))

    assert next(titles(80)) == ["name", "a", "b", "c", "d"]
    assert next(titles(4 + 9)) == ["name", "a", "c", "d"]
    assert next(titles(4 + 6)) == next(titles(1)) == ["name", "a", "d"]
    assert list(titles(1))[-1] == ["two", "died: SIGSEGV"]


def test_the_report_of_a_device_keeps_its_numbers_apart_in_text() -> None:
    from attncheck.report.formats import text

    rendered = text.render(make_report(replace(CUDNN, **RAN_TOGETHER[1]), FLASH), False)
    (line,) = (line for line in rendered.splitlines() if line.startswith("sdpa_cudnn "))
    assert "100000.0–1234567.0" in split_columns(line)
