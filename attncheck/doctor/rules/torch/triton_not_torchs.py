"""The installed triton is not the version that torch requires.

What it checks: triton's version against torch's own Requires-Dist.

Why it matters: torch.compile, flex_attention, liger-kernel and flash-attn's cross entropy are compiled by triton.
With a different version they raise ImportError or AttributeError from inside torch, or compile to different code.

What to do: install the triton version that torch requires.

Source: METADATA of the installed torch (each release names one triton exactly: torch 2.11.0 names 3.6.0).
"""

from attncheck.doctor.fixes import TRITON_DISTRIBUTIONS, install, required_triton
from attncheck.doctor.queries import need_torch, requirements
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    torch = snapshot.package("torch")
    if not isinstance(torch, Known):
        if snapshot.has(*TRITON_DISTRIBUTIONS):
            need_torch(snapshot)
        return
    for requirement in requirements.applicable_requirements(snapshot, torch.value, *TRITON_DISTRIBUTIONS):
        installed = snapshot.version(requirement.name)
        if isinstance(installed, Known) and not requirements.is_version_allowed(requirement.specifier, installed.value):
            yield Problem(
                message=(
                    f"{requirement.name} {installed.value} is not the version for torch "
                    f"{torch.value.version}, which is {requirement.specifier}"
                ),
                subject=f"{requirement.name} {installed.value}",
                evidence=(f"Requires-Dist of torch: {requirement.name}{requirement.specifier}",),
                fixes=(install.install_packages(snapshot, required_triton(snapshot), options=("--no-deps",)),),
            )


RULE = Rule("ATN122", "warning", check)
