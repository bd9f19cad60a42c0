"""The machine that a job will run on, if it is not this one: `--target h100x8`, `--target sm_90,gpus=8,torch=2.9`.

Its packages may come from files: `--target h100x8,requirements.txt` (`attncheck.doctor.target_files`). Packages that a
target does not name are neither present nor missing. If the target is only words, this environment's packages count
too. If it names files, they do not, because the files describe another environment."""

import difflib
import os
import re
from dataclasses import dataclass, field, replace

from packaging.version import InvalidVersion, Version

from attncheck.core.io.errors import BadUsage
from attncheck.core.snapshot import (
    Absent,
    Device,
    Distribution,
    Driver,
    Fact,
    Known,
    PackageGaps,
    Snapshot,
    Torch,
    Unreadable,
)
from attncheck.doctor.knowledge.frameworks import WATCHED_DISTRIBUTIONS
from attncheck.doctor.knowledge.gpus import GPUS_BY_NAME
from attncheck.doctor.queries.requirements import canonical_name
from attncheck.doctor.target_files import KNOWN_FILES, find_reader, read_package_list
from attncheck.doctor.target_files.collector import PackageList

NOT_PROBED = "this is a target, not an examined environment"
NOT_INSTALLED = "none"  # as a version: the package is not installed
NOT_NAMED = "the target lists only some packages, and was not examined"
NOT_IN_FILES = "the target's files list only some packages, and it was not examined"
NO_ENVIRONMENT = "this is attncheck's own environment, without the training stack"
NO_MACHINE = "the machine that trains was not named: --target h100x8"


@dataclass(frozen=True)
class Target:
    """A machine and its packages, as far as `--target` names them; the rest is assumed to match this machine."""

    text: str
    gpu_name: str = ""  # "" if none is named
    compute_capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    gpus_per_node: int | None = None
    driver: str = ""
    versions: dict[str, str] = field(default_factory=dict)  # distribution -> version, or `NOT_INSTALLED`
    files: tuple[PackageList, ...] = ()  # from its files; the words of the target take precedence


def parse_target(text: str) -> Target:
    """Return the target written as comma-separated tokens. Raises `BadUsage`, naming the token that is wrong.

    "h100x8" is eight H100; "sm_90" a GPU generation; "cpu" no GPU; "gpus=8"; "driver=580". "torch=2.9" and
    "flash-attn=none" are versions of packages. "requirements.txt" and "uv.lock" are files that list packages; they are
    read here.
    """
    parsed = Target(text)
    for token in filter(None, (part.strip() for part in text.split(","))):
        parsed = _apply_token(parsed, token)
    if parsed.gpus_per_node is not None and parsed.gpus_per_node > 0 and parsed.compute_capability is None:
        raise BadUsage(
            f"--target {text!r}: which kind of GPU are the {parsed.gpus_per_node}? Write "
            f"h100x{parsed.gpus_per_node} or sm_90"
        )
    return parsed


def _apply_token(target: Target, token: str) -> Target:
    key, equals, value = token.replace("==", "=", 1).partition("=")
    if "/" in key or (not equals and find_reader(token) is not None):
        return replace(target, files=(*target.files, read_package_list(token)))
    if not equals:
        return _apply_machine(target, token)
    name = canonical_name(key)
    if name == "gpus":
        if not re.fullmatch(r"\d{1,4}", value):
            raise BadUsage(f"--target gpus={value!r} is not a number of GPUs")
        return replace(target, gpus_per_node=int(value))
    if name == "driver":
        if not re.fullmatch(r"\d+(\.\d+)*", value):
            raise BadUsage(f"--target driver={value!r} is not a driver's version such as 580 or 580.95.05")
        return replace(target, driver=value)
    if not re.fullmatch(r"[\w.-]+", key):
        raise BadUsage(f"--target {token!r}: a package has one version; write NAME=VERSION, such as torch=2.9.0")
    if value != NOT_INSTALLED:
        try:
            Version(value)
        except InvalidVersion:
            raise BadUsage(f"--target {token!r}: {value!r} is not a version") from None
    return replace(target, versions={**target.versions, name: value})


