"""Scales down a launch of axolotl's SFT or of its training on pairs, and determines its objective.

Sources, axolotl 0.19.0: utils/schemas/datasets.py (`path`, `type`, `ds_type`, `field_messages`), prompt_strategies/
(`alpaca`: answers after a prompt, `completion`: whole texts, `chat_template`: answers, each with the token that ends
it), utils/schemas/config.py (`train_on_inputs`, off), core/trainers/base.py:154 (a packed batch is one row of
micro_batch_size × sequence_len), processing_strategies.py (`processor_type` with unprepared rows: their images, and
answers by the turns of the templates that it knows, otherwise every token). The loss is that of transformers' Trainer:
the mean over num_items_in_batch.

Sources for `rl`: core/builders/rl.py (TRL's trainers, and the names of their options), utils/data/rl.py (rows without a
`type` are `prompt`, `chosen` and `rejected` already; those of KTO are not, except if they are not prepared).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attncheck.lint.fields import DROP, Job, Launch, is_at_least
from attncheck.lint.fields.cutting import (
    GPU_OPTIMIZERS,
    LEARNING_RATE,
    OFF_VALUES,
    PICTURE_LENGTH,
    TRAINER_NORMALISATIONS,
    UNDOCUMENTED,
    WITHOUT_CUDA,
    DataForm,
    JobCut,
    Materials,
    Objective,
    Targets,
    cut_attention,
    find_data_file,
    get_setting,
    is_on,
    list_left_out,
)
from attncheck.lint.frameworks.trl.rehearsal import read_objective

ENVIRON = dict.fromkeys(
    (
        *("AXOLOTL_DO_NOT_TRACK", "DO_NOT_TRACK"),  # telemetry/manager.py
        # By default a process per core, and each compiles the packing: utils/datasets.py, utils/samplers/multipack.py.
        *("AXOLOTL_DATASET_NUM_PROC", "AXOLOTL_DATASET_PROCESSES"),
    ),
    "1",
)
# Several processes on a CPU: with this, accelerate joins them in one world (accelerate 1.13.0 state.py).
CPU_RING = {**WITHOUT_CUDA, "ACCELERATE_USE_CPU": "true"}
LAUNCHER_SINCE = "0.12.0"  # cli/main.py: --launcher, with its options after "--"; before, torchrun starts cli/train.py
PROCESS_COUNT = re.compile(r"--(nproc[-_]per[-_]node|num[-_]processes)\b")
LEFT_OUT = (  # trackers, evaluation, checkpoints
    *("wandb_project", "wandb_entity", "wandb_watch", "wandb_name", "wandb_run_id", "wandb_log_model", "use_wandb"),
    *("use_mlflow", "use_comet", "use_tensorboard", "mlflow_tracking_uri", "comet_project_name", "use_trackio"),
    *("test_datasets", "evals_per_epoch", "eval_steps", "eval_strategy", "eval_table_size", "eval_sample_packing"),
    *("saves_per_epoch", "save_steps", "save_total_limit", "save_first_step", "hub_model_id", "hub_strategy"),
    *("resume_from_checkpoint", "auto_resume_from_checkpoints", "early_stopping_patience", "num_epochs"),
    *("warmup_steps", "warmup_ratio", "lr_scheduler_kwargs", "cosine_min_lr_ratio", "revision_of_model"),
    *("loss_watchdog_threshold", "loss_watchdog_patience"),  # any loss of a model with random weights exceeds it
    *("tokenizer_config", "base_model_config", "dataset_num_proc", "dataset_processes"),
)
GPU_SETTINGS = ("load_in_4bit", "load_in_8bit", "quantize_moe_experts", "torch_compile")
LORA_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")  # utils/schemas/config.py; since 0.8
GPU_TABLES = ("deepspeed", "fsdp", "fsdp_config", "fsdp_version", "plugins", "tf32")  # these are removed entirely
# The token that ends a turn in a template (utils/chat_templates/templates/). In instruct models it is the eos_token,
# which is trained (prompt_strategies/chat_template.py:347); the small tokenizer has another one.
TURN_ENDS = {
    **dict.fromkeys(("chatml", "qwen_25", "qwen2_vl", "qwen3", "qwen3_5", "exaone4"), "<|im_end|>"),
    **dict.fromkeys(("llama3", "llama3_2_vision"), "<|eot_id|>"),
}
# Templates with turns that are known where a processor makes the rows, if the small tokenizer has their tokens.
KNOWN_TURNS = ("qwen2_vl", "qwen3_5", "llama3_2_vision")
OWN_TEMPLATES = ("tokenizer_default", "jinja")  # the tokenizer's template, or one in the file
PAIR_TRAINERS = {"dpo": "dpo", "ipo": "dpo", "simpo": "cpo", "orpo": "orpo", "kto": "kto"}  # values of `rl`, TRL's
REPLACED_STRATEGY = "the data's prompt strategy is left out: a prompt and its answers are texts"
TRL_NAMES = {
    "rl_beta": "beta",
    "trl.beta": "beta",
    "dpo_loss_type": "loss_type",
    "dpo_loss_weights": "loss_weights",
    "dpo_label_smoothing": "label_smoothing",
    "dpo_use_weighting": "use_weighting",
    "dpo_norm_loss": "use_weighting",
    "dpo_use_liger_kernel": "use_liger_loss",
    "kto_desirable_weight": "desirable_weight",
    "kto_undesirable_weight": "undesirable_weight",
}
# Keys of a data set that choose which of its tokens are learned, with their defaults (0.19.0 utils/schemas/datasets.py,
# prompt_strategies/chat_template.py `StrategyLoader`). Messages choose by the fields that the last two name.
CHOOSING = {
    "roles_to_train": ["assistant"],
    "train_on_eos": "turn",
    "train_on_eot": "turn",
    "drop_system_message": False,
    "message_field_training": None,
    "message_field_training_detail": None,
}
FIELDS = {  # of a prompt strategy that the file describes: `UserDefinedPrompterType`
    "field_system": "system",
    "field_instruction": "user",
    "field_input": "user",
    "field_output": "assistant",
}


def cut(launch: Launch, job: Job, materials: Materials) -> JobCut | str:
    """Return the scaled-down launch of `axolotl train`, or of its configuration file; or why it is not rehearsed."""
    if job.trainer not in ("sft", *PAIR_TRAINERS):
        return f"axolotl's {job.trainer} is not rehearsed yet: sft, {', '.join(PAIR_TRAINERS)} are"
    attention = cut_attention(job, materials)
    alias = materials.alias(job.model)
    form, dataset, targets = _cut_dataset(job, materials)
    entry = _read_entry(get_setting(job, "datasets") or "")
    named = "" if "data_files" in entry else find_data_file(str(entry.get("path", "")))
    collates_pictures = form == "messages" and is_on(job, "skip_prepare_dataset") and get_setting(job, "processor_type")
    if collates_pictures and get_setting(job, "chat_template") not in KNOWN_TURNS:
        targets = "all"
    has_room = materials.has_tower and materials.max_length >= PICTURE_LENGTH
    sets = {
        **dict.fromkeys(LEFT_OUT, DROP),
        **({} if materials.uses_gpu else _cut_for_cpu(job)),
        **attention.sets,
        **({"use_swanlab": "false"} if "swanlab" in (get_setting(job, "plugins") or "") else {}),  # on by default
        "base_model": alias,
        "datasets": json.dumps([{**entry, "path": materials.name_data(named)} if materials.real_data else dataset]),
        "dataset_prepared_path": f"{materials.output}/prepared",
        "val_set_size": "0",
        "output_dir": materials.output,
        "sequence_len": str(materials.max_length),
        "micro_batch_size": str(materials.batch),
        "gradient_accumulation_steps": str(materials.accumulation),
        "batch_size": DROP,
        "max_steps": str(materials.steps),
        "learning_rate": LEARNING_RATE,
        "lr_scheduler": "constant",
        "logging_steps": "1",
        "save_strategy": "no",
        "dataloader_num_workers": "0",
    }
    template, remarks = (
        _cut_template(job) if form in ("messages", "preference") and not materials.full_model else ({}, ())
    )
    sets |= template
    whole_rows = "" if materials.uses_gpu or _starts_processes(launch) else "axolotl starts one process on a CPU"
    is_ring = materials.ring_size > 1 and not whole_rows  # its device mesh is named "cuda": utils/distributed.py:314
    source = f"axolotl {job.version}: transformers' mean over num_items_in_batch"
    objective = Objective(targets, TRAINER_NORMALISATIONS, source)
    if job.trainer in PAIR_TRAINERS:
        objective = _read_pairs(job)
        remarks += (REPLACED_STRATEGY,) if form == "preference_text" and entry.get("type") else ()
        remarks += () if objective.is_documented else (f"the loss of axolotl's {job.trainer} is unknown",)
        sets |= {"skip_prepare_dataset": "true"} if job.trainer == "kto" else {}
    return JobCut(
        sets,
        form,
        objective,
        environ={**ENVIRON, **CPU_RING} if is_ring and not materials.uses_gpu else ENVIRON,
        command=_write_command(job, materials.processes if is_ring else 1),
        model_alias=alias,
        data=named,
        roles=_read_roles(entry),
        emulates_flash_attn=attention.emulates_flash_attn,
        remarks=(
            *attention.remarks,
            *remarks,
            *(
                f"messages choose by {entry[key]!r} what is learned, and synthetic ones do not have it"
                for key in CHOOSING
                if key.startswith("message") and entry.get(key) and not materials.real_data
            ),
            *_list_remarks(job, materials),
        ),
        pictures="parts" if collates_pictures and has_room else "",
        whole_rows=whole_rows,
    )


def _write_command(job: Job, processes: int) -> tuple[str, ...]:
    """Return the command that trains from a file in this number of processes on a CPU."""
    if processes < 2:
        return ("axolotl", "train", "{file}")
    launcher = f"--nproc_per_node={processes}"
    if not is_at_least(job.version, LAUNCHER_SINCE):
        return ("torchrun", "--standalone", launcher, "-m", "axolotl.cli.train", "{file}")
    return ("axolotl", "train", "{file}", "--launcher", "torchrun", "--", launcher)


def _starts_processes(launch: Launch) -> bool:
    """Return whether a launch sets its number of processes, or is only a file, for which attncheck sets it."""
    words = launch.whole or launch.words
    return not words or any(PROCESS_COUNT.match(word.text) for word in words)


def _cut_dataset(job: Job, materials: Materials) -> tuple[DataForm, Mapping[str, object], Targets]:
    """Return the data's form, its entry in `datasets`, and the targets of the loss."""
    own = _read_entry(get_setting(job, "datasets") or "")
    kind = str(own.get("type") or "")
    targets: Targets = "all" if is_on(job, "train_on_inputs") else "assistant"
    entry = {"path": materials.data_file, "ds_type": "json"}
    if job.trainer in PAIR_TRAINERS:
        if job.trainer in ("dpo", "ipo", "simpo") and kind in ("chat_template", "chat_template.default"):
            return "preference", {**entry, "type": kind, "field_messages": "prompt"}, targets
        return "preference_text", entry, targets
    if kind.startswith("completion"):
        return "text", {**entry, "type": kind}, "all"
    if kind.startswith("alpaca"):
        return "instruction", {**entry, "type": kind}, targets
    chosen = [key for key, usual in CHOOSING.items() if own.get(key) not in (None, usual)]
    # Without fields that choose, which synthetic messages lack, axolotl's defaults are used.
    usable = () if any(key.startswith("message") for key in chosen) else (*chosen, "roles")
    kept = {"type": "chat_template", "field_messages": "messages"} | {
        key: own[key] for key in usable if own.get(key) is not None
    }
    return "messages", {**entry, **kept}, "chosen" if chosen else targets


