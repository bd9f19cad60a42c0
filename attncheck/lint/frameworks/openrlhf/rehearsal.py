"""Scales down a launch of OpenRLHF's SFT or DPO, and determines its objective.

Sources for SFT, openrlhf 0.11.2: cli/train_sft.py (options; there is no number of steps, so `data.max_samples` limits
them), datasets/sft_dataset.py:8 (`input_key` and `output_key` of a row, with and without a chat template; `multiturn`:
only messages), datasets/utils.py:50 (a .jsonl file), models/loss.py:10 and utils/loss_utils.py:56 (the loss is the mean
over the tokens of the whole step, across ranks too; before 0.10.4 over those of a batch, in 0.10.3 of all ranks).

Sources for DPO: cli/train_dpo.py (without `ref.model_name_or_path` the model is its own reference),
datasets/reward_dataset.py (`prompt_key`, texts, or messages with `apply_chat_template`), models/loss.py `DPOLoss` (the
mean over a batch's pairs, of sums; `ipo_enable`: IPO of sums), trainer/dpo_trainer.py `concatenated_forward` (the
chosen answers' own loss: the mean over answers of each one's mean).
"""

from dataclasses import replace

from attncheck.lint.fields import DROP, Job, Launch, is_at_least
from attncheck.lint.fields.cutting import (
    WITHOUT_CUDA,
    DataForm,
    JobCut,
    Materials,
    Objective,
    Targets,
    choose_learning_rate,
    cut_attention,
    find_data_file,
    get_setting,
    is_on,
    list_other_references,
    make_objective,
    read_preference,
)
from attncheck.lint.frameworks.openrlhf import names
from attncheck.lint.frameworks.openrlhf.policy_rehearsal import GPU_SETTINGS, STEP_MEAN_SINCE, cut_policy
from attncheck.lint.frameworks.openrlhf.values import parse_trainer_options

LEFT_OUT = (
    *("logger.wandb.key", "logger.wandb.org", "logger.wandb.group", "logger.tensorboard_dir", "use_ms"),
    *("eval.dataset", "ckpt.save_hf", "ckpt.load_enable", "data.dataset_probs", "data.dataset_split"),
)
ACROSS_RANKS = "0.10.3"
EVALUATED = 34  # rows of which 3 % are one: 0.6.4 utils/utils.py:105 evaluates these, and fails without any


def cut(launch: Launch, job: Job, materials: Materials) -> JobCut | str:
    """Return the scaled-down launch of `openrlhf.cli.train_sft`, `train_dpo` or `train_ppo_ray`; or why none."""
    job = name_newest(launch, job)
    if job.version == ACROSS_RANKS and job.trainer != "dpo":
        return f"openrlhf {job.version} averages a batch over the tokens of all ranks, which is not rehearsed"
    if job.trainer not in ("sft", "dpo"):
        return cut_policy(launch, job, materials)
    reading = _read_pairs(job) if job.trainer == "dpo" else _read_answers(job)
    if isinstance(reading, str):
        return reading
    form, data, objective = reading
    has_answers = job.trainer == "sft" and form != "text"
    named = find_data_file(get_setting(job, "data.dataset") or "") if has_answers else ""
    attention = cut_attention(job, materials)
    ranks = _count_ranks(job, materials)
    written = [name for name in GPU_SETTINGS if is_on(job, name.replace("-", "_"))]
    left_out = () if materials.uses_gpu else written
    rows = materials.batch * materials.accumulation * ranks // materials.ring_size
    return JobCut(
        {
            **dict.fromkeys((*LEFT_OUT, *left_out), DROP),
            **attention.sets,
            **({} if materials.real_data else data),
            "model.model_name_or_path": materials.model,
            "data.dataset": materials.choose_rows(named, materials.data_file),
            "data.max_samples": str(max(rows * materials.steps, EVALUATED)),
            "data.max_len": str(materials.max_length),
            "data.dataloader_num_workers": "0",
            "train.max_epochs": "1",
            "train.micro_batch_size": str(materials.batch),
            "train.batch_size": str(rows),
            "adam.lr": choose_learning_rate(objective),
            "lr_scheduler": "constant",
            "lr_warmup_ratio": DROP,
            "ckpt.output_dir": materials.output,
            "ckpt.path": f"{materials.output}/checkpoints",
            "ckpt.save_steps": "-1",
            "logger.logging_steps": "1",
            "eval.steps": "-1",
        },
        form,
        objective,
        environ={} if materials.uses_gpu else WITHOUT_CUDA,
        data=named,
        roles=_read_roles(job),
        emulates_flash_attn=not materials.uses_gpu,  # it is always imported
        remarks=(
            *attention.remarks,
            *(f"{GPU_SETTINGS[name]} ({name}) needs a GPU, and this machine has none: left out" for name in left_out),
            *list_other_references(job, "ref.model_name_or_path"),
        ),
    )