def _apply_machine(target: Target, text: str) -> Target:
    token = text.lower()
    if token == "cpu":
        return replace(target, gpus_per_node=0)
    generation = re.fullmatch(r"sm_?(\d{1,2})(\d)a?(?:x(\d{1,4}))?", token)
    if generation:
        capability = (int(generation[1]), int(generation[2]))
        name = f"sm_{capability[0]}{capability[1]}"
        return replace(
            target, gpu_name=name, compute_capability=capability, gpus_per_node=_gpu_count(target, generation[3])
        )
    names = "|".join(map(re.escape, GPUS_BY_NAME))  # the x of rtx4090 does not start a number of GPUs
    match = re.fullmatch(rf"({names})(?:x(\d{{1,4}}))?", token)
    if match is None:
        similar = difflib.get_close_matches(token, GPUS_BY_NAME, n=1)
        hint = f"did you mean {similar[0]}?" if similar else f"known: {', '.join(GPUS_BY_NAME)}; or a generation, sm_90"
        hint += f", nor a file that attncheck reads: {KNOWN_FILES}" if os.path.exists(text) else ""
        raise BadUsage(f"--target {token!r}: no GPU of that name; {hint}")
    name, capability, gib = GPUS_BY_NAME[match[1]]
    return replace(
        target,
        gpu_name=name,
        compute_capability=capability,
        memory_bytes=gib << 30,
        gpus_per_node=_gpu_count(target, match[2]),
    )


def _gpu_count(target: Target, digits: str | None) -> int:
    return int(digits) if digits else target.gpus_per_node or 1


def has_stack(snapshot: Snapshot) -> bool:
    """Return whether any package of a training stack is installed; without one, an environment cannot train."""
    return snapshot.lists("torch", *WATCHED_DISTRIBUTIONS)


def forget_environment(snapshot: Snapshot, reason: str = NO_ENVIRONMENT) -> Snapshot:
    """Return the snapshot of a job whose environment and machine are unknown, without the facts of this machine."""
    not_known = Unreadable(NO_MACHINE)
    changed = forget_packages(snapshot, reason)
    return replace(changed, devices=not_known, driver=not_known, topology=not_known, environ={})


def forget_packages(snapshot: Snapshot, reason: str) -> Snapshot:
    """Return the snapshot with unknown packages, for the given reason."""
    return replace(
        snapshot,
        distributions=(),
        clashes=(),
        shadows=(),
        binaries=(),
        torch=Unreadable(reason),
        imports=Absent(NOT_PROBED),
        interfaces=Absent(NOT_PROBED),
        links=Absent(NOT_PROBED),
        experiments=Absent(NOT_PROBED),
        gaps=PackageGaps(reason),
    )


def apply_target(snapshot: Snapshot, target: Target) -> Snapshot:
    """Return the snapshot as if taken on the target: the facts that `--target` names, else those of this machine.

    Packages that are neither named nor installed here are unknown. If a file lists packages, or this environment has no
    training stack, the packages installed here do not count.
    """
    changed = replace(snapshot, imports=Absent(NOT_PROBED), interfaces=Absent(NOT_PROBED), links=Absent(NOT_PROBED))
    if not has_stack(snapshot):
        changed = forget_environment(changed, NOT_NAMED)
    elif target.files:
        changed = forget_packages(changed, NOT_NAMED)
    changed = replace(changed, gaps=PackageGaps(NOT_IN_FILES if target.files else NOT_NAMED))
    if isinstance(changed.torch, Absent):
        changed = replace(changed, torch=Unreadable(NOT_NAMED))
    if target.gpus_per_node is not None:
        changed = replace(
            changed, devices=_target_devices(target), topology=Absent(NOT_PROBED), driver=_target_driver(target)
        )
        changed = replace(changed, torch=_without_cuda_state(changed.torch) if target.gpus_per_node else changed.torch)
    elif target.driver:
        changed = replace(changed, driver=_target_driver(target))
    for packages in target.files:
        changed = _with_files(changed, packages)
    for name, version in target.versions.items():
        changed = with_version(changed, name, version)
    return changed


