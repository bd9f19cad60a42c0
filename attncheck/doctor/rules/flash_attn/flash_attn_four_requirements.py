"""A requirement of flash-attn-4 is missing.

What it checks: flash-attn-4's own Requires-Dist (nvidia-cutlass-dsl, quack-kernels, apache-tvm-ffi,
torch-c-dlpack-ext, einops …) against what is installed; if `flash_attn.cute` was imported, the outcome decides. A
nvidia-cutlass-dsl of the wrong version is ATN147.

Why it matters: these packages compile it when it first runs. flash_attention_4 fails at import or in the first step.

What to do: install the requirements; the finding has the command.

Source: flash_attn_4 4.0.0b36 METADATA (nvidia-cutlass-dsl>=4.6.2, apache-tvm-ffi<0.2,>=0.1.11, quack-kernels>=0.5.3).
"""

from collections.abc import Iterator

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.frameworks import RELEVANT_DISTRIBUTIONS
from attncheck.doctor.queries import (
    can_import,
    describe_failed_import,
    find_failed_import,
    may_import,
    require_torch,
    requirements,
)
from attncheck.doctor.rules import Absent, Distribution, Known, Problem, Problems, Rule, Snapshot, need, only_if


@only_if(may_import, "flash-attn-4")
@only_if(Snapshot.has, "flash-attn-4")
def check(snapshot: Snapshot) -> Problems:
    flash_attn_4 = need(snapshot.package("flash-attn-4"), "flash-attn-4")
    failure = find_failed_import(snapshot, "flash_attn.cute")
    unmet = list(_unmet_requirements(snapshot, flash_attn_4))
    if failure is None and not unmet:
        require_torch(snapshot)
    if failure is None and (not unmet or can_import(snapshot, "flash_attn.cute")):
        return
    reason = (
        f"it requires {', '.join(unmet)}" if unmet else f"{failure.exception}: {failure.message}" if failure else ""
    )
    yield Problem(
        message=f"flash-attn-4 {flash_attn_4.version} cannot be used: " + reason.partition("\n")[0].rstrip("."),
        subject=f"flash-attn-4 {flash_attn_4.version}",
        evidence=(
            describe_failed_import(failure) if failure else f"Requires-Dist of flash-attn-4 {flash_attn_4.version}",
        ),
        fixes=(install.install_packages(snapshot, f"flash-attn-4=={flash_attn_4.version}", *unmet),),
        predicted=failure is None,
    )


def _unmet_requirements(snapshot: Snapshot, flash_attn_4: Distribution) -> Iterator[str]:
    for requirement in requirements.applicable_requirements(snapshot, flash_attn_4):
        installed = snapshot.version(requirement.name)
        name = requirements.canonical_name(requirement.name)
        is_violated = isinstance(installed, Known) and not requirements.is_version_allowed(
            requirement.specifier, installed.value
        )
        if isinstance(installed, Absent) or (is_violated and name not in RELEVANT_DISTRIBUTIONS):
            yield f"{requirement.name}{requirement.specifier}"


RULE = Rule("ATN127", "error", check, needs=frozenset({"flash"}))
