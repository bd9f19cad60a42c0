"""The launch uses a package that is not installed.

What it checks: what the framework imports whatever its settings, flash-attn where the launch asks for
flash_attention_2, ring-flash-attn for its ring and liger-kernel for its kernels, against what is installed.

Why it matters: OpenRLHF cannot even be imported without flash-attn, whatever implementation is asked for; other
frameworks stop when the model is loaded, or go on with another implementation.

What to do: install it as the finding says; or, where the framework allows it, ask for another implementation.

Source: openrlhf 0.11.2 models/ring_attn_utils.py:3-4; transformers 5.17.0 modeling_utils.py
`_flash_attn_can_dispatch`; ring_flash_attn 0.1.8 adapters/hf_adapter.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.facts import Known
from attncheck.core.findings import Fix, Problem
from attncheck.core.job import Job
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes.flash_attn import flash_attn_itself
from attncheck.doctor.fixes.install import install
from attncheck.doctor.knowledge.flash_attn_wheels import FLASH3_INDEX
from attncheck.doctor.queries.hub_fallback import fallback
from attncheck.doctor.queries.launch import implementation, job_of, named, setting, where
from attncheck.doctor.queries.packages import cuda_major, imports_fine
from attncheck.doctor.rules import Rule

FLASH = ("flash_attention_2", "flash_attention_3", "flash_attention_4")
PACKAGES = {"flash_attention_2": "flash-attn", "flash_attention_3": "flash-attn-3", "flash_attention_4": "flash-attn-4"}


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem for each package that the launch uses and that is missing."""
    job = job_of(snapshot)
    for module in job.imports:
        if not snapshot.has(module) and not imports_fine(snapshot, module):
            yield _missing(snapshot, job, module.replace("_", "-"), "it is imported whatever the settings", ())
    asked = implementation(job)
    package = PACKAGES.get(asked, "")
    if package and not snapshot.has(package) and package.replace("-", "_") not in job.imports and not _other(snapshot):
        yield _missing(snapshot, job, package, f"it asks for {asked}", (_sdpa(job),))
    rings = job.scheme == "llama3" and job.plan.ring_size > 1 and "ring_flash_attn" not in job.imports
    if rings and not snapshot.has("ring-flash-attn"):
        yield _missing(snapshot, job, "ring-flash-attn", f"its ring runs over {job.plan.ring_size} ranks", ())
    if job.plan.liger and not snapshot.has("liger-kernel"):
        yield _missing(
            snapshot, job, "liger-kernel", "it asks for its kernels", (setting("or without", {"liger": "off"}),)
        )


def _other(snapshot: Snapshot) -> bool:
    """Say whether transformers finds the implementation elsewhere: a module of no distribution, a Hub kernel."""
    return imports_fine(snapshot, "flash_attn") or fallback(snapshot) is not None


def _sdpa(job: Job) -> Fix:
    sets = {"attn_implementation": "sdpa"}
    if job.plan.ring_size > 1 and job.hooked and "sdpa" not in job.hooked:
        sets["ring_size"] = "1"
    if job.plan.packed and job.packs_with and "sdpa" not in job.packs_with:
        sets["packing"] = "off"
    return setting("or use sdpa", sets)


def _missing(snapshot: Snapshot, job: Job, package: str, why: str, others: tuple[Fix, ...]) -> Problem:
    fixes = _installs(snapshot, package)
    known = isinstance(snapshot.package(job.framework), Known)
    return Problem(
        message=f"{named(job)} needs {package}, which is not installed: {why}",
        evidence=(f"static lane: no distribution {package}",),
        fixes=(*fixes, *others),
        subject=package,
        predicted=not known and not snapshot.has("torch"),
        locations=where(job, "attn_implementation"),
    )


def _installs(snapshot: Snapshot, package: str) -> tuple[Fix, ...]:
    """Return how to get a package: flash-attn-3 is on PyTorch's own index, flash-attn-4 has pre-releases only."""
    if package == "flash-attn":
        return flash_attn_itself(snapshot)
    if package == "flash-attn-3":
        major = cuda_major(snapshot.torch.value) if isinstance(snapshot.torch, Known) else None
        if major not in FLASH3_INDEX:
            where = f"PyTorch's own index has builds of it: {' and '.join(FLASH3_INDEX.values())}"
            return (Fix("the build for this CUDA", "manual", where),)
        return (install(snapshot, package, options=("--no-deps", "--index-url", FLASH3_INDEX[major])),)
    return (install(snapshot, package, options=("--pre",) if package == "flash-attn-4" else ()),)


RULE = Rule("ATN452", "error", check, needs=frozenset({"job"}))
