"""Scales down a launch of verl's SFT, and determines its objective.

Sources, verl 0.9.1: trainer/config/sft_trainer_engine.yaml (keys), utils/dataset/multiturn_sft_dataset.py (Parquet
files of `messages`; answers are trained, with the markup that ends them), workers/utils/losses.py:27 (`sft_loss`: the
mean over the tokens of the whole batch and all ranks). trainer/fsdp_sft_trainer.py, whose keys differ, is handled by
`old_sft_rehearsal`.
"""

from attncheck.lint.fields import Job, Launch, is_at_least
from attncheck.lint.fields.cutting import (
    WITHOUT_CUDA,
    JobCut,
    Materials,
    Objective,
    cut_attention,
    find_data_file,
    get_setting,
)
from attncheck.lint.frameworks.verl.old_sft_rehearsal import cut_old_sft, is_old_sft
from attncheck.lint.frameworks.verl.policy_rehearsal import CPU_PLATFORM, cut_policy
from attncheck.lint.frameworks.verl.sft_sizes import count_groups, list_sizes, remark_fsdp2

ENGINE_SINCE = "0.7.0"  # the first release with trainer/sft_trainer.py and its configuration


def cut(launch: Launch, job: Job, materials: Materials) -> JobCut | str:
    """Return the scaled-down launch of `sft_trainer`, `fsdp_sft_trainer` or `main_ppo`; or why it is not rehearsed."""
    if job.trainer != "sft":
        return cut_policy(launch, job, materials)
    if is_old_sft(launch, job):
        return cut_old_sft(launch, job, materials)
    if not is_at_least(job.version, ENGINE_SINCE):
        return f"verl {job.version}'s sft_trainer is not rehearsed; only {ENGINE_SINCE} and later are"
    engine = get_setting(job, "engine") or "fsdp"
    if engine != "fsdp":
        return f"verl's engine {engine} is not rehearsed; only fsdp is"
    named = find_data_file(get_setting(job, "data.train_files") or "")
    key = get_setting(job, "data.messages_key") or "messages"
    attention = cut_attention(job, materials)
    sets = {
        **attention.sets,
        **list_sizes(materials, count_groups(job, materials), named),
        "model.path": materials.model,
        "data.val_files": "null",
        "data.messages_key": key if materials.real_data else "messages",
        "data.max_token_len_per_gpu": str(materials.max_length * materials.batch),
        "data.num_workers": "0",
        "optim.lr_scheduler_type": "constant",
        "optim.lr_warmup_steps": "0",
    }
    remarks = attention.remarks
    if not materials.uses_gpu:
        sets |= {"trainer.device": "cpu", "engine.strategy": "fsdp2"}
        if get_setting(job, "engine.strategy") != "fsdp2":
            remarks += (remark_fsdp2("engine.strategy"),)
    source = f"verl {job.version} workers/utils/losses.py: the mean over the tokens of the batch and all ranks"
    return JobCut(
        sets,
        "messages",
        Objective("assistant", ("step_tokens",), source),
        environ={} if materials.uses_gpu else {**WITHOUT_CUDA, **CPU_PLATFORM},
        emulates_flash_attn=not materials.uses_gpu,  # flash_attention_2 is the engine's default
        remarks=remarks,
        data=named,
        roles={key: "user"},  # messages have their own
    )
