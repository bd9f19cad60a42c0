"""torchvision, torchaudio or xformers belongs to another torch.

What it checks: what the metadata of torchvision, torchaudio and xformers requires of torch, and the symbols that their
extensions ask of it, against the installed torch. Where the extension was imported, the outcome decides.

Why it matters: transformers imports torchvision where it is there, and "operator torchvision::nms does not exist" then
stops text models too. xformers drops its kernels with a warning. It happens when torch is upgraded alone.

What to do: install the release that belongs to this torch. Moving torch back instead would break flash-attn and
everything else that was compiled against it.

Source: METADATA on PyPI, read 2026-11-21: torchvision 0.17.0 (torch==2.2.0), 0.23.0 (2.8.0), 0.28.0 (2.13.0);
torchaudio 2.8.0 (2.8.0), 2.10.0 (2.10.0), 2.11.0 (no torch named); xformers 0.0.35 (torch>=2.10).
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from attncheck.core.environment import Binary, Distribution
from attncheck.core.facts import Known
from attncheck.core.findings import Fix, Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.torch_builds import INDEX
from attncheck.doctor.queries import requirements
from attncheck.doctor.queries.packages import failed, imports_fine, is_cpu_build, told, torch_works
from attncheck.doctor.queries.symbols import demangle_hint
from attncheck.doctor.rules import Rule

COMPANIONS = ("torchvision", "torchaudio", "xformers")


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem for each companion of torch that was made for another one."""
    torch = snapshot.version("torch")
    if not isinstance(torch, Known) or not torch_works(snapshot):
        return
    for name in COMPANIONS:
        found = snapshot.package(name)
        evidence = _evidence(snapshot, found.value, torch.value) if isinstance(found, Known) else ()
        if isinstance(found, Known) and evidence:
            yield Problem(
                message=f"{name} {found.value.version} does not belong to torch {torch.value}",
                subject=f"{name} {found.value.version}",
                evidence=evidence,
                fixes=(_fitting(snapshot, name, torch.value),),
            )


def _evidence(snapshot: Snapshot, companion: Distribution, torch: Version) -> tuple[str, ...]:
    extensions = [each for each in snapshot.binaries if each.distribution == companion.name and each.module]
    if any(imports_fine(snapshot, each.module) for each in extensions):
        return ()
    broken = [
        each
        for each in requirements.demands_of(snapshot, companion, "torch")
        if not requirements.allowed(each.specifier, torch)
    ]
    return (
        *(f"Requires-Dist of {companion.name} {companion.version}: torch{each.specifier}" for each in broken),
        *_lacking(snapshot, extensions),
    )


def _lacking(snapshot: Snapshot, extensions: list[Binary]) -> Iterator[str]:
    """Yield what the extensions ask for in vain; a CPU build of torch lacks all that is about CUDA (ATN205)."""
    if not isinstance(snapshot.torch, Known) or is_cpu_build(snapshot.torch.value):
        return
    for each in extensions:
        if each.missing_symbols:
            failure, symbol = failed(snapshot, each.module), demangle_hint(each.missing_symbols[0])
            yield told(failure) if failure else f"static lane: {each.path} asks for {symbol}, which torch lacks"


def _fitting(snapshot: Snapshot, name: str, torch: Version) -> Fix:
    """Return the install of the companion that was released with `torch`, from the index that torch came from."""
    index = ("--index-url", f"{INDEX}/{torch.local}") if (torch.local or "").startswith(("cu", "cpu", "rocm")) else ()
    vision = f"0.{torch.minor + 15}.{torch.micro}"  # torch 2.8.0 has 0.23.0, 2.13.0 has 0.28.0
    if name == "xformers" or torch.release < (2, 1) or (name == "torchaudio" and torch.release >= (2, 11)):
        title = f"let the installer choose a {name} for this torch"
        return install.install(snapshot, name, f"torch=={torch}", options=("--upgrade", *index), title=title)
    version = vision if name == "torchvision" else torch.base_version
    return install.install(snapshot, f"{name}=={version}", options=("--no-deps", *index))


RULE = Rule("ATN123", "warning", check)
