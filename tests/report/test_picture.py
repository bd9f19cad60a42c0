"""The picture of the timings: PNG and SVG as a user asks for them, and what happens without matplotlib."""

from __future__ import annotations

import html
import os
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.core.errors import BadUsage
from attncheck.core.report import Report
from attncheck.core.results.ring import RingSection
from attncheck.core.results.ring_timings import LOCAL_FLASH, RingTiming, Stopwatch
from attncheck.core.verdicts import MeasuredOn
from attncheck.report import picture
from tests.conftest import Run
from tests.measure.test_bench import CUDNN, MEASURED, make_report
from tests.snapshots import laptop

WRONG = replace(CUDNN, backend="hasty", median_ms=1.0, answer="fail")
WATCH = Stopwatch(53.0, 52.0, 54.0, 0.004, 60, 3, 1.01)
RING = RingTiming(
    "zigzag_ring_flash_attn", "batch", "forward_backward", 8, 8192, watch=WATCH, iterations_per_s=18.81,
    efficiency=0.927, achievable=0.969, reached=0.96, correct="pass",
)  # fmt: skip


def make_ring_report() -> Report:
    local = replace(RING, backend=LOCAL_FLASH, iterations_per_s=162.3, correct="skipped")
    timings = (local, RING, replace(RING, backend="stripe_flash_attn", efficiency=0.872, correct="fail"))
    on = MeasuredOn("cuda", "NVIDIA H200", "2.11.0", ring_size=8)
    section = RingSection(on, timings=timings, conclusions=("zigzag",))
    return Report("bench", laptop(), sections={"ring": section})


def test_a_bar_says_what_the_table_says() -> None:
    (panel,) = picture.make_panels(make_report(*MEASURED, WRONG, replace(CUDNN, backend="sdpa_math", outcome="died")))
    bars = {bar.name: bar for bar in panel.bars}
    assert list(bars) == [
        "hasty", "sdpa_cudnn", "flash_attention_2", "flex_attention", "flash_attention_2 deterministic",
    ]  # fmt: skip
    assert "3.930 ms · " in bars["sdpa_cudnn"].label
    assert bars["sdpa_cudnn"].label.endswith("512 MiB · dq vary")
    assert bars["hasty"].colour == picture.WRONG_COLOUR
    assert "parity: fail" in bars["hasty"].label
    assert (
        bars["flash_attention_2 deterministic"].colour == bars["flex_attention"].colour == picture.REPRODUCIBLE_COLOUR
    )


def test_a_ring_is_drawn_beside_what_is_achievable() -> None:
    (panel,) = picture.make_panels(make_ring_report())
    assert [bar.name for bar in panel.bars] == [
        "zigzag_ring_flash_attn, 8192 tokens a rank", "stripe_flash_attn, 8192 tokens a rank",
    ]  # fmt: skip
    assert panel.bars[0].value == pytest.approx(92.7)
    assert panel.bars[0].achievable == pytest.approx(96.9)
    assert panel.bars[1].colour == picture.WRONG_COLOUR


@pytest.mark.parametrize(
    "drawn_report", [make_report(*MEASURED, WRONG), make_ring_report(), make_report(replace(CUDNN, outcome="died"))]
)
def test_png_and_svg_are_written(drawn_report: Report, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    png, svg, again = (tmp_path / name for name in ("a.png", "a.SVG", "b.svg"))
    picture.draw(drawn_report, [str(png), str(svg), str(again)])
    assert png.read_bytes().startswith(b"\x89PNG\r\n")
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert svg.read_bytes() == again.read_bytes(), "the same report, the same file"
    for panel in picture.make_panels(drawn_report):
        for bar in panel.bars:
            assert bar.label in html.unescape(svg.read_text())


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "a.png").mkdir()
    with pytest.raises(BadUsage, match=r"cannot write .*a\.png: Is a directory"):
        picture.draw(make_report(*MEASURED), [str(tmp_path / "a.png")])


def test_without_matplotlib_the_timings_are_told_all_the_same(attncheck: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "matplotlib.py").write_text("raise ModuleNotFoundError('No module', name='matplotlib')")
    arguments = ("bench", "--device", "cpu", "--seqlen", "64", "--passes", "forward", "--backend", "eager")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    process = attncheck(*arguments, "--picture", "table.png", env=environment)
    assert process.returncode == 2
    assert "fastest correct backend on this CPU, forward: eager" in process.stdout
    assert process.stderr.splitlines()[-1] == (
        "attncheck: no picture was drawn: matplotlib is not installed; pip install 'attncheck[picture]'"
    )
    assert not (tmp_path / "table.png").exists()


def test_a_matplotlib_that_cannot_be_imported_is_told_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "matplotlib.py").write_text("raise RuntimeError('numpy of another ABI\\nand more')")
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadUsage, match="matplotlib cannot be imported: numpy of another ABI; pip install"):
        picture.draw(make_report(*MEASURED), ["table.png"])


def test_the_command_draws(attncheck: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    arguments = ("bench", "--device", "cpu", "--seqlen", "64", "--passes", "forward", "--backend", "eager")
    process = attncheck(*arguments, "--picture", "a.png", "--picture", "a.svg", "--format", "markdown")
    assert process.returncode == 0, process.stderr
    assert (tmp_path / "a.png").stat().st_size > 1000
    assert "eager" in (tmp_path / "a.svg").read_text()
