"""A compiled package is linked against a different CUDA version from torch's.

What it checks: the CUDA libraries that the extensions of vllm, causal-conv1d, mamba-ssm, apex, sgl-kernel, torchvision
and others need, and that neither torch, NVIDIA's packages nor the system has. If the import was tried, its message
decides. flash-attn is ATN105, flash-attn-3 ATN126, xformers ATN167.

Why it matters: the import raises "libcudart.so.12: cannot open shared object file". A torch upgrade to CUDA 13 breaks
everything that was compiled against CUDA 12, even at the same version of torch.

What to do: install torch's build for the package's CUDA if the package is a wheel, or build the package again.

Source: ELF files of the installed packages; glibc, elf/dl-load.c (the message); Dao-AILab/flash-attention#1122 and
#2064 for the symptom. The commands were not run, as their titles say.
"""

from collections.abc import Iterator

from attncheck.core.environment import Binary
from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.torch_builds import CUDA_TAGS_BY_TORCH, INDEX_URL
from attncheck.doctor.queries import (
    can_import,
    describe_failed_import,
    find_failed_import,
    is_cpu_build,
    need_torch,
    parse_missing_library,
    torch_minor_version,
    unresolved_torch_libraries,
)
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot, need

REPORTED_ELSEWHERE = ("", "torch", "flash-attn", "flash-attn-3", "xformers")
LOADS_ITS_OWN = ("transformer-engine", "transformer-engine-torch", "transformer-engine-cu12", "transformer-engine-cu13")
BUILT_ON_INSTALL = ("causal-conv1d", "mamba-ssm", "apex", "deepspeed")


def check(snapshot: Snapshot) -> Problems:
    candidates = [b for b in snapshot.binaries if b.module and b.distribution not in REPORTED_ELSEWHERE]
    torch = need_torch(snapshot) if candidates else None
    if torch is None or is_cpu_build(torch):
        return
    reported = set()
    for binary in candidates:
        library, observed = _find_missing_runtime(snapshot, binary)
        package = snapshot.package(binary.distribution)
        if not library or binary.distribution in reported or not isinstance(package, Known):
            continue
        reported.add(binary.distribution)
        name = f"{package.value.name} {package.value.version}"
        yield Problem(
            message=f"{name} needs {library}, but torch {torch.version} has a different CUDA",
            subject=name,
            evidence=(observed or f"static lane: {binary.path} needs {library}, which was not found",),
            fixes=tuple(_list_fixes(snapshot, package.value.name, package.value.version, library)),
            predicted=not observed,
        )


def _find_missing_runtime(snapshot: Snapshot, binary: Binary) -> tuple[str, str]:
    """Return the missing CUDA runtime, and the import's message about it."""
    if can_import(snapshot, binary.module):
        return "", ""
    failure = find_failed_import(snapshot, binary.module)
    library = parse_missing_library(failure.message) if failure else ""
    if failure is not None:
        is_runtime = library.startswith("libcudart") and library not in unresolved_torch_libraries(snapshot)
        return (library, describe_failed_import(failure)) if is_runtime else ("", "")
    if binary.distribution in LOADS_ITS_OWN:
        return "", ""
    return next((name for name in binary.unresolved if name.startswith("libcudart.so.1")), ""), ""


def _list_fixes(snapshot: Snapshot, name: str, version: str, library: str) -> Iterator[Fix]:
    if name in BUILT_ON_INSTALL:
        options = ("--no-deps", "--no-build-isolation", "--no-cache-dir", "--force-reinstall")
        title = f"build {name} again, for this torch (not tried)"
        yield install.install_packages(snapshot, f"{name}=={version}", options=options, title=title)
    torch = need(snapshot.torch, "torch")
    major = library.rpartition(".so.")[2].partition(".")[0]
    tags = CUDA_TAGS_BY_TORCH.get(torch_minor_version(torch), CUDA_TAGS_BY_TORCH[""])
    tag = next((tag for tag in tags if tag[2:].startswith(major)), "")
    if tag:
        release = torch.version.partition("+")[0]
        index = ("--index-url", f"{INDEX_URL}/{tag}")
        title = (
            f"install the same torch built for CUDA {major}, and rebuild everything compiled for this one (not tried)"
        )
        yield install.install_packages(snapshot, f"torch=={release}+{tag}", options=index, title=title)


RULE = Rule("ATN169", "error", check)
