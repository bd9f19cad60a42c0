"""Smoke's plan runs: each plan, its checks and their answers, the training; then the settings of the mended plan."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.plan import Plan
from attncheck.core.report import Report
from attncheck.core.results.smoke import (
    CheckResult,
    PlanRun,
    SmokeSection,
    Step,
    deciding_reason,
    describe_measure,
    judge_result,
    worst_first,
)
from attncheck.report.lines import Line, column_line, style_of_answer, text_line
from attncheck.report.markdown_text import escape_line, escape_markdown, format_code_block, format_table
from attncheck.report.sections import SectionView
from attncheck.report.testcases import TestCase, make_testcase

BARS = "▁▂▃▄▅▆▇█"
NAME_WIDTH = 24  # characters of a check's name
MAX_BARS = 40  # of a loss curve


def rows(report: Report, section: SmokeSection, verbose: bool, width: int) -> Iterator[Line]:
    """Yield the runs of plans for a terminal `width` columns wide."""
    measured_on = section.measured_on
    parts = [
        measured_on.name or measured_on.device,
        f"torch {measured_on.torch}" if measured_on.torch else "",
        f"seed {measured_on.seed}",
        f"{measured_on.seconds:.0f} s",
    ]
    yield text_line(" · ".join(part for part in parts if part))
    if measured_on.emulated:
        yield text_line("flash-attn's kernels are emulated over ranks; one device runs transformers' own attention")
    for run in section.plan_runs:
        yield Line()
        yield text_line(_format_title(run))
        yield text_line(describe_plan(run.plan))
        for result in run.results:
            yield from format_result(result, verbose, width)


def _format_title(run: PlanRun) -> str:
    return f"{run.model}, mended: {run.reason}" if run.reason else run.model


def describe_plan(plan: Plan) -> str:
    """Return a plan in one line."""
    batch_shape = f"{plan.batch} × {plan.max_length} tokens"
    parts = [
        plan.attn_implementation or "transformers' default attention",
        describe_packing(plan),
        plan.precision,
        batch_shape if plan.packed else f"padded on the {plan.padding_side}",
        f"{plan.accumulation} batches a step",
        *(["cache on"] * plan.use_cache),
        *(["gradient checkpointing"] * plan.gradient_checkpointing),
        *(["liger"] * plan.liger),
        *([f"{plan.cross_entropy} cross entropy"] * (plan.cross_entropy != "torch")),
        *(["deterministic"] * plan.deterministic),
        *(["compiled"] * plan.compile),
        *([f"{plan.scheme} over {plan.ring_size} ranks"] * (plan.ring_size > 1)),
        *(f"{name}={value}" for name, value in plan.environ),
        *(f"shim {name}" for name in plan.shims),
    ]
    return " · ".join(parts)


def describe_packing(plan: Plan) -> str:
    """Return in words how a plan keeps documents apart."""
    position_texts = {
        "running": ", positions that run on",
        "reset_3d": ", positions in 3-D",
        "reset_4d": ", positions in 4-D",
    }
    positions = position_texts.get(plan.positions, "") if plan.packed else ""
    packing_texts = {
        "position_ids": "packed by position_ids",
        "cu_seqlens": "packed by cu_seqlens",
        "mask_2d": "packed beside a 2-D mask",
        "mask_4d": "packed by a 4-D mask",
        "padding": "not packed",
    }
    return packing_texts[plan.packing] + positions


def format_result(result: CheckResult, verbose: bool, width: int) -> Iterator[Line]:
    """Yield a check's answer and what decided it, for a terminal `width` columns wide."""
    verdict = judge_result(result)
    head = ((f"  {verdict:<8}", style_of_answer(verdict)), (f"{format_check_name(result) + '  ':<{NAME_WIDTH}}", ""))
    room = max(20, width - 10 - NAME_WIDTH)
    lines = _wrap_text(describe_result(result), room)
    yield column_line(*head, (lines[0], ""))
    details = [*lines[1:]]
    if result.steps and not verbose:
        details += [line for note in result.notes for line in _wrap_text(note, room)]
    if result.steps:
        details.append(draw_loss_curve(result.steps))
    if verbose:
        measures = [
            describe_measure(measure)
            for measure in worst_first(result)
            if describe_measure(measure) != describe_result(result)
        ]
        details += [line for measure in measures for line in _wrap_text(measure, room)]
        notes = [note for note in (*result.reservations, *result.notes) if note != describe_result(result)]
        details += [line for note in notes for line in _wrap_text(note, room)]
        details += describe_layers(result)
        details += describe_steps(result.steps)
    else:
        details += [line for note in list_unjudged(result) for line in _wrap_text(note, room)]
    for line in dict.fromkeys(details):
        yield column_line((" " * (10 + NAME_WIDTH), ""), (line, "dim"))


