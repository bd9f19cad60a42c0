"""Scales down a launch of verl's first fine-tuning trainer, trainer/fsdp_sft_trainer.py, and determines its objective.

Sources, verl 0.4.1: trainer/config/sft_trainer.yaml (keys), utils/dataset/sft_dataset.py (a row is a prompt and a
response; the response and the eos_token are trained), trainer/fsdp_sft_trainer.py:62 (flash-attn's unpadding), :372
(`balance_dp_token`), :489 (the last step is validated and saved).

A tree of 0.3.0.post1 or older uses CUDA and FSDP1 by name, has no number of steps, and divides by each micro-batch's
tokens, on the rank or across ranks (`balance_dp_token`): verl 0.1 trainer/fsdp_sft_trainer.py:115, :239, :263, :333.
"""

from attncheck.lint.fields import Job, Launch, is_at_least
from attncheck.lint.fields.cutting import (
    OFF_VALUES,
    UNDOCUMENTED,
    WITHOUT_CUDA,
    DataForm,
    JobCut,
    Materials,
    Objective,
    cut_attention,
    find_data_file,
    get_setting,
    is_on,
)
from attncheck.lint.frameworks.verl.given import parse_hydra_inputs, resolve_config
from attncheck.lint.frameworks.verl.sft_sizes import count_groups, list_sizes, remark_fsdp2
from attncheck.lint.frameworks.verl.tables import find_release

CONFIG_NAME = "sft_trainer"
SINCE = "0.4.0"  # utils/device.py: the device's name is detected
CPU_DEVICE = {"ATTNCHECK_VERL_DEVICE": "cpu"}  # the watcher replaces utils/device.py
CPU_BY_NAME = {"ATTNCHECK_WITHOUT_GPU": "1"}  # the watcher keeps on the CPU what a tree moves to CUDA
GPU_SETTINGS = ("model.use_liger", "model.fsdp_config.cpu_offload")


def is_old_sft(launch: Launch, job: Job) -> bool:
    """Return whether a launch starts `fsdp_sft_trainer` in the job's release."""
    return resolve_config(parse_hydra_inputs(launch), find_release(job.version)).config_name == CONFIG_NAME


def cut_old_sft(launch: Launch, job: Job, materials: Materials) -> JobCut | str:
    """Return the scaled-down launch of `verl.trainer.fsdp_sft_trainer`, or why it is not rehearsed."""
    own = launch.program.options if launch.program is not None and launch.program.style == "hydra" else {}
    is_by_name = not is_at_least(job.version, SINCE)
    if is_by_name and not own:
        return f"verl {job.version} is rehearsed only if its source can be read; {SINCE} and later always are"
    attention = cut_attention(job, materials, "flash_attention_2")  # fixed in the trainer's code
    groups = count_groups(job, materials)
    form, columns = _cut_columns(job)
    named = find_data_file(get_setting(job, "data.train_files") or "")
    sets = {
        **attention.sets,
        **({} if materials.real_data else columns),
        **list_sizes(materials, groups, named),
        "model.partial_pretrain": materials.model,
        "data.val_files": materials.choose_rows(named, materials.parquet_file),
        "data.val_max_samples": str(max(2, materials.batch * groups)),  # `squeeze` makes one row a scalar
        "data.micro_batch_size": str(materials.batch * groups) if is_by_name else "null",
        "optim.warmup_steps_ratio": "0",
        "optim.lr_warmup_steps_ratio": "0",
        "trainer.default_hdfs_dir": "null",
    }
    remarks = attention.remarks
    if not materials.uses_gpu:
        sets |= {"trainer.device": "cpu", "model.strategy": "fsdp2"}
        off = [name for name in GPU_SETTINGS if is_on(job, name)]
        sets |= dict.fromkeys(off, "False")
        remarks += tuple(f"{name} needs a GPU, and this machine has none: left out" for name in off)
        if get_setting(job, "model.strategy") == "fsdp":
            remarks += (remark_fsdp2("model.strategy"),)
    keys = {*(own or find_release(job.version).schema(CONFIG_NAME)), *(setting.name for setting in job.settings)}
    source = f"verl {job.version} trainer/fsdp_sft_trainer.py: the mean over the tokens of the batch and all ranks"
    objective = Objective("assistant", ("step_tokens",), source)
    if is_by_name:
        source = "the launch's verl, trainer/fsdp_sft_trainer.py: each micro-batch's mean"
        objective = Objective("assistant", ("batch_tokens",), source)
        if is_on(job, "data.balance_dp_token"):  # the ranks' micro-batches share a mean
            objective = UNDOCUMENTED
    return JobCut(
        {name: value for name, value in sets.items() if name in keys or name.startswith("hydra.")},
        form,
        objective,
        environ={} if materials.uses_gpu else {**WITHOUT_CUDA, **(CPU_BY_NAME if is_by_name else CPU_DEVICE)},
        emulates_flash_attn=attention.emulates_flash_attn,
        remarks=remarks,
        data=named,
        roles=_read_roles(job),
    )


def _cut_columns(job: Job) -> tuple[DataForm, dict[str, str]]:
    """Return the data's form, and the settings with which the launch's own data set reads it.

    Up to 0.3.0 it reads only parts of a column: verl 0.2 utils/dataset/sft_dataset.py:97 (`tolist` of a data frame).
    """
    if is_on(job, "data.multiturn.enable"):
        return "messages", {"data.multiturn.messages_key": "messages"}
    parts = {"prompt": "instruction", "response": "output"}
    if any((get_setting(job, f"data.{name}_dict_keys") or "null") not in OFF_VALUES for name in parts):
        columns = dict.fromkeys((f"data.{name}_key" for name in parts), "row")
        return "nested_instruction", columns | {f"data.{name}_dict_keys": f"[{part}]" for name, part in parts.items()}
    columns = {f"data.{name}_key": part for name, part in parts.items()}
    return "instruction", columns | dict.fromkeys((f"data.{name}_dict_keys" for name in parts), "null")


def _read_roles(job: Job) -> dict[str, str]:
    """Return the columns of a prompt and its response, or the one of messages, by role."""
    if is_on(job, "data.multiturn.enable"):
        return {get_setting(job, "data.multiturn.messages_key") or "messages": "user"}  # messages have their own
    named = {}
    for name, default, role in (("prompt", "question", "user"), ("response", "answer", "assistant")):
        column = get_setting(job, f"data.{name}_key") or default
        part = (get_setting(job, f"data.{name}_dict_keys") or "null").strip("[]'\" ")
        named[column if part in OFF_VALUES else f"{column}.{part}"] = role
    return named
