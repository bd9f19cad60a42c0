"""Repeats every backend and judges whether its bits are the same in every call and batch, with and without a switch."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from attncheck.core import codec
from attncheck.core.cases import Case, with_name
from attncheck.core.io.errors import Unanswered
from attncheck.core.report import Finding, Fix, InterruptedRun, Problem, Report
from attncheck.core.results.determinism import DeterminismSection
from attncheck.core.snapshot import Snapshot, value_or
from attncheck.core.verdicts import (
    FAIL_FACTOR,
    UNMEASURED,
    BackendState,
    MeasuredOn,
    Mode,
    Repeats,
    Verdict,
    worst_error,
)
from attncheck.doctor import engine
from attncheck.measure import discovery
from attncheck.measure.case_features import list_features
from attncheck.workers import execution
from attncheck.workers.execution import ExecutionTarget, Progress
from attncheck.workers.pool import Event, Job, Pool, default_slots


@dataclass(frozen=True)
class Request:
    """The requested backends, seed and number of repeats; `repeats` counts every call of a case, including the
    first."""

    backends: tuple[str, ...] = ()
    seed: int = 0
    repeats: int = 32


def choose_cases(snapshot: Snapshot, seed: int, uses_gpu: bool) -> tuple[Case, ...]:
    """Return the cases to repeat: many key tiles and over 1e6 gradient elements; a dense one and a packed one."""
    shape = _choose_shape(snapshot, uses_gpu)
    if uses_gpu:
        seqlen, batch, documents = 4096, 2, (2048, 4096, 100, 1024)
    else:  # enough elements, but no more: a CPU takes seconds for a large call
        seqlen, documents = 512, (150, 250, 50, 62)
        batch = math.ceil(1e6 / (seqlen * shape["num_heads"] * shape["head_dim"]))
    dense = Case("repeats", (seqlen,) * batch, (seqlen,) * batch, seed=seed, **shape)
    packed = Case("repeats", documents, documents, layout="packed", seed=seed, **shape)
    return with_name(dense), with_name(packed)


def choose_ring_cases(snapshot: Snapshot, seed: int, uses_gpu: bool, ring_size: int) -> tuple[Case, ...]:
    """Return the cases to repeat on a ring: a dense row and a packed one, each document a multiple of 2n."""
    shape = {**_choose_shape(snapshot, uses_gpu), "context_parallel_size": ring_size, "seed": seed}
    unit = 2 * ring_size
    shard = max(1, (1024 if uses_gpu else 256) // unit) * unit  # the minimum per rank
    seqlen = shard * ring_size
    first_lengths = [seqlen // 2 // unit * unit, unit, seqlen // 4 // unit * unit]
    documents = (*first_lengths, seqlen - sum(first_lengths))
    dense = Case("repeats", (seqlen,), (seqlen,), **shape)
    return with_name(dense), with_name(Case("repeats", documents, documents, layout="packed", **shape))


def _choose_shape(snapshot: Snapshot, uses_gpu: bool) -> dict[str, Any]:
    """Return the heads and head sizes: the model's, or usual ones."""
    model = discovery.requested_model(snapshot)
    shape: dict[str, Any] = {"num_kv_heads": 2, "head_dim": 128, "v_head_dim": 128}
    shape["num_heads"] = 8 if uses_gpu else 4  # with such a large head_dim, fewer heads keep a CPU's work small
    if model is not None:
        heads, head_dim = value_or(model.num_heads, 8), value_or(model.head_dim, 128)
        shape = {
            "num_heads": heads,
            "num_kv_heads": value_or(model.num_kv_heads, heads),
            "head_dim": head_dim,
            "v_head_dim": value_or(model.v_head_dim, head_dim),
            "causal": model.causal,
        }
    return shape


