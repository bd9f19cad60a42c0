"""How to get a flash-attn 2 that works in the environment that was examined: a published wheel, a build, or without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from attncheck.core.facts import Absent, Known, Unreadable, value_or
from attncheck.core.findings import Fix
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes import install, model
from attncheck.doctor.fixes.torch import cuda_torch
from attncheck.doctor.knowledge import flash_attn_build as knowledge
from attncheck.doctor.knowledge import transformers
from attncheck.doctor.knowledge.flash_attn_wheels import Build, Wheel, wheels
from attncheck.doctor.queries import requirements
from attncheck.doctor.queries.packages import cuda_major, flash_fault, is_cpu_build, torch_minor, torch_works

GIB = 1 << 30


def install_flash_attn(snapshot: Snapshot) -> tuple[Fix, ...]:
    """Return the ways to a working flash-attn 2 here, the best first; empty without a torch to fit it to."""
    if not isinstance(snapshot.torch, Known):
        return ()
    if is_cpu_build(snapshot.torch.value) and not snapshot.visible_devices():
        return without_flash(snapshot)
    if is_cpu_build(snapshot.torch.value):
        return (cuda_torch(snapshot), *without_flash(snapshot))
    wheel = published_wheel(snapshot)
    if wheel is not None:
        return (_from_wheel(snapshot, wheel),)
    ways = (*_from_source(snapshot), *alternatives(snapshot))
    return ways if not missing_tools(snapshot) else (*ways[1:], *ways[:1])


def without_flash(snapshot: Snapshot) -> tuple[Fix, ...]:
    """Return the setting that does without flash-attn: sdpa, unless the model that was asked about cannot run on it."""
    if not isinstance(snapshot.model, Known):
        return (install.attn_implementation(snapshot, "sdpa"),)
    return model.way_out(snapshot, snapshot.model.value, "flash_attention_2", "flash_attention_3", "flash_attention_4")


def flash_attn_itself(snapshot: Snapshot) -> tuple[Fix, ...]:
    """Return the command that installs flash-attn, for those who cannot do without the package."""
    if isinstance(snapshot.torch, Known) and is_cpu_build(snapshot.torch.value) and not snapshot.visible_devices():
        text = f"a machine with a GPU, and a CUDA build of torch (here: {snapshot.torch.value.version})"
        return (Fix("flash-attn cannot be built or run here", "manual", text),)
    commands = tuple(fix for fix in install_flash_attn(snapshot) if fix.kind == "command")
    options = ("--no-build-isolation", "--no-deps")
    return commands or (install.install(snapshot, f"flash-attn=={source_version(snapshot)}", options=options),)


def needs_build(snapshot: Snapshot) -> bool:
    """Say whether a flash-attn 2 that works here can only be had by compiling it: a rule then looks at the tools."""
    if not torch_works(snapshot) or wheel_build(snapshot) is None or published_wheel(snapshot) is not None:
        return False
    if snapshot.has("flash-attn"):
        return flash_fault(snapshot) not in (None, "other")
    return not snapshot.has("flash-attn-3", "flash-attn-4", "kernels")


def missing_tools(snapshot: Snapshot) -> tuple[str, ...]:
    """Return what a build would fail for: nvcc of torch's CUDA major, a host compiler."""
    tools, tags = snapshot.build_tools, wheel_build(snapshot)
    lacking = []
    if tags is not None and not isinstance(tools.nvcc, Unreadable):
        found = tools.nvcc.value if isinstance(tools.nvcc, Known) else ""
        if not found:
            lacking.append(f"nvcc of CUDA {tags.cuda} (none is found)")
        elif found.split(".")[0] != str(tags.cuda):
            lacking.append(f"nvcc of CUDA {tags.cuda} (nvcc here is {found})")
        elif {"100", "120"} & set(_architectures(snapshot)) and Version(found) < Version(knowledge.NVCC_FOR_BLACKWELL):
            lacking.append(f"nvcc {knowledge.NVCC_FOR_BLACKWELL} or newer for this GPU (nvcc here is {found})")
    if isinstance(tools.gcc, Absent):
        lacking.append("a C++ compiler (g++)")
    return tuple(lacking)


