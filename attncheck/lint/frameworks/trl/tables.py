"""TRL's names: the dataclasses that each script parses in a release, renames, and the detection of its launches.

Source: lint/names/trl.json; renames were read in the wheels named next to them.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import PurePosixPath

from attncheck.lint.fields import (
    Launch,
    ParserOptions,
    build_parser_options,
    find_minor_release,
    is_at_least,
    list_releases,
    read_lifetimes,
    training_arguments,
)
from attncheck.lint.files.python import read_settings_class
from attncheck.lint.names import load_table
from attncheck.lint.programs.paths import lacks_word, may_contain
from attncheck.lint.programs.places import find_main, find_tree

# The newest transformers at the time of each release of TRL, used if none is installed.
CONTEMPORARY_TRANSFORMERS: Mapping[str, str] = {
    "0.9": "4.41.2", "0.12": "4.46.3", "0.15": "4.49.0", "0.17": "4.51.3", "0.19": "4.53.3", "0.22": "4.56.2",
    "0.24": "4.57.6", "0.27": "5.1.0", "1.0": "5.5.4", "1.5": "5.10.4", "1.8": "5.14.1", "1.10": "5.16.1",
    "1.12": "5.18.0", "1.14": "5.20.2", "1.15": "5.22.2", "1.16": "5.23.0",
}  # fmt: skip

# Field -> its new names, with the value if that changes; (): removed. A name counts if the release has it.
RENAMES: Mapping[str, tuple[str, ...]] = {
    **training_arguments.RENAMES,
    "max_seq_length": ("max_length",),  # deprecated in 0.16, removed in 0.20 (0.19.1 trainer/sft_config.py:223)
    "torch_dtype": ("dtype",),  # both from 0.23 to 0.26, removed in 0.27 (0.26.2 trainer/model_config.py)
    "dtype": ("torch_dtype",),
    "use_liger": ("use_liger_kernel",),  # 0.17.0 trainer/sft_config.py
    "use_liger_loss": ("use_liger_kernel",),  # 0.27.2 trainer/grpo_config.py, dpo_config.py
    "use_num_logits_to_keep": ("use_logits_to_keep",),  # 0.15.2 trainer/dpo_config.py
    "max_target_length": ("max_completion_length",),  # 0.13.0 trainer/dpo_config.py
    "wandb_log_unique_prompts": ("log_unique_prompts",),  # 0.26.2 trainer/grpo_config.py
    "vllm_guided_decoding_regex": ("vllm_structured_outputs_regex",),  # 0.27.2, 0.28.0 trainer/grpo_config.py
    "vllm_max_model_len": ("vllm_max_model_length",),  # 0.17.0 trainer/grpo_config.py
    "lora_modules": ("lora_target_modules",),
    "gpu_memory_utilization": ("vllm_gpu_memory_utilization",),  # 0.24.0, 0.25.1 online_dpo_config.py
    # RLOO's own names up to 0.21, refused since 0.25 (0.23.1 trainer/rloo_config.py:514-591)
    "rloo_k": ("num_generations",),
    "cliprange": ("epsilon",),
    "kl_coef": ("beta",),
    "normalize_advantage": ("normalize_advantages",),
    "normalize_reward": ("normalize_advantages",),
    "num_ppo_epochs": ("num_iterations",),
    "num_mini_batches": ("steps_per_generation",),
    "response_length": ("max_completion_length",),
    "exp_name": ("run_name",),
    "student_model_revision": ("model_revision",),  # 0.29.1, 1.0.0 experimental/gold
    "gradient_checkpointing_use_reentrant": (),  # removed in 0.27: gradient_checkpointing_kwargs
}
# accelerate_configs/*.yaml of 1.16.0: the number of processes that each starts. The 8 of single_gpu has no effect (type
# "NO").
SHIPPED_PROCESSES = {"fsdp1": 8, "fsdp2": 8, "multi_gpu": 8, "single_gpu": 1, "zero1": 8, "zero2": 8, "zero3": 8}
TRAINER_CONFIGS = {
    "sft": "SFTConfig", "dpo": "DPOConfig", "grpo": "GRPOConfig", "rloo": "RLOOConfig", "kto": "KTOConfig",
    "reward": "RewardConfig", "distillation": "DistillationConfig", "orpo": "ORPOConfig", "cpo": "CPOConfig",
    "bco": "BCOConfig", "xpo": "XPOConfig", "gkd": "GKDConfig", "nash_md": "NashMDConfig",
    "online_dpo": "OnlineDPOConfig", "ppo": "PPOConfig", "prm": "PRMConfig", "gold": "GOLDConfig",
}  # fmt: skip
TRAINERS_BY_CONFIG = {f"trl.{config}": trainer for trainer, config in TRAINER_CONFIGS.items()}
SCRIPT_TRAINERS = {
    "dpo_online": "online_dpo", "reward_modeling": "reward", "vsft_llava": "sft", "gspo": "grpo", "gspo_vlm": "grpo",
    "mpo_vlm": "dpo",
}  # fmt: skip
SHORT_NAMES = {"rm": "reward", "nash": "nash_md", "nashmd": "nash_md", "onlinedpo": "online_dpo"}
# Fields of the common dataclasses and of several trainers that scripts of other libraries have too.
SHARED_FIELDS = frozenset(
    {
        *("model_name_or_path", "model_revision", "attn_implementation", "torch_dtype", "dtype", "trust_remote_code"),
        *(
            "dataset_name",
            "dataset_config",
            "max_length",
            "max_seq_length",
            "dataset_num_proc",
            "learning_rate",
            "bf16",
        ),
        *("logging_steps", "gradient_checkpointing", "use_liger_kernel", "torch_empty_cache_steps", "temperature"),
        *(
            "load_in_8bit",
            "load_in_4bit",
            "lora_r",
            "lora_alpha",
            "lora_dropout",
            "use_peft",
            "top_p",
            "top_k",
            "use_liger",
        ),
        *("lr_scheduler_kwargs", "remove_unused_columns", "run_name", "push_to_hub", "seed", "batch_size"),
    }
)
# Names of options that training loops without TRL have too, as they have any of one word ("beta").
COMMON_NAMES = frozenset(
    {
        *("max_new_tokens", "max_prompt_length", "max_target_length", "response_length", "num_generations", "min_p"),
        *("num_iterations", "num_updates", "mini_batch_size", "global_batch_size", "ppo_epochs", "num_ppo_epochs"),
        *("num_mini_batches", "init_kl_coef", "kl_coef", "kl_penalty", "target_kl", "vf_coef", "entropy_coef"),
        *("cliprange_value", "label_smoothing", "loss_type", "loss_weights", "repetition_penalty", "total_episodes"),
        *("generation_kwargs", "model_name", "sft_model_path", "reward_model", "reward_model_path", "reward_weights"),
        *("eos_token", "pad_token", "early_stopping", "world_size", "task_name", "exp_name", "log_with", "top_p"),
        *("wandb_project", "wandb_entity", "wandb_run_group", "top_k", "lora_r", "lora_alpha", "lora_dropout"),
        *("batch_size", "dataset_name", "run_name", "learning_rate", "max_length", "disable_dropout"),
    }
)
GENERATION_FIELDS = frozenset({"num_generations", "reward_funcs"})  # fields of GRPO and the trainers derived from it
GROUP_FIELDS = frozenset(  # with num_generations, these identify GRPO in a script of any name
    {
        *("reward_funcs", "max_completion_length", "max_prompt_length", "num_iterations", "use_vllm", "reward_weights"),
        *("scale_rewards", "vllm_mode", "generation_batch_size", "steps_per_generation", "epsilon_high"),
    }
)
UNIQUE_FIELDS: Mapping[str, frozenset[str]] = {  # fields that only one trainer's configuration has, in all releases
    "dpo": frozenset({"rpo_alpha", "f_divergence_type", "reference_free", "discopop_tau", "use_weighting"}),
    "kto": frozenset({"desirable_weight", "undesirable_weight"}),
    "cpo": frozenset({"cpo_alpha", "simpo_gamma"}),
    "reward": frozenset({"center_rewards_coefficient"}),
    "prm": frozenset({"step_separator", "train_on_last_step_only"}),
    "nash_md": frozenset({"mixture_coef"}),
    "rloo": frozenset({"rloo_k"}),
    "ppo": frozenset({"kl_estimator", "adap_kl_ctrl"}),
}
COMMON_DATACLASSES = ("ScriptArguments", "ModelConfig", "DatasetMixtureConfig")
OTHER_COMMANDS = frozenset({"chat", "env", "vllm-serve", "vllm_serve"})
TRAINING_ARGUMENTS = ("transformers", "TrainingArguments")
OWN_SCRIPT = re.compile(r"\btrl[/.](commands[/.])?scripts[/.]")
FOREIGN_FIELDS = frozenset(
    ["stage", "finetuning_type", "template", "cutoff_len", "base_model", "sequence_len", "micro_batch_size"]
)


@cache
def read_dataclasses(script: str, version: str) -> tuple[str, ...]:
    """Return the dataclasses that a script of TRL parses in a release; () if it has no such script."""
    releases = list_releases("trl")
    position = releases.index(find_minor_release("trl", version))
    for first, last, dataclasses in load_table("trl")["scripts"].get(script, ()):
        if releases.index(first) <= position <= releases.index(last):
            return tuple(dataclasses)
    return ()


@cache
def load_parser_options(trainer: str, version: str, transformers: str) -> ParserOptions:
    """Return the options of a trainer's script, transformers' TrainingArguments first."""
    base = ("transformers", transformers, ("TrainingArguments",))
    dataclasses = read_dataclasses(trainer, version)
    if dataclasses:
        return build_parser_options(base, ("trl", version, dataclasses))
    config = TRAINER_CONFIGS.get(trainer, "SFTConfig")
    others = (*COMMON_DATACLASSES, f"{trainer}.GRPOScriptArguments")
    return build_parser_options(
        base, ("trl", find_config_release(trainer, version), (config,)), ("trl", version, others)
    )


@cache
def find_config_release(trainer: str, version: str) -> str:
    """Return the release from which a trainer's configuration is read: the nearest that has it, in any module."""
    releases = list_releases("trl")
    rows = read_lifetimes("trl", TRAINER_CONFIGS.get(trainer, "SFTConfig")).values()
    spans = [(releases.index(first), releases.index(last)) for row in rows for first, last, _ in row]
    position = releases.index(find_minor_release("trl", version))
    first, last = min(first for first, _ in spans), max(last for _, last in spans)
    return version if first <= position <= last else releases[first if position < first else last]


