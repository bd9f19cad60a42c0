"""TRL's names: which dataclasses a script parses in a release, what was renamed, and how a launch is recognised.

Source: knowledge/names/trl.json; renames read in the wheels named beside them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from attncheck.core.launch import Launch
from attncheck.lint.fields.names import Names, at, lifetimes, names
from attncheck.lint.fields.releases import versions
from attncheck.lint.names import table

# What each release of TRL met in its days, where no transformers is installed: the newest by then.
CONTEMPORARY: Mapping[str, str] = {
    "0.9": "4.41.2", "0.12": "4.46.3", "0.15": "4.49.0", "0.17": "4.51.3", "0.19": "4.53.3", "0.22": "4.56.2",
    "0.24": "4.57.6", "0.27": "5.1.0", "1.0": "5.5.4", "1.5": "5.10.4", "1.8": "5.14.1", "1.10": "5.16.1",
    "1.12": "5.18.0", "1.14": "5.20.2", "1.15": "5.22.2", "1.16": "5.23.0",
}  # fmt: skip

# Field -> what it is called now, with its value where that changes; (): gone. A name counts where the release has it.
RENAMED: Mapping[str, tuple[str, ...]] = {
    "max_seq_length": ("max_length",),  # deprecated in 0.16, gone in 0.20 (0.19.1 trainer/sft_config.py:223)
    "torch_dtype": ("dtype",),  # both from 0.23 to 0.26, gone in 0.27 (0.26.2 trainer/model_config.py)
    "dtype": ("torch_dtype",),
    "evaluation_strategy": ("eval_strategy",),  # transformers 4.46.3 training_args.py; gone in 4.51
    "use_liger": ("use_liger_kernel",),  # 0.17.0 trainer/sft_config.py
    "use_liger_loss": ("use_liger_kernel",),  # 0.27.2 trainer/grpo_config.py, dpo_config.py
    "no_cuda": ("use_cpu",),  # transformers 4.57.6
    "group_by_length": ("train_sampling_strategy=group_by_length",),  # transformers 5.1.0, 5.2.0 training_args.py
    "warmup_ratio": ("warmup_steps",),  # a share below 1 since transformers 5.0.0, gone in 5.15 (training_args.py)
    "use_num_logits_to_keep": ("use_logits_to_keep",),  # 0.15.2 trainer/dpo_config.py
    "max_target_length": ("max_completion_length",),  # 0.13.0 trainer/dpo_config.py
    "wandb_log_unique_prompts": ("log_unique_prompts",),  # 0.26.2 trainer/grpo_config.py
    "vllm_guided_decoding_regex": ("vllm_structured_outputs_regex",),  # 0.27.2, 0.28.0 trainer/grpo_config.py
    "vllm_max_model_len": ("vllm_max_model_length",),  # 0.17.0 trainer/grpo_config.py
    "lora_modules": ("lora_target_modules",),
    "gradient_checkpointing_use_reentrant": (),  # gone in 0.27: gradient_checkpointing_kwargs
}
# accelerate_configs/*.yaml of 1.16.0: how many processes each starts; single_gpu's 8 count for nothing (type "NO").
SHIPPED = {"fsdp1": 8, "fsdp2": 8, "multi_gpu": 8, "single_gpu": 1, "zero1": 8, "zero2": 8, "zero3": 8}
FAMILIES = {"sft": "SFTConfig", "dpo": "DPOConfig", "grpo": "GRPOConfig", "rloo": "RLOOConfig", "kto": "KTOConfig",
            "reward": "RewardConfig", "distillation": "DistillationConfig", "orpo": "ORPOConfig", "cpo": "CPOConfig",
            "bco": "BCOConfig", "xpo": "XPOConfig", "gkd": "GKDConfig", "nash_md": "NashMDConfig",
            "online_dpo": "OnlineDPOConfig", "ppo": "PPOConfig"}  # fmt: skip
VARIANTS = {"dpo_online": "online_dpo", "reward_modeling": "reward", "vsft_llava": "sft", "gspo": "grpo",
            "gspo_vlm": "grpo", "mpo_vlm": "dpo"}  # fmt: skip
COMMON = ("ScriptArguments", "ModelConfig", "DatasetMixtureConfig")
NOT_TRAINING = frozenset({"chat", "env", "vllm-serve", "vllm_serve"})
OWN_SCRIPT = re.compile(r"\btrl[/.](commands[/.])?scripts[/.]")
OTHERS = frozenset(
    ["stage", "finetuning_type", "template", "cutoff_len", "base_model", "sequence_len", "micro_batch_size"]
)


@cache
def classes(script: str, version: str) -> tuple[str, ...]:
    """Return the dataclasses that a script of TRL parses in a release, () where it has no such script."""
    listed = versions("trl")
    read = listed.index(at("trl", version))
    for first, last, found in table("trl")["scripts"].get(script, ()):
        if listed.index(first) <= read <= listed.index(last):
            return tuple(found)
    return ()


@cache
def parser(trainer: str, version: str, transformers: str) -> Names:
    """Return the options of a trainer's script, transformers' TrainingArguments first."""
    own = classes(trainer, version) or (FAMILIES.get(trainer, "SFTConfig"), *COMMON, f"{trainer}.GRPOScriptArguments")
    return names(("transformers", transformers, ("TrainingArguments",)), ("trl", version, own))


@cache
def launcher() -> Mapping[str, str]:
    """Return the options of `accelerate launch`, which `trl sft` takes too, and what they take."""
    found: dict[str, str] = dict(table("trl")["launcher"])
    return {**found, "accelerate_config": "str", "config_file": "str", "config": "str"}


def trainer(launch: Launch) -> str:
    """Return the trainer that a launch starts: of TRL's command, of a script's name, of a file's keys."""
    if not launch.words:
        return _of_keys(launch)
    first = launch.words[0].text.rsplit("/", 1)[-1]
    if first in ("trl", "trl.cli", "trl.cli.main") and len(launch.words) > 1:
        name = launch.words[1].text
        return "" if name in NOT_TRAINING or name.startswith("-") else _family(name)
    return _of_script(launch)


