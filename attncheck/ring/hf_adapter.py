"""The proof of ring-flash-attn's Hugging Face adapter: implementation -> entered, correct or silent.

The adapter replaces what `attn_implementation="flash_attention_2"` means, and nothing else: under every other one each
rank attends to its own shard alone, with a finite loss. That is a finding where such an implementation is asked for;
in the matrix it is said of all. Windows and sinks are findings where the model has them; where no model is named they
are said one step milder, since nothing here may use them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from attncheck.core import codec
from attncheck.core.errors import Unanswered
from attncheck.core.facts import Known
from attncheck.core.findings import Finding, Fix, Problem
from attncheck.core.model import Model
from attncheck.core.report import Report
from attncheck.core.results.hf_adapter import HOOKED, SHAPES, SHARD, WINDOWS, AdapterRun, AdapterVerdict, Shape
from attncheck.core.results.ring import RingSection
from attncheck.core.results.verdicts import FAIL_FACTOR, Answer
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.fixes import install
from attncheck.doctor.fixes.model import disable_ring_attention
from attncheck.doctor.knowledge import ring_flash_attn as knowledge
from attncheck.doctor.queries import requirements
from attncheck.ring import group
from attncheck.ring.group import Ring
from attncheck.workers import execution
from attncheck.workers.execution import ExecutionTarget, Progress
from attncheck.workers.launcher_env import read_rank_env
from attncheck.workers.pool import Event
from attncheck.workers.ranks import RankRunner

IMPLEMENTATIONS = (HOOKED, "sdpa", "eager", "flash_attention_3", "flash_attention_4")
TITLE = "ring-flash-attn's adapter"
_MODELS = {"plain": "a Llama", "sinks": "a gpt-oss with sinks"} | {
    shape: f"a Mistral with a window of {window}, shards of {SHARD} tokens" for shape, window in WINDOWS.items()
}


@dataclass(frozen=True)
class Request:
    """What was asked: the implementation that the job trains with, and the model, if any."""

    asked: str = HOOKED
    model: Model | None = None

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The models to try: all where none is named, else what the model has."""
        if self.model is None:
            return SHAPES
        windowed = tuple(WINDOWS) if isinstance(self.model.sliding_window, Known) else ()
        return ("plain", *windowed, *(("sinks",) if self.model.sinks else ()))

    @property
    def items(self) -> tuple[tuple[str, str], ...]:
        """(implementation, shape): the plain model under each, the others under the one that the adapter replaces."""
        implementations = dict.fromkeys((HOOKED, self.asked, *IMPLEMENTATIONS))
        plain = [(implementation, "plain") for implementation in implementations]
        return (*plain, *((HOOKED, shape) for shape in self.shapes if shape != "plain"))


def proved(report: Report, ring: Ring, bench: ExecutionTarget, say: Callable[[str], None]) -> Report:
    """Return parity's report with what the adapter does, where the environment has one and a ring to use it on.

    Not under a launcher outside: by then the other ranks have ended, and rank 0 would wait for them in vain.
    """
    snapshot = report.snapshot
    if read_rank_env(os.environ) is not None or ring.size < 2:
        return report
    if not (snapshot.has("ring-flash-attn") and snapshot.has("transformers")):
        return report
    model = snapshot.model.value if isinstance(snapshot.model, Known) else None
    request = Request(model=model)
    try:
        runs = measure(request, ring, bench, say)
    except Unanswered as error:  # what parity has measured is not lost over it
        return _with_adapter(report, (AdapterVerdict(HOOKED, "plain", "lost", str(error)),))
    return engine.add_findings(_with_adapter(report, rows(runs)), findings(snapshot, request, runs))


def _with_adapter(report: Report, verdicts: tuple[AdapterVerdict, ...]) -> Report:
    return report.with_section(replace(report.section(RingSection) or RingSection(), adapter=verdicts))


def measure(request: Request, ring: Ring, bench: ExecutionTarget, say: Callable[[str], None]) -> tuple[AdapterRun, ...]:
    """Return what the adapter does on the ring. Raises `Unanswered` where the ranks cannot start or meet."""
    size = max(2, ring.size)
    work = group.job(ring, bench, size, request.items, {"task": "attncheck.ring.worker.hf_adapter:adapter"})
    progress = Progress(say, len(work.items))
    found: list[AdapterRun] = []

    def tell(event: Event) -> None:
        progress.on_event(event)
        if event.kind == "answer":
            found.append(codec.read(AdapterRun, event.answer))
        elif event.kind != "started":
            found.append(_lost(event, size))

    RankRunner(bench.python, read_rank_env(os.environ)).run(work, tell)
    return tuple(found)


def _lost(event: Event, size: int) -> AdapterRun:
    shape = next(shape for shape in SHAPES if shape == event.item)
    return AdapterRun(event.job, shape, execution.unmeasured_outcome(event), event.reason, ranks=size)


def rows(runs: Iterable[AdapterRun]) -> tuple[AdapterVerdict, ...]:
    """Return the matrix: what each run shows, as a warning where an implementation silently switches the ring off."""
    return tuple(row(run) for run in runs)


