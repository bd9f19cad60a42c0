"""The changes of the machine: its GPUs and their driver."""

from collections.abc import Iterator

from packaging.version import InvalidVersion, Version

from attncheck.core.findings import Fix, Problem
from attncheck.core.lock import Lock, LockedGpu
from attncheck.core.results.lock import Move
from attncheck.core.snapshot import NOT_ASKED, Absent, Fact, Known
from attncheck.stacks.lock import judged
from attncheck.stacks.lock.judged import JudgedMove

ANOTHER_MACHINE = Fix("keep one lock per kind of machine", "advice", "attncheck lock h200.lock.json")


def compare_machine(locked: Lock, now: Lock) -> Iterator[JudgedMove]:
    """Yield the changes of the machine, as far as both sides are known."""
    if isinstance(locked.gpus, Known) and _was_probed(now.gpus):
        yield from _compare_gpus(locked.gpus.value, now.gpus.value if isinstance(now.gpus, Known) else ())
    elif isinstance(now.gpus, Known) and _was_probed(locked.gpus):
        yield judged.harmless("gpus", "none", describe_gpus(now.gpus.value), "the lock was taken without a GPU")
    if isinstance(locked.driver, Known) and isinstance(now.driver, Known):
        yield from _compare_drivers(locked.driver.value, now.driver.value)


def list_unseen(locked: Lock, now: Lock) -> Iterator[str]:
    """Yield the facts about the machine that the lock has and that were not probed now."""
    for name, before, after in (("GPUs", locked.gpus, now.gpus), ("driver", locked.driver, now.driver)):
        if isinstance(before, Known) and isinstance(after, Absent) and after.reason == NOT_ASKED:
            yield f"the lock's {name}: the device lane did not run"


def _was_probed(fact: Fact[tuple[LockedGpu, ...]]) -> bool:
    return isinstance(fact, Known) or (isinstance(fact, Absent) and fact.reason != NOT_ASKED)


def _compare_gpus(before: tuple[LockedGpu, ...], now: tuple[LockedGpu, ...]) -> Iterator[JudgedMove]:
    if before == now:
        return
    move = Move("gpus", describe_gpus(before), describe_gpus(now))
    capabilities_before, capabilities_now = _list_capabilities(before), _list_capabilities(now)
    if "" in capabilities_before | capabilities_now:
        yield judged.harmless(move.subject, move.before, move.now, "a compute capability is unknown")
        return
    if capabilities_before == capabilities_now:
        yield judged.harmless(move.subject, move.before, move.now, "the same compute capability")
        return
    shown = (
        "this machine has no GPU"
        if not now
        else f"the GPU here has compute capability {', '.join(sorted(capabilities_now))}"
    )
    message = f"{shown}; the lock's has {', '.join(sorted(capabilities_before))}"
    evidence = (f"the lock: {move.before}", f"here: {move.now}")
    yield judged.harmful(judged.GPU_CHANGED, move, Problem(message, evidence, (ANOTHER_MACHINE,), "gpus"))


def _list_capabilities(gpus: tuple[LockedGpu, ...]) -> set[str]:
    return {gpu.compute_capability for gpu in gpus}


def describe_gpus(gpus: tuple[LockedGpu, ...]) -> str:
    """Return GPUs in a few words: "8 × NVIDIA H200 (9.0)"."""
    return ", ".join(f"{gpu.count} × {gpu.name} ({gpu.compute_capability or '?'})" for gpu in gpus) or "none"


def _compare_drivers(before: str, now: str) -> Iterator[JudgedMove]:
    if before == now:
        return
    try:
        is_older = Version(now) < Version(before)
    except InvalidVersion:
        is_older = False
    if not is_older:
        yield judged.harmless("driver", before, now, "not older than the lock's")
        return
    fix = Fix("install the lock's driver, or a newer one", "manual", f"NVIDIA driver {before} or newer")
    problem = Problem(f"the driver {now} is older than the lock's {before}", (), (fix,), "driver")
    yield judged.harmful(judged.DRIVER_OLDER, Move("driver", before, now), problem)
