"""The installed liger-kernel is a release that is known to be broken.

What it checks: liger-kernel 0.6.3, whose fused linear cross-entropy leaves a variable unset if nothing requires
gradients.

Why it matters: training works until the first evaluation, which computes the loss under torch.no_grad():
"UnboundLocalError: cannot access local variable 'grad_weight' if it is not associated with a value".

What to do: install liger-kernel 0.6.4, which needs nothing newer. Under transformers 5, whose cache has no HybridCache,
0.6.4 cannot be imported (`transformers/model/gemma2.py`): the finding names a release that can.

Source: liger_kernel 0.6.2, 0.6.3 and 0.6.4, ops/fused_linear_cross_entropy.py (`fused_linear_cross_entropy_forward`:
0.6.3 sets `grad_weight` only under `if input_requires_grad:` and reads it later; 0.6.4 has the `else:`);
linkedin/Liger-Kernel#930. The files were read; their kernels need a GPU.
"""

from attncheck.doctor.fixes.install import install_packages
from attncheck.doctor.knowledge.liger import BROKEN_RELEASES, choose_release
from attncheck.doctor.rules import Absent, Known, Problem, Problems, Rule, Snapshot, Version, need


def check(snapshot: Snapshot) -> Problems:
    if isinstance(fact := snapshot.version("liger-kernel"), Absent):
        return
    version = need(fact, "liger-kernel's version")
    transformers = snapshot.version("transformers")
    for broken, (defect, repaired) in BROKEN_RELEASES.items():
        if version == Version(broken):
            if isinstance(transformers, Known) and transformers.value >= Version("5.0"):
                repaired = choose_release(transformers.value)
            yield Problem(
                message=f"liger-kernel {broken} is broken: {defect}",
                evidence=(f"static lane: liger-kernel {version}; {repaired} does not have the bug",),
                fixes=(install_packages(snapshot, f"liger-kernel=={repaired}", options=("--no-deps",)),),
                subject=f"liger-kernel {broken}",
            )


RULE = Rule("ATN352", "warning", check, needs=frozenset({"liger"}))
