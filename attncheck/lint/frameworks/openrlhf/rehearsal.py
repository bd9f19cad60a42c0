"""How a launch of OpenRLHF's SFT is cut small, and what it optimises.

Sources, openrlhf 0.11.2: cli/train_sft.py (options; no number of steps: `data.max_samples` bounds them), datasets/
sft_dataset.py:8 (`input_key` and `output_key` of a row, with and without a chat template; `multiturn`: messages alone),
datasets/utils.py:50 (a .jsonl file), models/loss.py:10 and utils/loss_utils.py:56 (the loss is the mean over the tokens
of the whole step, over ranks too; 0.10 and before, over those of a batch).
"""

from __future__ import annotations

from attncheck.core.job import DROP, Job
from attncheck.core.launch import Launch
from attncheck.core.rehearsal import DataForm, JobCut, Materials, Objective, Targets
from attncheck.lint.fields.rehearsing import LEARNING_RATE, WITHOUT_CUDA, cut_attention, is_on
from attncheck.lint.frameworks.openrlhf.policy_rehearsal import cut_policy

LEFT_OUT = (
    *("logger.wandb.key", "logger.wandb.org", "logger.wandb.group", "logger.tensorboard_dir", "use_ms"),
    *("eval.dataset", "ckpt.save_hf", "ckpt.load_enable", "data.dataset_probs", "data.dataset_split"),
)
GPU_SETTINGS = {  # that are left out where no GPU is, and what they are
    "ds.load_in_4bit": "quantised weights",
    "ds.use_liger_kernel": "liger-kernel",
    "ds.adam_offload": "Adam's offload",
    "ds.deepcompile": "DeepCompile",
    "ds.overlap_comm": "overlapped communication",
}
MENDS = ({"packing": "off"},)


def cut(launch: Launch, job: Job, materials: Materials) -> JobCut | str:
    """Return the cut of a launch of `openrlhf.cli.train_sft`, or of `train_ppo_ray`'s actor."""
    if job.trainer != "sft":
        return cut_policy(launch, job, materials)
    attention = cut_attention(job, materials)
    ranks = _count_ranks(job, materials)
    form, data, targets = _cut_data(job)
    written = [name for name in GPU_SETTINGS if is_on(job, name.replace("-", "_"))]
    left_out = () if materials.uses_gpu else written
    rows = materials.batch * materials.accumulation * ranks
    sets = {
        **dict.fromkeys((*LEFT_OUT, *left_out), DROP),
        **attention.sets,
        **data,
        "model.model_name_or_path": materials.model,
        "data.dataset": materials.data_file,
        "data.max_samples": str(rows * materials.steps),
        "data.max_len": str(materials.max_length),
        "data.dataloader_num_workers": "0",
        "train.max_epochs": "1",
        "train.micro_batch_size": str(materials.batch),
        "train.batch_size": str(rows),
        "adam.lr": LEARNING_RATE,
        "lr_scheduler": "constant",
        "lr_warmup_ratio": DROP,
        "ckpt.output_dir": materials.output,
        "ckpt.path": f"{materials.output}/checkpoints",
        "ckpt.save_steps": "-1",
        "logger.logging_steps": "1",
        "eval.steps": "-1",
    }
    source = f"openrlhf {job.version} utils/loss_utils.py: the mean over the tokens of the step"
    return JobCut(
        sets,
        form,
        Objective(targets, ("step_tokens",), source),
        environ={} if materials.uses_gpu else WITHOUT_CUDA,
        emulates_flash_attn=not materials.uses_gpu,  # it is imported whatever the settings
        remarks=(
            *attention.remarks,
            *(f"{GPU_SETTINGS[name]} ({name}) needs a GPU, and none is here: it is left out" for name in left_out),
        ),
        mends=MENDS,
    )


def _count_ranks(job: Job, materials: Materials) -> int:
    """Return how many ranks the cut launch has."""
    value = getattr(job.world_size, "value", 1)
    return value if materials.uses_gpu else min(value, materials.processes)


def _cut_data(job: Job) -> tuple[DataForm, dict[str, str], Targets]:
    """Return the data's form, the settings that read it, and what is learnt."""
    if is_on(job, "model.pretrain_mode_enable") or is_on(job, "pretrain_mode"):
        return "text", {"data.input_key": "text", "data.output_key": DROP}, "all"
    if is_on(job, "data.multiturn"):
        return "messages", {"data.input_key": "messages", "data.output_key": DROP}, "assistant"
    return "prompt_completion", {"data.input_key": "prompt", "data.output_key": "completion"}, "assistant"