def wheel_build(snapshot: Snapshot) -> Build | None:
    """Return the tags that a wheel for this environment must have; None where they cannot be told."""
    if not isinstance(snapshot.torch, Known) or snapshot.host.platform != "linux":
        return None
    torch = snapshot.torch.value
    cuda = cuda_major(torch)
    if cuda is None or not torch_minor(torch) or not isinstance(torch.cxx11_abi, Known):
        return None
    host = snapshot.host
    return Build(torch_minor(torch), cuda, torch.cxx11_abi.value, host.python_abi, host.machine)


def published_wheel(snapshot: Snapshot) -> Wheel | None:
    """Return the published wheel that fits this torch, Python, machine and glibc, and every pin; None where none."""
    build = wheel_build(snapshot)
    if build is None:
        return None
    fitting = (wheel for wheel in wheels(build) if _glibc_fits(snapshot, wheel))
    return next((wheel for wheel in fitting if _pins_allow(snapshot, wheel.version)), None)


def describe(snapshot: Snapshot) -> str:
    """Return the tags that decide about a wheel, as evidence: "torch 2.11, CUDA 13, cp312, x86_64, glibc 2.39"."""
    build = wheel_build(snapshot)
    if build is None and isinstance(snapshot.torch, Known) and is_cpu_build(snapshot.torch.value):
        return f"torch {snapshot.torch.value.version} is built without CUDA: no flash-attn fits it"
    if build is None:
        return "which wheel would fit cannot be told: torch's CUDA or C++ ABI is not known"
    abi = "" if build.cxx11_abi else ", old C++ ABI"
    glibc = f", glibc {snapshot.host.glibc.value}" if isinstance(snapshot.host.glibc, Known) else ""
    return f"torch {build.torch}, CUDA {build.cuda}{abi}, {build.python}, {build.machine}{glibc}"


def _glibc_fits(snapshot: Snapshot, wheel: Wheel) -> bool:
    glibc = snapshot.host.glibc
    if isinstance(glibc, Unreadable):
        return True
    try:
        return isinstance(glibc, Known) and Version(glibc.value) >= Version(wheel.glibc)  # absent: musl
    except InvalidVersion:
        return True


def _pins_allow(snapshot: Snapshot, version: str) -> bool:
    return all(
        requirements.allowed(specifier, Version(version))
        for _, specifier in requirements.demands(snapshot, "flash-attn")
    )


