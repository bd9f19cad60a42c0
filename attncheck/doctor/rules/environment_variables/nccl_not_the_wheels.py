"""torch loads a different NCCL from the one its wheel installed.

What it checks: the NCCL version that the imported torch reports against the installed nvidia-nccl wheel. If torch was
not imported, an NCCL named in LD_PRELOAD.

Why it matters: ranks with different NCCLs cannot form a group ("NCCL version mismatch", ncclInternalError), and an
older one lacks symbols that torch needs (`undefined symbol: ncclCommRegister`). Module systems and base images put
their own NCCL on LD_LIBRARY_PATH or LD_PRELOAD.

What to do: remove that directory or preload for the job.

Source: pytorch/pytorch#122571; NVIDIA/nccl#447.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.queries.covering import cuda_of_torch, need_torch, require_import
from attncheck.doctor.rules import Fix, Known, Problem, Problems, Rule, Snapshot, Version, need, value_or

NCCL_WHEELS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")


def check(snapshot: Snapshot) -> Problems:
    shipped = [fact.value for name in NCCL_WHEELS if isinstance(fact := snapshot.version(name), Known)]
    if not shipped or cuda_of_torch(snapshot) is None:
        return
    preload = value_or(snapshot.env("LD_PRELOAD"), "")
    loaded = need_torch(snapshot).nccl
    if not isinstance(loaded, Known) and "nccl" in preload:
        message, evidence = "LD_PRELOAD loads another NCCL before torch's own", "static lane: torch was not imported"
    else:
        require_import(snapshot, "torch")
        version = Version(need(loaded, "the NCCL that torch loads"))
        if any(version.release[:3] == wheel.release[:3] for wheel in shipped):
            return
        message, evidence = (
            f"torch loads NCCL {version}, but its wheel installed {shipped[0]}",
            "import lane: torch's own answer",
        )
    yield Problem(message, (evidence, *_library_variables(snapshot)), _fixes(snapshot, preload), "nccl")


def _library_variables(snapshot: Snapshot) -> tuple[str, ...]:
    names = ("LD_PRELOAD", "LD_LIBRARY_PATH")
    return tuple(f"{name}={value_or(snapshot.env(name), '')}" for name in names if name in snapshot.environ)


def _fixes(snapshot: Snapshot, preload: str) -> tuple[Fix, ...]:
    if "nccl" in preload:
        return (install.unset_variable("LD_PRELOAD"),)
    return (install.unset_variable("LD_LIBRARY_PATH"),) if "LD_LIBRARY_PATH" in snapshot.environ else ()


RULE = Rule("ATN550", "warning", check)
