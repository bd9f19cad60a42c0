"""Queries for several rules about packages: how imports ended, whether torch works, why flash-attn does not."""

import re
from functools import partial
from typing import Literal

from packaging.version import InvalidVersion, Version

from attncheck.core.snapshot import Absent, Binary, Distribution, ImportOutcome, Known, Snapshot, Torch
from attncheck.doctor.queries.runtime_libraries import find_runtime_gap, parse_runtime_gap

FLASH_EXTENSION = "flash_attn_2_cuda"
FlashAttnFault = Literal["foreign-python", "cpu-torch", "glibc", "cxx-runtime", "cuda-runtime", "abi", "other"]

# Error messages of the dynamic loader (glibc, elf/dl-load.c, elf/dl-lookup.c, elf/dl-version.c).
_NO_LIBRARY = re.compile(r"([\w.+-]+\.so[\w.]*): cannot open shared object file")
_NO_MODULE = re.compile(r"No module named '(\w+)")
_NO_SYMBOL = re.compile(r"undefined symbol: (\w+)")
_NO_GLIBC = re.compile(r"version [`']GLIBC_([\d.]+)' not found")


def _find_group(pattern: re.Pattern[str], message: str) -> str:
    match = pattern.search(message)
    return match.group(1) if match else ""


# What an ImportError's message names, or "": a library that was not opened, an undefined symbol, a glibc not found.
parse_missing_library = partial(_find_group, _NO_LIBRARY)
parse_missing_symbol = partial(_find_group, _NO_SYMBOL)
parse_required_glibc = partial(_find_group, _NO_GLIBC)


def import_outcome(snapshot: Snapshot, module: str) -> ImportOutcome | None:
    """Return the outcome of importing `module`, or None if it was not tried."""
    outcome = snapshot.imported(module)
    return outcome.value if isinstance(outcome, Known) and outcome.value.outcome != "skipped" else None


def find_failed_import(snapshot: Snapshot, *modules: str) -> ImportOutcome | None:
    """Return the first of `modules` whose import was tried and raised, died or hung."""
    outcomes = (import_outcome(snapshot, module) for module in modules)
    return next((outcome for outcome in outcomes if outcome and outcome.outcome != "ok"), None)


def can_import(snapshot: Snapshot, module: str) -> bool:
    """Return whether the import lane imported `module` without an error."""
    outcome = import_outcome(snapshot, module)
    return outcome is not None and outcome.outcome == "ok"


def describe_failed_import(outcome: ImportOutcome) -> str:
    """Return a failed import as a line of evidence."""
    if outcome.outcome == "died":
        return f"import lane: importing {outcome.module} died" + (f" with {outcome.signal}" if outcome.signal else "")
    if outcome.outcome == "hung":
        return f"import lane: importing {outcome.module} had not ended after {outcome.seconds:.0f} s"
    return f"import lane: import {outcome.module}: {outcome.exception}: {outcome.message}"


def describe_ending(outcome: ImportOutcome) -> str:
    """Return how a failed import ended, in a few words."""
    if outcome.outcome == "died":
        return f"the process died{f' with {outcome.signal}' if outcome.signal else ''}"
    if outcome.outcome == "hung":
        return f"the import was still running after {outcome.seconds:.0f} s"
    first = outcome.message.strip().partition("\n")[0].rstrip(".")
    return f"{outcome.exception}: {first}" if first else outcome.exception


def find_failing_distribution(snapshot: Snapshot, outcome: ImportOutcome) -> Distribution | None:
    """Return the distribution in whose code an import failed: the owner of the innermost frame that has an owner."""
    for frame in reversed(outcome.frames):
        owner = snapshot.package(frame.partition("/")[0].partition(".")[0])
        if isinstance(owner, Known):
            return owner.value
    return None


def missing_module(outcome: ImportOutcome) -> str:
    """Return the package that an import did not find, such as "setuptools"; "" if it failed for another reason."""
    match = _NO_MODULE.match(outcome.message) if outcome.exception == "ModuleNotFoundError" else None
    return match.group(1) if match else ""


