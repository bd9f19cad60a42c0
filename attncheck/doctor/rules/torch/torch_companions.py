"""torchvision, torchaudio or xformers belongs to a different torch.

What it checks: the torch version that the metadata of torchvision, torchaudio and xformers requires, and the symbols
that their extensions need, against the installed torch. If the extension was imported, the outcome decides.

Why it matters: transformers imports torchvision if it is installed, and "operator torchvision::nms does not exist"
then stops text models too. xformers drops its kernels with a warning. It happens when only torch is upgraded.

What to do: install the release that belongs to this torch. Downgrading torch instead would break flash-attn and
everything else that was compiled against it.

Source: METADATA on PyPI, read 2026-11-21: torchvision 0.17.0 (torch==2.2.0), 0.23.0 (2.8.0), 0.28.0 (2.13.0);
torchaudio 2.8.0 (2.8.0), 2.10.0 (2.10.0), 2.11.0 (no torch named); xformers 0.0.35 (torch>=2.10).
"""

from collections.abc import Iterator

from attncheck.core.environment import Binary, Distribution
from attncheck.doctor.fixes import install_companion
from attncheck.doctor.queries import (
    can_import,
    demangle_hint,
    describe_failed_import,
    find_failed_import,
    hidden_by,
    is_cpu_build,
    knows_torch_symbols,
    requirements,
)
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot, Version

COMPANIONS = ("torchvision", "torchaudio", "xformers")


def check(snapshot: Snapshot) -> Problems:
    torch = snapshot.version("torch")
    if not isinstance(torch, Known):
        if snapshot.has(*COMPANIONS):
            raise hidden_by("torch")
        return
    for name in COMPANIONS:
        package = snapshot.package(name)
        evidence = _evidence(snapshot, package.value, torch.value) if isinstance(package, Known) else ()
        if isinstance(package, Known) and evidence:
            yield Problem(
                message=f"{name} {package.value.version} was not built for torch {torch.value}",
                subject=f"{name} {package.value.version}",
                evidence=evidence,
                fixes=(install_companion(snapshot, name, torch.value),),
            )


def _evidence(snapshot: Snapshot, companion: Distribution, torch: Version) -> tuple[str, ...]:
    extensions = [binary for binary in snapshot.binaries if binary.distribution == companion.name and binary.module]
    if any(can_import(snapshot, extension.module) for extension in extensions):
        return ()
    unmet = [
        requirement.specifier
        for requirement in requirements.applicable_requirements(snapshot, companion, "torch")
        if not requirements.is_version_allowed(requirement.specifier, torch)
    ]
    return (
        *(f"Requires-Dist of {companion.name} {companion.version}: torch{specifier}" for specifier in unmet),
        *_missing_symbols_evidence(snapshot, extensions),
    )


def _missing_symbols_evidence(snapshot: Snapshot, extensions: list[Binary]) -> Iterator[str]:
    """Yield the evidence of symbols that torch lacks; none for a CPU build, which lacks all of CUDA's (ATN205)."""
    if not isinstance(snapshot.torch, Known) or is_cpu_build(snapshot.torch.value) or not knows_torch_symbols(snapshot):
        return
    for extension in extensions:
        if extension.missing_symbols:
            failure = find_failed_import(snapshot, extension.module)
            symbol = demangle_hint(extension.missing_symbols[0])
            static = f"static lane: {extension.path} needs {symbol}, which torch lacks"
            yield describe_failed_import(failure) if failure else static


RULE = Rule("ATN123", "warning", check)
