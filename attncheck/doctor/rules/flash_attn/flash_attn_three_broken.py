"""flash-attn-3 is installed and cannot be used.

What it checks: how importing flash_attn_interface ended; where it was not tried, whether its extension asks torch for
symbols it does not export, for a CUDA runtime that is not there, or for a newer glibc.

Why it matters: `attn_implementation="flash_attention_3"` fails, and transformers calls it available from its metadata.

What to do: install a build for this torch and CUDA from PyTorch's index, or use the Hub's kernel.

Source: `is_flash_attn_3_available` in `utils/import_utils.py` of transformers 5.17.0; NVIDIA-NeMo/RL#2148 (wheels at
download.pytorch.org/whl/cu126 and cu130).
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.environment import Binary
from attncheck.core.facts import Known, need
from attncheck.core.findings import Fix, Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.flash_attn_wheels import FLASH3_INDEX
from attncheck.doctor.queries.packages import cuda_major, failed, imports_fine, told, too_new_glibc, torch_works
from attncheck.doctor.queries.symbols import demangle_hint
from attncheck.doctor.rules import Rule


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where flash-attn-3's interface does not import, or its extension cannot be loaded."""
    if not snapshot.has("flash-attn-3") or not torch_works(snapshot):
        return
    failure = failed(snapshot, "flash_attn_interface")
    reason = _static(snapshot)
    if failure is None and (not reason or imports_fine(snapshot, "flash_attn_interface")):
        return
    version = need(snapshot.package("flash-attn-3"), "flash-attn-3").version
    why = reason or (f"{failure.exception}: {failure.message}".partition("\n")[0].rstrip(".") if failure else "")
    yield Problem(
        message=f"flash-attn-3 {version} cannot be used: {why}",
        subject=f"flash-attn-3 {version}",
        evidence=(told(failure) if failure else f"static lane: {reason}",),
        fixes=tuple(_fixes(snapshot)),
    )


def _static(snapshot: Snapshot) -> str:
    reasons = (_reason(snapshot, binary) for binary in snapshot.binaries if binary.distribution == "flash-attn-3")
    return next((reason for reason in reasons if reason), "")


def _reason(snapshot: Snapshot, binary: Binary) -> str:
    if binary.missing_symbols:
        return f"it was built for another torch, this one lacks {demangle_hint(binary.missing_symbols[0])}"
    library = next((name for name in binary.unresolved if name.startswith("libcudart")), "")
    if library:
        return f"it needs {library}, which is not there"
    return f"it needs glibc {binary.glibc_required}" if too_new_glibc(snapshot, binary) else ""


def _fixes(snapshot: Snapshot) -> Iterator[Fix]:
    major = cuda_major(snapshot.torch.value) if isinstance(snapshot.torch, Known) else None
    if major in FLASH3_INDEX:
        yield install.install(
            snapshot,
            "flash-attn-3",
            options=("--no-deps", "--force-reinstall", "--index-url", FLASH3_INDEX[major]),
            title="install the build for this CUDA, if PyTorch's index has one for this Python",
        )
    if snapshot.has("transformers"):
        yield install.attn_implementation(snapshot, "sdpa")


RULE = Rule("ATN126", "error", check, needs=frozenset({"flash"}))
