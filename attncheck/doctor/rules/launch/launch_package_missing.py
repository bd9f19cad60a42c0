"""The launch uses a package that is not installed.

What it checks: whether the packages that the framework always imports are installed. It also checks flash-attn 2, 3 or
4 if the launch requests it, `kernels` for a Hub kernel, which the model's class may use instead, ring-flash-attn for
ring attention, and liger-kernel for its kernels.

Why it matters: OpenRLHF cannot even be imported without flash-attn, regardless of the requested implementation. Other
frameworks stop when the model is loaded, or continue with another implementation.

What to do: install it as the finding says or, if the framework allows it, request another implementation.

Source: openrlhf 0.11.2 models/ring_attn_utils.py:3-4; transformers 5.17.0 modeling_utils.py
`_flash_attn_can_dispatch`; ring_flash_attn 0.1.8 adapters/hf_adapter.py.
"""

from attncheck.doctor.fixes import install_flash_attn_package, install_packages, use_other_attention
from attncheck.doctor.knowledge import transformers
from attncheck.doctor.knowledge.flash_attn_wheels import FLASH_ATTN_3_INDEX
from attncheck.doctor.knowledge.hub_kernels import FLASH_REDIRECTS
from attncheck.doctor.queries import (
    KERNEL_NAME,
    can_import,
    change_settings,
    describe_job,
    effective_attn_implementation,
    find_redirect,
    find_requested_kernel,
    locate_settings,
    torch_cuda_major,
)
from attncheck.doctor.rules import (
    Absent,
    Fix,
    Job,
    Known,
    Model,
    Problem,
    Problems,
    Rule,
    Snapshot,
    Unreadable,
    about_job,
    need,
)

MODULES = {"flash-attn": "flash_attn", "flash-attn-3": "flash_attn_interface", "flash-attn-4": "flash_attn.cute"}


@about_job
def check(snapshot: Snapshot, job: Job) -> Problems:
    for module in job.imports:
        if isinstance(snapshot.package(module), Absent) and not can_import(snapshot, module):
            yield _missing_package_problem(snapshot, job, module.replace("_", "-"), "it is always imported", ())
    requested = effective_attn_implementation(job)
    model = snapshot.model.value if isinstance(snapshot.model, Known) else None
    implementation = (model and find_redirect(snapshot, model, requested)) or requested
    is_from_hub = KERNEL_NAME.fullmatch(implementation)
    package = "kernels" if is_from_hub else transformers.FLASH_DISTRIBUTIONS.get(implementation, "")
    is_missing = bool(package) and isinstance(snapshot.package(package), Absent)
    is_reported = package.replace("-", "_") in job.imports
    if is_missing and not is_reported and not _is_provided_elsewhere(snapshot, implementation, package):
        fix = _use_other_attention(snapshot, job, model)
        yield _missing_package_problem(snapshot, job, package, f"it requires {implementation}", (fix,))
    uses_ring = job.scheme == "llama3" and job.plan.ring_size > 1 and "ring_flash_attn" not in job.imports
    if uses_ring and isinstance(snapshot.package("ring-flash-attn"), Absent):
        yield _missing_package_problem(
            snapshot, job, "ring-flash-attn", f"its ring runs over {job.plan.ring_size} ranks", ()
        )
    if job.plan.liger and isinstance(snapshot.package("liger-kernel"), Absent):
        yield _missing_package_problem(
            snapshot,
            job,
            "liger-kernel",
            "it needs that package's kernels",
            (change_settings("or without", {"liger": "off"}),),
        )
    used = [*job.imports, package, "ring-flash-attn" * uses_ring, "liger-kernel" * job.plan.liger]
    for name in filter(None, used):
        if isinstance(fact := snapshot.package(name), Unreadable):
            need(fact, f"whether {name} is installed")
    if model is not None and model.model_type in FLASH_REDIRECTS:
        need(snapshot.version("transformers"), "the version of transformers")


def _is_provided_elsewhere(snapshot: Snapshot, implementation: str, package: str) -> bool:
    """Return whether transformers finds the implementation elsewhere: in a stray module or a Hub kernel."""
    is_replaced = find_requested_kernel(snapshot, implementation) is not None
    return can_import(snapshot, MODULES.get(package, package)) or is_replaced


def _use_other_attention(snapshot: Snapshot, job: Job, model: Model | None) -> Fix:
    fixes = use_other_attention(snapshot, model, *transformers.FLASH_DISTRIBUTIONS) if model else ()
    settings = {"attn_implementation": "sdpa", **(fixes[0].sets if fixes else {})}
    name = settings["attn_implementation"]
    if job.plan.ring_size > 1 and job.hooked and name not in job.hooked:
        settings["ring_size"] = "1"
    if job.plan.packed and job.packs_with and name not in job.packs_with:
        settings["packing"] = "off"
    return change_settings(f"or use {name}", settings)


def _missing_package_problem(
    snapshot: Snapshot, job: Job, package: str, reason: str, other_fixes: tuple[Fix, ...]
) -> Problem:
    install_fixes = _install_fixes(snapshot, package)
    framework_installed = isinstance(snapshot.package(job.framework), Known)
    return Problem(
        message=f"{describe_job(job)} needs {package}, which is not installed: {reason}",
        evidence=(f"static lane: {package} was not found",),
        fixes=(*install_fixes, *other_fixes),
        subject=package,
        predicted=not framework_installed and not snapshot.lists("torch"),
        locations=locate_settings(job, "attn_implementation"),
    )


def _install_fixes(snapshot: Snapshot, package: str) -> tuple[Fix, ...]:
    """Return how to install a package: flash-attn-3 is on PyTorch's own index, flash-attn-4 only has pre-releases."""
    if package == "flash-attn":
        return install_flash_attn_package(snapshot)
    if package == "flash-attn-3":
        major = torch_cuda_major(snapshot.torch.value) if isinstance(snapshot.torch, Known) else None
        if major not in FLASH_ATTN_3_INDEX:
            indexes = f"PyTorch's own index has builds of it: {' and '.join(FLASH_ATTN_3_INDEX.values())}"
            return (Fix("the build for this CUDA", "manual", indexes),)
        return (install_packages(snapshot, package, options=("--no-deps", "--index-url", FLASH_ATTN_3_INDEX[major])),)
    if package == "kernels" and isinstance(version := snapshot.version("transformers"), Known):
        package += transformers.entry_for_version(transformers.COMPATIBLE_KERNELS, version.value) or ""
    return (install_packages(snapshot, package, options=("--pre",) if package == "flash-attn-4" else ()),)


RULE = Rule("ATN452", "error", check, needs=frozenset({"job"}))