def name_newest(launch: Launch, job: Job) -> Job:
    """Return a job that also has its settings under the names and with the values of the newest release."""
    if job.trainer not in names.list_trainers():
        return job
    options = [option for option in parse_trainer_options(launch, job.trainer, job.version) if option.name]
    all_options = {option.name: option.values for option in options}
    settings = [
        replace(option.setting, name=name, value=" ".join(values) if values != option.values else option.setting.value)
        for option in options
        for name, values in names.to_newest_names(job.trainer, (option.name, option.values), all_options)
    ]
    return replace(job, settings=(*job.settings, *settings))


def _read_roles(job: Job) -> dict[str, str]:
    """Return the columns of a prompt and its answer; {} if there is only one, of messages."""
    answer = get_setting(job, "data.output_key")
    return {get_setting(job, "data.input_key") or "input": "user", answer: "assistant"} if answer else {}


def _count_ranks(job: Job, materials: Materials) -> int:
    """Return the number of ranks of the scaled-down launch."""
    value = getattr(job.world_size, "value", 1)
    return value if materials.uses_gpu else min(value, materials.processes)


def _read_answers(job: Job) -> tuple[DataForm, dict[str, str], Objective]:
    """Return the data's form, the settings that read it, and the objective."""
    form, data, targets = _cut_data(job)
    if not is_at_least(job.version, STEP_MEAN_SINCE):
        source = f"openrlhf {job.version} models/loss.py: each batch's mean over its tokens"
        return form, data, Objective(targets, ("batch_tokens",), source)
    source = f"openrlhf {job.version} utils/loss_utils.py: the mean over the tokens of the step"
    return form, data, Objective(targets, ("step_tokens",), source)


def _read_pairs(job: Job) -> tuple[DataForm, dict[str, str], Objective] | str:
    """Return the data's form, the settings that read it, and the loss of a pair; or why it is not rehearsed."""
    loss = "ipo_of_sums" if is_on(job, "model.ipo_enable") else "sigmoid"
    names = {"model.beta": 0.1, "model.label_smoothing": 0.0, "model.nll_loss_coef": 0.0}
    preference = read_preference(loss, *((get_setting(job, name), default) for name, default in names.items()))
    if isinstance(preference, str):
        return preference
    form: DataForm = "preference" if is_on(job, "data.apply_chat_template") else "preference_text"
    data = {
        "data.prompt_key": "prompt",
        "data.chosen_key": "chosen",
        "data.rejected_key": "rejected",
        "data.input_template": DROP,
        "ref.model_name_or_path": DROP,
    }
    source = f"openrlhf {job.version} models/loss.py: the mean over a batch's pairs"
    return form, data, make_objective(replace(preference, averages_chosen=True), source)


def _cut_data(job: Job) -> tuple[DataForm, dict[str, str], Targets]:
    """Return the data's form, the settings that read it, and the targets of the loss."""
    if is_on(job, "model.pretrain_mode_enable"):
        return "text", {"data.input_key": "text", "data.output_key": DROP}, "all"
    if is_on(job, "data.multiturn"):
        return "messages", {"data.input_key": "messages", "data.output_key": DROP}, "assistant"
    if is_on(job, "data.apply_chat_template") and not get_setting(job, "data.output_key"):
        return "messages", {"data.input_key": "messages", "data.output_key": DROP}, "last"
    return "prompt_completion", {"data.input_key": "prompt", "data.output_key": "completion"}, "assistant"
