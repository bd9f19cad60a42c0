"""NCCL_CUMEM_ENABLE=0 breaks the weight synchronisation with this vllm.

What it checks: OpenRLHF with NCCL_CUMEM_ENABLE=0, vllm 0.16 or newer and NCCL 2.27 or newer. verl is not judged,
because it sets the variable to 0 itself for its rollout workers.

Why it matters: the group between trainer and rollout engine fails with "unhandled cuda error" in ncclCommInitRank.
Older vllm needed the variable, so recipes still export it.

What to do: unset it; OpenRLHF sets it itself for the vllm that needs it.

Source: openrlhf 0.11.2, `openrlhf/trainer/ray/ppo_actor.py` lines 502-509; NVIDIA-NeMo/RL#2252;
verl 0.9.1, `plugin/platform/platform_cuda.py` (rollout_env_vars).
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.frameworks import NCCL_NEEDS_CUMEM, VLLM_NEEDS_CUMEM
from attncheck.doctor.queries.launch import locate_variables
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot, Version, need, value_or
from attncheck.doctor.rules.environment_variables.nccl_not_the_wheels import NCCL_WHEELS


def check(snapshot: Snapshot) -> Problems:
    if value_or(snapshot.env("NCCL_CUMEM_ENABLE"), "") != "0" or not snapshot.has("vllm"):
        return
    if not snapshot.has("openrlhf"):
        return
    vllm = need(snapshot.version("vllm"), "vllm's version")
    nccl = _nccl_version(snapshot)
    if vllm < Version(VLLM_NEEDS_CUMEM) or (nccl is not None and nccl < Version(NCCL_NEEDS_CUMEM)):
        return
    yield Problem(
        message=f"NCCL_CUMEM_ENABLE=0 breaks the weight synchronisation with vllm {vllm}",
        subject="NCCL_CUMEM_ENABLE",
        evidence=(f"vllm {vllm}", f"NCCL {nccl}" if nccl is not None else "NCCL's version is not known"),
        fixes=(install.unset_variable("NCCL_CUMEM_ENABLE"),),
        predicted=nccl is None,
        locations=locate_variables(snapshot, "NCCL_CUMEM_ENABLE"),
    )


def _nccl_version(snapshot: Snapshot) -> Version | None:
    if isinstance(snapshot.torch, Known) and isinstance(snapshot.torch.value.nccl, Known):
        return Version(snapshot.torch.value.nccl.value)
    return next((fact.value for name in NCCL_WHEELS if isinstance(fact := snapshot.version(name), Known)), None)


RULE = Rule("ATN551", "error", check, needs=frozenset({"rl"}))
