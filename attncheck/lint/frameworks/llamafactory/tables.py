"""LLaMA-Factory's names: the dataclasses of `llamafactory-cli train`, renames, and the detection of its launches.

Source: lint/names/llamafactory.json; renames were read in the wheels 0.9.0 to 0.9.5.
"""

import re
from collections.abc import Mapping
from functools import cache

from attncheck.lint.fields import Launch, ParserOptions, build_parser_options, training_arguments
from attncheck.lint.programs.passed_options import list_names
from attncheck.lint.programs.places import find_main

TAKES_OPTIONS = re.compile(rb"arg|pars|run_exp\(\s*\w")
DATACLASSES = ("ModelArguments", "DataArguments", "TrainingArguments", "FinetuningArguments", "GeneratingArguments")
TRAINER_DATACLASSES = ("TrainingArguments", "Seq2SeqTrainingArguments")

# The newest transformers that each release allows (METADATA), used if none is installed; the newest release is last.
CONTEMPORARY_TRANSFORMERS: Mapping[str, str] = {
    "0.9.0": "4.45.2", "0.9.1": "4.46.3", "0.9.2": "4.49.0", "0.9.3": "4.52.4", "0.9.4": "4.57.6", "0.9.5": "5.5.4",
}  # fmt: skip

RENAMES: Mapping[str, tuple[str, ...]] = {
    **training_arguments.RENAMES,
    "image_dir": ("media_dir",),  # 0.9.1, 0.9.2 hparams/data_args.py
    "new_special_tokens": ("add_special_tokens",),  # 0.9.2, 0.9.3 hparams/model_args.py
    "use_cache": ("use_kv_cache",),  # 0.9.3, 0.9.4 hparams/model_args.py
}

IMPLEMENTATIONS: Mapping[str, str] = {
    "auto": "", "disabled": "eager", "sdpa": "sdpa", "fa2": "flash_attention_2", "fa3": "flash_attention_3",
}  # fmt: skip
FLASH_ATTN_VALUES = {implementation: word for word, implementation in IMPLEMENTATIONS.items() if word != "fa3"}

# model/model_utils/liger_kernel.py of 0.9.5: other types get a warning and no kernel.
LIGER_MODEL_TYPES = frozenset(
    {"gemma", "gemma2", "gemma3", "gemma3_text", "glm", "glm4", "glm4v", "granite", "llama", "llava", "mistral"}
    | {"mixtral", "mllama", "olmo2", "paligemma", "phi3", "qwen2", "qwen2_vl", "qwen2_5_vl", "qwen3", "qwen3_moe"}
    | {"qwen3_next", "qwen3_5", "gpt_oss"}
)

PROGRAMS = ("llamafactory-cli", "lmf", "llamafactory.cli")
SCRIPTS = ("train.py", "train_bash.py", "launcher.py", "llamafactory.launcher")
OWN_MODULE = re.compile(r"(?:llamafactory|llmtuner)\.(?:\w+\.)*(?:train|launcher)\w*")  # in any release or fork
OWN_FIELDS = frozenset(
    {"stage", "finetuning_type", "template", "cutoff_len", "neat_packing", "flash_attn", "lora_target", "dataset_dir"}
    | {"enable_liger_kernel", "pure_bf16", "lora_rank", "freeze_trainable_layers", "pref_loss", "quantization_bit"}
)
OWN_OPTIONS = {"stage", "finetuning_type"}  # of no other framework
FOREIGN_FIELDS = frozenset({"base_model", "sequence_len", "train_type", "tuner_type", "sft_type", "dataset_name"})


@cache
def load_parser_options(version: str, transformers: str) -> ParserOptions:
    """Return the options of a release's parser with a given version of transformers."""
    return build_parser_options(
        ("transformers", transformers, TRAINER_DATACLASSES), ("llamafactory", version, DATACLASSES)
    )


def is_cli_command(launch: Launch) -> bool:
    """Return whether the command is `llamafactory-cli train`, which starts torchrun if there are several GPUs."""
    return bool(launch.words) and launch.words[0].text.rsplit("/", 1)[-1] in PROGRAMS


# Keys of data/dataset_info.json (0.9.1 data/parser.py, `DatasetAttr.join`), which no release accepts in a training
# file.
DATASET_KEYS = frozenset(
    {"file_name", "script_url", "hf_hub_url", "ms_hub_url", "formatting", "ranking", "columns", "tags",
     "messages", "query", "response", "history", "system", "tools", "images", "videos", "audios", "chosen",
     "rejected", "kto_tag", "role_tag", "content_tag", "user_tag", "assistant_tag", "observation_tag",
     "function_tag", "system_tag"}
)  # fmt: skip
DATASET_KEYS_PROOF = "llamafactory data/parser.py: it is a key of dataset_info.json, not of a training file"


def list_entries(launch: Launch) -> tuple[str, ...]:
    """Return the parsers of `llamafactory-cli train`, of its configuration file alone (0.9.5 cli.py), and of a script.

    `run_exp` reads the words twice: for Ray's options, which lets others pass, and with `get_train_args`, which refuses
    unknown ones (0.9.5 train/tuner.py:139-149, hparams/parser.py:102-115). A script that takes options itself decides.
    """
    runs = any(name.endswith(".run_exp") for name in launch.trainers or ())
    main = find_main(launch) if runs else None
    is_plain = main is not None and not TAKES_OPTIONS.search(main[0].content)
    is_own = is_cli_command(launch) or not launch.words or is_plain
    return ("llamafactory.hparams.parser:get_train_args", "llmtuner.hparams.parser:get_train_args") if is_own else ()


def is_own_launch(launch: Launch) -> bool:
    """Return whether a launch starts LLaMA-Factory's training."""
    option_names = {word.text.split("=")[0].lstrip("-").replace("-", "_") for word in launch.words[1:]}
    keys = {entry.name.split(".")[0] for entry in launch.entries} | option_names
    if is_cli_command(launch):
        return len(launch.words) > 1 and launch.words[1].text == "train"
    if launch.trainers is not None:
        return any(name.startswith(("llamafactory.", "llmtuner.")) for name in launch.trainers)
    if launch.words and OWN_MODULE.fullmatch(launch.words[0].text):
        return True
    if keys & FOREIGN_FIELDS:
        return False
    if launch.words:  # a script that is not here: most options that transformers does not have are LLaMA-Factory's
        known = load_parser_options(*[*CONTEMPORARY_TRANSFORMERS.items()][-1]).any_release
        foreign = list_names(launch.words) - known.keys()
        is_named = launch.words[0].text.rsplit("/", 1)[-1] in SCRIPTS or keys >= OWN_OPTIONS
        return is_named and len(keys & OWN_FIELDS) > len(foreign)
    is_merge = "export_dir" in keys and "do_train" not in keys  # a configuration of `llamafactory-cli export`
    return "model_name_or_path" in keys and len(keys & OWN_FIELDS) > 1 and not is_merge