def run(
    snapshot: Snapshot, request: Request, target: ExecutionTarget, report_progress: Callable[[str], None]
) -> Report:
    """Return the report on every backend that is installed. Raises `Unanswered` if none is."""
    began = time.monotonic()
    cases = choose_cases(snapshot, request.seed, target.uses_gpu)
    report_progress("looking for backends")
    states = discovery.list_backends(target)
    chosen_states = discovery.choose_backends(states, request.backends)
    measured_states = select_measured(chosen_states, request, target)
    pool = Pool(target.python, default_slots(gpu=True) if target.uses_gpu else 1)
    jobs = make_jobs(measured_states, cases, request, target, pool.slots)
    progress = Progress(report_progress, sum(len(job.items) for job in jobs))
    left_out = [state.name for state in chosen_states if state not in measured_states]
    measurements = [Repeats(name, cases[0], "default", "skipped", discovery.NOT_COMPILED) for name in left_out]

    def on_event(event: Event) -> None:
        progress.on_event(event)
        if event.kind != "started":
            measurements.append(read_repeats(event, cases))

    def report_measurements(not_reached: int = 0, interrupted: bool = False) -> Report:
        measured_on = execution.make_measured_on(pool, request.seed, began, "", not_reached, interrupted)
        order = {state.name: index for index, state in enumerate(chosen_states)}
        measurements.sort(key=lambda repeats: (order[repeats.backend], repeats.case.layout))
        return make_report(snapshot, tuple(states), tuple(measurements), measured_on)

    try:
        pool.run(jobs, on_event)
    except KeyboardInterrupt:
        if len(measurements) == len(left_out):
            raise
        missing = progress.total + len(left_out) - len(measurements)
        raise InterruptedRun(report_measurements(missing, interrupted=True)) from None
    if len(measurements) == len(left_out):
        raise Unanswered("no backend could be repeated")
    return report_measurements()


def select_measured(
    states: Sequence[BackendState], request: Request, target: ExecutionTarget
) -> tuple[BackendState, ...]:
    """Return the backends to repeat: on a CPU, none that compiles for tens of seconds unless it is requested."""
    measures_all = target.uses_gpu or request.backends
    return tuple(state for state in states if measures_all or not discovery.get_backend(state.name).compiles)


def choose_modes(name: str) -> tuple[Mode, ...]:
    """Return the modes in which a backend is worth repeating."""
    switch = discovery.get_backend(name).deterministic_switch
    if switch == "torch":
        return "default", "deterministic", "warn_only"
    return ("default", "deterministic") if switch else ("default",)


def make_jobs(
    states: Sequence[BackendState], cases: tuple[Case, ...], request: Request, target: ExecutionTarget, slots: int
) -> list[Job]:
    """Return the work on every backend; for those that compile, one worker per case comes first."""
    compiling = [state for state in states if discovery.get_backend(state.name).compiles and slots > 1]
    jobs = [_make_job(state, (case,), request, target, slots) for state in compiling for case in cases]
    return jobs + [_make_job(state, cases, request, target, slots) for state in states if state not in compiling]


def _make_job(
    state: BackendState, cases: tuple[Case, ...], request: Request, target: ExecutionTarget, slots: int
) -> Job:
    modes = choose_modes(state.name)
    features = {f"{case.name}@{mode}": (f"{mode} mode", *list_features(case)) for case in cases for mode in modes}
    message = {
        "task": "attncheck.measure.worker.tasks:determinism",
        "backend": state.name,
        "device": target.device,
        "threads": target.threads_per_worker(slots if target.uses_gpu else 2),
        "slots": slots,
        "repeats": request.repeats,
        "cases": codec.to_plain(cases),
    }
    compiles = discovery.get_backend(state.name).compiles
    seconds, imports = (
        target.seconds * max(4.0 if compiles else 2.0, request.repeats / 6),
        discovery.list_imports(compiles),
    )
    return Job(state.name, message, tuple(features), seconds, features=features, imports=imports)


def read_repeats(event: Event, cases: tuple[Case, ...]) -> Repeats:
    """Return the repeats in an event, or the reason why there are none."""
    if event.kind == "answer":
        return codec.read(Repeats, event.answer)
    name, _, mode = event.item.partition("@")
    case = next(case for case in cases if case.name == name)
    return Repeats(event.job, case, cast(Mode, mode), execution.unmeasured_outcome(event), event.reason)