def row(run: AdapterRun) -> AdapterVerdict:
    """Return what one run shows."""
    code, because = _judged(run)
    answer: Answer = "fail"
    if run.outcome in ("skipped", "out_of_memory"):
        answer = "skipped"
    elif run.outcome in ("died", "timed_out"):
        answer = "lost"
    elif not code:
        answer = "pass"
    elif code == "ATN530" and run.implementation != HOOKED:
        answer = "warn"
    return AdapterVerdict(run.implementation, run.shape, answer, because, _evidence(run))


def _judged(run: AdapterRun) -> tuple[str, str]:
    """Return the code of the rule that a run breaks, "" where none, and the reason in words."""
    if run.outcome != "ok":
        return ("" if run.outcome in ("skipped", "out_of_memory") else "ATN534"), run.reason
    if run.entered < run.layers:
        return "ATN530", _silent(run)
    if run.shape == "plain" and not run.reaches:
        return "ATN531", "a change in the first shard does not reach the last shard's logits"
    if run.leaks:
        return "ATN531", "a change in one document changes the logits of another"
    if _right(run):
        return "", f"entered in {run.layers} of {run.layers} layers; {_told('logits', run.error, run.rounding)}"
    rule: dict[Shape, str] = {"short_window": "ATN532", "long_window": "ATN532", "sinks": "ATN533"}
    explained = run.nearest_error <= FAIL_FACTOR * run.rounding
    if explained and run.nearest.startswith("with"):
        return rule.get(run.shape, "ATN531"), f"the model runs {run.nearest}"
    if run.error > FAIL_FACTOR * run.rounding:
        return "ATN531", _told("logits", run.error, run.rounding)
    return "ATN531", _told("gradients", run.gradient_error, run.gradient_rounding)


def _right(run: AdapterRun) -> bool:
    """Say whether logits and gradients are off by no more than three times what rounding makes of the whole model."""
    right = run.error <= FAIL_FACTOR * run.rounding
    return right and run.gradient_error <= FAIL_FACTOR * run.gradient_rounding


def _silent(run: AdapterRun) -> str:
    where = "never" if not run.entered else f"in {run.entered} of {run.layers} layers only"
    return f"the adapter is {where} entered" + ("" if run.reaches else ": each rank attends to its own shard alone")


def _told(what: str, error: float, rounding: float) -> str:
    return f"{what} are off by {error:.2g}, by {rounding:.2g} where the whole model runs in the same dtype"


def _evidence(run: AdapterRun) -> tuple[str, ...]:
    lines = []
    if run.outcome == "ok":
        lines.append(_told("logits", run.error, run.rounding))
        lines.append(_told("gradients", run.gradient_error, run.gradient_rounding))
        if not _right(run):
            lines.append(f"nearest to the model {run.nearest}, off by {run.nearest_error:.2g}")
    if run.selected:
        lines.append(f"{run.implementation}: {run.selected}")
    if run.shimmed_names:
        lines.append(f"put back into transformers for this run, as OpenRLHF does: {', '.join(run.shimmed_names)}")
    return tuple(lines)


def findings(snapshot: Snapshot, request: Request, runs: Sequence[AdapterRun]) -> tuple[Finding, ...]:
    """Return a finding for each rule that the implementation asked for breaks: pure judging."""
    broken: dict[str, list[AdapterRun]] = {}
    for run in runs:
        code = _judged(run)[0]
        if code and run.implementation == request.asked:
            broken.setdefault(code, []).append(run)
    return tuple(_finding(snapshot, request, code, broken[code]) for code in sorted(broken))


def _finding(snapshot: Snapshot, request: Request, code: str, runs: list[AdapterRun]) -> Finding:
    first = runs[0]
    message = {
        "ATN530": f"{TITLE} is not entered under {first.implementation}: the ring is off, silently",
        "ATN531": f"{TITLE} trains another model than the one given: {_judged(first)[1]}",
        "ATN532": f"{TITLE} attends with other windows than the model's",
        "ATN533": f"{TITLE} leaves out the model's attention sinks",
        "ATN534": f"{TITLE} cannot be used: {first.reason}",
    }[code]
    evidence = [f"{_MODELS[run.shape]} on {run.ranks} ranks: {_judged(run)[1]}" for run in runs]
    evidence = list(dict.fromkeys((*evidence, *(line for run in runs for line in _evidence(run)))))
    problem = Problem(message, tuple(evidence), tuple(_fixes(snapshot, code, first)), TITLE)
    return engine.make_finding_by_code(
        code, replace(problem, predicted=first.shape != "plain" and request.model is None)
    )


def _fixes(snapshot: Snapshot, code: str, run: AdapterRun) -> Iterator[Fix]:
    if code == "ATN530" and run.implementation != HOOKED:
        yield Fix("the implementation that the adapter replaces", "setting", f'attn_implementation="{HOOKED}"')
    elif code == "ATN534" and "transformers" in run.reason:
        fitting = requirements.resolve_transformers(
            snapshot, knowledge.COMPATIBLE_TRANSFORMERS[knowledge.LAST_RELEASE_READ]
        )
        if fitting:
            yield install.install_packages(snapshot, *fitting)
    if code != "ATN534":
        yield disable_ring_attention(snapshot)
