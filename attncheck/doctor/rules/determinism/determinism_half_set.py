"""Determinism is only partly requested: one of the two required variables is missing.

What it checks: FLASH_ATTENTION_DETERMINISTIC=1 without CUBLAS_WORKSPACE_CONFIG, or CUBLAS_WORKSPACE_CONFIG at one of
its two deterministic values without FLASH_ATTENTION_DETERMINISTIC, if flash-attn is installed and a GPU is present.
ATN702 and ATN709 report values that mean "off".

Why it matters: flash attention's dq and cuBLAS's matrix products are two separate sources of run-to-run differences,
and fixing one leaves the other. On an H200, flash-attn 2.8.3's dq had 30 different values in 30 repeats without the
first variable, and one with it.

What to do: export both, and call `torch.use_deterministic_algorithms(True)`.

Source: transformers 5.17.0 `trainer_utils.py`, `enable_full_determinism` (sets both);
`modeling_flash_attention_utils.py` (reads the first); NVIDIA cuBLAS, "Results reproducibility".
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.queries import locate_variables, sees_gpu
from attncheck.doctor.rules import Absent, Known, Problem, Problems, Rule, Snapshot

DETERMINISTIC_WORKSPACES = (Known(":4096:8"), Known(":16:8"))


def check(snapshot: Snapshot) -> Problems:
    flash = snapshot.env("FLASH_ATTENTION_DETERMINISTIC")
    cublas = snapshot.env("CUBLAS_WORKSPACE_CONFIG")
    is_half_set = (
        flash == Known("1")
        if isinstance(cublas, Absent)
        else isinstance(flash, Absent) and cublas in DETERMINISTIC_WORKSPACES
    )
    if not is_half_set or not snapshot.has("flash-attn") or not sees_gpu(snapshot):
        return
    missing, value = (
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:8") if isinstance(cublas, Absent) else ("FLASH_ATTENTION_DETERMINISTIC", "1")
    )
    source = "cuBLAS's matrix products" if isinstance(cublas, Absent) else "flash attention's backward"
    yield Problem(
        message=f"determinism is only partly enabled: without {missing}, {source} can still differ from run to run",
        subject=missing,
        evidence=(f"environment: {missing} is not set, although its companion is",),
        fixes=(install.export_variable(missing, value),),
        locations=locate_variables(snapshot, "FLASH_ATTENTION_DETERMINISTIC", "CUBLAS_WORKSPACE_CONFIG"),
    )


RULE = Rule("ATN707", "warning", check)
