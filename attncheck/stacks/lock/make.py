"""Makes a lock from a snapshot and from reports measured in the same environment."""

from collections import Counter
from collections.abc import Iterable

from attncheck import __version__
from attncheck.core.lock import LOCK_SCHEMA, Lock, LockedGpu, LockedPackage
from attncheck.core.report import Report
from attncheck.core.snapshot import Absent, Device, Distribution, Fact, Known, Snapshot
from attncheck.doctor.probes.payload.packages.watched import is_watched
from attncheck.stacks.lock import measured

INSTALLERS = ("pip", "uv")  # installers that download a version by its number
INDEXED_LOCAL_PARTS = ("cu", "cpu", "rocm")  # "+cu130": PyTorch's index has versions with such local parts


def make_lock(snapshot: Snapshot, reports: Iterable[Report], date: str) -> Lock:
    """Return the lock of an environment, with the measurements in `reports`."""
    reports = tuple(reports)
    torch = snapshot.torch
    return Lock(
        LOCK_SCHEMA,
        __version__,
        date,
        snapshot.host.python_version,
        snapshot.host.python_abi,
        f"{snapshot.host.platform} {snapshot.host.machine}",
        list_packages(snapshot),
        torch.value.cuda if isinstance(torch, Known) else torch,
        Known(snapshot.driver.value.version) if isinstance(snapshot.driver, Known) else snapshot.driver,
        _count_gpus(snapshot),
        measured.read_errors(reports),
        measured.read_repeats(reports),
        measured.read_speeds(reports),
    )


def list_packages(snapshot: Snapshot) -> tuple[LockedPackage, ...]:
    """Return the distributions that affect attention, by name."""
    names = sorted({distribution.name for distribution in snapshot.distributions if is_watched(distribution.name)})
    packages = (snapshot.package(name) for name in names)
    return tuple(_lock_package(snapshot, package.value) for package in packages if isinstance(package, Known))


def _lock_package(snapshot: Snapshot, package: Distribution) -> LockedPackage:
    version = package.version
    if package.name == "torch" and isinstance(snapshot.torch, Known):
        version = snapshot.torch.value.version
    local = version.partition("+")[2]
    return LockedPackage(
        package.name,
        version,
        tuple(sorted(package.wheel_tags)),
        package.record_sha256,
        package.installer,
        package.installer in INSTALLERS
        and not (package.editable or package.direct_url or package.problem)
        and (not local or local.startswith(INDEXED_LOCAL_PARTS)),
    )


def _count_gpus(snapshot: Snapshot) -> Fact[tuple[LockedGpu, ...]]:
    if not isinstance(snapshot.devices, Known):
        return snapshot.devices
    visible = snapshot.visible_devices()
    if not visible:
        return Absent("no GPU is visible")
    counts = Counter((device.name, _format_capability(device)) for device in visible)
    return Known(tuple(LockedGpu(name, capability, counts[name, capability]) for name, capability in sorted(counts)))


def _format_capability(device: Device) -> str:
    capability = device.compute_capability
    return "{}.{}".format(*capability.value) if isinstance(capability, Known) else ""
