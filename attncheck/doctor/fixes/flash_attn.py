"""Fixes for flash-attn 2 in the examined environment: a published wheel, a source build, or another backend."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

from attncheck.core.findings import Fix
from attncheck.core.snapshot import Absent, Known, Snapshot, Unreadable, value_or
from attncheck.doctor.fixes import install, model
from attncheck.doctor.fixes.torch import install_cuda_torch
from attncheck.doctor.knowledge import flash_attn_build, transformers
from attncheck.doctor.knowledge.flash_attn_wheels import Wheel, WheelTags, matching_wheels
from attncheck.doctor.queries import (
    diagnose_flash_attn,
    is_cpu_build,
    requirements,
    torch_cuda_major,
    torch_minor_version,
    torch_works,
)

BYTES_PER_GIB = 1 << 30


def flash_attn_fixes(snapshot: Snapshot) -> tuple[Fix, ...]:
    """Return the ways to get a working flash-attn 2 here, best first; empty if there is no torch to match."""
    if not isinstance(snapshot.torch, Known):
        return ()
    if is_cpu_build(snapshot.torch.value) and not snapshot.visible_devices():
        return avoid_flash_attn(snapshot)
    if is_cpu_build(snapshot.torch.value):
        return (install_cuda_torch(snapshot), *avoid_flash_attn(snapshot))
    wheel = find_published_wheel(snapshot)
    if wheel is not None:
        return (_install_wheel(snapshot, wheel),)
    fixes = (*_build_from_source(snapshot), *alternatives_to_flash_attn(snapshot))
    return fixes if not missing_build_tools(snapshot) else (*fixes[1:], *fixes[:1])


def build_flash_attn(snapshot: Snapshot) -> tuple[Fix, ...]:
    """Return the source build on this machine, even if a wheel is published; empty if the build tools are missing."""
    if not isinstance(snapshot.torch, Known) or is_cpu_build(snapshot.torch.value) or missing_build_tools(snapshot):
        return ()
    variable = "FLASH_ATTENTION_FORCE_BUILD=TRUE "  # otherwise setup.py takes the published wheel
    return tuple(
        replace(
            fix,
            title=fix.title.replace("no wheel is published", "on this machine"),
            text=fix.text if variable in fix.text else fix.text.replace("MAX_JOBS=", variable + "MAX_JOBS="),
        )
        for fix in _build_from_source(snapshot)
    )


def avoid_flash_attn(snapshot: Snapshot) -> tuple[Fix, ...]:
    """Return the setting that avoids flash-attn: sdpa, unless the requested model cannot run on it."""
    if not isinstance(snapshot.model, Known):
        return (install.set_attn_implementation(snapshot, "sdpa"),)
    return model.use_other_attention(
        snapshot, snapshot.model.value, "flash_attention_2", "flash_attention_3", "flash_attention_4"
    )


def install_flash_attn_package(snapshot: Snapshot) -> tuple[Fix, ...]:
    """Return the command that installs flash-attn, for jobs that cannot run without the package."""
    if isinstance(snapshot.torch, Known) and is_cpu_build(snapshot.torch.value) and not snapshot.visible_devices():
        reason = f"with torch {snapshot.torch.value.version} and no GPU, flash-attn can neither be built nor run"
        return (Fix(f"use a machine with a GPU, and a CUDA build of torch: {reason}", "advice", ""),)
    commands = tuple(fix for fix in flash_attn_fixes(snapshot) if fix.kind == "command")
    options = ("--no-build-isolation", "--no-deps")
    requirement = f"flash-attn=={choose_source_version(snapshot)}"
    return commands or (
        install.install_packages(snapshot, requirement, *missing_dependencies(snapshot), options=options),
    )


def needs_source_build(snapshot: Snapshot) -> bool:
    """Return whether a working flash-attn 2 is available here only by compiling it."""
    if not torch_works(snapshot) or required_wheel_tags(snapshot) is None or find_published_wheel(snapshot) is not None:
        return False
    if snapshot.lists("flash-attn"):
        return diagnose_flash_attn(snapshot) not in (None, "other")
    return not snapshot.lists("flash-attn-3", "flash-attn-4", "kernels")


def missing_build_tools(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the missing tools of a source build: nvcc of torch's CUDA major version, a host compiler."""
    tools, wheel_tags = snapshot.build_tools, required_wheel_tags(snapshot)
    missing = []
    if wheel_tags is not None and not isinstance(tools.nvcc, Unreadable):
        nvcc = tools.nvcc.value if isinstance(tools.nvcc, Known) else ""
        if not nvcc:
            missing.append(f"nvcc of CUDA {wheel_tags.cuda} (none found)")
        elif nvcc.split(".")[0] != str(wheel_tags.cuda):
            missing.append(f"nvcc of CUDA {wheel_tags.cuda} (nvcc here is {nvcc})")
        elif {"100", "120"} & set(_cuda_archs(snapshot)) and Version(nvcc) < Version(
            flash_attn_build.NVCC_FOR_BLACKWELL
        ):
            missing.append(f"nvcc {flash_attn_build.NVCC_FOR_BLACKWELL} or newer for this GPU (nvcc here is {nvcc})")
    if isinstance(tools.gcc, Absent):
        missing.append("a C++ compiler (g++)")
    return tuple(missing)


