"""The machine a job will run on, where that is not this one: `--target h100x8`, `--target sm_90,gpus=8,torch=2.9`."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field, replace

from packaging.version import InvalidVersion, Version

from attncheck.core.devices import Device, Driver
from attncheck.core.environment import Distribution, Torch
from attncheck.core.errors import BadUsage
from attncheck.core.facts import Absent, Fact, Known, Unreadable
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.knowledge.gpus import NAMED
from attncheck.doctor.queries.requirements import normalised

UNSEEN = "judged for a target, which nobody has looked at"
NONE = "none"  # as a version: the package is not there


@dataclass(frozen=True)
class Target:
    """A machine and what is installed on it, as far as it was said; the rest is taken to be as here."""

    text: str
    gpu: str = ""  # its name, "" where none was said
    compute_capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    gpus: int | None = None  # on each node
    driver: str = ""
    versions: dict[str, str] = field(default_factory=dict)  # distribution -> version, or `NONE`


def target(text: str) -> Target:
    """Return the target written as words with commas between. Raises `BadUsage` naming the word.

    "h100x8" is eight H100; "sm_90" a generation; "cpu" no GPU; "gpus=8"; "driver=580"; "torch=2.9", "flash-attn=none"
    and so on are versions of packages.
    """
    found = Target(text)
    for word in filter(None, (part.strip() for part in text.split(","))):
        found = _with(found, word)
    if found.gpus is not None and found.gpus > 0 and found.compute_capability is None:
        raise BadUsage(f"--target {text!r}: {found.gpus} GPUs of which kind? Say h100x{found.gpus} or sm_90")
    return found


def _with(found: Target, word: str) -> Target:
    key, equals, value = word.partition("=")
    if not equals:
        return _machine(found, word.lower())
    name = normalised(key)
    if name == "gpus":
        if not re.fullmatch(r"\d{1,4}", value):
            raise BadUsage(f"--target gpus={value!r} is not a number of GPUs")
        return replace(found, gpus=int(value))
    if name == "driver":
        if not re.fullmatch(r"\d+(\.\d+)*", value):
            raise BadUsage(f"--target driver={value!r} is not a driver's version such as 580 or 580.95.05")
        return replace(found, driver=value)
    if value != NONE:
        try:
            Version(value)
        except InvalidVersion:
            raise BadUsage(f"--target {word!r}: {value!r} is no version") from None
    return replace(found, versions={**found.versions, name: value})


def _machine(found: Target, word: str) -> Target:
    if word == "cpu":
        return replace(found, gpus=0)
    generation = re.fullmatch(r"sm_?(\d{1,2})(\d)a?(?:x(\d{1,4}))?", word)
    if generation:
        capability = (int(generation[1]), int(generation[2]))
        name = f"sm_{capability[0]}{capability[1]}"
        return replace(found, gpu=name, compute_capability=capability, gpus=_count(found, generation[3]))
    named = re.fullmatch(r"(.+?)(?:x(\d{1,4}))?", word)
    assert named is not None
    if named[1] not in NAMED:
        near = difflib.get_close_matches(named[1], NAMED, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(NAMED)}; or a generation, sm_90"
        raise BadUsage(f"--target {word!r}: no GPU of that name; {hint}")
    name, capability, gib = NAMED[named[1]]
    return replace(found, gpu=name, compute_capability=capability, memory_bytes=gib << 30, gpus=_count(found, named[2]))


def _count(found: Target, written: str | None) -> int:
    return int(written) if written else found.gpus or 1


def aimed(snapshot: Snapshot, where: Target) -> Snapshot:
    """Return the snapshot as it would be taken on the target: what was said of it, else what is here."""
    changed = replace(snapshot, imports=Absent(UNSEEN), interfaces=Absent(UNSEEN))
    if where.gpus is not None:
        changed = replace(changed, devices=_devices(where), topology=Absent(UNSEEN), driver=_driver(where))
        changed = replace(changed, torch=_unstarted(changed.torch) if where.gpus else changed.torch)
    elif where.driver:
        changed = replace(changed, driver=_driver(where))
    for name, version in where.versions.items():
        changed = _installed(changed, name, version)
    return changed


def _unstarted(torch: Fact[Torch]) -> Fact[Torch]:
    """Return torch without what its CUDA did here; the CPU build of a login node or a runner is not the target's."""
    if not isinstance(torch, Known):
        return torch
    if isinstance(torch.value.cuda, Absent):
        return Unreadable("torch here is a CPU build; say the target's: torch=2.9")
    return Known(replace(torch.value, cuda_available=Unreadable(UNSEEN), cuda_error=Unreadable(UNSEEN)))


def _devices(where: Target) -> Fact[tuple[Device, ...]]:
    if not where.gpus:
        return Absent("the target has no GPU")
    memory: Fact[int] = Known(where.memory_bytes) if where.memory_bytes else Unreadable(UNSEEN)
    capability: Fact[tuple[int, int]] = (
        Known(where.compute_capability) if where.compute_capability else Unreadable(UNSEEN)
    )
    one = Device(0, where.gpu, capability, memory, Unreadable(UNSEEN), kernel=Unreadable(UNSEEN))
    return Known(tuple(replace(one, index=index) for index in range(where.gpus)))


def _driver(where: Target) -> Fact[Driver]:
    if not where.driver:
        return Absent("the target has no GPU") if not where.gpus else Unreadable("the target names no driver")
    return Known(Driver(where.driver, Unreadable(UNSEEN)))


def _installed(snapshot: Snapshot, name: str, version: str) -> Snapshot:
    """Return the snapshot with another version of one distribution; of its files nothing is known then."""
    here = snapshot.package(name)
    if isinstance(here, Known) and here.value.version == version:
        return snapshot
    others = tuple(item for item in snapshot.distributions if item.name != name)
    new = () if version == NONE else (Distribution(name, version, snapshot.host.prefix),)
    changed = replace(
        snapshot,
        distributions=(*others, *new),
        binaries=tuple(item for item in snapshot.binaries if item.distribution != name),
        clashes=tuple(item for item in snapshot.clashes if name not in item.owners),
    )
    if name != "torch":
        return changed
    if version == NONE:
        return replace(changed, torch=Absent("the target has no torch"))
    unseen = Unreadable(UNSEEN)
    return replace(changed, torch=Known(Torch(version, unseen, unseen, unseen)))
