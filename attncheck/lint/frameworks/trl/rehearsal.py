"""How a launch of TRL's SFT is cut small, and what it optimises.

Sources, trl 1.16.0: scripts/sft.py (`load_dataset(dataset_name)`, which takes a folder), trainer/sft_trainer.py (a
conversational row's `messages`; `completion_only_loss` is on where rows have a `completion`; the loss is divided by
the batch's `num_items_in_batch`, which transformers' Trainer gathers over batches and ranks).
"""

from __future__ import annotations

from attncheck.core.job import DROP, Job
from attncheck.core.launch import Launch
from attncheck.core.rehearsal import DataForm, JobCut, Materials, Objective, Targets
from attncheck.lint.fields.rehearsing import (
    TRAINER_NORMALISATIONS,
    WHOLE_ROWS,
    cut_attention,
    cut_training_arguments,
    get_setting,
    is_on,
    list_left_out,
)

MENDS = ({"packing_strategy": "bfd"}, {"packing": "off"})  # "wrapped" cuts one stream of documents into rows


def cut(launch: Launch, job: Job, materials: Materials) -> JobCut | str:
    """Return the cut of a launch of `trl sft` or of TRL's script."""
    if job.trainer != "sft":
        return f"TRL's {job.trainer} is not rehearsed yet: sft is"
    attention = cut_attention(job, materials)
    form: DataForm = "messages"
    targets: Targets = "assistant" if is_on(job, "assistant_only_loss") else "all"
    if is_on(job, "completion_only_loss"):
        form, targets = "prompt_completion", "assistant"
    sets = {
        **cut_training_arguments(job, materials),
        **attention.sets,
        "model_name_or_path": materials.model,
        "model_revision": DROP,
        "dataset_name": materials.data,
        "dataset_config": DROP,
        "dataset_train_split": DROP,
        "dataset_num_proc": DROP,
        "max_length": str(materials.max_length),
        "eos_token": DROP,
        "chat_template_path": DROP,
    }
    if get_setting(job, "max_seq_length") is not None:
        sets["max_seq_length"] = sets.pop("max_length")
    source = f"trl {job.version} trainer/sft_trainer.py: the mean over num_items_in_batch"
    return JobCut(
        sets,
        form,
        Objective(targets, TRAINER_NORMALISATIONS, source),
        emulates_flash_attn=attention.emulates_flash_attn,
        remarks=(*attention.remarks, *list_left_out(job, materials)),
        mends=MENDS,
        whole_rows=WHOLE_ROWS,
    )
