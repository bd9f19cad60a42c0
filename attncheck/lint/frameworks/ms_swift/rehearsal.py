"""How a launch of ms-swift's `swift sft` or `swift pt` is cut small, and what it optimises.

Sources, ms-swift 4.6.0: arguments/base_args/data_args.py (`dataset` takes a path), model/model_meta.py:174 (the model's
type and template follow from the end of its path), loss_scale/ (`default`: answers are learnt, `all`: everything),
arguments/sft_args.py:184 (packing and padding_free want a flash implementation by name), trainers/seq2seq_trainer.py:31
(`model_accepts_loss_kwargs`: the loss is the mean over transformers' num_items_in_batch).
"""

from __future__ import annotations

from attncheck.core.job import DROP, Job
from attncheck.core.launch import Launch
from attncheck.core.rehearsal import JobCut, Materials, Objective, Targets
from attncheck.lint.fields.rehearsing import (
    TRAINER_NORMALISATIONS,
    TRAINER_RANK_CORRECTIONS,
    cut_attention,
    cut_training_arguments,
    get_setting,
    list_left_out,
)

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "autocast": "float32"}
CORRECTIONS = ({"packing": "off"},)


def cut(launch: Launch, job: Job, materials: Materials) -> JobCut | str:
    """Return the cut of a launch of `swift sft` or `swift pt`, or of its configuration file."""
    if job.trainer not in ("sft", "pt"):
        return f"ms-swift's {job.trainer} is not rehearsed yet; sft and pt are"
    attention = cut_attention(job, materials)
    alias = materials.alias(job.model)
    loss_scale = get_setting(job, "loss_scale") or ("all" if job.trainer == "pt" else "default")
    targets: Targets = "all" if loss_scale.split("+")[0] == "all" else "assistant"
    sets = {
        **cut_training_arguments(job, materials),
        **attention.sets,
        "model": alias,
        "model_revision": DROP,
        "torch_dtype": DTYPES[job.plan.precision],  # the checkpoint's, if none is written; ours is float32
        "check_model": "false",
        "dataset": materials.data_file,
        "val_dataset": DROP,
        "cached_dataset": DROP,
        "cached_val_dataset": DROP,
        "split_dataset_ratio": "0",
        "dataset_num_proc": DROP,
        "dataloader_num_workers": "0",
        "max_length": str(materials.max_length),
        "packing_length": DROP,
        "packing_num_proc": DROP,
        "model_name": DROP,
        "model_author": DROP,
        "create_checkpoint_symlink": DROP,
    }
    if materials.full_model:
        del sets["torch_dtype"]
    source = f"ms-swift {job.version} trainers/seq2seq_trainer.py: transformers' mean over num_items_in_batch"
    return JobCut(
        sets,
        "messages",
        Objective(targets, TRAINER_NORMALISATIONS, source),
        environ={"NPROC_PER_NODE": str(materials.processes)} if materials.ring_size > 1 and not launch.words else {},
        command=("swift", job.trainer, "--config", "{file}"),
        model_alias=alias,
        emulates_flash_attn=attention.emulates_flash_attn,
        remarks=(*attention.remarks, *list_left_out(job, materials)),
        corrections=CORRECTIONS,
        rank_corrections=TRAINER_RANK_CORRECTIONS,
    )