def has_command(name: str, version: str) -> bool:
    """Return whether `trl NAME` is a command of a release: each script since 0.13, before only a few."""
    if not is_at_least(version, "0.13"):  # 0.9.6 and 0.12.2 commands/cli.py, SUPPORTED_COMMANDS
        return name in ("sft", "dpo") or (name == "kto" and is_at_least(version, "0.12"))
    return bool(read_dataclasses(name, version))


@cache
def read_launcher_options() -> Mapping[str, str]:
    """Return the options of `accelerate launch`, which `trl sft` accepts too, and the types of their values."""
    options: dict[str, str] = dict(load_table("trl")["launcher"])
    return {**options, "accelerate_config": "str", "config_file": "str", "config": "str"}


def detect_trainer(launch: Launch) -> str:
    """Return the trainer that a launch starts, by TRL's command, a script's name or a file's keys; "" for none."""
    settings_class = read_settings_class(launch.file)
    if settings_class:
        return TRAINERS_BY_CONFIG.get(settings_class, "")
    if not launch.words:
        return _detect_by_keys(launch)
    if launch.words[0].text.rsplit("/", 1)[-1] in ("trl", "trl.cli", "trl.cli.main") and len(launch.words) > 1:
        name = launch.words[1].text
        return "" if name in OTHER_COMMANDS or name.startswith("-") else _trainer_of_script(name)
    return _detect_by_script(launch) if launch.trainers is None else _choose_used_trainer(launch, launch.trainers)


