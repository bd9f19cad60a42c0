"""TRL's names: which dataclasses a script parses in a release, what was renamed, and how a launch is recognised.

Source: lint/names/trl.json; renames read in the wheels named beside them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from attncheck.core.launch import Launch
from attncheck.lint.fields.names import ParserOptions, build_parser_options, find_minor_release, read_lifetimes
from attncheck.lint.fields.releases import list_releases
from attncheck.lint.names import load_table

# The newest transformers at the time of each release of TRL, for a machine that has none installed.
CONTEMPORARY_TRANSFORMERS: Mapping[str, str] = {
    "0.9": "4.41.2", "0.12": "4.46.3", "0.15": "4.49.0", "0.17": "4.51.3", "0.19": "4.53.3", "0.22": "4.56.2",
    "0.24": "4.57.6", "0.27": "5.1.0", "1.0": "5.5.4", "1.5": "5.10.4", "1.8": "5.14.1", "1.10": "5.16.1",
    "1.12": "5.18.0", "1.14": "5.20.2", "1.15": "5.22.2", "1.16": "5.23.0",
}  # fmt: skip

# Field -> its new names, with the value where that changes; (): gone. A name counts where the release has it.
RENAMES: Mapping[str, tuple[str, ...]] = {
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
SHIPPED_PROCESSES = {"fsdp1": 8, "fsdp2": 8, "multi_gpu": 8, "single_gpu": 1, "zero1": 8, "zero2": 8, "zero3": 8}
TRAINER_CONFIGS = {
    "sft": "SFTConfig", "dpo": "DPOConfig", "grpo": "GRPOConfig", "rloo": "RLOOConfig", "kto": "KTOConfig",
    "reward": "RewardConfig", "distillation": "DistillationConfig", "orpo": "ORPOConfig", "cpo": "CPOConfig",
    "bco": "BCOConfig", "xpo": "XPOConfig", "gkd": "GKDConfig", "nash_md": "NashMDConfig",
    "online_dpo": "OnlineDPOConfig", "ppo": "PPOConfig",
}  # fmt: skip
SCRIPT_TRAINERS = {
    "dpo_online": "online_dpo", "reward_modeling": "reward", "vsft_llava": "sft", "gspo": "grpo", "gspo_vlm": "grpo",
    "mpo_vlm": "dpo",
}  # fmt: skip
COMMON_DATACLASSES = ("ScriptArguments", "ModelConfig", "DatasetMixtureConfig")
OTHER_COMMANDS = frozenset({"chat", "env", "vllm-serve", "vllm_serve"})
OWN_SCRIPT = re.compile(r"\btrl[/.](commands[/.])?scripts[/.]")
FOREIGN_FIELDS = frozenset(
    ["stage", "finetuning_type", "template", "cutoff_len", "base_model", "sequence_len", "micro_batch_size"]
)


@cache
def read_dataclasses(script: str, version: str) -> tuple[str, ...]:
    """Return the dataclasses that a script of TRL parses in a release, () where it has no such script."""
    releases = list_releases("trl")
    position = releases.index(find_minor_release("trl", version))
    for first, last, dataclasses in load_table("trl")["scripts"].get(script, ()):
        if releases.index(first) <= position <= releases.index(last):
            return tuple(dataclasses)
    return ()


@cache
def load_parser_options(trainer: str, version: str, transformers: str) -> ParserOptions:
    """Return the options of a trainer's script, transformers' TrainingArguments first."""
    dataclasses = read_dataclasses(trainer, version) or (
        TRAINER_CONFIGS.get(trainer, "SFTConfig"),
        *COMMON_DATACLASSES,
        f"{trainer}.GRPOScriptArguments",
    )
    return build_parser_options(("transformers", transformers, ("TrainingArguments",)), ("trl", version, dataclasses))


@cache
def read_launcher_options() -> Mapping[str, str]:
    """Return the options of `accelerate launch`, which `trl sft` takes too, and the type of their values."""
    options: dict[str, str] = dict(load_table("trl")["launcher"])
    return {**options, "accelerate_config": "str", "config_file": "str", "config": "str"}


def detect_trainer(launch: Launch) -> str:
    """Return the trainer that a launch starts, by TRL's command, a script's name or a file's keys; "" for none."""
    if not launch.words:
        return _detect_by_keys(launch)
    first = launch.words[0].text.rsplit("/", 1)[-1]
    if first in ("trl", "trl.cli", "trl.cli.main") and len(launch.words) > 1:
        name = launch.words[1].text
        return "" if name in OTHER_COMMANDS or name.startswith("-") else _trainer_of_script(name)
    return _detect_by_script(launch)


def is_own_program(launch: Launch) -> bool:
    """Say whether the program is TRL's own, whose options are all known."""
    if not launch.words:
        return False
    text = launch.words[0].text
    return text.rsplit("/", 1)[-1] in ("trl", "trl.cli") or bool(OWN_SCRIPT.search(text))


def list_entries(launch: Launch) -> tuple[str, ...]:
    """Return what makes the parser of `trl NAME` (0.19.1 scripts/sft.py, cli.py: `make_parser`)."""
    command = launch.words[1].text if is_trl_command(launch) and len(launch.words) > 1 else ""
    return (f"trl.scripts.{command}:make_parser",) if command.isidentifier() else ()


def is_trl_command(launch: Launch) -> bool:
    """Say whether it is `trl NAME`, which takes accelerate's options too."""
    return bool(launch.words) and launch.words[0].text.rsplit("/", 1)[-1] in ("trl", "trl.cli")


def _trainer_of_script(script: str) -> str:
    """Return the trainer of a script by its name: "sft_vlm" is sft's, "dpo_online" online_dpo's."""
    stem = script.replace("-", "_").lower()
    if stem in SCRIPT_TRAINERS:
        return SCRIPT_TRAINERS[stem]
    return next((trainer for trainer in TRAINER_CONFIGS if stem == trainer or stem.startswith(f"{trainer}_")), "")


def _detect_by_script(launch: Launch) -> str:
    text = launch.words[0].text
    trainer_name = _trainer_of_script(re.split(r"[/.]", text.removesuffix(".py"))[-1])
    if not trainer_name or OWN_SCRIPT.search(text):
        return trainer_name
    dataclasses = (TRAINER_CONFIGS[trainer_name], *COMMON_DATACLASSES)
    own_fields = {field for dataclass in dataclasses for field in read_lifetimes("trl", dataclass)}
    option_names = {
        word.text.split("=")[0][2:].replace("-", "_") for word in launch.words if word.text.startswith("--")
    }
    keys = {entry.name.split(".")[0] for entry in launch.entries}
    return trainer_name if (option_names | keys) & own_fields and not (option_names | keys) & FOREIGN_FIELDS else ""


def _detect_by_keys(launch: Launch) -> str:
    keys = {entry.name.split(".")[0].split("[")[0] for entry in launch.entries}
    if keys & FOREIGN_FIELDS or not keys & {"model_name_or_path", "model_init_kwargs"}:
        return ""
    training_fields = keys & set(read_lifetimes("transformers", "TrainingArguments"))
    dataclasses = ("SFTConfig", *COMMON_DATACLASSES)
    own_fields = {field for dataclass in dataclasses for field in read_lifetimes("trl", dataclass)}
    if len((keys - training_fields) & (own_fields - {"model_name_or_path"})) < (1 if training_fields else 2):
        return ""
    if keys & {"num_generations", "reward_funcs", "max_completion_length"}:
        return "grpo"
    return "dpo" if keys & {"beta", "ref_model_init_kwargs", "max_prompt_length"} else "sft"