def make_report(
    snapshot: Snapshot, states: tuple[BackendState, ...], measurements: tuple[Repeats, ...], measured_on: MeasuredOn
) -> Report:
    """Return the report on measured repeats, from these alone."""
    verdicts = tuple(judge_repeats(repeats) for repeats in measurements)
    findings = tuple(finding for state in states for finding in _iter_findings(state.name, measurements))
    section = DeterminismSection(measured_on, states, verdicts, measurements)
    return Report("determinism", snapshot, findings, sections={"determinism": section})


def varying_tensors(repeats: Repeats) -> tuple[str, ...]:
    """Return the tensors whose bits changed between calls."""
    return tuple(difference.tensor for difference in repeats.differences if difference.distinct > 1)


def judge_repeats(repeats: Repeats) -> Verdict:
    """Return the verdict on one case in one mode.

    Wrong values are errors in any mode. Varying bits are an error if determinism was switched on, otherwise a
    warning.
    """
    answer = UNMEASURED.get(repeats.outcome)
    reason = repeats.reason
    if answer is None:
        varying = varying_tensors(repeats)
        ratio, error = worst_error(repeats.case, repeats.scores, repeats.class_factor)
        if ratio > 1.0:
            answer, reason = "fail" if ratio > FAIL_FACTOR else "warn", error
        else:
            answer = "pass" if not varying else "warn"
            reason = f"identical bits in {repeats.repeats} calls, {repeats.under_load} under load; "
            reason += f"variation in more than {100 * excluded_share(repeats.repeats):.2g} % of calls is excluded"
        if varying:
            answer = "fail" if repeats.mode == "deterministic" else answer
            reason = describe_variation(repeats) if ratio <= 1.0 else f"{reason}; {describe_variation(repeats)}"
    return Verdict(
        "determinism", repeats.backend, f"{repeats.case.name}@{repeats.mode}", repeats.case.family, answer, reason
    )


def excluded_share(calls: int) -> float:
    """Return the share of varying calls that would have been noticed with a probability of 95 %."""
    return float(1.0 - 0.05 ** (1.0 / max(1, calls - 1)))


def describe_variation(repeats: Repeats) -> str:
    """Return which tensors vary, by how much, and since which call."""
    parts = []
    for d in repeats.differences:
        if d.distinct > 1:
            parts.append(
                f"{d.tensor}: {d.distinct} different results in {repeats.repeats} calls, first at call "
                f"{d.first_differing}, up to {d.max_abs:.2g}, in {100 * d.elements / d.numel:.2g} % of "
                "elements"
            )
    return "; ".join(parts)


def _iter_findings(backend: str, measurements: tuple[Repeats, ...]) -> Iterator[Finding]:
    of_backend = [repeats for repeats in measurements if repeats.backend == backend]
    varying = [repeats for repeats in of_backend if repeats.mode == "default" and varying_tensors(repeats)]
    switched_on = [repeats for repeats in of_backend if repeats.mode == "deterministic"]
    not_fixed = [repeats for repeats in switched_on if repeats.outcome == "ok" and varying_tensors(repeats)]
    lost = [repeats for repeats in of_backend if repeats.outcome in ("raised", "died", "timed_out")]
    batch_dependent = [
        repeats for repeats in of_backend if any(difference.distinct > 1 for difference in repeats.batch)
    ]
    if lost:
        evidence = tuple(f"{repeats.case.name} ({repeats.mode}): {repeats.reason}" for repeats in lost[:5])
        message = f"{backend} fails {len(lost)} of {len(of_backend)} repeated cases"
        yield engine.make_finding_by_code("ATN604", Problem(message, evidence, (), backend))
    for code, adjective in (("ATN601", "wrong"), ("ATN602", "less precise than a kernel of its class")):
        in_error = [repeats for repeats in of_backend if _value_code(repeats) == code]
        if in_error:
            evidence = tuple(
                f"{repeats.case.name}: {worst_error(repeats.case, repeats.scores, repeats.class_factor)[1]}"
                for repeats in in_error
            )
            switches = " or ".join(dict.fromkeys(repeats.deterministic_switch for repeats in in_error))
            message = f"{backend} is {adjective}" + (f" with {switches}" if switches else "")
            yield engine.make_finding_by_code(code, Problem(message, evidence, (), backend))
    if not_fixed:
        evidence = tuple(f"{repeats.case.name}: {describe_variation(repeats)}" for repeats in not_fixed)
        message = f"{backend} is not reproducible with {not_fixed[0].deterministic_switch}"
        yield engine.make_finding_by_code("ATN712", Problem(message, evidence, (), backend))
    if varying:
        yield engine.make_finding_by_code("ATN711", _make_variation_problem(backend, varying, of_backend, switched_on))
    if batch_dependent:
        yield engine.make_finding_by_code("ATN713", _make_batch_problem(backend, batch_dependent[0]))