def _choose_used_trainer(launch: Launch, names: Sequence[str]) -> str:
    """Return the TRL trainer that a program uses; if there are several, the one that its name or an option names."""
    classes = [name.rpartition(".")[2] for name in names if name.startswith(("trl.", "unsloth."))]
    by_class = {config.removesuffix("Config"): trainer for trainer, config in TRAINER_CONFIGS.items()}
    by_class["Unsloth"] = "sft"  # unsloth/trainer.py: class UnslothTrainer(SFTTrainer)
    for suffix in ("Config", "Trainer"):  # the user's trainer and its configuration may derive from different ones
        stems = (name.removesuffix(suffix) for name in classes if name.endswith(suffix))
        trainers = dict.fromkeys(by_class[stem] for stem in stems if stem in by_class)
        if len(trainers) == 1:
            return next(iter(trainers))
    named = _trainer_in_name(re.split(r"[/.]", launch.words[0].text.removesuffix(".py"))[-1])
    if classes and (named in trainers or not trainers):
        return named
    chosen = {name for word in launch.words[1:] for name in _list_trainers_in_name(word.text) if name in trainers}
    return next(iter(chosen)) if len(chosen) == 1 else ""


def is_own_program(launch: Launch) -> bool:
    """Return whether the program is TRL's own, so that all its options are known."""
    if not launch.words:
        return False
    text = launch.words[0].text
    return text.rsplit("/", 1)[-1] in ("trl", "trl.cli") or bool(OWN_SCRIPT.search(text))


