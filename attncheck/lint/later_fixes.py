"""Adds to a job the fixes of later releases that concern what its launch uses.

The features of a launch (its trainer, liger, FSDP, the model's family, …) are compared with those that a fix's title
and files name. A launch that lacks one of them does not run the changed code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from attncheck.core.facts import Known
from attncheck.core.job import FixedLater, Job
from attncheck.core.launch import Launch, Setting
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.knowledge.later_fixes import LaterFix, list_missing_fixes
from attncheck.lint.clashes import collect_facts, collect_written

MIN_SCORE = 2  # features that a fix and the launch share: fewer say little, unless its trainer is rare
COMMON_TRAINERS = {"sft", "grpo", "ppo"}
# Packages whose code runs only with a feature.
IMPLIED = {"accelerate": "", "peft": "peft", "liger-kernel": "liger", "deepspeed": "deepspeed"}
DEFAULTS = {"verl": "fsdp"}  # what most launches of a framework have, so that sharing it says nothing
SAME_TRAINERS = ({"ppo", "grpo", "rloo"}, {"rm", "reward"})  # one trainer's code serves them all
OFF = {"", "false", "none", "null", "no", "off", "0"}
# Parts of names of settings that most launches have, so that sharing one says nothing.
COMMON = re.compile(
    r"model|data(set)?|train(ing|er)?|size|batch|path|files?|use|num|max|length|output|name|type|per|device|steps|loss|"
    r"learning|rate|with|from|eval|save|logging|gradient|state|config|kernel|tokens|true|false|\w"
)
IN_SETTINGS = {
    "vllm": r"vllm", "sglang": r"sglang", "megatron": r"megatron", "peft": r"lora|peft|adapter", "fp8": r"fp8",
    "quantised": r"4bit|8bit|quant|qlora", "multi_turn": r"multi_?turn|tool|agent", "stream": r"streaming",
    "embedding": r"embedding|reranker|seq_cls", "compile": r"compile",
    "moe": r"moe|router|aux_loss", "pipeline_parallel": r"pipeline", "expert_parallel": r"expert",
    "deepspeed": r"deepspeed",
}  # fmt: skip
PACKS = re.compile(r"packing|padding_free|remove_padding")


def add_later_fixes(job: Job, launch: Launch, snapshot: Snapshot, package: str) -> Job:
    """Return the job with the fixes that its packages lack and that concern it, the most specific first."""
    everything = collect_written(job, launch)
    written = {name: item for name, item in everything.items() if item.value.lower() not in OFF}
    features = set(_iter_features(job, written, snapshot))
    if any(PACKS.search(name) for name in everything):
        features.add("packing")  # code for the other value may be the one that is fixed
    words = {word for name in written for word in re.split(r"[._-]", name.lower()) if not COMMON.fullmatch(word)}
    versions = {package: job.version} if package else {}
    for name, need in IMPLIED.items():
        installed = snapshot.package(name)
        if isinstance(installed, Known) and (not need or need in features):
            versions[name] = installed.value.version
    matching = [
        (score, len(fix.needs), FixedLater(name, version, fix.until, fix.number, fix.title))
        for name, version in versions.items()
        for fix in list_missing_fixes(name, version)
        if (score := _score(fix, job, features, words)) >= MIN_SCORE
    ]
    matching.sort(key=lambda item: (-item[0], -item[1]))  # stable: the newest fix of several first
    return replace(job, fixed_later=tuple(fix for _, _, fix in matching))


def _iter_features(job: Job, written: Mapping[str, Setting], snapshot: Snapshot) -> Iterator[str]:
    """Yield what the launch uses, in the table's words."""
    plan, facts, model = job.plan, collect_facts(job, written), snapshot.model
    text = " ".join((*written, *(setting.value for setting in written.values()))).lower()
    yield from (name for name, pattern in IN_SETTINGS.items() if re.search(pattern, text))
    uses = {
        "liger": plan.liger,
        "fsdp": bool(facts["fsdp"]) or (job.framework == "verl" and "megatron" not in text),
        "deepspeed": bool(facts["zero"]),
        "vllm": job.reinforcement and "sglang" not in text,
        "tensor_parallel": job.tensor_parallel > 1,
        "sequence_parallel": plan.ring_size > 1,
        "packing": plan.packed,
        "compile": plan.compile,
        "checkpointing": plan.gradient_checkpointing,
        "megatron": job.framework == "megatron",
    }
    yield from (name for name, used in uses.items() if used)
    if isinstance(model, Known):
        yield f"model:{model.value.model_type}"
        yield from ("multimodal",) * bool(model.value.towers)
        yield from ("moe",) * ("moe" in model.value.model_type)


def _score(fix: LaterFix, job: Job, features: set[str], words: set[str]) -> int:
    """Return how many features a fix shares with the launch; 0 if the launch lacks one that it needs."""
    same = next((group for group in SAME_TRAINERS if job.trainer in group), {job.trainer})
    if fix.trainers and same.isdisjoint(fix.trainers):
        return 0
    needs = [need for need in fix.needs if need != DEFAULTS.get(job.framework)]
    if not all(_has(need, features) for need in needs):
        return 0
    shared = words & fix.words - {"lora", *fix.needs, *fix.trainers}
    is_rare = bool(fix.trainers) and COMMON_TRAINERS.isdisjoint(fix.trainers)
    return len(needs) + bool(fix.trainers) + is_rare + min(len(shared), 2)


def _has(need: str, features: set[str]) -> bool:
    """Return whether a launch has a feature; a family covers the types that begin with it: qwen3 has qwen3_moe."""
    if not need.startswith("model:"):
        return need in features
    types = [re.sub(r"[_.-]", "", name[6:]) for name in features if name.startswith("model:")]
    families = need[6:].split("|")
    return any(re.match(rf"{family}(?!\d)", name) for name in types for family in families) or any(
        family.isalpha() and name.startswith(family) for name in types for family in families
    )
