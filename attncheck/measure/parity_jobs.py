"""Distributes parity's work on each backend over workers, by the cost of new shapes."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from attncheck.attention.backend import Backend, Device, refusal
from attncheck.core import codec
from attncheck.core.cases import Case
from attncheck.measure import discovery
from attncheck.measure.case_features import group_by_kernel, group_by_shape, list_features
from attncheck.workers.execution import ExecutionTarget
from attncheck.workers.pool import Job

# Seconds of a processor, on an H100's host while all of its cores are busy: flex_attention compiles each shape up to a
# head_dim of 128, and cuDNN 9.19 builds a plan for each, and a kernel for some.
SECONDS_PER_COMPILED_SHAPE, SECONDS_PER_PLAN, SECONDS_PER_KERNEL = 6.5, 0.25, 1.2
SECONDS_PER_DROPOUT_PLAN = 2.5  # its probe calls a backend with several shapes and seeds
SECONDS_PER_CALL, SECONDS_PER_REFERENCE = 0.035, 0.11  # on a GPU, if a new shape costs nothing
SECONDS_PER_IMPORT = 8.0  # of the compiler; other packages need less
SECONDS_PER_CALL_ON_CPU, SECONDS_PER_CELL = 0.03, 3e-8
MIN_SECONDS_PER_WORKER = 4.0  # with less work, another worker, which must open the device, gains nothing
SECONDS_PER_PART = 2.5  # of work that can be split; a worker that is done gets the next part
SHARED_JOB = "torch"  # the job of torch's own backends that do not compile or plan, which share their references
COMPILE_DEADLINE_FACTOR = 4.0  # a backend that compiles gets this many times the deadline

Unit: TypeAlias = tuple[float, tuple[Case, ...]]  # cases that one worker must run, and the seconds for them


def make_jobs(cases_by_backend: Mapping[str, tuple[Case, ...]], target: ExecutionTarget, slots: int) -> list[Job]:
    """Return the work on every backend's cases: what each worker begins with, the longest first, then the rest.

    Backends of one package share a worker, because importing torch and computing the references costs more than most
    calls. One for which each new shape costs time has its own. Those, and torch's own, share the slots by their work,
    in many parts, so that all workers end at about the same time. Another package's cases stay in one process, in which
    earlier calls can spoil later ones. An item is "case@backend".
    """
    groups: dict[str, dict[str, tuple[Case, ...]]] = {}
    for name, cases in cases_by_backend.items():
        backend = discovery.get_backend(name)
        is_alone = _is_costly(backend, target) or backend.sharding is not None or not backend.package
        groups.setdefault(name if is_alone else backend.package, {})[name] = cases
    units = {group: _list_units(own, target) for group, own in groups.items()}
    seconds_by_group = {group: sum(seconds for seconds, _ in own) for group, own in units.items()}
    can_split = {
        group
        for group, own in groups.items()
        if group == SHARED_JOB or any(_is_costly(discovery.get_backend(backend), target) for backend in own)
    }
    imports = {
        group: SECONDS_PER_IMPORT
        * (group not in can_split or any(discovery.get_backend(name).compiles for name in own))
        for group, own in groups.items()
    }
    workers = _share_slots(seconds_by_group, imports, can_split, slots)
    jobs: list[tuple[tuple[bool, float], Job]] = []
    for group, own in groups.items():
        name = group if len(own) > 1 else next(iter(own))
        count = int(seconds_by_group[group] / SECONDS_PER_PART) if group in can_split else 1
        parts = _distribute(units[group], max(workers[group], count))
        for index, chosen in enumerate(parts):
            part = {backend: tuple(case for case in cases if case in chosen) for backend, cases in own.items()}
            job = make_job(name, part, target, slots, len(parts) > 1)
            order = (index >= workers[group], -seconds_by_group[group] / workers[group] - imports[group])
            jobs.append((order, job))
    return [job for _, job in sorted(jobs, key=lambda pair: pair[0])]


def _share_slots(
    seconds: Mapping[str, float], imports: Mapping[str, float], can_split: Collection[str], slots: int
) -> dict[str, int]:
    """Return the number of workers of each group of backends, one or more.

    The group whose workers would end last gets another one while slots are left.
    """
    workers = dict.fromkeys(seconds, 1)
    while can_split:
        group = max(can_split, key=lambda group: (seconds[group] / workers[group] + imports[group], group))
        if seconds[group] / (workers[group] + 1) < MIN_SECONDS_PER_WORKER or sum(workers.values()) >= slots:
            break
        workers[group] += 1
    return workers


def _is_costly(backend: Backend, target: ExecutionTarget) -> bool:
    """Return whether each new shape costs the backend time."""
    return backend.compiles or (backend.plans and target.uses_gpu)


def _list_units(cases_by_backend: Mapping[str, tuple[Case, ...]], target: ExecutionTarget) -> list[Unit]:
    """Return the cases of backends that share a worker, in units that stay together."""
    accepted = {name: set(accepted_cases(name, cases, target)) for name, cases in cases_by_backend.items()}
    for name, cases in cases_by_backend.items():
        backend = discovery.get_backend(name)
        if _is_costly(backend, target):  # then it has its own
            # If shapes share no kernel, only cases of one shape must stay together.
            groups = group_by_shape(cases) if backend.compiles else group_by_kernel(cases)
            return [(_estimate_seconds(backend, accepted[name].intersection(group)), group) for group in groups]
    per_call, per_case, per_cell = (
        (SECONDS_PER_CALL, SECONDS_PER_REFERENCE, 0.0)
        if target.uses_gpu
        else (SECONDS_PER_CALL_ON_CPU, 0.0, SECONDS_PER_CELL)
    )
    calls_by_case = Counter(case for own in accepted.values() for case in own)
    every = dict.fromkeys(case for cases in cases_by_backend.values() for case in cases)
    return [
        (per_call * calls_by_case[case] + per_case * (case in calls_by_case) + per_cell * case.cells, (case,))
        for case in every
    ]


def _estimate_seconds(backend: Backend, cases: Iterable[Case]) -> float:
    """Return the seconds for the new shapes of cases that share a kernel."""
    shapes = group_by_shape(cases)
    if not backend.compiles:
        dropped = sum(shape[0].dropout > 0.0 for shape in shapes)
        return SECONDS_PER_PLAN * len(shapes) + SECONDS_PER_KERNEL * bool(shapes) + SECONDS_PER_DROPOUT_PLAN * dropped
    return SECONDS_PER_COMPILED_SHAPE * sum(_weigh_compiled_shape(shape[0]) for shape in shapes)


def _weigh_compiled_shape(case: Case) -> float:
    """Return how many times longer a shape is compiled than a plain one with a small head_dim."""
    return max(1.0, case.head_dim / 128) * (1.4 if case.softcap else 1.0) * (2.0 if case.alibi else 1.0)


def _distribute(units: Iterable[Unit], count: int) -> list[set[Case]]:
    """Return the cases of each of up to `count` parts, the costliest first; each unit goes to the cheapest part."""
    loads, chosen = [0.0] * count, [set[Case]() for _ in range(count)]
    for seconds, cases in sorted(units, key=lambda unit: -unit[0]):
        part = min(range(count), key=lambda index: (loads[index], len(chosen[index])))
        loads[part] += seconds
        chosen[part].update(cases)
    return [chosen[part] for part in sorted(range(count), key=lambda part: -loads[part]) if chosen[part]]


def accepted_cases(name: str, cases: Iterable[Case], target: ExecutionTarget) -> tuple[Case, ...]:
    """Return the cases that a backend does not refuse."""
    device = Device("cuda" if target.uses_gpu else "cpu", compute_capability=(9, 0), torch=(99, 0))
    refuses = partial(refusal, discovery.get_backend(name), device=device)
    return tuple(case for case in cases if not refuses(case))


def make_job(
    job: str,
    cases_by_backend: Mapping[str, Sequence[Case]],
    target: ExecutionTarget,
    slots: int,
    has_other_parts: bool = False,
) -> Job:
    """Return the work of one worker on some cases of one backend, or of several that share references."""
    cases = {case.name: case for cases in cases_by_backend.values() for case in cases}
    own_names = {backend: {case.name for case in own} for backend, own in cases_by_backend.items()}
    features: dict[str, tuple[str, ...]] = {}
    for name, case in cases.items():
        listed = tuple(list_features(case))
        for backend, own in own_names.items():
            if name in own:
                features[f"{name}@{backend}"] = (*((backend,) if job != backend else ()), *listed)
    message = {
        "task": "attncheck.measure.worker.tasks:parity",
        "backends": list(cases_by_backend),
        "device": target.device,
        "threads": target.threads_per_worker(slots),
        "slots": slots,
        "seconds": target.seconds,
        "cases": codec.to_plain(tuple(cases.values())),
        "has_other_parts": has_other_parts,
    }
    compiles = any(discovery.get_backend(backend).compiles for backend in cases_by_backend)
    seconds = target.seconds * (COMPILE_DEADLINE_FACTOR if compiles else 1.0)
    imports = discovery.list_imports(compiles)
    return Job(job, message, tuple(features), seconds, target.extra_path, features=features, imports=imports)
