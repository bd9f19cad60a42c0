"""Expandable segments conflict with vllm's sleep mode.

What it checks: `expandable_segments:True` in the allocator's settings with vllm older than 0.20.1; with a newer one,
only under the new name PYTORCH_ALLOC_CONF, which vllm's guard does not check and torch before 2.9
does not read. A launch is judged only if it uses sleep mode: by an option of that name, or through verl since 0.2,
which sleeps unless `free_cache_engine` is off. ms-swift since 3.9 turns them off around the engine.

Why it matters: with sleep mode (`--vllm.enable_sleep`, colocated rollout) the engine stops with "Expandable segments
are not compatible with memory pool".

What to do: unset it for the rollout workers and keep it for the trainers.

Source: vllm-project/vllm#14189, #40812; OpenRLHF/OpenRLHF#1011, #1274; huggingface/trl#5794; vllm 0.20.0 and
0.20.1, `device_allocator/cumem.py`; verl 0.2.0 and 0.5.0 `workers/rollout/vllm_rollout/vllm_rollout_spmd.py`
(`enable_sleep_mode`).
"""

import re

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.frameworks import VLLM_TOLERATES_EXPANDABLE
from attncheck.doctor.queries.launch import locate_variables
from attncheck.doctor.rules import Job, Known, Problem, Problems, Rule, Snapshot, Version, need, value_or
from attncheck.doctor.rules.environment_variables.alloc_conf_disagree import NEW_NAME, OLD_NAME

SWIFT_SWITCHES_SINCE = "3.9"  # trainers/rlhf_trainer/utils.py, set_expandable_segments
VLLM_READS_NEW_NAME = "0.11.1"  # the first release with torch 2.9, which reads PYTORCH_ALLOC_CONF
SLEEP_OPTION = re.compile(r"sleep(_level|_mode)?$")
OFF = ("0", "false", "no", "off", "null", "none")


def check(snapshot: Snapshot) -> Problems:
    """Yield a problem if vllm's memory pool would be used with expandable segments."""
    if not snapshot.has("vllm") or (isinstance(snapshot.job, Known) and not _sleeps(snapshot.job.value)):
        return
    enabled_by = [
        name for name in (NEW_NAME, OLD_NAME) if "expandable_segments:true" in value_or(snapshot.env(name), "").lower()
    ]
    if not enabled_by:
        return
    vllm = need(snapshot.version("vllm"), "vllm's version")
    if vllm >= Version(VLLM_TOLERATES_EXPANDABLE) and OLD_NAME in enabled_by:
        return
    if enabled_by == [NEW_NAME] and vllm < Version(VLLM_READS_NEW_NAME):
        return
    yield Problem(
        message=(
            f"{enabled_by[0]} enables expandable segments, but they are incompatible with the sleep mode of vllm {vllm}"
        ),
        subject=enabled_by[0],
        evidence=tuple(f"{name}={value_or(snapshot.env(name), '')}" for name in enabled_by),
        fixes=(install.unset_variable(" ".join(enabled_by), title="unset it for the rollout workers"),),
        predicted=True,
        locations=locate_variables(snapshot, *enabled_by),
    )


def _sleeps(job: Job) -> bool:
    """Return whether a launch puts vllm to sleep between rollouts."""
    values = {setting.name.rpartition(".")[2].lstrip("-+").replace("-", "_"): setting for setting in job.settings}
    if job.framework == "ms-swift" and Version(job.version) >= Version(SWIFT_SWITCHES_SINCE):
        return False
    if job.framework in ("verl", "easyr1"):
        keeps_cache = "free_cache_engine" in values and values["free_cache_engine"].value.lower() in OFF
        return not keeps_cache and not (job.framework == "verl" and f"{job.version}.".startswith("0.1."))
    return any(SLEEP_OPTION.search(name) and item.value.lower() not in OFF for name, item in values.items())


RULE = Rule("ATN556", "warning", check, needs=frozenset({"rl"}))
