"""Expandable segments meet vllm's sleep mode.

What it checks: `expandable_segments:True` in the allocator's settings beside a vllm below 0.20.1, or, with a newer one,
only under the new name PYTORCH_ALLOC_CONF, which vllm's guard does not see. Whether sleep mode is used cannot be seen.

Why it matters: with sleep mode (`--vllm.enable_sleep`, colocated rollout) the engine stops with "Expandable segments
are not compatible with memory pool".

What to do: clear the setting for the rollout workers and keep it for the trainers.

Source: vllm-project/vllm#14189, #40812; OpenRLHF/OpenRLHF#1011, #1274; huggingface/trl#5794; vllm 0.20.0 and
0.20.1, `device_allocator/cumem.py`.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.frameworks import VLLM_TOLERATES_EXPANDABLE
from attncheck.doctor.queries.launch import locate_variables
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot, Version, need, value_or
from attncheck.doctor.rules.environment_variables.alloc_conf_disagree import NEW_NAME, OLD_NAME


def check(snapshot: Snapshot) -> Problems:
    """Yield a problem where vllm's memory pool would meet expandable segments."""
    if not snapshot.has("vllm"):
        return
    enabled_by = [
        name for name in (NEW_NAME, OLD_NAME) if "expandable_segments:true" in value_or(snapshot.env(name), "").lower()
    ]
    if not enabled_by:
        return
    vllm = need(snapshot.version("vllm"), "vllm's version")
    if vllm >= Version(VLLM_TOLERATES_EXPANDABLE) and OLD_NAME in enabled_by:
        return
    yield Problem(
        message=f"{enabled_by[0]} turns expandable segments on, and sleep mode of vllm {vllm} does not work with them",
        subject=enabled_by[0],
        evidence=tuple(f"{name}={value_or(snapshot.env(name), '')}" for name in enabled_by),
        fixes=(install.unset_variable(" ".join(enabled_by), title="unset it for the rollout workers"),),
        predicted=True,
        locations=locate_variables(snapshot, *enabled_by),
    )


RULE = Rule("ATN556", "warning", check, needs=frozenset({"rl"}))
