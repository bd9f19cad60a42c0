"""How flash-attn is got for the examined environment: the published wheel that fits, or else the source build.

Sources, read 2026-11-21: setup.py of the 2.8.3, 2.8.3.post1 and 2.8.3.post2 source distributions (PyPI), which differ
in `get_wheel_url` alone; attncheck/knowledge/flash_attn_wheels.py for what is published.
"""

from __future__ import annotations

from math import ceil

from packaging.version import Version

from attncheck import advice, hardware, pins, reading
from attncheck.facts import Known, value_or
from attncheck.findings import Fix
from attncheck.knowledge.flash_attn_wheels import Build, Wheel, wheels
from attncheck.snapshot import Snapshot

# `NinjaBuildExtension`: "each JOB peak memory cost is ~8-9GB when threads = 4", and half of the cores at most.
JOB_BYTES = 9 << 30
# Measured: 2.8.3 for sm_90 alone (72 .cu files, CUDA 13.0) in 445 s on 128 cores, where setup.py starts 64 jobs.
MEASURED_SECONDS, MEASURED_JOBS = 445, 64
# setup.py's architectures; one serves its whole major version, and 80 serves 8.6 and 8.9 too.
ARCHITECTURES = {8: "80", 9: "90", 10: "100", 12: "120"}
BUILD_PACKAGES = ("ninja", "packaging", "setuptools", "wheel")


def build_of(snapshot: Snapshot) -> Build | None:
    """Return what decides which flash-attn fits; None where torch is missing, not a CUDA build, or cannot be read."""
    if not isinstance(snapshot.torch, Known) or snapshot.host.platform != "linux":
        return None
    torch = snapshot.torch.value
    minor, cuda, host = reading.torch_minor(torch), reading.cuda_major(torch), snapshot.host
    if not minor or cuda is None or not isinstance(torch.cxx11_abi, Known):
        return None
    return Build(minor, cuda, torch.cxx11_abi.value, host.python_abi, host.machine)


def published_wheel(snapshot: Snapshot) -> Wheel | None:
    """Return the published wheel for this torch, CUDA, ABI, Python, machine and glibc; None where there is none."""
    build = build_of(snapshot)
    for wheel in wheels(build) if build else ():
        glibc = snapshot.host.glibc
        loads = isinstance(glibc, Known) and Version(glibc.value) >= Version(wheel.glibc)
        if loads and permitted(snapshot, wheel.version):
            return wheel
    return None


def permitted(snapshot: Snapshot, version: str) -> bool:
    """Say whether every installed distribution that pins flash-attn allows `version`."""
    return all(pins.allowed(wanted, Version(version)) for _, wanted in pins.demands(snapshot, "flash-attn"))


def source_version(snapshot: Snapshot) -> str:
    """Return the release to build: from 2.8.3.post1 on setup.py knows CUDA 13; pins of others have their say."""
    build = build_of(snapshot)
    first = "2.8.3.post1" if build and build.cuda >= 13 else "2.8.3"
    return next((version for version in (first, "2.8.3") if permitted(snapshot, version)), first)


