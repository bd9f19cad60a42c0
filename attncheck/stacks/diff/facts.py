"""The facts of a side, as texts that can be compared."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from attncheck.core.lock import Lock
from attncheck.core.snapshot import NOT_ASKED, Absent, Fact, Known, Snapshot, Topology
from attncheck.stacks.lock.machine import describe_gpus
from attncheck.stacks.lock.make import make_lock

MIB = 1 << 20
UNCOMPARED_MODEL_FIELDS = ("source", "links", "accepts")  # where the model is, and fields that follow from it


@dataclass(frozen=True)
class StackFact:
    """One fact of a side; a finding may name it by its subject or by one of its `aliases`."""

    kind: str
    subject: str
    text: str
    aliases: tuple[str, ...] = ()


def list_snapshot_facts(snapshot: Snapshot) -> Iterator[StackFact]:
    """Yield the known facts of a snapshot."""
    for source in list_fact_sources():
        yield from source(snapshot)


def list_fact_sources() -> tuple[Callable[[Snapshot], Iterator[StackFact]], ...]:
    """Return the functions that yield a snapshot's facts, each from some fields; a later one replaces equal facts."""
    return (_package_facts, _lock_facts, _torch_facts, _machine_facts, _host_facts, _variable_facts, _job_facts)


def _lock_facts(snapshot: Snapshot) -> Iterator[StackFact]:
    yield from list_lock_facts(make_lock(snapshot, (), ""))


def list_lock_facts(lock: Lock) -> Iterator[StackFact]:
    """Yield the facts of a lock that a snapshot also has."""
    for package in lock.packages:
        yield StackFact("package", package.name, package.version)
        if package.wheel_tags:
            yield StackFact("wheel", package.name, ", ".join(package.wheel_tags))
        if package.record_sha256:
            yield StackFact("content", package.name, package.record_sha256[:12])
    yield StackFact("python", "python", f"{lock.python} ({lock.python_abi})")
    yield StackFact("platform", "platform", lock.platform)
    yield from _fact("torch", "CUDA of torch", lock.torch_cuda, ("torch", "cuda"))
    yield from _fact("driver", "driver", lock.driver, ("nvidia-smi",))
    if isinstance(lock.gpus, Known):
        names = tuple(gpu.name for gpu in lock.gpus.value)
        sms = tuple(f"sm_{gpu.compute_capability.replace('.', '')}" for gpu in lock.gpus.value)
        yield StackFact("gpu", "gpus", describe_gpus(lock.gpus.value), ("gpu", "cuda:0", *names, *sms))
    else:
        yield from _fact("gpu", "gpus", lock.gpus, ("gpu", "cuda:0"))


def _fact(kind: str, subject: str, fact: Fact[Any], aliases: tuple[str, ...] = ()) -> Iterator[StackFact]:
    """Yield a fact as text; nothing if it is unknown."""
    if isinstance(fact, Known):
        value = fact.value
        text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        yield StackFact(kind, subject, text or "none", aliases)
    elif isinstance(fact, Absent) and fact.reason != NOT_ASKED:
        yield StackFact(kind, subject, "none", aliases)


def _package_facts(snapshot: Snapshot) -> Iterator[StackFact]:
    for name in sorted({distribution.name for distribution in snapshot.distributions}):
        package = snapshot.package(name)
        if not isinstance(package, Known):
            continue
        yield StackFact("package", name, package.value.version or "of unknown version")
        damage = [package.value.problem] if package.value.problem else []
        damage += [f"{len(package.value.files_missing)} files missing"] if package.value.files_missing else []
        damage += [f"{len(package.value.files_altered)} files altered"] if package.value.files_altered else []
        yield StackFact("files", name, ", ".join(damage) or "whole")
    for shadow in snapshot.shadows:
        name, _, place = shadow.partition(" at ")
        yield StackFact("shadow", name, f"imported from {place}")
    for binary in snapshot.binaries:
        if binary.module and (binary.sass or binary.ptx):
            built_for = ", ".join((*binary.sass, *binary.ptx))
            yield StackFact("built for", binary.module, built_for, (binary.distribution,))


