"""flash-attn was built for a different CUDA version from torch's.

What it checks: whether the libcudart that flash-attn's extension names is found in torch's and NVIDIA's packages, on
LD_LIBRARY_PATH or by the loader; if the import was tried, its outcome decides.

Why it matters: `import flash_attn` raises "libcudart.so.12: cannot open shared object file". flash-attn 2.8.3's
setup.py requests a cu12 wheel under CUDA 13 too. If one is published for that torch, pip silently installs it.

What to do: install the wheel for torch's CUDA, or build it. Do not install a second CUDA runtime alongside torch's
own.

Source: `get_wheel_url` in setup.py of flash-attn 2.8.3 against 2.8.3.post1; Dao-AILab/flash-attention#728, #1004,
#2118; aws/deep-learning-containers#6770.
"""

from attncheck.doctor.fixes.flash_attn import describe_wheel_tags, flash_attn_fixes
from attncheck.doctor.queries import (
    availability_evidence,
    describe_failed_import,
    diagnose_flash_attn,
    find_failed_import,
    flash_attn_extension,
    flash_attn_import_failure,
    may_import,
    need_torch,
    parse_missing_library,
    require_torch,
    unresolved_torch_libraries,
)
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot, only_if


@only_if(may_import, "flash-attn")
def check(snapshot: Snapshot) -> Problems:
    if diagnose_flash_attn(snapshot) != "cuda-runtime":
        return
    torch = need_torch(snapshot)
    failure, binary = flash_attn_import_failure(snapshot), flash_attn_extension(snapshot)
    libraries = [parse_missing_library(failure.message)] if failure else []
    libraries += [name for name in (binary.unresolved if binary else ()) if name.startswith("libcudart")]
    cuda = f"CUDA {torch.cuda.value}" if isinstance(torch.cuda, Known) else "no CUDA"
    package = snapshot.package("flash-attn")
    version = package.value.version if isinstance(package, Known) else ""
    library = next(name for name in (*libraries, "libcudart.so") if name)
    if library in unresolved_torch_libraries(snapshot) or _torch_lacks(snapshot, library):
        require_torch(snapshot)
    yield Problem(
        message=f"flash-attn {version} needs {library}, but torch {torch.version} has {cuda}",
        subject=f"flash-attn {version}",
        evidence=(
            describe_failed_import(failure) if failure else f"static lane: {library} is required and was not found",
            f"this environment: {describe_wheel_tags(snapshot)}",
            *availability_evidence(snapshot),
        ),
        fixes=flash_attn_fixes(snapshot),
    )


def _torch_lacks(snapshot: Snapshot, library: str) -> bool:
    failure = find_failed_import(snapshot, "torch")
    return failure is not None and library in failure.message


RULE = Rule("ATN105", "error", check, needs=frozenset({"flash", "ring"}))
