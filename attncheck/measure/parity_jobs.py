"""Distributes parity's work on each backend over workers, by the cost of new shapes."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from attncheck.attention.backend import Backend, Device, refusal
from attncheck.core import codec
from attncheck.core.cases import Case
from attncheck.measure import discovery
from attncheck.measure.case_features import group_by_kernel, group_by_shape, list_features
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.pool import Job

# Measured on one H200: flex_attention compiles each shape; cuDNN 9.19 builds a plan for each, and a kernel for some.
SECONDS_PER_COMPILED_SHAPE, SECONDS_PER_PLAN, SECONDS_PER_KERNEL = 9.0, 0.15, 1.8
SECONDS_PER_CALL = 0.1  # for each case on an H100, if a new shape costs nothing
SHARE_OF_NEW_SHAPES = 0.7  # share of the slots for backends with costly new shapes
MIN_SECONDS_PER_WORKER = 8.0  # with less work, another worker, which must import torch, gains nothing
SHARED_JOB = "torch"  # the job of torch's own backends on a CPU, which share their references
SECONDS_PER_ITEM, SECONDS_PER_CELL = 0.03, 3e-8  # for that job, measured on a CPU
COMPILE_DEADLINE_FACTOR = 4.0  # a backend that compiles gets this many times the deadline


def make_jobs(cases_by_backend: Mapping[str, tuple[Case, ...]], target: ExecutionTarget, slots: int) -> list[Job]:
    """Return the work on every backend's cases, the longest first.

    A backend of torch gets one worker on a GPU, or several if each new shape costs it time. Such backends share the
    slots by their cost, and cases of one shape stay together. Backends of another package share a worker. So do torch's
    own on a CPU, because importing torch and computing the references costs more than all calls. An item is
    "case@backend".
    """
    groups: dict[str, dict[str, tuple[Case, ...]]] = {}
    for name, cases in cases_by_backend.items():
        groups.setdefault(_shared_package(name, target) or name, {})[name] = cases
    together = {package: own for package, own in groups.items() if package == SHARED_JOB or len(own) > 1}
    apart = {name: cases for package, own in groups.items() if package not in together for name, cases in own.items()}
    shares = {name: _Shares(name, cases, target) for name, cases in apart.items()}
    total = sum(share.seconds for share in shares.values())
    jobs: list[tuple[float, Job]] = []
    for name, share in shares.items():
        workers = round(slots * SHARE_OF_NEW_SHAPES * share.seconds / total) if total else 1
        for seconds, cases in share.split(min(workers, int(share.seconds / MIN_SECONDS_PER_WORKER))):
            seconds = seconds or SECONDS_PER_CALL * len(share.accepted)
            jobs.append((seconds, _make_job(name, {name: cases}, target, slots)))
    for package, own in together.items():
        if package == SHARED_JOB:
            jobs += _share_jobs(own, target, slots)
        else:
            seconds = SECONDS_PER_CALL * sum(len(accepted_cases(name, cases, target)) for name, cases in own.items())
            jobs.append((seconds, _make_job(package, own, target, slots)))
    return [job for _, job in sorted(jobs, key=lambda pair: -pair[0])]


def _shared_package(name: str, target: ExecutionTarget) -> str:
    """Return the package whose backends share a worker with this one, "" if it has its own."""
    backend = discovery.get_backend(name)
    is_costly = backend.compiles or (backend.plans and target.uses_gpu)
    is_alone = is_costly or backend.sharding is not None or (backend.package == SHARED_JOB and target.uses_gpu)
    return "" if is_alone else backend.package


def _share_jobs(
    cases_by_backend: Mapping[str, tuple[Case, ...]], target: ExecutionTarget, slots: int
) -> list[tuple[float, Job]]:
    """Return the work on several backends, by case, with the seconds of each worker."""
    backends_by_case: dict[Case, list[str]] = {}
    for name, cases in cases_by_backend.items():
        for case in cases:
            backends_by_case.setdefault(case, []).append(name)
    seconds = {case: len(n) * SECONDS_PER_ITEM + case.cells * SECONDS_PER_CELL for case, n in backends_by_case.items()}
    count = max(1, min(slots, int(sum(seconds.values()) / MIN_SECONDS_PER_WORKER)))
    loads, chosen = [0.0] * count, [set[Case]() for _ in range(count)]
    for case in sorted(seconds, key=lambda case: -seconds[case]):
        worker = loads.index(min(loads))
        loads[worker] += seconds[case]
        chosen[worker].add(case)
    return [
        (
            load,
            _make_job(
                SHARED_JOB, {n: [c for c in cases if c in own] for n, cases in cases_by_backend.items()}, target, slots
            ),
        )
        for load, own in zip(loads, chosen)
        if own
    ]


class _Shares:
    """A backend's cases, and its approximate seconds for new shapes: 0 if these cost nothing."""

    def __init__(self, name: str, cases: tuple[Case, ...], target: ExecutionTarget) -> None:
        self.cases, self.accepted = cases, set(accepted_cases(name, cases, target))
        self._seconds_per_shape, self._seconds_per_kernel = _costs_of(discovery.get_backend(name))
        self.seconds = sum(map(self._estimate_seconds, group_by_kernel(cases))) if self._seconds_per_shape else 0.0

    def _estimate_seconds(self, cases: tuple[Case, ...]) -> float:
        """Return the seconds for cases that share a kernel."""
        groups = group_by_shape(case for case in cases if case in self.accepted)
        is_compiled = not self._seconds_per_kernel  # by Triton, which takes twice as long for a large head_dim
        shapes = sum(1 + (is_compiled and group[0].head_dim > 128) for group in groups)
        return self._seconds_per_shape * shapes + (self._seconds_per_kernel if shapes else 0.0)

    def split(self, workers: int) -> list[tuple[float, tuple[Case, ...]]]:
        """Return the seconds and the cases of each worker; the costliest kernel goes to the least busy worker."""
        if workers < 2:
            return [(self.seconds, self.cases)]
        # If shapes share no kernel, only cases of one shape must stay together.
        groups = group_by_kernel(self.cases) if self._seconds_per_kernel else group_by_shape(self.cases)
        loads = [0.0] * workers
        chosen: list[list[Case]] = [[] for _ in loads]
        for group in sorted(groups, key=self._estimate_seconds, reverse=True):
            worker = min(range(workers), key=lambda index: (loads[index], len(chosen[index])))
            loads[worker] += self._estimate_seconds(group)
            chosen[worker] += group
        return [(load, tuple(cases)) for load, cases in zip(loads, chosen) if cases]


