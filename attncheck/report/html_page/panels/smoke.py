"""Smoke: each plan that was run, its checks, what really ran in each layer, the curve of the loss, settings to copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attncheck.core.report import Report
from attncheck.core.results.smoke import (
    CheckResult,
    PlanRun,
    SmokeSection,
    describe_measure,
    judge_result,
    worst_first,
)
from attncheck.report.html_page.charts import draw_curve
from attncheck.report.html_page.elements import Markup, badge, bullet_list, code_block, element, fold
from attncheck.report.html_page.panels import Panel
from attncheck.report.html_page.room import clip
from attncheck.report.html_page.tables import cell, make_table, row_head, text_table
from attncheck.report.sections.smoke import (
    describe_plan,
    describe_result,
    describe_training,
    format_check_name,
)

MAX_NOTES = 12


def show(report: Report, section: SmokeSection) -> Iterator[Markup]:
    """Yield the runs of plans, then the settings of the last one."""
    device = section.measured_on
    if device.device:
        emulated = " · flash-attn's kernels are emulated over ranks" * device.emulated
        yield element("p", f"{device.name or device.device} · torch {device.torch} · seed {device.seed}{emulated}")
    for run in section.plan_runs:
        yield from _show_run(run)
    mended = any(run.reason for run in section.plan_runs)
    for settings in section.settings:
        title = f"{'The mended plan' if mended else 'The plan'} for {settings.framework}"
        yield element("div", element("h3", title), code_block(settings.text.rstrip(), title), class_="fix")


def _show_run(run: PlanRun) -> Iterator[Markup]:
    title = f"{run.model}, mended: {run.reason}" if run.reason else run.model
    yield element("h3", clip(title))
    yield element("p", describe_plan(run.plan))
    yield from show_results(run.results, f"Checks of {clip(run.model, 100)}")


def show_results(results: Sequence[CheckResult], title: str) -> Iterator[Markup]:
    """Yield a table of checks, then what ran in each layer, and the curve of the loss."""
    details = [_show_details(result) for result in results]
    rows = [
        [
            row_head(format_check_name(r)),
            cell(badge(judge_result(r))),
            cell(describe_result(r)),
            *([cell(d)] * any(details)),
        ]
        for r, d in zip(results, details)
    ]
    yield make_table(title, ("question", "answer", "because", *(("more",) * any(details))), rows)
    for result in results:
        yield from _show_layers(result)
        yield from _show_training(result)


def _show_details(result: CheckResult) -> Markup:
    lines = [*(describe_measure(measure) for measure in worst_first(result)), *result.reservations, *result.notes]
    lines = [clip(line, 400) for line in dict.fromkeys(lines) if line != describe_result(result)]
    return fold(f"{len(lines)} more", bullet_list(lines[:MAX_NOTES])) if lines else Markup()


def _show_layers(result: CheckResult) -> Iterator[Markup]:
    if result.layers:
        rows = (
            (
                layer.name,
                layer.kind or "-",
                layer.requested or "default",
                layer.dispatched or "?",
                " and ".join(layer.ran) or "nothing that is known",
            )
            for layer in result.layers
        )
        head = ("layer", "kind", "asked for", "configured", "really ran")
        yield text_table("What really ran in each layer", head, rows)


def _show_training(result: CheckResult) -> Iterator[Markup]:
    if not result.steps:
        return
    losses = [step.loss for step in result.steps]
    levels = ((result.bound, "bound"), (result.floor, "floor"))
    curve = draw_curve(losses, levels, f"Loss by step: {describe_training(result)}")
    text = (
        f"Loss by step: {describe_training(result)}; dashed: what it must fall below; dotted: what it cannot fall below"
    )
    rows = (
        (str(number), f"{step.loss:.4f}", f"{step.grad_norm:.3f}", f"{step.tokens_per_s:,.0f}")
        for number, step in enumerate(result.steps, 1)
    )
    steps = text_table("Steps", ("step", "loss", "gradient norm", "tokens/s"), rows)
    yield element("figure", curve, element("figcaption", text), fold(f"{len(losses)} steps", steps))


PANEL = Panel("Smoke", show)