def _over_what_is_there(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the options that make an installer replace a flash-attn of the same version."""
    return ("--force-reinstall",) if snapshot.has("flash-attn") else ()


def _also(snapshot: Snapshot) -> tuple[str, ...]:
    return () if snapshot.has("einops") else ("einops",)  # flash-attn requires it, and --no-deps leaves it out


def _from_wheel(snapshot: Snapshot, wheel: Wheel) -> Fix:
    return install.install(
        snapshot,
        wheel.url,
        *_also(snapshot),
        options=("--no-deps", *_over_what_is_there(snapshot)),
        title=f"install the published wheel of flash-attn {wheel.version} for {describe(snapshot)} (seconds)",
    )


@dataclass(frozen=True)
class Plan:
    """How a source build would go here."""

    version: str
    architectures: tuple[str, ...]
    jobs: int
    seconds: int

    @property
    def duration(self) -> str:
        """Return the estimate as a person says it: "about 25 minutes", "about 3 hours"."""
        if self.seconds < 90 * 60:
            return f"about {max(5, round(self.seconds / 300) * 5)} minutes"
        return f"about {round(self.seconds / 1800) / 2:g} hours"


def source_version(snapshot: Snapshot) -> str:
    """Return the flash-attn to build: the newest on PyPI that every pin here allows."""
    return next((version for version in knowledge.PINNED if _pins_allow(snapshot, version)), knowledge.VERSION)


def plan(snapshot: Snapshot) -> Plan:
    """Return the source build that fits this machine's cores and memory."""
    architectures = _architectures(snapshot)
    jobs = jobs_that_fit(snapshot)
    work = knowledge.FILES * knowledge.SECONDS_A_FILE * len(architectures)
    slowest = knowledge.SLOWEST_FILE_SECONDS * len(architectures)
    return Plan(source_version(snapshot), architectures, jobs, work // jobs + slowest)


def jobs_that_fit(snapshot: Snapshot) -> int:
    """Return how many files can be compiled at once by ninja with one nvcc thread each: by cores and memory."""
    return max(1, min(snapshot.host.cpu_count, memory_gib(snapshot) // knowledge.GIB_A_JOB, knowledge.FILES))


def memory_gib(snapshot: Snapshot) -> int:
    """Return the memory that a build may take, a container's limit counted; 0 where it is not known."""
    host = snapshot.host
    free = value_or(host.memory_available_bytes, value_or(host.memory_total_bytes, 0))
    return free // GIB


def _architectures(snapshot: Snapshot) -> tuple[str, ...]:
    majors = {
        device.compute_capability.value[0]
        for device in snapshot.visible_devices()
        if isinstance(device.compute_capability, Known)
    }
    found = tuple(knowledge.ARCHITECTURES[major] for major in sorted(majors) if major in knowledge.ARCHITECTURES)
    return found or ("80", "90")


def can_be_built(snapshot: Snapshot) -> bool:
    """Say whether a release of flash-attn on PyPI can be compiled against this torch."""
    torch = snapshot.version("torch")
    return not isinstance(torch, Known) or torch.value.release[:2] < knowledge.NEEDS_CXX20


def _from_source(snapshot: Snapshot) -> Iterator[Fix]:
    """Yield the source build; what it lacks here first."""
    if wheel_build(snapshot) is None:
        return  # ROCm, Windows, macOS: other sources, other tools
    tools = [name for name in ("ninja", "packaging", "wheel", "setuptools") if _lacks(snapshot, name)]
    build = plan(snapshot)
    requirement = f"flash-attn=={build.version}" if can_be_built(snapshot) else knowledge.MAIN_BRANCH
    options = ("--no-build-isolation", "--no-deps", "--no-cache-dir", *_over_what_is_there(snapshot))
    command = install.install(snapshot, requirement, *_also(snapshot), options=options).text
    before = install.install(snapshot, *tools).text + " && " if tools else ""
    lacking = missing_tools(snapshot)
    title = _title(build, can_be_built(snapshot)) + (f"; first install {' and '.join(lacking)}" if lacking else "")
    yield Fix(title, "command", f"{before}{_settings(snapshot, build)} {command}")


def _settings(snapshot: Snapshot, build: Plan) -> str:
    archs = ";".join(build.architectures)
    words = [f"MAX_JOBS={build.jobs}", "NVCC_THREADS=1", f"FLASH_ATTN_CUDA_ARCHS={install.quote(archs)}"]
    tags = wheel_build(snapshot)
    if tags is not None and tags.cuda == 13 and build.version in knowledge.ONLY_CU12:
        words.append("FLASH_ATTENTION_FORCE_BUILD=TRUE")  # else it takes a cu12 wheel where there is one
    return " ".join(words)


def _title(build: Plan, on_pypi: bool) -> str:
    jobs = "1 job" if build.jobs == 1 else f"{build.jobs} jobs"
    archs = " and ".join(f"sm_{architecture}" for architecture in build.architectures)
    what = f"flash-attn {build.version}" if on_pypi else "flash-attn's main branch (no release compiles as C++20)"
    return f"build {what} for {archs}: no wheel is published; {build.duration} with {jobs}"


def _lacks(snapshot: Snapshot, name: str) -> bool:
    """Say whether the Python package `name` must be installed before a build without isolation."""
    if name == "ninja":
        return not isinstance(snapshot.build_tools.ninja, (Known, Unreadable))
    if name == "wheel" and snapshot.has("setuptools"):
        return not snapshot.has("wheel")
    return not snapshot.has(name)


def alternatives(snapshot: Snapshot) -> Iterator[Fix]:
    """Yield the settings that do without flash-attn: the Hub's kernel where it can be loaded, and sdpa."""
    if _takes_hub_kernels(snapshot):
        yield install.attn_implementation(snapshot, "kernels-community/flash-attn2")
    yield from without_flash(snapshot)


def _takes_hub_kernels(snapshot: Snapshot) -> bool:
    """Say whether the installed transformers and kernels would load kernels-community/flash-attn2."""
    found, kernels = snapshot.version("transformers"), snapshot.version("kernels")
    if not isinstance(found, Known) or not isinstance(kernels, Known) or found.value < Version("5.0"):
        return False
    repository = "kernels-community/flash-attn2"
    if snapshot.hub.offline and repository not in snapshot.hub.kernels:
        return False
    wanted = transformers.row(transformers.KERNELS, found.value)
    return wanted is None or requirements.allowed(wanted, kernels.value)