def format_check_name(result: CheckResult) -> str:
    """Return a check's name in words."""
    return result.check.replace("_", " ")


def list_unjudged(result: CheckResult) -> list[str]:
    """Return what a check says that it did not judge, which is shown whatever its answer."""
    return [note for note in result.notes if note.startswith("not judged") and note != describe_result(result)]


def describe_result(result: CheckResult) -> str:
    """Return in one line what decided a result; of a training run that passes, its numbers."""
    if judge_result(result) == "pass" and result.steps:
        return describe_training(result)
    if judge_result(result) == "pass" and not result.measures:
        return (result.notes or ("as expected",))[0]
    return deciding_reason(result)


def describe_training(result: CheckResult) -> str:
    """Return a training run in one line."""
    losses = [step.loss for step in result.steps]
    speed = sorted(step.tokens_per_s for step in result.steps)[len(result.steps) // 2]
    peak = max(step.peak_memory_bytes for step in result.steps)
    wanted = f", wanted below {result.bound:.2f}" if result.bound else ""
    least = f", cannot be below {result.floor:.2f}" if result.floor else ""
    parts = [
        f"loss {losses[0]:.2f} → {losses[-1]:.2f} in {len(losses)} steps{wanted}{least}",
        *([f"{speed:,.0f} tokens/s"] * bool(speed)),
        *([f"{peak / (1 << 20):,.0f} MiB"] * bool(peak)),
    ]
    return " · ".join(parts)


def draw_loss_curve(steps: tuple[Step, ...]) -> str:
    """Return the losses of a run as a line of bars."""
    losses = [step.loss for step in steps if step.loss == step.loss and abs(step.loss) < 1e30]
    if not losses:
        return ""
    stride = max(1, -(-len(losses) // MAX_BARS))
    sampled = losses[::stride]
    low, high = min(sampled), max(sampled)
    span = (high - low) or 1.0
    return "".join(BARS[min(len(BARS) - 1, int((loss - low) / span * len(BARS)))] for loss in sampled)


def describe_layers(result: CheckResult) -> Iterator[str]:
    """Yield for each layer what it was asked to run, what its configuration said, and what ran."""
    for layer in result.layers:
        kind = f", {layer.kind}" if layer.kind else ""
        ran = " and ".join(layer.ran) or "nothing that is known"
        yield f"{layer.name}{kind}: {layer.requested or 'default'} → {layer.dispatched or '?'} → {ran}"


def describe_steps(steps: tuple[Step, ...]) -> Iterator[str]:
    """Yield the steps of a training run, a line each."""
    for number, step in enumerate(steps, 1):
        memory = f" · {step.peak_memory_bytes / (1 << 20):,.0f} MiB" if step.peak_memory_bytes else ""
        speed = f" · {step.tokens_per_s:,.0f} tokens/s" if step.tokens_per_s else ""
        norm = f" · grad norm {step.grad_norm:.3f}" if step.grad_norm else ""
        yield f"step {number:>3} · loss {step.loss:.4f}{norm}{speed}{memory}"


def below(report: Report, section: SmokeSection) -> Iterator[Line]:
    """Yield the settings to paste: the final plan, mended or not, as transformers and each framework write it."""
    mended = any(run.reason for run in section.plan_runs)
    for settings in section.settings:
        yield Line()
        yield text_line(f"{'the mended plan' if mended else 'the plan'} for {settings.framework}")
        for line in settings.text.splitlines():
            yield column_line(("    ", ""), (line, ""))


def markdown(report: Report, section: SmokeSection) -> Iterator[str]:
    """Yield each run of a plan as a table, then the settings."""
    for run in section.plan_runs:
        yield from (f"## {escape_markdown(_format_title(run))}", "", escape_line(describe_plan(run.plan)), "")
        results = [(format_check_name(result), judge_result(result), describe_result(result)) for result in run.results]
        yield from format_table(("question", "answer", "because"), results)
        yield ""
    for settings in section.settings:
        heading = f"## Settings for {escape_markdown(settings.framework)}"
        yield from (heading, "", *format_code_block(settings.text.rstrip()), "")


def testcases(report: Report, section: SmokeSection) -> Iterator[TestCase]:
    """Yield a test case for each check of each run."""
    for run in section.plan_runs:
        for result in run.results:
            text = "\n".join((*result.violations[1:], *result.reservations, *result.notes))
            reason = deciding_reason(result)
            yield make_testcase(
                report, result.check, f"smoke: {_format_title(run)}", judge_result(result), reason, text, result.seconds
            )


def _wrap_text(text: str, room: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, room) or [""]


VIEW = SectionView(rows=rows, below=below, markdown=markdown, testcases=testcases)
