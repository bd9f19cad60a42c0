"""This beta of flash-attn-4 is known to silently compute wrong results.

What it checks: flash-attn-4's version, on consumer Blackwell (sm_120) up to 4.0.0b12, and for head size 256 up to
4.0.0b11. This is a prediction from bug reports and fixes; nothing was run here.

Why it matters: the forward pass was wrong on sm_120, and gradients for head size 256 were wrong for batches of two or
more, without an error.

What to do: install a newer release, and let `attncheck parity` measure it; or use flash_attention_2.

Source: Dao-AILab/flash-attention PR#2553, #2234; NVIDIA/TransformerEngine#3216. attncheck's own measurements used
4.0.0b36.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.gpus import FLASH_ATTN_4_VERSION
from attncheck.doctor.queries import gpus, may_import
from attncheck.doctor.rules import Absent, Known, Problem, Problems, Rule, Snapshot, Version, need, only_if

LAST_WRONG_ON_SM_120 = Version("4.0.0b12")
LAST_WRONG_HEAD_SIZE_256 = Version("4.0.0b11")


@only_if(may_import, "flash-attn-4")
def check(snapshot: Snapshot) -> Problems:
    if isinstance(fact := snapshot.version("flash-attn-4"), Absent):
        return
    version = need(fact, "flash-attn-4's version")
    capabilities = {capability for _, capability in gpus.known_capabilities(gpus.visible_gpus(snapshot))}
    reports = []
    if version <= LAST_WRONG_ON_SM_120 and any(capability[0] == 12 for capability in capabilities):
        reports.append("forward is wrong on sm_120")
    has_head_size = isinstance(snapshot.model, Known) and 256 in snapshot.model.value.head_dims
    if version <= LAST_WRONG_HEAD_SIZE_256 and has_head_size:
        reports.append("gradients for head size 256 are wrong for batches of two or more")
    if reports:
        other = "flash_attention_2" if snapshot.lists("flash-attn") else "sdpa"
        requirement = f"flash-attn-4=={FLASH_ATTN_4_VERSION}"
        yield Problem(
            message=f"flash-attn-4 {version} is reported to compute wrong results: {' and '.join(reports)}",
            subject=f"flash-attn-4 {version}",
            evidence=("reported upstream and fixed in later betas",),
            fixes=(
                install.install_packages(snapshot, requirement, title=f"install {requirement} (not run here)"),
                install.set_attn_implementation(snapshot, other),
            ),
            predicted=True,
        )


RULE = Rule("ATN175", "error", check, needs=frozenset({"flash"}))