def _read_pairs(job: Job) -> Objective:
    """Return the objective of TRL's trainer, whose release axolotl pins."""
    releases = [text.removeprefix("trl==") for text in job.requires if text.startswith("trl==")]
    settings = [
        replace(setting, name="loss_type" if setting.name == "rl" else TRL_NAMES.get(setting.name, setting.name))
        for setting in job.settings
        if setting.name != "rl" or setting.value in ("ipo", "simpo")
    ]
    if not releases:
        return UNDOCUMENTED
    trainer = PAIR_TRAINERS[job.trainer]
    return read_objective(replace(job, trainer=trainer, version=releases[0], settings=tuple(settings)))[1]


def _cut_template(job: Job) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the settings that make a chat template end turns with the small tokenizer's token, and a remark."""
    template = get_setting(job, "chat_template") or "tokenizer_default"
    if template.startswith(OWN_TEMPLATES) or get_setting(job, "eot_tokens", "special_tokens.eos_token") is not None:
        return {}, ()
    if template not in TURN_ENDS:
        remark = (
            f"chat_template {template} has tokens that the small tokenizer lacks, so the tokenizer's template "
            f"replaces it"
        )
        return {"chat_template": "tokenizer_default"}, (remark,)
    remark = f"the model's eos_token is assumed to end a turn of {template}: {TURN_ENDS[template]}"
    return {"eot_tokens": json.dumps([TURN_ENDS[template]])}, (remark,)


