"""Checks ring-flash-attn's Hugging Face adapter: whether each implementation enters the ring and is correct.

The adapter replaces only `attn_implementation="flash_attention_2"`. Under any other implementation each rank attends to
its own shard only, with a finite loss. That is a finding if such an implementation is requested; the matrix shows it
for all. Windows and sinks are findings if the model has them. If no model is named, their findings are one level
milder, because the job may not use them.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from attncheck.core import codec
from attncheck.core.io.errors import Unanswered
from attncheck.core.model import Model
from attncheck.core.report import FAIL_FACTOR, Answer, Finding, Fix, Problem, Report
from attncheck.core.results.hf_adapter import (
    HOOKED_IMPLEMENTATION,
    SHAPES,
    SHARD_TOKENS,
    WINDOW_BY_SHAPE,
    AdapterRun,
    AdapterVerdict,
    Shape,
)
from attncheck.core.results.ring import RingSection
from attncheck.core.snapshot import Known, Snapshot
from attncheck.doctor import engine
from attncheck.doctor.fixes import disable_ring_attention, install
from attncheck.doctor.knowledge import ring_flash_attn as knowledge
from attncheck.doctor.queries import requirements
from attncheck.ring import group
from attncheck.ring.group import Ring
from attncheck.workers import execution
from attncheck.workers.execution import ExecutionTarget, Progress
from attncheck.workers.launcher_env import read_rank_env
from attncheck.workers.pool import Event
from attncheck.workers.ranks import RankRunner

IMPLEMENTATIONS = (HOOKED_IMPLEMENTATION, "sdpa", "eager", "flash_attention_3", "flash_attention_4")
TITLE = "ring-flash-attn's adapter"
_MODEL_NAMES = {"plain": "a Llama", "sinks": "a gpt-oss with sinks"} | {
    shape: f"a Mistral with a window of {window}, shards of {SHARD_TOKENS} tokens"
    for shape, window in WINDOW_BY_SHAPE.items()
}


@dataclass(frozen=True)
class Request:
    """The implementation that the job trains with, and its model, if any."""

    implementation: str = HOOKED_IMPLEMENTATION
    model: Model | None = None

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The models to try: all if none is named, otherwise those with the model's features."""
        if self.model is None:
            return SHAPES
        windowed = tuple(WINDOW_BY_SHAPE) if isinstance(self.model.sliding_window, Known) else ()
        return ("plain", *windowed, *(("sinks",) if self.model.sinks else ()))

    @property
    def items(self) -> tuple[tuple[str, str], ...]:
        """The items (implementation, shape): the plain model under each, other models under the replaced one."""
        implementations = dict.fromkeys((HOOKED_IMPLEMENTATION, self.implementation, *IMPLEMENTATIONS))
        plain = [(implementation, "plain") for implementation in implementations]
        return (*plain, *((HOOKED_IMPLEMENTATION, shape) for shape in self.shapes if shape != "plain"))


def add_adapter_check(
    report: Report, ring: Ring, target: ExecutionTarget, report_progress: Callable[[str], None]
) -> Report:
    """Return parity's report with the adapter check, if the adapter is installed and the ring has 2 ranks.

    It does not run under an external launcher: the other ranks have ended by then, and rank 0 would wait for them.
    """
    snapshot = report.snapshot
    if read_rank_env(os.environ) is not None or ring.size < 2:
        return report
    if not (snapshot.has("ring-flash-attn") and snapshot.has("transformers")):
        return report
    model = snapshot.model.value if isinstance(snapshot.model, Known) else None
    request = Request(model=model)
    try:
        runs = measure_adapter(request, ring, target, report_progress)
    except Unanswered as error:  # an error here must not lose what parity measured
        return _with_verdicts(report, (AdapterVerdict(HOOKED_IMPLEMENTATION, "plain", "lost", str(error)),))
    return engine.add_findings(_with_verdicts(report, judge_runs(runs)), make_findings(snapshot, request, runs))


def _with_verdicts(report: Report, verdicts: tuple[AdapterVerdict, ...]) -> Report:
    return report.with_section(replace(report.section(RingSection) or RingSection(), adapter=verdicts))


def measure_adapter(
    request: Request, ring: Ring, target: ExecutionTarget, report_progress: Callable[[str], None]
) -> tuple[AdapterRun, ...]:
    """Return the adapter's runs on the ring. Raises `Unanswered` if the ranks cannot start or meet."""
    size = max(2, ring.size)
    job = group.make_job(ring, target, size, request.items, {"task": "attncheck.ring.worker.hf_adapter:adapter"})
    progress = Progress(report_progress, len(job.items))
    runs: list[AdapterRun] = []

    def on_event(event: Event) -> None:
        progress.on_event(event)
        if event.kind == "answer":
            runs.append(codec.read(AdapterRun, event.answer))
        elif event.kind != "started":
            runs.append(_make_lost_run(event, size))

    RankRunner(target.python, read_rank_env(os.environ)).run(job, on_event)
    return tuple(runs)


def _make_lost_run(event: Event, size: int) -> AdapterRun:
    shape = next(shape for shape in SHAPES if shape == event.item)
    return AdapterRun(event.job, shape, execution.unmeasured_outcome(event), event.reason, ranks=size)


def judge_runs(runs: Iterable[AdapterRun]) -> tuple[AdapterVerdict, ...]:
    """Return the matrix of verdicts; a warning for each implementation that silently turns the ring off."""
    return tuple(judge_run(run) for run in runs)