def strict(launch: Launch) -> bool:
    """Say whether the program is TRL's own, whose options are all known."""
    if not launch.words:
        return False
    text = launch.words[0].text
    return text.rsplit("/", 1)[-1] in ("trl", "trl.cli") or bool(OWN_SCRIPT.search(text))


def command(launch: Launch) -> bool:
    """Say whether it is `trl NAME`, which takes accelerate's options too."""
    return bool(launch.words) and launch.words[0].text.rsplit("/", 1)[-1] in ("trl", "trl.cli")


def _family(name: str) -> str:
    """Return the trainer of a script called `name`: "sft_vlm" is sft's, "dpo_online" online_dpo's."""
    stem = name.replace("-", "_").lower()
    if stem in VARIANTS:
        return VARIANTS[stem]
    return next((one for one in FAMILIES if stem == one or stem.startswith(f"{one}_")), "")


def _of_script(launch: Launch) -> str:
    text = launch.words[0].text
    found = _family(re.split(r"[/.]", text.removesuffix(".py"))[-1])
    if not found or OWN_SCRIPT.search(text):
        return found
    own = {name for each in (FAMILIES[found], *COMMON) for name in lifetimes("trl", each)}
    said = {word.text.split("=")[0][2:].replace("-", "_") for word in launch.words if word.text.startswith("--")}
    keys = {entry.name.split(".")[0] for entry in launch.entries}
    return found if (said | keys) & own and not (said | keys) & OTHERS else ""


def _of_keys(launch: Launch) -> str:
    keys = {entry.name.split(".")[0].split("[")[0] for entry in launch.entries}
    if keys & OTHERS or not keys & {"model_name_or_path", "model_init_kwargs"}:
        return ""
    training = keys & set(lifetimes("transformers", "TrainingArguments"))
    own = {name for each in COMMON for name in lifetimes("trl", each)} | set(lifetimes("trl", "SFTConfig"))
    if len((keys - training) & (own - {"model_name_or_path"})) < (1 if training else 2):
        return ""
    if keys & {"num_generations", "reward_funcs", "max_completion_length"}:
        return "grpo"
    return "dpo" if keys & {"beta", "ref_model_init_kwargs", "max_prompt_length"} else "sft"