def required_wheel_tags(snapshot: Snapshot) -> WheelTags | None:
    """Return the tags that a wheel for this environment must have; None if they are unknown."""
    if not isinstance(snapshot.torch, Known) or snapshot.host.platform != "linux":
        return None
    torch = snapshot.torch.value
    cuda_major = torch_cuda_major(torch)
    if cuda_major is None or not torch_minor_version(torch) or not isinstance(torch.cxx11_abi, Known):
        return None
    host = snapshot.host
    return WheelTags(torch_minor_version(torch), cuda_major, torch.cxx11_abi.value, host.python_abi, host.machine)


def find_published_wheel(snapshot: Snapshot) -> Wheel | None:
    """Return the published wheel that fits this torch, Python, machine, glibc and every pin; None if there is none."""
    tags = required_wheel_tags(snapshot)
    if tags is None:
        return None
    loadable = (wheel for wheel in matching_wheels(tags) if _glibc_fits(snapshot, wheel))
    return next((wheel for wheel in loadable if _pins_allow(snapshot, wheel.version)), None)


def describe_wheel_tags(snapshot: Snapshot) -> str:
    """Return the tags that select a wheel, as evidence: "torch 2.11, CUDA 13, cp312, x86_64, glibc 2.39"."""
    tags = required_wheel_tags(snapshot)
    if tags is None and isinstance(snapshot.torch, Known) and is_cpu_build(snapshot.torch.value):
        return f"torch {snapshot.torch.value.version} is built without CUDA: no flash-attn works with it"
    if tags is None and snapshot.host.platform != "linux":
        system = {"win32": "Windows", "darwin": "macOS"}.get(snapshot.host.platform, snapshot.host.platform)
        return f"{snapshot.host.platform}: flash-attn publishes wheels for Linux only, none for {system}"
    if tags is None:
        return "cannot tell which wheel is compatible: torch's CUDA version or C++ ABI is unknown"
    abi = "" if tags.cxx11_abi else ", old C++ ABI"
    glibc = f", glibc {snapshot.host.glibc.value}" if isinstance(snapshot.host.glibc, Known) else ""
    return f"torch {tags.torch}, CUDA {tags.cuda}{abi}, {tags.python}, {tags.machine}{glibc}"


def _glibc_fits(snapshot: Snapshot, wheel: Wheel) -> bool:
    glibc = snapshot.host.glibc
    if isinstance(glibc, Unreadable):
        return True
    try:
        return isinstance(glibc, Known) and Version(glibc.value) >= Version(wheel.glibc)  # no glibc: musl
    except InvalidVersion:
        return True


def _pins_allow(snapshot: Snapshot, version: str) -> bool:
    return all(
        requirements.is_version_allowed(specifier, Version(version))
        for _, specifier in requirements.version_constraints(snapshot, "flash-attn")
    )