def architectures(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the values of FLASH_ATTN_CUDA_ARCHS that serve the visible GPUs; () where none is known."""
    known = hardware.capabilities(snapshot.visible_devices())
    found = {ARCHITECTURES[capability[0]] for _, capability in known if capability[0] in ARCHITECTURES}
    return tuple(sorted(found, key=int))


def jobs(snapshot: Snapshot) -> int:
    """Return how many compilers fit this machine at once, by setup.py's own rule."""
    cores = max(1, snapshot.host.cpu_count // 2)
    memory = value_or(snapshot.host.memory_available_bytes, JOB_BYTES)
    return max(1, min(cores, memory // JOB_BYTES))


def minutes(snapshot: Snapshot, at_once: int | None = None) -> int:
    """Return about how long the build takes with `at_once` compilers, scaled from the one that was measured."""
    rounds = max(1, MEASURED_JOBS / (at_once or jobs(snapshot)))
    targets = len(architectures(snapshot)) or len(ARCHITECTURES)
    return ceil(MEASURED_SECONDS * rounds * targets / 60)


def missing_tools(snapshot: Snapshot) -> tuple[str, ...]:
    """Return what a source build needs and this environment lacks."""
    build, tools = build_of(snapshot), snapshot.build_tools
    lacking = []
    if build is not None:
        if not isinstance(tools.nvcc, Known):
            lacking.append(f"nvcc of CUDA {build.cuda}")
        elif tools.nvcc.value.split(".")[0] != str(build.cuda):
            lacking.append(f"nvcc of CUDA {build.cuda} (there is {tools.nvcc.value})")
    if not isinstance(tools.gcc, Known):
        lacking.append("g++")
    if not isinstance(tools.ninja, Known):
        lacking.append("ninja")
    return (*lacking, *(name for name in BUILD_PACKAGES[1:] if not snapshot.has(name)))


def outlook(snapshot: Snapshot) -> str:
    """Return in a few words how flash-attn can be had here."""
    wheel, build = published_wheel(snapshot), build_of(snapshot)
    if wheel is not None:
        return f"a wheel of {wheel.version} is published for it"
    if build is None:
        return "no build of it fits this torch"
    return f"no wheel is published for {told(build)}: it must be built from source, about {minutes(snapshot)} min"


def told(build: Build) -> str:
    """Return `build` in words."""
    return f"torch {build.torch}, CUDA {build.cuda}, {build.python}, {build.machine}"


def install_flash_attn(snapshot: Snapshot) -> tuple[Fix, ...]:
    """Return the ways to a flash-attn that works here, best first, and to do without it last."""
    without = advice.attn_implementation(snapshot, "sdpa")
    if build_of(snapshot) is None:
        replacement = hardware.torch_build(snapshot)
        return (replacement, without) if replacement else (without,)
    wheel = published_wheel(snapshot)
    return (_from_wheel(snapshot, wheel) if wheel else from_source(snapshot), without)


def _from_wheel(snapshot: Snapshot, wheel: Wheel) -> Fix:
    build = build_of(snapshot)
    fitting = f" for {told(build)}" if build else ""
    options = ("--no-deps", *_again(snapshot))
    return advice.install(
        snapshot,
        wheel.url,
        *_einops(snapshot),
        options=options,
        title=f"install the published wheel of flash-attn {wheel.version}{fitting}",
    )


def from_source(snapshot: Snapshot) -> Fix:
    """Return the command that compiles flash-attn for the torch and the GPUs that are here."""
    version, at_once, targets = source_version(snapshot), jobs(snapshot), architectures(snapshot)
    build, lacking = build_of(snapshot), missing_tools(snapshot)
    options = ("--no-build-isolation", "--no-deps", "--no-cache-dir", *_again(snapshot))
    command = advice.install(snapshot, f"flash-attn=={version}", *_einops(snapshot), options=options).text
    settings = {
        "FLASH_ATTENTION_FORCE_BUILD": "TRUE",  # else setup.py of 2.8.3 may fetch a CUDA 12 wheel for CUDA 13
        "MAX_JOBS": str(at_once),
        "NVCC_THREADS": str(max(1, min(4, len(targets)))),
        **({"FLASH_ATTN_CUDA_ARCHS": "'" + ";".join(targets) + "'"} if targets else {}),
    }
    first = f"; first install {', '.join(lacking)}" if lacking else ""
    why = f"no wheel is published for {told(build)}; " if build else ""
    title = f"build flash-attn {version} from source ({why}about {minutes(snapshot)} min with {at_once} jobs{first})"
    return Fix(title, "command", " ".join([*(f"{name}={value}" for name, value in settings.items()), command]))


def _again(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the option without which an installer leaves a package of the same version as it is."""
    return ("--force-reinstall",) if snapshot.has("flash-attn") else ()


def _einops(snapshot: Snapshot) -> tuple[str, ...]:
    """Return flash-attn's other requirement where it is missing: --no-deps does not bring it."""
    return () if snapshot.has("einops") else ("einops",)