def _with_files(snapshot: Snapshot, packages: PackageList) -> Snapshot:
    for name, version in packages.versions.items():
        snapshot = with_version(snapshot, name, version)
    for name, allowed in packages.allowed.items():
        snapshot = with_version(snapshot, name, "", allowed)
    remarks = (*snapshot.gaps.remarks, *packages.remarks)
    return replace(snapshot, gaps=replace(snapshot.gaps, remarks=remarks))


def _without_cuda_state(torch: Fact[Torch]) -> Fact[Torch]:
    """Return torch without the results of running CUDA here; a CPU build here shows nothing about the target."""
    if not isinstance(torch, Known):
        return torch
    if isinstance(torch.value.cuda, Absent):
        return Unreadable("the local torch is a CPU build; name the target's: torch=2.9")
    return Known(replace(torch.value, cuda_available=Unreadable(NOT_PROBED), cuda_error=Unreadable(NOT_PROBED)))


def _target_devices(target: Target) -> Fact[tuple[Device, ...]]:
    if not target.gpus_per_node:
        return Absent("the target has no GPU")
    memory: Fact[int] = Known(target.memory_bytes) if target.memory_bytes else Unreadable(NOT_PROBED)
    capability: Fact[tuple[int, int]] = (
        Known(target.compute_capability) if target.compute_capability else Unreadable(NOT_PROBED)
    )
    device = Device(0, target.gpu_name, capability, memory, Unreadable(NOT_PROBED), kernel=Unreadable(NOT_PROBED))
    return Known(tuple(replace(device, index=index) for index in range(target.gpus_per_node)))


def _target_driver(target: Target) -> Fact[Driver]:
    if not target.driver:
        return (
            Absent("the target has no GPU")
            if not target.gpus_per_node
            else Unreadable("the target has no driver version")
        )
    return Known(Driver(target.driver, Unreadable(NOT_PROBED)))


def with_version(snapshot: Snapshot, name: str, version: str, allowed: str = "") -> Snapshot:
    """Return the snapshot with another version of one distribution, whose files are then unknown.

    The version is "" if it may be any of several that are `allowed`.
    """
    installed = snapshot.package(name)
    if isinstance(installed, Known) and installed.value.version == version and not allowed:
        return snapshot
    is_missing = version == NOT_INSTALLED
    others = tuple(entry for entry in snapshot.distributions if entry.name != name)
    replacement = () if is_missing else (Distribution(name, version, "", allowed=allowed),)
    missing = tuple(entry for entry in snapshot.gaps.not_installed if entry != name)
    changed = replace(
        snapshot,
        distributions=(*others, *replacement),
        binaries=tuple(entry for entry in snapshot.binaries if entry.distribution != name),
        clashes=tuple(entry for entry in snapshot.clashes if name not in entry.owners),
        gaps=replace(snapshot.gaps, not_installed=(*missing, name) if is_missing else missing),
    )
    if name != "torch":
        return changed
    if is_missing:
        return replace(changed, torch=Absent("the target has no torch"))
    if not version:
        return replace(changed, torch=Unreadable(f"torch's version is unknown: {allowed}"))
    return replace(changed, torch=Known(_torch_of_version(version)))


def _torch_of_version(version: str) -> Torch:
    """Return torch as described by its version: "2.6.0+cu124" is built for CUDA 12.4, "2.6.0+cpu" for no GPU."""
    not_probed = Unreadable(NOT_PROBED)
    label = version.partition("+")[2]
    cuda = re.fullmatch(r"cu(\d{2,3})", label)
    if cuda:
        return Torch(version, Known(f"{cuda[1][:-1]}.{cuda[1][-1]}"), Absent("a CUDA build"), not_probed)
    if label == "cpu":
        return Torch(version, Absent("a CPU build"), Absent("a CPU build"), not_probed)
    return Torch(version, not_probed, not_probed, not_probed)