def _torch_facts(snapshot: Snapshot) -> Iterator[StackFact]:
    if isinstance(snapshot.torch, Known):
        torch = snapshot.torch.value
        yield from _fact("torch", "HIP of torch", torch.hip, ("torch", "rocm"))
        yield from _fact("torch", "C++11 ABI of torch", torch.cxx11_abi, ("torch", "abi"))
        yield from _fact("torch", "architectures of torch", torch.arch_list, ("torch",))
        yield from _fact("torch", "cuDNN", torch.cudnn)
        yield from _fact("torch", "NCCL", torch.nccl)


def _machine_facts(snapshot: Snapshot) -> Iterator[StackFact]:
    if isinstance(snapshot.driver, Known):
        yield from _fact("driver", "CUDA of the driver", snapshot.driver.value.cuda, ("driver",))
        yield from _fact("driver", "fabric manager", snapshot.driver.value.fabric, ("fabric",))
    if isinstance(snapshot.devices, Known):
        devices = snapshot.devices.value
        yield StackFact("gpu", "hidden gpus", str(sum(not d.visible for d in devices)), ("CUDA_VISIBLE_DEVICES",))
        memory = {round(d.memory_total_bytes.value / 2**30) for d in devices if isinstance(d.memory_total_bytes, Known)}
        yield StackFact("gpu", "memory of a gpu", ", ".join(f"{size} GiB" for size in sorted(memory)))
        for subject, values in (("MIG", {d.mig for d in devices}), ("ECC", {d.ecc for d in devices})):
            if len(values) == 1:
                yield from _fact("gpu", subject, values.pop())
    if isinstance(snapshot.topology, Known):
        yield StackFact("links", "links between the GPUs", _describe_links(snapshot.topology.value), ("nvlink", "peer"))


def _describe_links(topology: Topology) -> str:
    return ", ".join(sorted({link.kind for link in topology.links})) or "none"


def _host_facts(snapshot: Snapshot) -> Iterator[StackFact]:
    host, tools = snapshot.host, snapshot.build_tools
    yield StackFact("host", "conda", str(host.conda))
    yield StackFact("host", "Linux kernel", host.kernel)
    yield StackFact("host", "CPUs", str(host.cpu_count))
    yield from _fact("host", "glibc", host.glibc)
    if isinstance(host.memory_total_bytes, Known):
        yield StackFact("host", "host memory", f"{round(host.memory_total_bytes.value / 2**30)} GiB")
    if isinstance(host.shm_bytes, Known):
        yield StackFact("host", "/dev/shm", f"{host.shm_bytes.value // MIB} MiB", ("shm", "shared memory"))
    yield from _fact("tool", "nvcc", tools.nvcc)
    yield from _fact("tool", "gcc", tools.gcc)
    yield from _fact("tool", "python headers", tools.python_headers, ("Python.h",))
    first = {library.name: library for library in reversed(snapshot.runtime_libraries)}
    for name, library in first.items():
        provides = ", ".join(f"{symbol} {version}" for symbol, version in sorted(library.provides.items()))
        yield StackFact("library", name, provides or "unknown", tuple(library.provides))
    yield StackFact("hub", "HF_HUB_OFFLINE", str(snapshot.hub.offline))
    yield StackFact("hub", "cached kernels", ", ".join(sorted(snapshot.hub.kernels)) or "none", ("kernels",))


def _variable_facts(snapshot: Snapshot) -> Iterator[StackFact]:
    for name, value in snapshot.environ.items():
        yield StackFact("variable", name, value)


def _job_facts(snapshot: Snapshot) -> Iterator[StackFact]:
    if isinstance(snapshot.model, Known):
        model = snapshot.model.value
        yield StackFact("model", "model", model.source, (model.model_type,))
        yield from _record_facts("model", model, UNCOMPARED_MODEL_FIELDS)
    if isinstance(snapshot.job, Known):
        job = snapshot.job.value
        yield StackFact("job", "framework", f"{job.framework} {job.version} {job.trainer}".strip(), (job.framework,))
        yield StackFact("job", "scheme", job.scheme or "none")
        yield from _record_facts("plan", job.plan, ())


def _record_facts(kind: str, record: Any, left_out: tuple[str, ...]) -> Iterator[StackFact]:
    for field in fields(record):
        if field.name not in left_out:
            value = getattr(record, field.name)
            yield from _fact(kind, field.name, value if isinstance(value, (Known, Absent)) else Known(value))