def is_checked(launch: Launch) -> bool:
    """Return whether all names of a launch are known: the program is TRL's own, or was read and uses `TrlParser`."""
    is_read = launch.program is not None and launch.program.is_complete and launch.program.style == "dataclasses"
    main = find_main(launch) if is_read and launch.file is not None else None
    return is_own_program(launch) or (main is not None and b"TrlParser" in main[0].content)


def list_entries(launch: Launch) -> tuple[str, ...]:
    """Return the script that `trl NAME` runs; most ignore options that they do not know (0.19.1 sft.py:151)."""
    command = launch.words[1].text if is_trl_command(launch) and len(launch.words) > 1 else ""
    return (f"trl.scripts.{command}",) if command.isidentifier() else ()


def is_trl_command(launch: Launch) -> bool:
    """Return whether the command is `trl NAME`, which accepts accelerate's options too."""
    return bool(launch.words) and launch.words[0].text.rsplit("/", 1)[-1] in ("trl", "trl.cli")


def _trainer_of_script(script: str) -> str:
    """Return the trainer with which a script's name begins: "sft_vlm" is sft's, "dpo_online" online_dpo's."""
    stem = script.replace("-", "_").lower()
    if stem in SCRIPT_TRAINERS:
        return SCRIPT_TRAINERS[stem]
    trainer = next((trainer for trainer in TRAINER_CONFIGS if stem == trainer or stem.startswith(f"{trainer}_")), "")
    return trainer if _list_trainers_in_name(stem) <= {trainer} else ""


def _trainer_in_name(name: str) -> str:
    """Return the only trainer among the words of a name: "run_dpo" has dpo; "sft_then_dpo" has none."""
    trainers = _list_trainers_in_name(name)
    return next(iter(trainers)) if len(trainers) == 1 else ""


