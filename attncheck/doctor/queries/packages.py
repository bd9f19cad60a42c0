"""Questions that several rules ask of a snapshot: what did the import lane say, does torch work, why not flash-attn?"""

from __future__ import annotations

import re
from typing import Literal

from packaging.version import InvalidVersion, Version

from attncheck.core.environment import Binary, Distribution, ImportOutcome, Torch
from attncheck.core.facts import Absent, Known
from attncheck.core.snapshot import Snapshot

FLASH_EXTENSION = "flash_attn_2_cuda"
FlashFault = Literal["foreign-python", "cpu-torch", "glibc", "cuda-runtime", "abi", "other"]

# What the dynamic loader says (glibc, elf/dl-load.c, elf/dl-lookup.c, elf/dl-version.c).
_NO_LIBRARY = re.compile(r"([\w.+-]+\.so[\w.]*): cannot open shared object file")
_NO_SYMBOL = re.compile(r"undefined symbol: (\w+)")
_NO_GLIBC = re.compile(r"version [`']GLIBC_([\d.]+)' not found")


def tried(snapshot: Snapshot, module: str) -> ImportOutcome | None:
    """Return how importing `module` ended, or None where it was not tried."""
    outcome = snapshot.imported(module)
    return outcome.value if isinstance(outcome, Known) and outcome.value.outcome != "skipped" else None


def failed(snapshot: Snapshot, *modules: str) -> ImportOutcome | None:
    """Return the first of `modules` whose import was tried and raised, died or hung."""
    outcomes = (tried(snapshot, module) for module in modules)
    return next((outcome for outcome in outcomes if outcome and outcome.outcome != "ok"), None)


def imports_fine(snapshot: Snapshot, module: str) -> bool:
    """Say whether the import lane imported `module` without trouble."""
    outcome = tried(snapshot, module)
    return outcome is not None and outcome.outcome == "ok"


def told(outcome: ImportOutcome) -> str:
    """Return an import that went wrong as a line of evidence."""
    if outcome.outcome == "died":
        return f"import lane: importing {outcome.module} died" + (f" with {outcome.signal}" if outcome.signal else "")
    if outcome.outcome == "hung":
        return f"import lane: importing {outcome.module} had not ended after {outcome.seconds:.0f} s"
    return f"import lane: import {outcome.module}: {outcome.exception}: {outcome.message}"


def culprit(snapshot: Snapshot, outcome: ImportOutcome) -> Distribution | None:
    """Return the installed distribution whose code an import failed in: the innermost frame that one owns."""
    for frame in reversed(outcome.frames):
        found = snapshot.package(frame.partition("/")[0].partition(".")[0])
        if isinstance(found, Known):
            return found.value
    return None


def missing_library(message: str) -> str:
    """Return the shared library that an ImportError says cannot be opened, or ""."""
    found = _NO_LIBRARY.search(message)
    return found.group(1) if found else ""


def missing_symbol(message: str) -> str:
    """Return the mangled symbol that an ImportError says is undefined, or ""."""
    found = _NO_SYMBOL.search(message)
    return found.group(1) if found else ""


def torch_works(snapshot: Snapshot) -> bool:
    """Say whether torch is there and nothing tells that it cannot be imported.

    Where this is False, ATN101, ATN102 or ATN103 speaks and failed imports of other packages explain nothing.
    """
    if not isinstance(snapshot.torch, Known):
        return False
    outcome = tried(snapshot, "torch")
    if outcome is not None:
        return outcome.outcome == "ok"
    return not unresolved_of_torch(snapshot)


def unresolved_of_torch(snapshot: Snapshot) -> dict[str, str]:
    """Return the libraries that torch's own libraries need and the loader would not find, with who needs them.

    libcuda.so.1 comes with the driver; a machine without a GPU lacks it and torch copes.
    """
    return {
        name: binary.path
        for binary in snapshot.binaries
        if binary.distribution == "torch"
        for name in binary.unresolved
        if not name.startswith(("libcuda.so", "libnvidia-ml"))
    }


def torch_minor(torch: Torch) -> str:
    """Return torch's version as wheels are tagged with it: "2.8"; "" where it cannot be read."""
    try:
        return "{}.{}".format(*Version(torch.version).release[:2])
    except (InvalidVersion, IndexError):
        return ""


