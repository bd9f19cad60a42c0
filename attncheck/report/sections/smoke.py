"""Smoke's plan runs: one table of answers, as written and corrected; with -v numbers, layers and steps."""

from collections.abc import Iterator, Sequence

from attncheck.core.lists import group_values
from attncheck.core.plan import Plan
from attncheck.core.results.smoke import (
    CheckResult,
    PlanRun,
    SmokeSection,
    deciding_reason,
    describe_measure,
    judge_result,
    worst_first,
)
from attncheck.report.sections import (
    Block,
    Bullets,
    Code,
    Column,
    Curve,
    Fold,
    Heading,
    Items,
    MeasuredOn,
    Paragraph,
    Report,
    Row,
    SectionView,
    TestCase,
    make_table,
    make_testcase,
    style_of_answer,
    text_rows,
    text_table,
)

AS_WRITTEN = "as written"
MAX_NOTES = 12  # notes per check, with -v
Results = Sequence[CheckResult]


def blocks(report: Report, section: SmokeSection) -> Iterator[Block]:
    """Yield the answers for each model, as written and corrected, then the details of each run."""
    yield Paragraph(describe_device(section.measured_on))
    for model, runs in group_runs(section).items():
        yield Heading(model)
        columns = [(_name_run(run), run.results) for run in runs]
        yield Items(tuple(("", _name_run(run), describe_run(run)) for run in runs), ("", "run", "plan"))
        yield from compare_results(report, columns)
        yield from (Fold(f"{model}, {title}", tuple(show_results(results))) for title, results in columns)


def group_runs(section: SmokeSection) -> dict[str, list[PlanRun]]:
    """Return the runs of each model, in order."""
    return group_values((run.model, run) for run in section.plan_runs)


def _name_run(run: PlanRun) -> str:
    return "corrected" if run.reason else AS_WRITTEN


def describe_run(run: PlanRun) -> str:
    """Return a run's plan in one line, and why it was tried."""
    return f"{run.reason}: {describe_plan(run.plan)}" if run.reason else describe_plan(run.plan)


def describe_device(measured_on: MeasuredOn) -> str:
    """Return the device that trained, in one line."""
    emulated = "flash-attn's kernels are emulated across ranks; one device runs transformers' own attention"
    parts = [
        measured_on.name or measured_on.device,
        f"torch {measured_on.torch}" if measured_on.torch else "",
        f"seed {measured_on.seed}",
        f"{measured_on.seconds:.0f} s",
        emulated * measured_on.emulated,
    ]
    return " · ".join(filter(None, parts))


def compare_results(report: Report, columns: Sequence[tuple[str, Results]]) -> Iterator[Block]:
    """Yield one table of the checks' answers, and the reasons for those that fail without a finding."""
    checks = list(dict.fromkeys(result.check for _, results in columns for result in results))
    by_check = [{result.check: result for result in results} for _, results in columns]

    def make_cell(result: CheckResult | None) -> tuple[str, str]:
        return (describe_answer(result), style_of_answer(judge_result(result))) if result else ("-", "dim")

    rows = [Row(name_check(check), tuple(make_cell(results.get(check)) for results in by_check)) for check in checks]
    yield make_table("", "question", [Column(title, left=True) for title, _ in columns], rows)
    reported = "\n".join(text for finding in report.findings for text in (finding.message, *finding.evidence))
    checks_by_reason = group_values(
        (text, name_check(result.check))
        for _, results in columns
        for result in results
        for text in ([describe_result(result)] if judge_result(result) != "pass" else list_unjudged(result))
        if text and text not in reported
    )
    yield Bullets(tuple(f"{', '.join(dict.fromkeys(names))}: {text}" for text, names in checks_by_reason.items()))


def describe_answer(result: CheckResult) -> str:
    """Return a check's answer; for a training run, with its first and last loss."""
    losses = f"  loss {result.steps[0].loss:.2f} → {result.steps[-1].loss:.2f}" if result.steps else ""
    return judge_result(result) + losses


def show_results(results: Results) -> Iterator[Block]:
    """Yield what decided each check, its notes, the attention of each layer, and the loss curve."""
    rows = ((judge_result(result), name_check(result.check), describe_result(result)) for result in results)
    yield Items(tuple(rows), ("answer", "question", "because"))
    for result in results:
        lines = [*map(describe_measure, worst_first(result)), *result.warnings, *result.notes]
        notes = [line for line in dict.fromkeys(lines) if line != describe_result(result)]
        if notes:
            yield Heading(name_check(result.check))
            yield Bullets(tuple(notes[:MAX_NOTES]))
        if result.layers:
            titles = ("layer", "kind", "requested", "configured", "used")
            yield text_table("Attention in each layer", titles, list_layers(result))
        if result.steps:
            yield from _show_training(result)


