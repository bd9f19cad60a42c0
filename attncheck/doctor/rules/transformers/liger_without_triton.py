"""liger-kernel is installed without triton.

What it checks: whether any distribution with the module `triton` is installed, on a machine with a GPU or if
importing liger-kernel did not find it. If the module was imported anyway, nothing is reported.

Why it matters: liger-kernel's operations are triton kernels; its import raises "No module named 'triton'".

What to do: install the triton that belongs to the installed torch.

Source: liger_kernel 0.8.5 METADATA (`triton>=2.3.1`) and `liger_kernel/ops/*.py`.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.queries import find_failed_import, missing_module, requirements, sees_gpu
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot, need

TRITON_DISTRIBUTIONS = (
    "triton",
    "pytorch-triton",
    "triton-rocm",
    "pytorch-triton-rocm",
    "triton-windows",
    "pytorch-triton-xpu",
)


def check(snapshot: Snapshot) -> Problems:
    if not snapshot.has("liger-kernel") or snapshot.has(*TRITON_DISTRIBUTIONS):
        return
    failure = find_failed_import(snapshot, "liger_kernel.transformers")
    was_not_found = failure is not None and missing_module(failure) == "triton"
    has_gpu = sees_gpu(snapshot)
    if not has_gpu and not was_not_found:
        return
    for module in ("triton", "liger_kernel.transformers"):
        outcome = snapshot.imported(module)
        if isinstance(outcome, Known) and outcome.value.outcome == "ok":
            return
    liger_version = need(snapshot.package("liger-kernel"), "liger-kernel").version
    torch = snapshot.package("torch")
    triton_requirements = ["triton"]
    if isinstance(torch, Known):
        applicable = requirements.applicable_requirements(snapshot, torch.value, "triton")
        triton_requirements = [str(requirement).partition(";")[0] for requirement in applicable] or ["triton"]
    yield Problem(
        message=f"liger-kernel {liger_version} needs triton, which is not installed",
        subject=f"liger-kernel {liger_version}",
        evidence=("none of " + ", ".join(TRITON_DISTRIBUTIONS[:4]) + " is installed",),
        fixes=(install.install_packages(snapshot, *triton_requirements),),
        predicted=not has_gpu,
    )


RULE = Rule("ATN152", "error", check, needs=frozenset({"liger"}))