def _read_entry(datasets: str) -> dict[str, Any]:
    """Return the description of the first data set; {} if it cannot be read."""
    try:
        return dict(json.loads(datasets)[0])
    except (ValueError, IndexError, TypeError, KeyError):
        return {}


def _read_roles(entry: dict[str, Any]) -> dict[str, str]:
    """Return the columns of a data set with its own prompt strategy by role; {} for another's usual ones."""
    kind = entry.get("type")
    return {kind[name]: role for name, role in FIELDS.items() if kind.get(name)} if isinstance(kind, dict) else {}


def _cut_for_cpu(job: Job) -> dict[str, str]:
    names = {setting.name.lstrip("-").split(".")[0].replace("-", "_") for setting in job.settings}
    sets = {name: "false" for name in GPU_SETTINGS if name in names}
    sets |= {name: DROP for name in GPU_TABLES if name in names}
    sets |= {name: "false" for name in names if name.startswith("liger_")}
    if any(word in (get_setting(job, "optimizer") or "").lower() for word in GPU_OPTIMIZERS):
        sets["optimizer"] = "adamw_torch"
    if get_setting(job, "adapter") in ("lora", "qlora"):  # Triton's kernels are on by default
        sets |= dict.fromkeys(LORA_KERNELS, "false")
    if get_setting(job, "adapter") == "qlora":
        sets["adapter"] = "lora"
    return sets


def _list_remarks(job: Job, materials: Materials) -> tuple[str, ...]:
    if materials.uses_gpu:
        return ()
    names = [name for name in ("plugins", *LORA_KERNELS) if (get_setting(job, name) or "").lower() not in OFF_VALUES]
    return (
        *list_left_out(job, materials),
        *(f"{name} needs a GPU, and this machine has none: left out" for name in names),
    )
