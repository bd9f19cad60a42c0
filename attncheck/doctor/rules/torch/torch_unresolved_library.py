"""A library that torch needs cannot be found.

What it checks: the shared libraries that torch's own libraries require (their ELF headers) against torch's folder,
NVIDIA's packages, LD_LIBRARY_PATH and the loader's cache. If importing torch was tried, ATN102 reports the result
instead. The driver's libcuda.so.1 is not checked, because a login node lacks it and torch works without it.

Why it matters: `import torch` raises "cannot open shared object file".

What to do: reinstall torch with its dependencies; an NVIDIA package was removed, or replaced by one for another CUDA
version.

Source: torch/__init__.py of torch 2.13.0 (`_preload_cuda_deps`); METADATA of torch names the NVIDIA packages.
"""

from attncheck.doctor.fixes.torch import reinstall_torch
from attncheck.doctor.queries.packages import import_outcome, unresolved_torch_libraries
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    if not isinstance(snapshot.torch, Known) or import_outcome(snapshot, "torch") is not None:
        return
    unresolved = unresolved_torch_libraries(snapshot)
    if unresolved:
        torch = snapshot.torch.value
        yield Problem(
            message=f"torch {torch.version} cannot be imported: {', '.join(sorted(unresolved))} is not found",
            subject=f"torch {torch.version}",
            evidence=tuple(f"static lane: {path} needs {name}" for name, path in sorted(unresolved.items())),
            fixes=(reinstall_torch(snapshot),),
        )


RULE = Rule("ATN103", "error", check)