def cuda_major(torch: Torch) -> int | None:
    """Return the CUDA major version that torch was built with; None for a CPU or ROCm build."""
    first = torch.cuda.value.split(".")[0] if isinstance(torch.cuda, Known) else ""
    return int(first) if first.isdigit() else None


def is_cpu_build(torch: Torch) -> bool:
    """Say whether torch was built without any GPU support."""
    return isinstance(torch.cuda, Absent) and isinstance(torch.hip, Absent)


def flash_binary(snapshot: Snapshot) -> Binary | None:
    """Return flash-attn's extension as it lies on disk."""
    binary = snapshot.binary(FLASH_EXTENSION)
    return binary.value if isinstance(binary, Known) else None


def flash_failure(snapshot: Snapshot) -> ImportOutcome | None:
    """Return how importing flash-attn 2 went wrong: its extension before the package."""
    return failed(snapshot, FLASH_EXTENSION, "flash_attn")


def flash_works(snapshot: Snapshot) -> bool:
    """Say whether flash-attn 2 is installed and nothing tells that it cannot be used."""
    return snapshot.has("flash-attn") and torch_works(snapshot) and flash_fault(snapshot) is None


def flash_fault(snapshot: Snapshot) -> FlashFault | None:
    """Return why flash-attn 2, which is installed, cannot be imported; None where nothing speaks against it.

    One answer, so that one rule reports it. The import lane decides whether there is a fault at all where it ran;
    what the loader said, or else the static lane, says which.
    """
    if not snapshot.has("flash-attn"):
        return None
    failure = flash_failure(snapshot)
    if failure is not None:
        return _named_by(failure.message) or _static(snapshot, failure) or "other"
    if imports_fine(snapshot, FLASH_EXTENSION) or imports_fine(snapshot, "flash_attn"):
        return None
    return _static(snapshot, None)


def _named_by(message: str) -> FlashFault | None:
    library = missing_library(message)
    if library.startswith(("libc10_cuda", "libtorch_cuda")):
        return "cpu-torch"
    if library.startswith("libcudart"):
        return "cuda-runtime"
    if _NO_GLIBC.search(message):
        return "glibc"
    return "abi" if missing_symbol(message) else None


def _static(snapshot: Snapshot, failure: ImportOutcome | None) -> FlashFault | None:
    binary = flash_binary(snapshot)
    if binary is None or (failure is not None and imports_fine(snapshot, FLASH_EXTENSION)):
        return None
    if binary.problem.startswith("built for"):
        return "foreign-python"
    if isinstance(snapshot.torch, Known) and is_cpu_build(snapshot.torch.value):
        return "cpu-torch" if any(name.startswith(("libtorch_cuda", "libc10_cuda")) for name in binary.needed) else None
    if too_new_glibc(snapshot, binary):
        return "glibc"
    if any(name.startswith("libcudart") for name in binary.unresolved):
        return "cuda-runtime"
    return "abi" if binary.missing_symbols else None


def too_new_glibc(snapshot: Snapshot, binary: Binary) -> bool:
    """Say whether `binary` asks for a newer glibc than this machine has."""
    if not isinstance(snapshot.host.glibc, Known) or not binary.glibc_required:
        return False
    return Version(binary.glibc_required) > Version(snapshot.host.glibc.value)


def shadowed(snapshot: Snapshot, name: str) -> bool:
    """Say whether `import name` takes something from outside every distribution (ATN118)."""
    return any(shadow.startswith(name + " at ") for shadow in snapshot.shadows)


def disturbed_files(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the files of flash-attn that are missing or not the ones that were installed."""
    found = snapshot.package("flash-attn")
    if not isinstance(found, Known):
        return ()
    altered = tuple(path for path in found.value.files_altered if not path.endswith(".so"))  # stripped is not broken
    paths = (*found.value.files_missing, *altered)
    return tuple(path for path in paths if path.startswith(("flash_attn/", "flash_attn_2_cuda")))


def says_available(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the evidence that transformers will pick a flash-attn that cannot be imported: it only reads metadata."""
    answers = snapshot.interfaces.value.availability if isinstance(snapshot.interfaces, Known) else {}
    if answers.get("is_flash_attn_2_available"):
        return ("transformers' is_flash_attn_2_available() says True all the same: it does not import it",)
    return ()


def needed_glibc(message: str) -> str:
    """Return the glibc version that an ImportError says is not found, or ""."""
    found = _NO_GLIBC.search(message)
    return found.group(1) if found else ""
