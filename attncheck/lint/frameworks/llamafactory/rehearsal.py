"""How a launch of LLaMA-Factory's SFT is cut small, and what it optimises.

Sources, llamafactory 0.9.5: hparams/data_args.py (`dataset`, `dataset_dir` with its dataset_info.json), data/parser.py
(`formatting: sharegpt`, `tags`), data/processor/supervised.py (`train_on_prompt`, off: answers alone are learnt; the
template's end token after an answer is), hparams/model_args.py. The loss is transformers' Trainer's.
"""

from __future__ import annotations

import json

from attncheck.core.job import DROP, Job
from attncheck.core.launch import Launch
from attncheck.core.rehearsal import JobCut, Materials, Objective, Targets
from attncheck.lint.fields.rehearsing import (
    TRAINER_NORMALISATIONS,
    WHOLE_ROWS,
    cut_attention,
    cut_training_arguments,
    get_setting,
    is_on,
    list_left_out,
)

REQUESTED_FLASH = {"fa2": "flash_attention_2", "fa3": "flash_attention_3"}  # values of flash_attn
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


def cut(launch: Launch, job: Job, materials: Materials) -> JobCut | str:
    """Return the cut of a launch of `llamafactory-cli train`, or of its configuration file."""
    if job.trainer != "sft":
        return f"LLaMA-Factory's {job.trainer} is not rehearsed yet: sft is"
    requested = get_setting(job, "flash_attn") or ""
    attention = cut_attention(job, materials, REQUESTED_FLASH.get(requested, ""))
    targets: Targets = "all" if is_on(job, "train_on_prompt") else "assistant"
    sets = {
        **cut_training_arguments(job, materials),
        **attention.sets,
        "model_name_or_path": materials.model,
        "dataset": "rehearsal",
        "dataset_dir": materials.data,
        "eval_dataset": DROP,
        "val_size": DROP,
        "max_samples": DROP,
        "cutoff_len": str(materials.max_length),
        "tokenized_path": DROP,
        "overwrite_cache": "true",
        "preprocessing_num_workers": DROP,
        "dataloader_num_workers": "0",
        "plot_loss": DROP,
    }
    source = f"llamafactory {job.version}: transformers' mean over num_items_in_batch"
    return JobCut(
        sets,
        "messages",
        Objective(targets, TRAINER_NORMALISATIONS, source),
        command=("llamafactory-cli", "train", "{file}"),
        files={"dataset_info.json": json.dumps(DATASET_INFO)},
        emulates_flash_attn=attention.emulates_flash_attn,
        remarks=(*attention.remarks, *list_left_out(job, materials)),
        whole_rows=WHOLE_ROWS,
    )
