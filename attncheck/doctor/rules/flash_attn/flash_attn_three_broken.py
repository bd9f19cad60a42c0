"""flash-attn-3 is installed but cannot be used.

What it checks: the outcome of importing flash_attn_interface. If that was not tried, whether its extension needs
symbols that torch does not export, a missing CUDA runtime, or a newer glibc.

Why it matters: `attn_implementation="flash_attention_3"` fails, although transformers reports it as available from
its metadata.

What to do: install a build for this torch and CUDA from PyTorch's index, or use the Hub's kernel.

Source: `is_flash_attn_3_available` in `utils/import_utils.py` of transformers 5.17.0; NVIDIA-NeMo/RL#2148 (wheels at
download.pytorch.org/whl/cu126 and cu130).
"""

from collections.abc import Iterator

from attncheck.core.environment import Binary
from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.flash_attn_wheels import FLASH_ATTN_3_INDEX
from attncheck.doctor.queries import (
    can_import,
    demangle_hint,
    describe_failed_import,
    find_failed_import,
    knows_torch_symbols,
    may_import,
    needs_newer_glibc,
    require_torch,
    torch_cuda_major,
)
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot, need, only_if


@only_if(may_import, "flash-attn-3")
@only_if(Snapshot.has, "flash-attn-3")
def check(snapshot: Snapshot) -> Problems:
    failure = find_failed_import(snapshot, "flash_attn_interface")
    defect = _first_binary_defect(snapshot)
    if failure is None and (not defect or not knows_torch_symbols(snapshot)):
        require_torch(snapshot)
    if failure is None and (not defect or can_import(snapshot, "flash_attn_interface")):
        return
    version = need(snapshot.package("flash-attn-3"), "flash-attn-3").version
    summary = defect or (f"{failure.exception}: {failure.message}".partition("\n")[0].rstrip(".") if failure else "")
    yield Problem(
        message=f"flash-attn-3 {version} cannot be used: {summary}",
        subject=f"flash-attn-3 {version}",
        evidence=(describe_failed_import(failure) if failure else f"static lane: {defect}",),
        fixes=tuple(_fixes(snapshot)),
    )


def _first_binary_defect(snapshot: Snapshot) -> str:
    defects = (
        _describe_binary_defect(snapshot, binary)
        for binary in snapshot.binaries
        if binary.distribution == "flash-attn-3"
    )
    return next((defect for defect in defects if defect), "")


def _describe_binary_defect(snapshot: Snapshot, binary: Binary) -> str:
    if binary.missing_symbols:
        return f"it was built for a different torch; this one lacks {demangle_hint(binary.missing_symbols[0])}"
    library = next((name for name in binary.unresolved if name.startswith("libcudart")), "")
    if library:
        return f"it needs {library}, which was not found"
    return f"it needs glibc {binary.glibc_required}" if needs_newer_glibc(snapshot, binary) else ""


def _fixes(snapshot: Snapshot) -> Iterator[Fix]:
    major = torch_cuda_major(snapshot.torch.value) if isinstance(snapshot.torch, Known) else None
    if major in FLASH_ATTN_3_INDEX:
        yield install.install_packages(
            snapshot,
            "flash-attn-3",
            options=("--no-deps", "--force-reinstall", "--index-url", FLASH_ATTN_3_INDEX[major]),
            title="install the build for this CUDA, if PyTorch's index has one for this Python",
        )
    if snapshot.has("transformers"):
        yield install.set_attn_implementation(snapshot, "sdpa")


RULE = Rule("ATN126", "error", check, needs=frozenset({"flash"}))
