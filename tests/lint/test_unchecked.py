"""`ok` is reported only for a launch whose batches and gradients were measured with the installed trainer."""

from dataclasses import replace

import pytest

from attncheck.core import codec
from attncheck.core.experiments import BatchMeasurement, Experiments, GradientMeasurement
from attncheck.core.facts import Known
from attncheck.core.findings import Finding
from attncheck.core.launch import Source
from attncheck.core.report import Report
from attncheck.core.results.lint import LABELS, MEASURED, LintSection, launches_of
from attncheck.lint import run
from attncheck.lint.context import Request
from attncheck.report.sections.lint import launch_rows
from attncheck.report.verdict import describe_verdict, judge_report
from tests import snapshots as s
from tests.lint import launches

KEYS, SIZE = MEASURED
UNASKED = {"the model", LABELS}
SFT = "torchrun --nproc_per_node 8 -m trl.scripts.sft --model_name_or_path m --dataset_name d --packing"
BATCH = BatchMeasurement("trl", "packing", "sdpa", ("input_ids", "position_ids"), separates=True)
GRADIENTS = tuple(
    GradientMeasurement("trl", division, 1.0, 1.0, 1.0) for division in ("one batch", "two micro-batches", "two ranks")
)


def lint(options: str, *measured: BatchMeasurement | GradientMeasurement) -> Report:
    batches = tuple(item for item in measured if isinstance(item, BatchMeasurement))
    gradients = tuple(item for item in measured if isinstance(item, GradientMeasurement))
    snapshot = s.with_package(s.h200(), "trl", "0.27.0")
    snapshot = replace(snapshot, experiments=Known(Experiments(gradients, batches)))
    source = Source("run.sh", f"{SFT} {options}", "shell")
    return run.run(snapshot, Request((source,)), launches.read_model, launches.read_no_file)


@pytest.mark.parametrize(
    ("options", "measured", "unchecked"),
    [
        ("", (), {KEYS, SIZE}),
        ("", (BATCH, *GRADIENTS), set()),
        ("--gradient_accumulation_steps 4", (BATCH, *GRADIENTS), set()),
        ("--gradient_accumulation_steps 4", (BATCH, GRADIENTS[0], GRADIENTS[2]), {SIZE}),
        ("", (BATCH, *GRADIENTS[:2]), {SIZE}),
        ("--loss_type dft", (BATCH, *GRADIENTS), {SIZE}),
        ("--loss_type sigmoid_norm", (BATCH, *GRADIENTS), {SIZE}),
        ("--loss_type nll", (BATCH, *GRADIENTS), set()),
        ("--use_liger_kernel true", (BATCH, *GRADIENTS), {SIZE}),
        ("--use_liger_kernel true", (BATCH, *GRADIENTS, replace(GRADIENTS[0], variant="liger")), set()),
        ("--deepspeed zero3.json", (BATCH, *GRADIENTS), {SIZE}),
        ("", (BATCH, replace(GRADIENTS[0], error="raised"), *GRADIENTS[1:]), {SIZE}),
        ("--attn_implementation flash_attention_2", (BATCH, *GRADIENTS), {KEYS}),
        ("--padding_free", (replace(BATCH, layout="padded"), *GRADIENTS), {KEYS}),
    ],
)
def test_what_was_not_measured_is_listed(
    options: str, measured: tuple[BatchMeasurement | GradientMeasurement, ...], unchecked: set[str]
) -> None:
    report = lint(options, *measured)
    [launch] = launches_of(report)
    assert set(launch.unchecked) - UNASKED == unchecked
    assert [item["unchecked"] for item in codec.to_plain(report.sections["lint"])["launches"]] == [
        list(launch.unchecked)
    ]


@pytest.mark.parametrize("measured", [(), (BATCH, *GRADIENTS)])
def test_the_verdict_and_the_row_are_open_without_a_measurement(
    measured: tuple[BatchMeasurement | GradientMeasurement, ...],
) -> None:
    report = lint("", *measured)
    section = report.section(LintSection)
    assert section is not None
    [launch] = section.launches
    unchecked = tuple(item for item in launch.unchecked if item in MEASURED)
    section = replace(section, launches=(replace(launch, unchecked=unchecked),))
    clean = Report("lint", report.snapshot, sections={"lint": section})
    [(mark, _, _)] = launch_rows(clean, section)
    assert mark == judge_report(clean) == ("ok" if measured else "open")
    assert all((item in describe_verdict(clean)) is not bool(measured) for item in MEASURED)


@pytest.mark.parametrize(
    ("severity", "begins"),
    [
        ("note", "no problem found; not checked: "),
        ("warning", "1 warning (ATN449) · not checked: "),
        ("error", "1 error"),
    ],
)
def test_a_warning_does_not_hide_what_was_not_checked(severity: str, begins: str) -> None:
    report = lint("")
    finding = Finding("ATN449", "no-gpu", severity, "no GPU", "", (), ())  # type: ignore[arg-type]
    verdict = describe_verdict(replace(report, findings=(finding,)))
    assert verdict.startswith(begins)
    assert ("not checked" in verdict) is (severity != "error")
