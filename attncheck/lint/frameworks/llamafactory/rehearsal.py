"""Scales down a launch of LLaMA-Factory's pre-training, SFT or DPO, and determines its objective.

Sources for `stage: sft`, llamafactory 0.9.5: hparams/data_args.py (`dataset`, `dataset_dir` with its
dataset_info.json), data/parser.py (`formatting: sharegpt`, `tags`; a column with paths of images, to which
"<image>" in the text points), data/processor/supervised.py (`train_on_prompt`, off: only answers are trained, each
with the template's end token; `mask_history`: only the last answer), hparams/model_args.py. The loss is that of
transformers' Trainer; if the model has a processor, each batch's mean (train/sft/trainer.py:68).

Sources for `stage: dpo`: data/converter.py (`ranking`: a prompt, a chosen and a rejected answer as text),
train/dpo/trainer.py (`losses.mean()` over a batch's pairs, divided by the accumulation because
`model_accepts_loss_kwargs` is off; `pref_ftx` and ORPO add each chosen answer's own mean),
hparams/finetuning_args.py.

Sources for `stage: pt`: data/processor/pretrain.py (each text ends with the tokenizer's EOS token, except under the
template llama3; packed by default), data/converter.py (a text is the column `prompt`).

launcher.py: torchrun starts NPROC_PER_NODE processes; the default is one per GPU, so none on a CPU.
"""

import json
import os
from dataclasses import replace
from typing import Any

from attncheck.lint.fields import DROP, Job, Launch
from attncheck.lint.fields.cutting import (
    OFF_VALUES,
    PICTURE_LENGTH,
    TRAINER_NORMALISATIONS,
    TRAINER_RANK_CORRECTIONS,
    UNDOCUMENTED,
    WHOLE_ROWS,
    JobCut,
    Materials,
    Objective,
    Targets,
    cut_attention,
    cut_training_arguments,
    drop_reference,
    find_data_file,
    get_setting,
    is_on,
    list_left_out,
    list_other_references,
    make_objective,
    misses_program,
    read_preference,
)

