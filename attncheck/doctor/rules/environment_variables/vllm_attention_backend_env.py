"""VLLM_ATTENTION_BACKEND has no effect in this vllm.

What it checks: the variable with vllm 0.15 or newer. 0.13 deprecated it, 0.14.1 still reads it, and no file of vllm
since 0.15.0 contains its name.

Why it matters: the rollout engine silently chooses its own backend, so the rollout may not run the backend that the
recipe meant.

What to do: pass the choice to the engine (`attention_backend=` or `--attention-backend`), if it still has that backend:
XFORMERS, for example, was removed. Otherwise unset the variable.

Source: wheels of vllm 0.14.1, 0.15.0, 0.16.0, 0.20.0 and 0.29.0; vllm-project/vllm#26315 (deprecation), #32812
(removal), #50292; vllm-project/vllm@0033bf03 v1/attention/backends/registry.py (the backends).
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.frameworks import VLLM_BACKEND_VARIABLE_OLD
from attncheck.doctor.queries.launch import locate_variables
from attncheck.doctor.rules import Fix, Problem, Problems, Rule, Snapshot, Version, need, value_or

NAME = "VLLM_ATTENTION_BACKEND"
BACKENDS = frozenset(
    {"FLASH_ATTN", "TRITON_ATTN", "FLASHINFER", "FLEX_ATTENTION", "TREE_ATTN", "FLASHINFER_MLA", "TRITON_MLA"}
    | {"CUTLASS_MLA", "FLASHMLA", "FLASH_ATTN_MLA", "ROCM_ATTN", "ROCM_AITER_FA", "ROCM_AITER_MLA", "CPU_ATTN"}
)


def check(snapshot: Snapshot) -> Problems:
    value = value_or(snapshot.env(NAME), "")
    if not value or not snapshot.has("vllm"):
        return
    vllm = need(snapshot.version("vllm"), "vllm's version")
    if vllm < Version(VLLM_BACKEND_VARIABLE_OLD):
        return
    setting = Fix("tell the engine", "setting", f"--attention-backend {value}")
    pass_on = (setting,) if value in BACKENDS else ()
    yield Problem(
        message=f"vllm {vllm} ignores {NAME}={value}",
        subject=NAME,
        evidence=(f"vllm {vllm}",),
        fixes=(*pass_on, install.unset_variable(NAME)),
        locations=locate_variables(snapshot, NAME),
    )


RULE = Rule("ATN554", "warning", check, needs=frozenset({"rl"}))