def _value_code(repeats: Repeats) -> str:
    """Return the code of a finding on the values themselves, "" if they are right."""
    ratio, _ = worst_error(repeats.case, repeats.scores, repeats.class_factor)
    return "ATN601" if ratio > FAIL_FACTOR else "ATN602" if ratio > 1.0 else ""


def _make_variation_problem(
    backend: str, varying: list[Repeats], of_backend: list[Repeats], switched_on: list[Repeats]
) -> Problem:
    tensors = sorted({tensor for repeats in varying for tensor in varying_tensors(repeats)})
    evidence = [f"{repeats.case.name}: {describe_variation(repeats)}" for repeats in varying]
    ineffective = [repeats for repeats in of_backend if repeats.mode == "warn_only" and varying_tensors(repeats)]
    if ineffective:
        evidence.append(f"{ineffective[0].deterministic_switch} does not help: {describe_variation(ineffective[0])}")
    fixes = []
    answered = [repeats for repeats in switched_on if repeats.outcome == "ok"]
    reproducible = [repeats for repeats in answered if not (varying_tensors(repeats) or _value_code(repeats))]
    if reproducible and len(reproducible) == len(answered):
        fixes.append(
            Fix(
                "switch determinism on",
                "setting",
                reproducible[0].deterministic_switch,
                proven=_describe_switch_cost(reproducible[0], of_backend),
            )
        )
    default_cases = {
        repeats.case.name for repeats in of_backend if repeats.mode == "default" and repeats.outcome == "ok"
    }
    for repeats in switched_on:
        if repeats.outcome == "refused" and repeats.case.name in default_cases:
            evidence.append(f"{repeats.deterministic_switch}: {repeats.reason}")
            break
    message = f"{backend} is not reproducible: {', '.join(tensors)} change between calls"
    return Problem(message, tuple(evidence), tuple(fixes), backend)


def _describe_switch_cost(repeats: Repeats, of_backend: list[Repeats]) -> str:
    """Return the measured effect of the switch, and its cost in time and memory."""
    default = next(other for other in of_backend if other.case.name == repeats.case.name and other.mode == "default")
    parts = [f"{repeats.repeats} calls with identical bits, {repeats.under_load} under load"]
    if default.call_ms:
        parts.append(f"{repeats.call_ms / default.call_ms:.2f} × the time")
    if default.memory_bytes and repeats.memory_bytes:
        parts.append(f"{(repeats.memory_bytes - default.memory_bytes) / (1 << 20):+.0f} MiB")
    return ", ".join(parts)


# Read by vLLM, and passed to its workers by verl 0.9.1 (constants_ppo.py); its effect was not measured here.
FIXED_ORDER = Fix(
    "make vLLM's rollouts independent of the batch (not tried here)", "env", "export VLLM_BATCH_INVARIANT=1"
)


def _make_batch_problem(backend: str, repeats: Repeats) -> Problem:
    differing = [d for d in repeats.batch if d.distinct > 1]
    evidence = tuple(
        (f"{d.tensor}: differs by up to {d.max_abs:.2g} in {100 * d.elements / d.numel:.2g} % of elements")
        for d in differing
    )
    message = (
        f"{backend}: a sequence's {', '.join(d.tensor for d in differing)} change when other sequences share its batch"
    )
    return Problem(message, evidence, (FIXED_ORDER,), backend)
