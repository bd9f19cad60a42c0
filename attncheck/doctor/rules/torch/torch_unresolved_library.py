"""A library that torch needs is nowhere to be found.

What it checks: the shared libraries that torch's own libraries ask for (their ELF headers) against torch's folder,
NVIDIA's packages, LD_LIBRARY_PATH and the loader's cache. Where torch was imported, ATN102 speaks instead. The
driver's libcuda.so.1 is left out: a login node lacks it and torch copes.

Why it matters: `import torch` raises "cannot open shared object file".

What to do: reinstall torch with its dependencies; a NVIDIA package was removed, or replaced by one for another CUDA.

Source: torch/__init__.py of torch 2.13.0 (`_preload_cuda_deps`); METADATA of torch names the NVIDIA packages.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.facts import Known
from attncheck.core.findings import Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes.torch import reinstall_torch
from attncheck.doctor.queries.packages import tried, unresolved_of_torch
from attncheck.doctor.rules import Rule


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where torch's libraries cannot all be loaded and nobody has tried."""
    if not isinstance(snapshot.torch, Known) or tried(snapshot, "torch") is not None:
        return
    lacking = unresolved_of_torch(snapshot)
    if lacking:
        torch = snapshot.torch.value
        yield Problem(
            message=f"torch {torch.version} cannot be imported: {', '.join(sorted(lacking))} is not found",
            subject=f"torch {torch.version}",
            evidence=tuple(f"static lane: {path} needs {name}" for name, path in sorted(lacking.items())),
            fixes=(reinstall_torch(snapshot),),
        )


RULE = Rule("ATN103", "error", check)
