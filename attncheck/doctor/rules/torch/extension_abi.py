"""A compiled package was built for another torch.

What it checks: the extensions of vllm, causal-conv1d, mamba-ssm, apex, transformer-engine, deepspeed, sgl-kernel and
others: the symbols they ask of torch against those that it exports. Where the very extension was imported, the outcome
decides. flash-attn is ATN104, flash-attn-3 ATN126; torchvision, torchaudio and xformers are ATN123; a vllm whose
METADATA names another torch is ATN156.

Why it matters: "undefined symbol" at import.

What to do: install the release that belongs to this torch; the finding names the torch it asks for, where it says.

Source: ELF symbol tables of the installed files; vllm-project/vllm and instructlab/training#494 for the symptom.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.environment import Binary, Distribution
from attncheck.core.facts import Known
from attncheck.core.findings import Fix, Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.queries import requirements
from attncheck.doctor.queries.packages import (
    FLASH_EXTENSION,
    failed,
    imports_fine,
    is_cpu_build,
    missing_symbol,
    told,
    torch_works,
)
from attncheck.doctor.queries.symbols import demangle_hint
from attncheck.doctor.rules import Rule

ELSEWHERE = ("", "torch", "flash-attn", "flash-attn-3", "torchvision", "torchaudio", "xformers")


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem for each distribution with an extension that does not fit torch."""
    if not torch_works(snapshot) or not isinstance(snapshot.torch, Known) or is_cpu_build(snapshot.torch.value):
        return
    seen = set(ELSEWHERE)
    for binary in snapshot.binaries:
        if binary.distribution in seen or binary.module == FLASH_EXTENSION or not _broken(snapshot, binary):
            continue
        seen.add(binary.distribution)
        found = snapshot.package(binary.distribution)
        if isinstance(found, Known) and not _reported_elsewhere(snapshot, found.value):
            yield _problem(snapshot, found.value, binary, snapshot.torch.value.version)


def _broken(snapshot: Snapshot, binary: Binary) -> bool:
    if not binary.missing_symbols or imports_fine(snapshot, binary.module):
        return False
    return bool(binary.module)


def _reported_elsewhere(snapshot: Snapshot, distribution: Distribution) -> bool:
    torch = snapshot.version("torch")
    return (
        distribution.name == "vllm"
        and isinstance(torch, Known)
        and any(
            not requirements.allowed(demand.specifier, torch.value)
            for demand in requirements.demands_of(snapshot, distribution, "torch")
        )
    )


def _problem(snapshot: Snapshot, distribution: Distribution, binary: Binary, torch: str) -> Problem:
    failure = failed(snapshot, binary.module)
    symbol = (missing_symbol(failure.message) if failure else "") or binary.missing_symbols[0]
    asks = ", ".join(str(demand) for demand in requirements.demands_of(snapshot, distribution, "torch"))
    name = f"{distribution.name} {distribution.version}"
    return Problem(
        message=f"{name} was built for another torch than {torch}: it lacks {demangle_hint(symbol)}",
        subject=name,
        evidence=(
            told(failure) if failure else f"static lane: {binary.path}",
            f"{len(binary.missing_symbols)} of {binary.torch_symbols} symbols asked of torch are missing: {symbol}",
            *((f"Requires-Dist of {name}: {asks}",) if asks else ()),
        ),
        fixes=(_again(snapshot, distribution),),
        predicted=failure is None,
    )


def _again(snapshot: Snapshot, distribution: Distribution) -> Fix:
    torch = snapshot.version("torch")
    held = f"torch=={torch.value}" if isinstance(torch, Known) else "torch"
    return install.install(
        snapshot,
        distribution.name,
        held,
        options=("--upgrade", "--no-cache-dir"),
        title=f"let the installer choose a {distribution.name} for this torch",
    )


RULE = Rule("ATN125", "error", check)