def is_missing_name(outcome: ImportOutcome) -> bool:
    """Return whether an import failed because a module lacks a name: "cannot import name …"."""
    return outcome.outcome == "raised" and outcome.message.startswith("cannot import name")


def torch_works(snapshot: Snapshot) -> bool:
    """Return whether torch is installed and nothing shows that it cannot be imported.

    If this is False, ATN101, ATN102 or ATN103 reports it, and failed imports of other packages prove nothing.
    """
    if not isinstance(snapshot.torch, Known):
        return False
    outcome = import_outcome(snapshot, "torch")
    if outcome is not None:
        return outcome.outcome == "ok"
    return not unresolved_torch_libraries(snapshot)


def unresolved_torch_libraries(snapshot: Snapshot) -> dict[str, str]:
    """Return the libraries that torch needs and the loader would not find: name -> the library that needs it.

    libcuda.so.1 is excluded: it comes with the driver, and torch works without it on a machine without a GPU.
    """
    return {
        name: binary.path
        for binary in snapshot.binaries
        if binary.distribution == "torch"
        for name in binary.unresolved
        if not name.startswith(("libcuda.so", "libnvidia-ml"))
    }


def torch_minor_version(torch: Torch) -> str:
    """Return torch's version in the form that wheels are tagged with, such as "2.8"; "" if it cannot be read."""
    try:
        return "{}.{}".format(*Version(torch.version).release[:2])
    except (InvalidVersion, IndexError):
        return ""


def torch_cuda_major(torch: Torch) -> int | None:
    """Return the CUDA major version that torch was built with; None for a CPU or ROCm build."""
    first = torch.cuda.value.split(".")[0] if isinstance(torch.cuda, Known) else ""
    return int(first) if first.isdecimal() else None


def is_cpu_build(torch: Torch) -> bool:
    """Return whether torch was built without any GPU support."""
    return isinstance(torch.cuda, Absent) and isinstance(torch.hip, Absent)


def flash_attn_extension(snapshot: Snapshot) -> Binary | None:
    """Return flash-attn's compiled extension as read from disk; None if it was not read."""
    binary = snapshot.binary(FLASH_EXTENSION)
    return binary.value if isinstance(binary, Known) else None


def flash_attn_import_failure(snapshot: Snapshot) -> ImportOutcome | None:
    """Return the failed import of flash-attn 2, preferring that of its extension; None if no import failed."""
    return find_failed_import(snapshot, FLASH_EXTENSION, "flash_attn")


def flash_attn_works(snapshot: Snapshot) -> bool:
    """Return whether flash-attn 2 is installed and nothing shows that it cannot be used."""
    return snapshot.has("flash-attn") and torch_works(snapshot) and diagnose_flash_attn(snapshot) is None


def diagnose_flash_attn(snapshot: Snapshot) -> FlashAttnFault | None:
    """Return why the installed flash-attn 2 cannot be imported; None if nothing shows that it cannot.

    There is one answer, so that one rule reports it. If the import lane ran, it decides whether there is a fault at
    all. The kind of fault comes from the loader's message, or else from the static lane.
    """
    if not snapshot.has("flash-attn"):
        return None
    failure = flash_attn_import_failure(snapshot)
    if failure is not None:
        return _fault_from_message(failure.message) or _fault_from_binary(snapshot, failure) or "other"
    if can_import(snapshot, FLASH_EXTENSION) or can_import(snapshot, "flash_attn"):
        return None
    return _fault_from_binary(snapshot, None)


def unexplained_flash_attn_failures(snapshot: Snapshot) -> tuple[ImportOutcome, ...]:
    """Return the failed imports of flash-attn 2, extension or package, that no fault of its extension explains.

    An extension that does not fit raises when it is loaded. A package that fails in another way has another fault.
    """
    fault = diagnose_flash_attn(snapshot)
    extension, package = find_failed_import(snapshot, FLASH_EXTENSION), find_failed_import(snapshot, "flash_attn")
    failures = []
    if fault == "other" and extension is not None:
        failures.append(extension)
    if fault is not None and package is not None and not _fails_in_extension(package, extension):
        failures.append(package)
    return tuple(failures)