def _reinstall_options(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the options that make an installer replace a flash-attn of the same version."""
    return ("--force-reinstall",) if snapshot.lists("flash-attn") else ()


def missing_dependencies(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the packages that flash-attn requires besides torch and that are not available here.

    An install with --no-deps must name them."""
    return () if snapshot.lists("einops") else ("einops",)


def _install_wheel(snapshot: Snapshot, wheel: Wheel) -> Fix:
    tags = describe_wheel_tags(snapshot)
    return install.install_packages(
        snapshot,
        wheel.url,
        *missing_dependencies(snapshot),
        options=("--no-deps", *_reinstall_options(snapshot)),
        title=f"install the published wheel of flash-attn {wheel.version} for {tags} (seconds)",
    )


class BuildPlan(NamedTuple):
    """A source build on this machine: its version, targets, parallel jobs and duration in seconds."""

    version: str
    architectures: tuple[str, ...]
    jobs: int
    seconds: int

    @property
    def duration(self) -> str:
        """Return the estimated duration as text: "about 25 minutes", "about 3 hours"."""
        if self.seconds < 90 * 60:
            return f"about {max(5, round(self.seconds / 300) * 5)} minutes"
        return f"about {round(self.seconds / 1800) / 2:g} hours"


def choose_source_version(snapshot: Snapshot) -> str:
    """Return the flash-attn version to build: the newest on PyPI that every pin here allows."""
    return next(
        (version for version in flash_attn_build.CANDIDATE_VERSIONS if _pins_allow(snapshot, version)),
        flash_attn_build.SOURCE_VERSION,
    )


def plan_build(snapshot: Snapshot) -> BuildPlan:
    """Return the source build that fits this machine's cores and memory."""
    architectures = _cuda_archs(snapshot)
    jobs = max_compile_jobs(snapshot)
    compile_seconds = flash_attn_build.SOURCE_FILES * flash_attn_build.SECONDS_PER_FILE * len(architectures)
    slowest_file_seconds = flash_attn_build.SLOWEST_FILE_SECONDS * len(architectures)
    return BuildPlan(
        choose_source_version(snapshot), architectures, jobs, compile_seconds // jobs + slowest_file_seconds
    )


def max_compile_jobs(snapshot: Snapshot) -> int:
    """Return how many files ninja can compile at once with one nvcc thread each, limited by cores and memory."""
    by_memory = available_memory_gib(snapshot) // flash_attn_build.GIB_PER_JOB
    return max(1, min(snapshot.host.cpu_count, by_memory, flash_attn_build.SOURCE_FILES))


def available_memory_gib(snapshot: Snapshot) -> int:
    """Return the memory in GiB that a build may use, within a container's limit; 0 if unknown."""
    host = snapshot.host
    available = value_or(host.memory_available_bytes, value_or(host.memory_total_bytes, 0))
    return available // BYTES_PER_GIB


def _cuda_archs(snapshot: Snapshot) -> tuple[str, ...]:
    majors = {
        device.compute_capability.value[0]
        for device in snapshot.visible_devices()
        if isinstance(device.compute_capability, Known)
    }
    archs = tuple(
        flash_attn_build.ARCHITECTURES[major] for major in sorted(majors) if major in flash_attn_build.ARCHITECTURES
    )
    return archs or ("80", "90")


def can_compile_release(snapshot: Snapshot) -> bool:
    """Return whether a release of flash-attn on PyPI can be compiled against this torch."""
    torch = snapshot.version("torch")
    return not isinstance(torch, Known) or torch.value.release[:2] < flash_attn_build.NEEDS_CXX20


def _build_from_source(snapshot: Snapshot) -> Iterator[Fix]:
    """Yield the source build; its title names missing tools first."""
    if required_wheel_tags(snapshot) is None:
        return  # ROCm, Windows, macOS: other sources, other tools
    tools = [
        name for name in ("ninja", "packaging", "wheel", "setuptools") if _is_build_package_missing(snapshot, name)
    ]
    plan = plan_build(snapshot)
    requirement = f"flash-attn=={plan.version}" if can_compile_release(snapshot) else flash_attn_build.MAIN_BRANCH
    options = ("--no-build-isolation", "--no-deps", "--no-cache-dir", *_reinstall_options(snapshot))
    command = install.install_packages(snapshot, requirement, *missing_dependencies(snapshot), options=options)
    prerequisites = install.install_packages(snapshot, *tools).text + " && " if tools else ""
    missing = missing_build_tools(snapshot)
    title = _format_build_title(plan, can_compile_release(snapshot))
    title += f"; first install {' and '.join(missing)}" if missing else ""
    text = f"{prerequisites}{_format_build_variables(snapshot, plan)} {command.text}"
    yield Fix(title, "command", text, installs=command.installs)


def _format_build_variables(snapshot: Snapshot, plan: BuildPlan) -> str:
    archs = ";".join(plan.architectures)
    variables = [f"MAX_JOBS={plan.jobs}", "NVCC_THREADS=1", f"FLASH_ATTN_CUDA_ARCHS={install.quote_for_shell(archs)}"]
    tags = required_wheel_tags(snapshot)
    if tags is not None and tags.cuda == 13 and plan.version in flash_attn_build.CU12_WHEEL_ONLY:
        variables.append("FLASH_ATTENTION_FORCE_BUILD=TRUE")  # otherwise it takes a cu12 wheel if there is one
    return " ".join(variables)


def _format_build_title(plan: BuildPlan, on_pypi: bool) -> str:
    jobs = "1 job" if plan.jobs == 1 else f"{plan.jobs} jobs"
    archs = " and ".join(f"sm_{architecture}" for architecture in plan.architectures)
    source = f"flash-attn {plan.version}" if on_pypi else "flash-attn's main branch (no release compiles as C++20)"
    return f"build {source} for {archs}: no wheel is published; {plan.duration} with {jobs}"


def _is_build_package_missing(snapshot: Snapshot, name: str) -> bool:
    """Return whether the Python package `name` must be installed before a build without isolation."""
    if name == "ninja":
        return not isinstance(snapshot.build_tools.ninja, (Known, Unreadable))
    if name == "wheel" and snapshot.lists("setuptools"):
        return not snapshot.lists("wheel")
    return not snapshot.lists(name)


def alternatives_to_flash_attn(snapshot: Snapshot) -> Iterator[Fix]:
    """Yield the settings that avoid flash-attn: the Hub's kernel if it can be loaded, and sdpa."""
    if _can_load_hub_kernel(snapshot):
        yield install.set_attn_implementation(snapshot, "kernels-community/flash-attn2")
    yield from avoid_flash_attn(snapshot)


def _can_load_hub_kernel(snapshot: Snapshot) -> bool:
    """Return whether the installed transformers and kernels would load kernels-community/flash-attn2."""
    version, kernels = snapshot.version("transformers"), snapshot.version("kernels")
    if not isinstance(version, Known) or not isinstance(kernels, Known) or version.value < Version("5.0"):
        return False
    repository = "kernels-community/flash-attn2"
    if snapshot.hub.offline and repository not in snapshot.hub.kernels:
        return False
    required = transformers.entry_for_version(transformers.COMPATIBLE_KERNELS, version.value)
    return required is None or requirements.is_version_allowed(required, kernels.value)
