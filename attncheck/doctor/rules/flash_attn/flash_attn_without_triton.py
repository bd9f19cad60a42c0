"""flash-attn's cross entropy needs triton, which is not installed.

What it checks: openrlhf or verl with flash-attn on a machine with a GPU, and no triton. A failed import of triton is
ATN171. With VERL_DISABLE_FLASH_ATTN_CE=1 verl does not use it. If liger-kernel is installed, ATN152 reports this
instead.

Why it matters: `flash_attn.ops.triton.cross_entropy` computes the log-probabilities; without triton its import fails,
and the frameworks use a slower path that needs several times the memory, or stop.

What to do: install the triton version that torch requires.

Source: flash-attn 2.8.3, `flash_attn/ops/triton/cross_entropy.py` (`import triton`); verl 0.9.1,
`utils/torch_functional.py` lines 88-95; openrlhf 0.11.2, `models/utils.py` line 180.
"""

from attncheck.doctor.fixes import TRITON_DISTRIBUTIONS, install, required_triton
from attncheck.doctor.queries import (
    can_import,
    describe_failed_import,
    find_failed_import,
    hidden_by,
    need_torch,
    sees_gpu,
)
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    if not snapshot.has("flash-attn") or not snapshot.has("openrlhf", "verl") or can_import(snapshot, "triton"):
        return
    if not sees_gpu(snapshot):
        return
    need_torch(snapshot)  # torch provides triton
    if not snapshot.has("openrlhf") and snapshot.env("VERL_DISABLE_FLASH_ATTN_CE") == Known("1"):
        return
    if not snapshot.has("openrlhf"):
        snapshot.sets("VERL_DISABLE_FLASH_ATTN_CE")  # if it is unknown, the rule is skipped
    outcome = find_failed_import(snapshot, "triton")
    if snapshot.has(*TRITON_DISTRIBUTIONS):
        if outcome is not None:
            raise hidden_by("triton")
        return
    if outcome is None and snapshot.has("liger-kernel") and not can_import(snapshot, "liger_kernel.transformers"):
        raise hidden_by("triton")
    static = f"static lane: none of {', '.join(TRITON_DISTRIBUTIONS[:3])} is installed"
    yield Problem(
        message="flash-attn's cross entropy needs triton, which "
        + ("cannot be imported" if outcome else "is not installed"),
        subject="triton",
        evidence=(describe_failed_import(outcome) if outcome else static,),
        fixes=(install.install_packages(snapshot, required_triton(snapshot) or "triton", options=("--no-deps",)),),
    )


RULE = Rule("ATN121", "warning", check, needs=frozenset({"rl"}))