def _show_training(result: CheckResult) -> Iterator[Block]:
    levels = tuple((value, style) for value, style in ((result.bound, "bound"), (result.floor, "floor")) if value)
    yield Curve(f"Loss by step: {describe_training(result)}", tuple(step.loss for step in result.steps), levels)
    rows = (
        (
            str(number),
            f"{step.loss:.4f}",
            f"{step.grad_norm:.3f}" if step.grad_norm else "-",
            f"{step.tokens_per_s:,.0f}" if step.tokens_per_s else "-",
        )
        for number, step in enumerate(result.steps, 1)
    )
    columns = (Column("loss"), Column("gradient norm"), Column("tokens/s"))
    steps = make_table("Steps", "step", columns, text_rows(rows))
    yield Fold(f"{len(result.steps)} steps", (steps,))


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
    """Return how a plan separates documents, in words."""
    position_texts = {
        "running": ", positions that continue across documents",
        "reset_3d": ", positions in 3-D",
        "reset_4d": ", positions in 4-D",
    }
    positions = position_texts.get(plan.positions, "") if plan.packed else ""
    packing_texts = {
        "position_ids": "packed by position_ids",
        "cu_seqlens": "packed by cu_seqlens",
        "mask_2d": "packed with a 2-D mask",
        "mask_4d": "packed by a 4-D mask",
        "padding": "not packed",
    }
    return packing_texts[plan.packing] + positions


def name_check(check: str) -> str:
    """Return a check's name in words."""
    return check.replace("_", " ")


def list_unjudged(result: CheckResult) -> list[str]:
    """Return what a check could not judge, which is shown for any answer."""
    return [note for note in result.notes if note.startswith("not judged") and note != describe_result(result)]


def describe_result(result: CheckResult) -> str:
    """Return in one line what decided a result; for a passing training run, its numbers."""
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
    wanted = f", should be below {result.bound:.2f}" if result.bound else ""
    least = f", cannot be below {result.floor:.2f}" if result.floor else ""
    parts = [
        f"loss {losses[0]:.2f} → {losses[-1]:.2f} in {len(losses)} steps{wanted}{least}",
        *([f"{speed:,.0f} tokens/s"] * bool(speed)),
        *([f"{peak / (1 << 20):,.0f} MiB"] * bool(peak)),
    ]
    return " · ".join(parts)


def list_layers(result: CheckResult) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield each layer's name, its kind, and the attention requested, configured and used."""
    for layer in result.layers:
        used = " and ".join(layer.ran) or "not known"
        yield layer.name, layer.kind or "-", layer.requested or "default", layer.dispatched or "?", used


def below(report: Report, section: SmokeSection) -> Iterator[Block]:
    """Yield the settings to paste: the last plan in the words of transformers and of each framework."""
    corrected = any(run.reason for run in section.plan_runs)
    for settings in section.settings:
        title = f"{'Corrected settings' if corrected else 'Settings'} for {settings.framework}"
        yield Code(title, settings.text.rstrip())


def judge_run(results: Results) -> str:
    """Return the verdict on a run: "right", "wrongly", or "not judged"."""
    answers = {judge_result(result) for result in results}
    return "wrongly" if answers & {"fail", "lost"} else "right" if answers & {"pass", "warn"} else "not judged"


def verdict(report: Report, section: SmokeSection) -> str:
    """Return which models train right as written, and which as corrected."""
    sentences = []
    for model, (first, *others) in group_runs(section).items():
        first_answer, fixed = judge_run(first.results), any(judge_run(run.results) == "right" for run in others)
        if first_answer == "wrongly" and fixed:
            sentences.append(f"{model} trains wrongly; the corrected plan trains right (both run)")
        else:
            words = f"trains {first_answer}" if first_answer != "not judged" else "was not judged"
            sentences.append(f"{model} {words} ({len(first.results)} checks)")
    return "; ".join(sentences)


def testcases(report: Report, section: SmokeSection) -> Iterator[TestCase]:
    """Yield a test case for each check of each run."""
    for run in section.plan_runs:
        title = f"{run.model}, corrected: {run.reason}" if run.reason else run.model
        yield from result_testcases(report, f"smoke: {title}", run.results)


def result_testcases(report: Report, suite: str, results: Results) -> Iterator[TestCase]:
    """Yield a test case for each check."""
    for result in results:
        text = "\n".join((*result.violations[1:], *result.warnings, *result.notes))
        reason = deciding_reason(result)
        yield make_testcase(report, result.check, suite, judge_result(result), reason, text, result.seconds)


VIEW = SectionView("Smoke", blocks, below, verdict, testcases)