def _list_trainers_in_name(name: str) -> set[str]:
    words = [SHORT_NAMES.get(word, word) for word in re.split(r"[^a-z0-9]+", name.lower())]
    trainers = {word for word in words if word in TRAINER_CONFIGS}
    pairs = {f"{first}_{second}" for first, second in itertools.pairwise(words)}
    if pairs & {"online_dpo", "dpo_online"}:
        trainers = trainers - {"dpo"} | {"online_dpo"}
    if "nash_md" in pairs:
        trainers.add("nash_md")
    return trainers - {"reward"} if len(trainers) > 1 else trainers  # "grpo_reward" trains with only one of them


def _detect_by_script(launch: Launch) -> str:
    text = launch.words[0].text
    stem = re.split(r"[/.]", text.removesuffix(".py"))[-1]
    trainer = _trainer_of_script(stem)
    if trainer and OWN_SCRIPT.search(text):
        return trainer
    option_names = {
        word.text.split("=")[0][2:].replace("-", "_") for word in launch.words if word.text.startswith("--")
    }
    keys = option_names | {entry.name.split(".")[0] for entry in launch.entries}
    if keys & FOREIGN_FIELDS or not (text.endswith(".py") or trainer):
        return ""
    is_own_parser = not keys.isdisjoint(("model_name_or_path", "config"))  # ModelConfig, TrlParser
    distinct = keys if is_own_parser else {key for key in keys - COMMON_NAMES if "_" in key}
    if trainer and distinct & _own_fields(trainer):
        return trainer
    trainer = _trainer_in_name(stem)
    if trainer and distinct & (_own_fields(trainer) - SHARED_FIELDS - set(read_lifetimes(*TRAINING_ARGUMENTS))):
        return trainer
    is_grouped = "num_generations" in keys and keys & set(read_lifetimes(*TRAINING_ARGUMENTS))
    return "grpo" if is_grouped and distinct & GROUP_FIELDS and trainer in ("", "grpo") else ""


@cache
def _own_fields(trainer: str) -> frozenset[str]:
    """Return the fields of a trainer's script in any release, without those of TrainingArguments."""
    dataclasses = (TRAINER_CONFIGS[trainer], *COMMON_DATACLASSES)
    return frozenset(field for dataclass in dataclasses for field in read_lifetimes("trl", dataclass))


def _detect_by_keys(launch: Launch) -> str:
    """Return the trainer of a file by its keys, unless programs of its tree use TRL, and none of them this trainer."""
    trainer, top = _name_trainer_of_keys(launch), find_tree(launch)
    stem = TRAINER_CONFIGS[trainer].removesuffix("Config") if trainer else ""
    return "" if trainer and may_contain(top, "from trl") and not may_contain(top, stem) else trainer


def _name_trainer_of_keys(launch: Launch) -> str:
    """Return the trainer of a file: by its name, or else by the keys that only one trainer has."""
    keys = {entry.name.split(".")[0].split("[")[0] for entry in launch.entries}
    if keys & FOREIGN_FIELDS or not keys & {"model_name_or_path", "model_init_kwargs"}:
        return ""
    training_fields = keys & set(read_lifetimes(*TRAINING_ARGUMENTS))
    own_fields = _own_fields("sft") - {"model_name_or_path"}
    if len((keys - training_fields) & own_fields) < (1 if training_fields else 2):
        return ""
    fields = frozenset().union(*map(_own_fields, TRAINER_CONFIGS)) | {"model_init_kwargs"}
    if keys - training_fields - fields and lacks_word(find_tree(launch), "from trl"):
        return ""  # it may belong to a program of its tree
    trainer = _trainer_in_name(PurePosixPath(launch.source.name).stem)
    if trainer:
        return trainer
    if keys & GENERATION_FIELDS:
        return "grpo"
    unique = [trainer for trainer, fields in UNIQUE_FIELDS.items() if keys & fields]
    if len(unique) == 1:
        return unique[0]
    if "max_completion_length" in keys and not keys & _own_fields("dpo") - _own_fields("grpo"):
        return "grpo"
    return "dpo" if keys & {"beta", "ref_model_init_kwargs", "max_prompt_length"} else "sft"