REQUESTED_FLASH = {"fa2": "flash_attention_2", "fa3": "flash_attention_3"}  # values of flash_attn
PROGRAM = "llamafactory.launcher"  # which runs as src/train.py of its repository does
RANKING_INFO = {
    "rehearsal": {
        "file_name": "train.jsonl",
        "ranking": True,
        "columns": {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"},
    }
}
TEXT_INFO = {"rehearsal": {"file_name": "train.jsonl", "columns": {"prompt": "text"}}}
# Settings of preference losses that add another loss, or weight tokens differently.
CHANGED_LOSS = ("pref_bco_weight", "ld_alpha")
DATASET_INFO = {
    "rehearsal": {
        "file_name": "train.jsonl",
        "formatting": "sharegpt",
        "columns": {"messages": "messages"},
        "tags": {
            "role_tag": "role",
            "content_tag": "content",
            "user_tag": "user",
            "assistant_tag": "assistant",
            "system_tag": "system",
        },
    }
}
# Columns, their names if an entry names none, and their roles: 0.9.5 data/parser.py `DatasetAttr`.
ALPACA = (
    ("system", "", "system"),
    ("prompt", "instruction", "user"),
    ("query", "input", "user"),
    ("response", "output", "assistant"),
)
PICTURE_COLUMNS = {"messages": "messages", "images": "images"}


def cut(launch: Launch, job: Job, materials: Materials) -> JobCut | str:
    """Return the scaled-down launch of `llamafactory-cli train` or of its file; or why it is not rehearsed."""
    if job.trainer not in ("pt", "sft", "dpo"):
        return f"LLaMA-Factory's {job.trainer} is not rehearsed yet; only pt, sft and dpo are"
    is_ranked, is_text = job.trainer == "dpo", job.trainer == "pt"
    objective = _read_pairs(job) if is_ranked else _read_answers(job, materials.has_tower)
    unknown, objective = (objective, UNDOCUMENTED) if isinstance(objective, str) else ("", objective)
    requested = get_setting(job, "flash_attn") or ""
    attention = cut_attention(job, materials, REQUESTED_FLASH.get(requested, ""))
    name, entry, data = _find_own_rows(launch, job)
    sets = {
        **cut_training_arguments(job, materials),
        **attention.sets,
        "model_name_or_path": materials.model,
        "dataset": name if materials.real_data else "rehearsal",
        "dataset_dir": materials.data,
        "eval_dataset": DROP,
        "val_size": DROP,
        "max_samples": DROP,
        "cutoff_len": str(materials.max_length),
        "tokenized_path": DROP,
        "overwrite_cache": "true",
        "preprocessing_num_workers": DROP,
        "dataloader_num_workers": "0",
        "offload_folder": f"{materials.output}/offload",
        "plot_loss": DROP,
        "ref_model": DROP,  # without it, the model is its own reference (train/trainer_utils.py `create_ref_model`)
    }
    if is_on(job, "use_llama_pro"):
        sets["freeze_trainable_layers"] = "2"  # it must divide the number of layers (model/adapter.py:81)
    shared = get_setting(job, "sequence_parallel_size") or ""
    if shared.isdecimal() and int(shared) > materials.processes:  # 360-LLaMA-Factory model/model_utils refuses fewer
        sets["sequence_parallel_size"] = "1"
    if is_text:  # rows are cut from one stream, as is usual
        sets["template"], objective = "default", UNDOCUMENTED
    information = RANKING_INFO if is_ranked else TEXT_INFO if is_text else DATASET_INFO
    has_room = job.trainer == "sft" and materials.has_tower and materials.max_length >= PICTURE_LENGTH
    has_pictures = has_room and not materials.real_data
    if has_pictures:
        information = {"rehearsal": {**information["rehearsal"], "columns": PICTURE_COLUMNS}}
    if materials.real_data:
        information = {name: {**entry, "file_name": os.path.basename(data)}}
    own_program = PROGRAM if misses_program(launch) else ""
    forced = {"FORCE_TORCHRUN": "1"} if getattr(job.world_size, "value", 1) > 1 and not launch.launchers else {}
    return JobCut(
        sets,
        "preference_text" if is_ranked else "text" if is_text else "messages",
        objective,
        environ={} if materials.uses_gpu else {"NPROC_PER_NODE": str(materials.processes), **forced},
        command=("llamafactory-cli", "train", "{file}"),
        program=own_program,
        pictures="tagged" if has_pictures else "",
        files={"dataset_info.json": json.dumps(information)},
        data=data,
        roles=_read_roles(entry),
        emulates_flash_attn=attention.emulates_flash_attn,
        remarks=(
            *([f"{launch.words[0].text} was not found: {own_program} replaces it"] if own_program else []),
            *([f"the loss is not known here: {unknown}"] if unknown else []),
            *attention.remarks,
            *list_left_out(job, materials),
            *list_other_references(job, "ref_model"),
        ),
        rank_corrections=() if is_ranked else TRAINER_RANK_CORRECTIONS,
        whole_rows=WHOLE_ROWS,
    )


def _find_own_rows(launch: Launch, job: Job) -> tuple[str, dict[str, Any], str]:
    """Return the name of the first data set, its entry in dataset_info.json and its file; ("", {}, "") if unknown.

    0.9.5 data/parser.py: `file_name` is relative to `dataset_dir`, and `ranking` rows are pairs.
    """
    folder = os.path.expandvars(get_setting(job, "dataset_dir") or "data")
    name = (get_setting(job, "dataset") or "").partition(",")[0].strip()
    try:
        with open(os.path.join(launch.folder, folder, "dataset_info.json"), encoding="utf-8") as stream:
            entry = json.load(stream)[name]
        data = find_data_file(entry["file_name"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", {}, ""
    has_answers = job.trainer == "sft" and bool(data) and not entry.get("ranking")
    return (name, entry, os.path.join(folder, data)) if has_answers else ("", {}, "")


def _read_roles(entry: dict[str, Any]) -> dict[str, str]:
    """Return the columns of a data set by role; {} for messages, whose roles are theirs."""
    if not entry or entry.get("formatting", "alpaca") != "alpaca":
        return {}
    columns = entry.get("columns") or {}
    named = {columns.get(name, default): role for name, default, role in ALPACA}
    return {name: role for name, role in named.items() if name}


def _read_answers(job: Job, has_processor: bool) -> Objective:
    """Return the objective over whole documents or over answers."""
    targets: Targets = "all" if is_on(job, "train_on_prompt") else "last" if is_on(job, "mask_history") else "assistant"
    if has_processor:
        source = f"llamafactory {job.version} train/sft/trainer.py: each batch's mean if there is a processor"
        return Objective(targets, ("batch_tokens", *TRAINER_NORMALISATIONS), source)
    source = f"llamafactory {job.version}: transformers' mean over num_items_in_batch"
    return Objective(targets, TRAINER_NORMALISATIONS, source)


def _read_pairs(job: Job) -> Objective | str:
    """Return the loss of a pair, or why it is not known."""
    for name in CHANGED_LOSS:
        value = get_setting(job, name) or "0"
        if value.lower() not in (*OFF_VALUES, "0.0"):
            return f"{name} {value} selects a preference loss that is not rehearsed"
    loss = get_setting(job, "pref_loss") or "sigmoid"
    names = {"pref_beta": 0.1, "dpo_label_smoothing": 0.0, "pref_ftx": 0.0}
    preference = read_preference(loss, *((get_setting(job, name), default) for name, default in names.items()))
    if loss in ("simpo", "orpo"):
        preference = drop_reference(preference, get_setting(job, "simpo_gamma") or "0.5")
    if isinstance(preference, str):
        return preference
    own = preference.chosen_weight + (1.0 if loss == "orpo" else 0.0)
    preference = replace(preference, chosen_weight=own, averages_chosen=True)
    return make_objective(preference, f"llamafactory {job.version} train/dpo/trainer.py: the mean over a batch's pairs")
