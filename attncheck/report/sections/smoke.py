"""What smoke ran: a plan, its checks and their answers, the training run; then the settings of the mended plan."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.plan import Plan
from attncheck.core.report import Report
from attncheck.core.results.smoke import (
    CheckResult,
    PlanRun,
    SmokeSection,
    Step,
    answer,
    deciding_reason,
    describe,
    worst_first,
)
from attncheck.report.lines import Line, columns, sentence, style_of
from attncheck.report.markdown_text import code_block, escaped, table
from attncheck.report.sections import SectionView
from attncheck.report.testcases import TestCase, measurement

BARS = "▁▂▃▄▅▆▇█"
COLUMN = 24  # of a question's name
SHOWN = 40  # steps of a curve


def rows(report: Report, section: SmokeSection, verbose: bool, width: int) -> Iterator[Line]:
    """Yield the runs of plans for a terminal `width` columns wide."""
    on = section.measured_on
    parts = [on.name or on.device, f"torch {on.torch}" if on.torch else "", f"seed {on.seed}", f"{on.seconds:.0f} s"]
    yield sentence(" · ".join(part for part in parts if part))
    if on.emulated:
        yield sentence("flash-attn's kernels are emulated over ranks; one device runs transformers' own attention")
    for run in section.plan_runs:
        yield Line()
        yield sentence(_title(run))
        yield sentence(describe_plan(run.plan))
        for result in run.results:
            yield from _result(result, verbose, width)


def _title(run: PlanRun) -> str:
    return f"{run.model}, mended: {run.reason}" if run.reason else run.model


def describe_plan(plan: Plan) -> str:
    """Return a plan in one line."""
    rows_of = f"{plan.batch} × {plan.max_length} tokens"
    parts = [
        plan.attn_implementation or "transformers' default attention",
        describe_packing(plan),
        plan.precision,
        rows_of if plan.packed else f"padded on the {plan.padding_side}",
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
    kinds = {"running": ", positions that run on", "reset_3d": ", positions in 3-D", "reset_4d": ", positions in 4-D"}
    running = kinds.get(plan.positions, "") if plan.packed else ""
    words = {
        "position_ids": "packed by position_ids",
        "cu_seqlens": "packed by cu_seqlens",
        "mask_2d": "packed beside a 2-D mask",
        "mask_4d": "packed by a 4-D mask",
        "padding": "not packed",
    }
    return words[plan.packing] + running


def _result(result: CheckResult, verbose: bool, width: int) -> Iterator[Line]:
    found = answer(result)
    head = ((f"  {found:<8}", style_of(found)), (f"{check_name(result):<{COLUMN}}", ""))
    room = max(20, width - 10 - COLUMN)
    lines = _wrapped(describe_result(result), room)
    yield columns(*head, (lines[0], ""))
    more = [*lines[1:]]
    if result.steps and not verbose:
        more += [line for note in result.notes for line in _wrapped(note, room)]
    if result.steps:
        more.append(loss_curve(result.steps))
    if verbose:
        others = [describe(measure) for measure in worst_first(result) if describe(measure) != describe_result(result)]
        more += [line for words in others for line in _wrapped(words, room)]
        notes = [note for note in (*result.reservations, *result.notes) if note != describe_result(result)]
        more += [line for note in notes for line in _wrapped(note, room)]
        more += describe_layers(result)
        more += describe_steps(result.steps)
    for line in dict.fromkeys(more):
        yield columns((" " * (10 + COLUMN), ""), (line, "dim"))


def check_name(result: CheckResult) -> str:
    """Return a question's short name."""
    return result.check.replace("_", " ")


def describe_result(result: CheckResult) -> str:
    """Return what decided a result; a training run in its own words."""
    if answer(result) == "pass" and result.steps:
        return describe_training(result)
    if answer(result) == "pass" and not result.measures:
        return (result.notes or ("as expected",))[0]
    return deciding_reason(result)


def describe_training(result: CheckResult) -> str:
    """Return a training run in one line."""
    losses = [step.loss for step in result.steps]
    speed = sorted(step.tokens_per_s for step in result.steps)[len(result.steps) // 2]
    peak = max(step.peak_memory_bytes for step in result.steps)
    parts = [
        f"loss {losses[0]:.2f} → {losses[-1]:.2f} in {len(losses)} steps, wanted below {result.bound:.2f}, "
        f"cannot be below {result.floor:.2f}",
        f"{speed:,.0f} tokens/s",
        *([f"{peak / (1 << 20):,.0f} MiB"] * bool(peak)),
    ]
    return " · ".join(parts)


def loss_curve(steps: tuple[Step, ...]) -> str:
    """Return the losses of a run as a line of bars."""
    losses = [step.loss for step in steps if step.loss == step.loss and abs(step.loss) < 1e30]
    if not losses:
        return ""
    stride = max(1, -(-len(losses) // SHOWN))
    shown = losses[::stride]
    low, high = min(shown), max(shown)
    span = (high - low) or 1.0
    return "".join(BARS[min(len(BARS) - 1, int((loss - low) / span * len(BARS)))] for loss in shown)


def describe_layers(result: CheckResult) -> Iterator[str]:
    """Yield what each layer was asked for and ran."""
    for layer in result.layers:
        kind = f", {layer.kind}" if layer.kind else ""
        ran = " and ".join(layer.ran) or "nothing that is known"
        yield f"{layer.name}{kind}: {layer.requested or 'default'} → {layer.dispatched or '?'} → {ran}"


def describe_steps(steps: tuple[Step, ...]) -> Iterator[str]:
    """Yield the steps of a training run, a line each."""
    for number, step in enumerate(steps, 1):
        memory = f" · {step.peak_memory_bytes / (1 << 20):,.0f} MiB" if step.peak_memory_bytes else ""
        speed = f"{step.tokens_per_s:,.0f} tokens/s"
        yield f"step {number:>3} · loss {step.loss:.4f} · grad norm {step.grad_norm:.3f} · {speed}{memory}"


def below(report: Report, section: SmokeSection) -> Iterator[Line]:
    """Yield what the user pastes: the plan, mended where something was, as transformers and frameworks write it."""
    mended = any(run.reason for run in section.plan_runs)
    for settings in section.settings:
        yield Line()
        yield sentence(f"{'the mended plan' if mended else 'the plan'} for {settings.framework}")
        for line in settings.text.splitlines():
            yield columns(("    ", ""), (line, ""))


def markdown(report: Report, section: SmokeSection) -> Iterator[str]:
    """Yield each run of a plan as a table, then the settings."""
    for run in section.plan_runs:
        yield from (f"## {escaped(_title(run))}", "", escaped(describe_plan(run.plan)), "")
        results = [(check_name(result), answer(result), describe_result(result)) for result in run.results]
        yield from table(("question", "answer", "because"), results)
        yield ""
    for settings in section.settings:
        yield from (f"## Settings for {settings.framework}", "", *code_block(settings.text.rstrip()), "")


def testcases(report: Report, section: SmokeSection) -> Iterator[TestCase]:
    """Yield a test case for each check of each run."""
    for run in section.plan_runs:
        for result in run.results:
            text = "\n".join((*result.violations[1:], *result.reservations, *result.notes))
            reason = deciding_reason(result)
            yield measurement(
                report, result.check, f"smoke: {_title(run)}", answer(result), reason, text, result.seconds
            )


def _wrapped(text: str, room: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, room) or [""]


VIEW = SectionView(rows=rows, below=below, markdown=markdown, testcases=testcases)