def _fails_in_extension(package: ImportOutcome, extension: ImportOutcome | None) -> bool:
    """Return whether importing flash_attn failed while loading its extension, judged by the extension's own failure."""
    if _fault_from_message(package.message) or FLASH_EXTENSION in package.message:
        return True
    return extension is not None and (extension.outcome, extension.message, extension.signal) == (
        package.outcome,
        package.message,
        package.signal,
    )


def knows_torch_symbols(snapshot: Snapshot) -> bool:
    """Return whether torch's missing symbols can be read: torch works, or fails with every library as installed."""
    package = snapshot.package("torch")
    if torch_works(snapshot) or not isinstance(snapshot.torch, Known) or not isinstance(package, Known):
        return torch_works(snapshot)
    is_damaged = any(binary.problem for binary in snapshot.binaries if binary.distribution == "torch")
    changed = (*package.value.files_missing, *package.value.files_altered)
    return not is_damaged and not package.value.problem and not any(path.endswith(".so") for path in changed)


def _fault_from_message(message: str) -> FlashAttnFault | None:
    library = parse_missing_library(message)
    if library.startswith(("libc10_cuda", "libtorch_cuda")):
        return "cpu-torch"
    if library.startswith("libcudart"):
        return "cuda-runtime"
    if _NO_GLIBC.search(message):
        return "glibc"
    if parse_runtime_gap(message) is not None:
        return "cxx-runtime"
    return "abi" if parse_missing_symbol(message) else None


def _fault_from_binary(snapshot: Snapshot, failure: ImportOutcome | None) -> FlashAttnFault | None:
    binary = flash_attn_extension(snapshot)
    if binary is None or (failure is not None and can_import(snapshot, FLASH_EXTENSION)):
        return None
    if binary.problem.startswith("built for"):
        return "foreign-python"
    if isinstance(snapshot.torch, Known) and is_cpu_build(snapshot.torch.value):
        return "cpu-torch" if any(name.startswith(("libtorch_cuda", "libc10_cuda")) for name in binary.needed) else None
    if needs_newer_glibc(snapshot, binary):
        return "glibc"
    if any(name.startswith("libcudart") for name in binary.unresolved):
        return "cuda-runtime"
    if find_runtime_gap(snapshot, binary) is not None:
        return "cxx-runtime"
    return "abi" if binary.missing_symbols else None


def needs_newer_glibc(snapshot: Snapshot, binary: Binary) -> bool:
    """Return whether `binary` requires a newer glibc than this machine has."""
    if not isinstance(snapshot.host.glibc, Known) or not binary.glibc_required:
        return False
    return Version(binary.glibc_required) > Version(snapshot.host.glibc.value)


def is_shadowed(snapshot: Snapshot, name: str) -> bool:
    """Return whether `import name` finds a module that belongs to no distribution (ATN118)."""
    return any(shadow.startswith(name + " at ") for shadow in snapshot.shadows)


def changed_flash_attn_files(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the files of flash-attn that are missing or differ from the installed ones."""
    flash_attn = snapshot.package("flash-attn")
    if not isinstance(flash_attn, Known):
        return ()
    altered = tuple(
        path for path in flash_attn.value.files_altered if not path.endswith(".so")
    )  # stripping does not break a file
    paths = (*flash_attn.value.files_missing, *altered)
    return tuple(path for path in paths if path.startswith(("flash_attn/", "flash_attn_2_cuda")))


def availability_evidence(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the evidence that transformers, which reads only metadata, selects a flash-attn that fails to import."""
    answers = snapshot.interfaces.value.availability if isinstance(snapshot.interfaces, Known) else {}
    if answers.get("is_flash_attn_2_available"):
        return ("transformers' is_flash_attn_2_available() is True anyway, because it does not import flash-attn",)
    return ()
