"""A compiled package was built for a different torch.

What it checks: the extensions of vllm, causal-conv1d, mamba-ssm, apex, transformer-engine, deepspeed, sgl-kernel and
others: the symbols that they need from torch, against those that it exports. If that extension was imported, the
outcome decides. flash-attn is ATN104, flash-attn-3 ATN126; torchvision, torchaudio and xformers are ATN123; a vllm
whose METADATA names another torch is ATN156.

Why it matters: the import raises "undefined symbol".

What to do: install the release that belongs to this torch. The finding names the required torch, if the package
states it.

Source: ELF symbol tables of the installed files; vllm-project/vllm and instructlab/training#494 for the symptom.
"""

from attncheck.core.environment import Binary, Distribution
from attncheck.doctor.fixes import install
from attncheck.doctor.queries import (
    FLASH_EXTENSION,
    can_import,
    demangle_hint,
    describe_failed_import,
    find_failed_import,
    hidden_by,
    is_cpu_build,
    knows_torch_symbols,
    need_torch,
    parse_missing_symbol,
    require_torch,
    requirements,
)
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot

REPORTED_ELSEWHERE = ("", "torch", "flash-attn", "flash-attn-3", "torchvision", "torchaudio", "xformers")


def check(snapshot: Snapshot) -> Problems:
    if not any(binary.module and binary.distribution not in REPORTED_ELSEWHERE for binary in snapshot.binaries):
        return
    if not knows_torch_symbols(snapshot):
        require_torch(snapshot)
    torch = need_torch(snapshot)
    if is_cpu_build(torch):
        raise hidden_by("CUDA")
    reported = set(REPORTED_ELSEWHERE)
    for binary in snapshot.binaries:
        if binary.distribution in reported or binary.module == FLASH_EXTENSION or not _lacks_symbols(snapshot, binary):
            continue
        reported.add(binary.distribution)
        package = snapshot.package(binary.distribution)
        if isinstance(package, Known) and not _is_reported_elsewhere(snapshot, package.value):
            yield _make_problem(snapshot, package.value, binary, torch.version)


def _lacks_symbols(snapshot: Snapshot, binary: Binary) -> bool:
    if not binary.missing_symbols or can_import(snapshot, binary.module):
        return False
    return bool(binary.module)


def _is_reported_elsewhere(snapshot: Snapshot, distribution: Distribution) -> bool:
    torch = snapshot.version("torch")
    return (
        distribution.name == "vllm"
        and isinstance(torch, Known)
        and any(
            not requirements.is_version_allowed(requirement.specifier, torch.value)
            for requirement in requirements.applicable_requirements(snapshot, distribution, "torch")
        )
    )


def _make_problem(snapshot: Snapshot, distribution: Distribution, binary: Binary, torch: str) -> Problem:
    failure = find_failed_import(snapshot, binary.module)
    symbol = (parse_missing_symbol(failure.message) if failure else "") or binary.missing_symbols[0]
    torch_requirements = ", ".join(
        str(requirement) for requirement in requirements.applicable_requirements(snapshot, distribution, "torch")
    )
    name = f"{distribution.name} {distribution.version}"
    return Problem(
        message=f"{name} was not built for torch {torch}, which lacks {demangle_hint(symbol)}",
        subject=name,
        evidence=(
            describe_failed_import(failure) if failure else f"static lane: {binary.path}",
            f"{len(binary.missing_symbols)} of {binary.torch_symbols} symbols that it needs from torch "
            f"are missing: {symbol}",
            *((f"Requires-Dist of {name}: {torch_requirements}",) if torch_requirements else ()),
        ),
        fixes=(_install_matching_version(snapshot, distribution),),
        predicted=failure is None,
    )


def _install_matching_version(snapshot: Snapshot, distribution: Distribution) -> Fix:
    torch = snapshot.version("torch")
    torch_requirement = f"torch=={torch.value}" if isinstance(torch, Known) else "torch"
    return install.install_packages(
        snapshot,
        distribution.name,
        torch_requirement,
        options=("--upgrade", "--no-cache-dir"),
        title=f"let the installer choose a {distribution.name} for this torch",
    )


RULE = Rule("ATN125", "error", check)
