"""How a launch of verl's SFT is cut small, and what it optimises.

Sources, verl 0.9.1: trainer/config/sft_trainer_engine.yaml (keys), utils/dataset/multiturn_sft_dataset.py (Parquet
files of `messages`; answers are learnt, with the markup that ends them), workers/utils/losses.py:27 (`sft_loss`: the
mean over the tokens of the whole batch and all ranks). trainer/fsdp_sft_trainer.py, whose keys differ, is cut by
`old_sft_rehearsal`.
"""

from __future__ import annotations

from attncheck.core.job import Job
from attncheck.core.launch import Launch
from attncheck.core.rehearsal import JobCut, Materials, Objective
from attncheck.lint.fields.rehearsing import LEARNING_RATE, WITHOUT_CUDA, cut_attention, get_setting
from attncheck.lint.fields.releases import is_at_least
from attncheck.lint.frameworks.verl.old_sft_rehearsal import cut_old_sft, is_old_sft
from attncheck.lint.frameworks.verl.policy_rehearsal import CPU_PLATFORM, cut_policy

ENGINE_SINCE = "0.7.0"  # of trainer/sft_trainer.py and its configuration


def cut(launch: Launch, job: Job, materials: Materials) -> JobCut | str:
    """Return the cut of a launch of `sft_trainer` or `fsdp_sft_trainer`, or of `main_ppo`'s actor."""
    if job.trainer != "sft":
        return cut_policy(launch, job, materials)
    if is_old_sft(launch, job):
        return cut_old_sft(job, materials)
    if not is_at_least(job.version, ENGINE_SINCE):
        return f"verl {job.version}'s sft_trainer is not rehearsed: {ENGINE_SINCE} and later are"
    engine = get_setting(job, "engine") or "fsdp"
    if engine != "fsdp":
        return f"verl's engine {engine} is not rehearsed: fsdp is"
    attention = cut_attention(job, materials)
    ranks = min(getattr(job.world_size, "value", 1), materials.processes) // materials.ring_size
    sets = {
        **attention.sets,
        "model.path": materials.model,
        "data.train_files": materials.parquet_file,
        "data.val_files": "null",
        "data.messages_key": "messages",
        "data.train_batch_size": str(materials.batch * materials.accumulation * ranks),
        "data.micro_batch_size_per_gpu": str(materials.batch),
        "data.max_length": str(materials.max_length),
        "data.max_token_len_per_gpu": str(materials.max_length * materials.batch),
        "data.num_workers": "0",
        "optim.lr": LEARNING_RATE,
        "optim.lr_scheduler_type": "constant",
        "optim.lr_warmup_steps": "0",
        "trainer.total_training_steps": str(materials.steps),
        "trainer.total_epochs": "1",
        "trainer.default_local_dir": materials.output,
        "trainer.logger": "[console]",
        "trainer.save_freq": "-1",
        "trainer.test_freq": "-1",
        "trainer.resume_mode": "disable",
    }
    remarks = attention.remarks
    if not materials.uses_gpu:
        sets |= {"trainer.device": "cpu", "engine.strategy": "fsdp2"}
        if get_setting(job, "engine.strategy") != "fsdp2":
            remarks += ("FSDP's first version needs a GPU, and none is here: engine.strategy=fsdp2 stands for it",)
    source = f"verl {job.version} workers/utils/losses.py: the mean over the tokens of the batch and all ranks"
    return JobCut(
        sets,
        "messages",
        Objective("assistant", ("step_tokens",), source),
        environ={} if materials.uses_gpu else {**WITHOUT_CUDA, **CPU_PLATFORM},
        emulates_flash_attn=not materials.uses_gpu,  # flash_attention_2 is the engine's default
        remarks=remarks,
    )
