"""Decides whether one fault hides another: where a failed import failed, and which rules report the cause.

If an import of a package failed inside another package, it shows nothing about the first; its files can still be read.
If only the import could answer a rule's question, the rule is skipped, and the skip names what to fix first.
"""

import re
from collections.abc import Mapping, Sequence

from attncheck.core.snapshot import ImportOutcome, Known, MissingFact, Snapshot, Torch
from attncheck.doctor.queries import gpus
from attncheck.doctor.queries.packages import FLASH_EXTENSION, is_cpu_build, is_shadowed, torch_works

# The rules that report each possible cause, by import name or kind.
CODES: Mapping[str, tuple[str, ...]] = {
    "torch": ("ATN101", "ATN102", "ATN103", "ATN118"),
    "transformers": ("ATN117", "ATN118", "ATN149", "ATN154"),
    "flash_attn": ("ATN104", "ATN105", "ATN106", "ATN107", "ATN108", "ATN109", "ATN118", "ATN142", "ATN146", "ATN452"),
    "triton": ("ATN118", "ATN121", "ATN152", "ATN171"),
    "liger_kernel": ("ATN150", "ATN152", "ATN153"),
    "GPUs": ("ATN202", "ATN223"),
    "CUDA": ("ATN201", "ATN203", "ATN204", "ATN205", "ATN223"),
}
_DEFECTS = {"GPUs": "no GPU is found", "CUDA": "torch does not start CUDA"}
_NO_MODULE = re.compile(r"No module named '(\w+)")


def hidden_by(subject: str) -> MissingFact:
    """Return the exception that skips a rule because `subject` is defective: an import name, "GPUs" or "CUDA"."""
    return MissingFact(_DEFECTS.get(subject, f"{subject} cannot be imported"), CODES.get(subject, ()))


def require_torch(snapshot: Snapshot) -> None:
    """Raise `MissingFact` if torch is missing, not known, or cannot be imported."""
    if not torch_works(snapshot):
        snapshot.has("torch")  # raises if it is not known
        raise hidden_by("torch")


def require_import(snapshot: Snapshot, package: str) -> None:
    """Raise `MissingFact` if the import of `package` failed, so that facts from it are unknown."""
    if isinstance(snapshot.imports, Known) and cannot_be_imported(snapshot, package):
        raise hidden_by(package)


def need_torch(snapshot: Snapshot) -> Torch:
    """Return the facts about torch. Raises `MissingFact` if it is not installed."""
    if not isinstance(snapshot.torch, Known):
        require_torch(snapshot)
        raise hidden_by("torch")
    return snapshot.torch.value


def cuda_of_torch(snapshot: Snapshot) -> tuple[int, int] | None:
    """Return the CUDA version that torch was built with; None for a ROCm build or an unknown version.

    Raises `MissingFact` if torch is missing, or is a CPU build on a machine with a GPU.
    """
    torch = need_torch(snapshot)
    if is_cpu_build(torch) and gpus.all_gpus(snapshot):
        raise hidden_by("CUDA")
    return gpus.torch_cuda_version(snapshot)


def sees_gpu(snapshot: Snapshot) -> bool:
    """Return whether a job would see a GPU. Raises `MissingFact` if a GPU is expected and none can be listed."""
    if not snapshot.visible_devices() and gpus.lacks_expected_gpus(snapshot):
        raise hidden_by("GPUs")
    return bool(snapshot.visible_devices())


def require_visible_gpus(snapshot: Snapshot) -> None:
    """Raise `MissingFact` if GPUs are hidden by mistake, because facts about all of them are then unknown."""
    if gpus.are_hidden_by_mistake(snapshot):
        raise MissingFact(f"{gpus.VISIBLE_DEVICES} hides GPUs", ("ATN213",))


def require_dependencies(snapshot: Snapshot, outcome: ImportOutcome, packages: Sequence[str]) -> None:
    """Raise `MissingFact` if an import failed in one of `packages` (import names), or was not tried because of it.

    If the failing package cannot be determined, any of them that cannot be imported itself counts as the cause.
    """
    if outcome.outcome == "ok":
        return
    failing = find_failing_package(snapshot, outcome)
    for package in packages:
        is_absent = failing == package and not snapshot.has(package)
        if is_absent or (failing in ("", package) and cannot_be_imported(snapshot, package)):
            raise hidden_by(package)


def find_failing_package(snapshot: Snapshot, outcome: ImportOutcome) -> str:
    """Return the import name of the package in which an import failed, or "".

    For ring_flash_attn that may be "flash_attn". It is the owner of the innermost frame that belongs to an installed
    package, or the module that this frame did not find.
    """
    own_name = _root_name(outcome.module)
    names = (_root_name(re.split(r"[/.:]", frame)[0]) for frame in reversed(outcome.frames))
    owner = next((name for name in names if name == own_name or snapshot.has(name)), "")
    absent_module = _NO_MODULE.search(outcome.message)
    return _root_name(absent_module.group(1)) if absent_module and owner in ("", own_name) else owner


def finds_stray_flash_attn(snapshot: Snapshot, outcome: ImportOutcome) -> bool:
    """Return whether an import found a flash_attn that no distribution owns: it succeeded, or failed in that code.

    An import that failed earlier shows nothing.
    """
    ran = any(frame.startswith(("flash_attn/", "flash_attn_")) for frame in outcome.frames)
    return outcome.outcome == "ok" or ran or is_shadowed(snapshot, "flash_attn")


def cannot_be_imported(snapshot: Snapshot, package: str) -> bool:
    """Return whether importing a package or one of its modules failed, or found something else of that name.

    For torch, a missing installation counts too.
    """
    if package == "torch":
        return not torch_works(snapshot)
    if is_shadowed(snapshot, package):
        return True
    outcomes = snapshot.imports.value if isinstance(snapshot.imports, Known) else ()
    return any(o.outcome in ("raised", "died", "hung") for o in outcomes if _root_name(o.module) == package)


def _root_name(module: str) -> str:
    """Return the top-level package of a module."""
    return "flash_attn" if module == FLASH_EXTENSION else module.partition(".")[0]