def _costs_of(backend: Backend) -> tuple[float, float]:
    """Return the seconds for a new shape, and for a new kernel."""
    if backend.compiles:
        return SECONDS_PER_COMPILED_SHAPE, 0.0
    return (SECONDS_PER_PLAN, SECONDS_PER_KERNEL) if backend.plans else (0.0, 0.0)


def accepted_cases(name: str, cases: Iterable[Case], target: ExecutionTarget) -> tuple[Case, ...]:
    """Return the cases that a backend does not refuse."""
    device = Device("cuda" if target.uses_gpu else "cpu", compute_capability=(9, 0), torch=(99, 0))
    refuses = partial(refusal, discovery.get_backend(name), device=device)
    return tuple(case for case in cases if not refuses(case))


def _make_job(job: str, cases_by_backend: Mapping[str, Sequence[Case]], target: ExecutionTarget, slots: int) -> Job:
    """Return the work of one worker on some cases of one backend, or of several that share references."""
    cases = {case.name: case for cases in cases_by_backend.values() for case in cases}
    features: dict[str, tuple[str, ...]] = {}
    for case in cases.values():
        for backend, own in cases_by_backend.items():
            if case in own:
                features[f"{case.name}@{backend}"] = (*((backend,) if job != backend else ()), *list_features(case))
    message = {
        "task": "attncheck.measure.worker.tasks:parity",
        "backends": list(cases_by_backend),
        "device": target.device,
        "threads": target.threads_per_worker(slots),
        "slots": slots,
        "seconds": target.seconds,
        "cases": codec.to_plain(tuple(cases.values())),
    }
    compiles = any(discovery.get_backend(backend).compiles for backend in cases_by_backend)
    seconds = target.seconds * (COMPILE_DEADLINE_FACTOR if compiles else 1.0)
    return Job(job, message, tuple(features), seconds, target.extra_path, features=features)
