"""Checks whether a wheel fits the examined interpreter, its machine, and the planned torch."""

import re
from collections.abc import Iterator

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from attncheck.core.findings import Finding, Fix, Problem
from attncheck.core.snapshot import Host, Known, Snapshot, Torch
from attncheck.doctor import engine
from attncheck.doctor.queries.packages import torch_cuda_major, torch_minor_version
from attncheck.stacks.upgrade.requests import RequestedPackage
from attncheck.stacks.upgrade.wheels import WheelFile

WHEEL_DOES_NOT_FIT = "ATN924"
NEWEST_GLIBC = 99  # minor version; if glibc's version is unknown, every wheel is accepted
LEGACY_GLIBC = {"manylinux1": 5, "manylinux2010": 12, "manylinux2014": 17}  # PEP 600
# In the versions of flash-attn's wheels (attncheck.doctor.knowledge.flash_attn_wheels).
BUILD = re.compile(r"\+cu(?P<cuda>\d+)torch(?P<torch>\d+\.\d+)cxx11abi(?P<abi>true|false)", re.IGNORECASE)


def list_host_tags(host: Host) -> frozenset[str]:
    """Return the wheel tags that an interpreter on its machine accepts: "cp311-cp311-linux_x86_64", "py3-none-any"."""
    minor = _read_minor(host.python_version)
    own = host.python_abi
    pythons = [(own, own), (own, "none")]
    pythons += [(f"cp3{number}", "abi3") for number in range(2, minor + 1) if not own.endswith("t")]
    pythons += [(f"py3{number}", "none") for number in range(minor + 1)]
    pythons += [("py3", "none"), (f"cp3{minor}", "none")]
    platforms = ["any", *_list_platforms(host)]
    return frozenset(f"{python}-{abi}-{platform}" for python, abi in pythons for platform in platforms)


def _list_platforms(host: Host) -> Iterator[str]:
    machine = host.machine
    if host.platform != "linux":
        yield f"{host.platform}_{machine}"
        return
    glibc = _read_minor(host.glibc.value) if isinstance(host.glibc, Known) else NEWEST_GLIBC
    yield f"linux_{machine}"
    yield from (f"manylinux_2_{minor}_{machine}" for minor in range(5, glibc + 1))
    yield from (f"{name}_{machine}" for name, minor in LEGACY_GLIBC.items() if minor <= glibc)


def _read_minor(version: str) -> int:
    """Return the second number of a version, 0 if it has none."""
    match = re.match(r"\d+\.(\d+)", version)
    return int(match[1]) if match else 0


def list_misfits(planned: Snapshot, packages: tuple[RequestedPackage, ...]) -> Iterator[Finding]:
    """Yield a finding for each wheel that would not install or load here; `planned` is the snapshot with them."""
    host_tags = list_host_tags(planned.host)
    for package in packages:
        if package.wheel is None:
            reason = _describe_other_build(package.version, planned)
        else:
            reason = _describe_misfit(package.wheel, planned, host_tags)
        if reason:
            subject = f"{package.name} {package.version}"
            name = package.wheel.file_name if package.wheel is not None else subject
            fixes = (Fix("use the wheel built for this environment", "manual", _describe_host(planned)),)
            yield engine.make_finding_by_code(
                WHEEL_DOES_NOT_FIT, Problem(f"{name} does not fit: {reason}", (), fixes, subject)
            )


def _describe_misfit(wheel: WheelFile, planned: Snapshot, host_tags: frozenset[str]) -> str:
    """Return why a wheel does not fit, "" if nothing shows that."""
    host = planned.host
    if wheel.tags.isdisjoint(host_tags) and host.platform == "linux":  # other systems' tags are not listed here
        glibc = f", glibc {host.glibc.value}" if isinstance(host.glibc, Known) else ""
        return f"it is for {', '.join(sorted(wheel.tags)[:3])}, but this is {host.python_abi} on {host.machine}{glibc}"
    try:
        accepted = SpecifierSet(wheel.requires_python)
    except InvalidSpecifier:
        accepted = SpecifierSet()
    if not accepted.contains(host.python_version, prereleases=True):
        return f"it requires Python {wheel.requires_python}, but this is {host.python_version}"
    return _describe_other_build(wheel.version, planned)


def _describe_other_build(version: str, planned: Snapshot) -> str:
    """Return the torch that a version says it is built for, if that is not the planned one."""
    built = BUILD.search(version)
    if built is None or not isinstance(planned.torch, Known):
        return ""
    torch = planned.torch.value
    minor, cuda = torch_minor_version(torch), torch_cuda_major(torch)
    if minor and minor != built["torch"]:
        return f"it is built for torch {built['torch']}, but torch would be {torch.version}"
    if cuda is not None and not built["cuda"].startswith(str(cuda)):
        return f"it is built for CUDA {built['cuda']}, but torch {torch.version} is built for CUDA {cuda}"
    abi = built["abi"].lower() == "true"
    if isinstance(torch.cxx11_abi, Known) and torch.cxx11_abi.value != abi:
        return f"it is built for cxx11abi{str(abi).upper()}, but torch {torch.version} has the other C++ ABI"
    return ""


def _describe_host(planned: Snapshot) -> str:
    host = planned.host
    torch: Torch | None = planned.torch.value if isinstance(planned.torch, Known) else None
    return f"{host.python_abi}, {host.platform}_{host.machine}" + (f", torch {torch.version}" if torch else "")
