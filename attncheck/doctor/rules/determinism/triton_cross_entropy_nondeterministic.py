"""verl computes log-probabilities with a Triton kernel that the determinism flags do not affect.

What it checks: verl with flash-attn and triton, determinism requested, and VERL_DISABLE_FLASH_ATTN_CE not 1. verl
then uses flash-attn's Triton cross-entropy. verl sets the variable itself only if the engine's `full_determinism` is
on.

Why it matters: verl's own comment says that the kernel's reduction may be nondeterministic, and neither
FLASH_ATTENTION_DETERMINISTIC nor torch's deterministic mode affects it. attncheck has not measured it; OpenRLHF
0.11.2 uses the same kernel for float32 logits and has no switch.

What to do: set the variable, and pass it to the Ray workers, because verl does not do so itself (ATN703).

Source: verl 0.9.1, `utils/torch_functional.py` and `workers/engine/utils.py`; openrlhf 0.11.2, `models/utils.py`;
verl-project/verl#6572.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge import determinism
from attncheck.doctor.queries.launch import locate_variables
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot, need

SWITCH = "VERL_DISABLE_FLASH_ATTN_CE"
KERNEL = "flash_attn.ops.triton.cross_entropy:cross_entropy_loss"
TRITON_DISTRIBUTIONS = ("triton", "pytorch-triton", "triton-rocm", "pytorch-triton-rocm")


def check(snapshot: Snapshot) -> Problems:
    settings = determinism.determinism_settings(snapshot)
    if not snapshot.has("verl") or not settings or snapshot.environ.get(SWITCH) == "1" or not _has_kernel(snapshot):
        return
    snapshot.sets(SWITCH)  # if it is unknown, the rule is skipped
    verl = need(snapshot.package("verl"), "verl").version
    yield Problem(
        message=(
            f"verl {verl} computes log-probabilities with flash-attn's Triton cross-entropy, which "
            "FLASH_ATTENTION_DETERMINISTIC does not affect"
        ),
        subject=f"verl {verl}",
        evidence=(*settings, f"{SWITCH}={snapshot.environ.get(SWITCH, '(not set)')}"),
        fixes=(install.export_variable(SWITCH, "1"),),
        predicted=True,
        locations=locate_variables(snapshot, *determinism.DETERMINISM_VARIABLES),
    )


def _has_kernel(snapshot: Snapshot) -> bool:
    """Return whether the kernel can be imported here; the import lane's answer takes precedence over the static one."""
    if isinstance(snapshot.interfaces, Known) and KERNEL in snapshot.interfaces.value.symbols:
        return snapshot.interfaces.value.symbols[KERNEL]
    return snapshot.has("flash-attn") and snapshot.has(*TRITON_DISTRIBUTIONS)


RULE = Rule("ATN705", "warning", check, needs=frozenset({"rl"}))
