"""A plain install of the pinned flash-attn would download a wheel for the wrong CUDA.

What it checks: a torch with CUDA 13 whose flash-attn is missing or broken, and a package that pins flash-attn 2.8.1 to
2.8.3. Their setup.py treats every CUDA version except 11 as "cu12". It is reported if a cu12 wheel is published for
this torch.

Why it matters: `pip install flash-attn==2.8.3` downloads the cu12 wheel in seconds and reports success; the import
then fails because libcudart.so.12 is missing.

What to do: install the cu13 wheel by its URL, or build with FLASH_ATTENTION_FORCE_BUILD=TRUE; the finding has the
command.

Source: `get_wheel_url` in setup.py of flash-attn 2.8.3 against 2.8.3.post1;
attncheck/doctor/knowledge/flash_attn_wheels.py; openrlhf 0.11.2 METADATA (`flash-attn==2.8.3`).
"""

from attncheck.doctor.fixes.flash_attn import choose_source_version, flash_attn_fixes, required_wheel_tags
from attncheck.doctor.knowledge.flash_attn_build import CU12_WHEEL_ONLY
from attncheck.doctor.knowledge.flash_attn_wheels import matching_wheels
from attncheck.doctor.queries import flash_attn_works, requirements, torch_works
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    tags = required_wheel_tags(snapshot)
    if tags is None or tags.cuda != 13 or flash_attn_works(snapshot) or not torch_works(snapshot):
        return
    version = choose_source_version(snapshot)
    cuda_12_wheels = [wheel for wheel in matching_wheels(tags._replace(cuda=12)) if wheel.version == version]
    if version not in CU12_WHEEL_ONLY or not cuda_12_wheels:
        return
    owners = ", ".join(
        f"{owner.name} {owner.version}" for owner, _ in requirements.version_constraints(snapshot, "flash-attn")
    )
    yield Problem(
        message=f"`pip install flash-attn=={version}` would install a CUDA 12 wheel next to this CUDA 13 torch",
        subject=f"flash-attn {version}",
        evidence=(
            f"{owners} pins flash-attn to {version}",
            f"its setup.py downloads {cuda_12_wheels[0].url.rpartition('/')[2]}",
        ),
        fixes=flash_attn_fixes(snapshot),
    )


RULE = Rule("ATN112", "warning", check, needs=frozenset({"flash"}))