def judge_run(run: AdapterRun) -> AdapterVerdict:
    """Return the verdict on one run of the adapter."""
    code, reason = _find_broken_rule(run)
    answer: Answer = "fail"
    if run.outcome in ("skipped", "out_of_memory"):
        answer = "skipped"
    elif run.outcome in ("died", "timed_out", "out_of_time"):
        answer = "lost"
    elif not code:
        answer = "pass"
    elif code == "ATN530" and run.implementation != HOOKED_IMPLEMENTATION:
        answer = "warn"
    return AdapterVerdict(run.implementation, run.shape, answer, reason, _list_evidence(run))


def _find_broken_rule(run: AdapterRun) -> tuple[str, str]:
    """Return the code of the rule that a run breaks and the reason; two empty strings if it breaks none."""
    if run.outcome != "ok":
        return ("" if run.outcome in ("skipped", "out_of_memory", "out_of_time") else "ATN534"), run.reason
    if run.entered < run.layers:
        return "ATN530", _describe_bypass(run)
    if run.shape == "plain" and not run.reaches:
        return "ATN531", "a change in the first shard does not reach the last shard's logits"
    if run.leaks:
        return "ATN531", "a change in one document changes the logits of another"
    if _is_correct(run):
        return (
            "",
            f"entered in {run.layers} of {run.layers} layers; {_describe_error('logits', run.error, run.rounding)}",
        )
    rules: dict[Shape, str] = {"short_window": "ATN532", "long_window": "ATN532", "sinks": "ATN533"}
    is_explained = run.nearest_error <= FAIL_FACTOR * run.rounding
    if is_explained and run.nearest.startswith("with"):
        return rules.get(run.shape, "ATN531"), f"the model runs {run.nearest}"
    if run.error > FAIL_FACTOR * run.rounding:
        return "ATN531", _describe_error("logits", run.error, run.rounding)
    return "ATN531", _describe_error("gradients", run.gradient_error, run.gradient_rounding)


def _is_correct(run: AdapterRun) -> bool:
    """Return whether logits and gradients are off by at most three times the model's rounding error."""
    are_logits_correct = run.error <= FAIL_FACTOR * run.rounding
    return are_logits_correct and run.gradient_error <= FAIL_FACTOR * run.gradient_rounding


def _describe_bypass(run: AdapterRun) -> str:
    extent = "never" if not run.entered else f"in {run.entered} of {run.layers} layers only"
    return f"the adapter is {extent} entered" + ("" if run.reaches else ": each rank attends only to its own shard")


def _describe_error(tensors: str, error: float, rounding: float) -> str:
    return f"{tensors} are off by {error:.2g}, by {rounding:.2g} if the whole model runs in the same dtype"


def _list_evidence(run: AdapterRun) -> tuple[str, ...]:
    lines = []
    if run.outcome == "ok":
        lines.append(_describe_error("logits", run.error, run.rounding))
        lines.append(_describe_error("gradients", run.gradient_error, run.gradient_rounding))
        if not _is_correct(run):
            lines.append(f"closest to the model {run.nearest}, off by {run.nearest_error:.2g}")
    if run.selected:
        lines.append(f"{run.implementation}: {run.selected}")
    if run.shimmed_names:
        lines.append(f"restored in transformers for this run, as OpenRLHF does: {', '.join(run.shimmed_names)}")
    return tuple(lines)


def make_findings(snapshot: Snapshot, request: Request, runs: Sequence[AdapterRun]) -> tuple[Finding, ...]:
    """Return a finding for each rule that the requested implementation breaks; nothing is measured."""
    runs_by_code: dict[str, list[AdapterRun]] = {}
    for run in runs:
        code = _find_broken_rule(run)[0]
        if code and run.implementation == request.implementation:
            runs_by_code.setdefault(code, []).append(run)
    return tuple(_make_finding(snapshot, request, code, runs_by_code[code]) for code in sorted(runs_by_code))


def _make_finding(snapshot: Snapshot, request: Request, code: str, runs: list[AdapterRun]) -> Finding:
    first = runs[0]
    message = {
        "ATN530": f"{TITLE} is not entered under {first.implementation}: the ring is silently off",
        "ATN531": f"{TITLE} trains a different model: {_find_broken_rule(first)[1]}",
        "ATN532": f"{TITLE} uses windows that differ from the model's",
        "ATN533": f"{TITLE} ignores the model's attention sinks",
        "ATN534": f"{TITLE} cannot be used: {first.reason}",
    }[code]
    evidence = [f"{_MODEL_NAMES[run.shape]} on {run.ranks} ranks: {_find_broken_rule(run)[1]}" for run in runs]
    evidence = list(dict.fromkeys((*evidence, *(line for run in runs for line in _list_evidence(run)))))
    problem = Problem(message, tuple(evidence), tuple(_suggest_fixes(snapshot, code, first)), TITLE)
    return engine.make_finding_by_code(
        code, replace(problem, predicted=first.shape != "plain" and request.model is None)
    )


def _suggest_fixes(snapshot: Snapshot, code: str, run: AdapterRun) -> Iterator[Fix]:
    if code == "ATN530" and run.implementation != HOOKED_IMPLEMENTATION:
        yield Fix(
            "the implementation that the adapter replaces", "setting", f'attn_implementation="{HOOKED_IMPLEMENTATION}"'
        )
    elif code == "ATN534" and "transformers" in run.reason:
        transformers_pins = requirements.resolve_transformers(
            snapshot, knowledge.COMPATIBLE_TRANSFORMERS[knowledge.LAST_RELEASE_READ]
        )
        if transformers_pins:
            yield install.install_packages(snapshot, *transformers_pins)
    if code != "ATN534":
        yield disable_ring_attention(snapshot)
