"""Scales down a launch of ms-swift's `swift sft`, `swift pt` or `swift rlhf`, and determines its objective.

Sources, ms-swift 4.6.0: arguments/base_args/data_args.py (`dataset` takes a path), model/model_meta.py:174 (the model's
type and template follow from the end of its path), loss_scale/ (`default`: answers are trained, `all`: everything),
arguments/sft_args.py:184 (packing and padding_free require a flash implementation by name),
trainers/seq2seq_trainer.py:31 (`model_accepts_loss_kwargs`: the loss is the mean over transformers'
num_items_in_batch), template/base.py (a row's `images` are paths, to which "<image>" in the text points).

For `swift rlhf`: arguments/rlhf_args.py (the data of preference pairs), rlhf_trainers/dpo_trainer.py (its loss without
packing: `losses.mean()` over a batch's pairs, divided by the accumulation; `rpo_alpha` times the mean over the tokens
of the chosen answers, 1 by default before 3.8.0)
and rlhf_trainers/grpo_trainer.py (`_compute_rewards_per_func`), whose completions and rewards are replaced by made-up
ones. Other losses are not known here.
"""

import os
from collections.abc import Mapping

from attncheck.lint.fields import DROP, Job, Launch
from attncheck.lint.fields.cutting import (
    PICTURE_LENGTH,
    TRAINER_NORMALISATIONS,
    TRAINER_RANK_CORRECTIONS,
    UNDOCUMENTED,
    DataForm,
    JobCut,
    Materials,
    Objective,
    Targets,
    cut_attention,
    cut_training_arguments,
    find_data_file,
    get_setting,
    is_on,
    list_left_out,
    list_other_references,
    make_objective,
    read_preference,
)
from attncheck.lint.fields.releases import is_at_least
from attncheck.lint.frameworks.ms_swift import tables

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "autocast": "float32"}
RLHF_FORMS: Mapping[str, DataForm] = {
    **dict.fromkeys(("dpo", "orpo", "simpo", "cpo", "rm"), "rejected_response"),
    "gkd": "messages",
    "grpo": "rejected_response",  # the answers are removed
}
OTHER_MODELS = ("ref_model", "teacher_model", "reward_model")
LEFT_OUT = (
    *("use_vllm", "sleep_level", "offload_model", "offload_optimizer", "async_generate"),
    *("external_plugins", "multi_turn_scheduler", "reward_weights", "reward_model", "reward_model_plugin"),
    *("dynamic_sample", "max_resample_times", "generation_batch_size", "steps_per_generation", "log_completions"),
    *("teacher_model_server", "offload_teacher_model", "move_model_batches"),
)
RPO_OFF_SINCE = "3.8.0"
CHANGED_PAIRS = ("ld_alpha", "loss_weights", "f_divergence_type", "reference_free", "loss_scale")


def cut(launch: Launch, job: Job, materials: Materials) -> JobCut | str:
    """Return the scaled-down launch of one of these commands or of its file; or why it is not rehearsed."""
    if job.trainer not in ("sft", "pt", *RLHF_FORMS):
        return f"ms-swift's {job.trainer} is not rehearsed yet: sft, pt, {', '.join(RLHF_FORMS)} are"
    attention = cut_attention(job, materials)
    alias = materials.alias(job.model)
    loss_scale = get_setting(job, "loss_scale") or ("all" if job.trainer == "pt" else "default")
    named: dict[str, Targets] = {"all": "all", "last_round": "last"}
    targets = named.get(loss_scale.split("+")[0], "assistant")
    has_columns = get_setting(job, "columns") is not None  # which name the roles of the user's rows otherwise
    data = "" if job.trainer != "sft" or has_columns else find_data_file(get_setting(job, "dataset") or "")
    sets = {
        **cut_training_arguments(job, materials),
        **attention.sets,
        "model": alias,
        **dict.fromkeys(("model_revision", "ckpt_dir"), DROP),  # ms-swift 3.12.0 takes the model from `ckpt_dir`
        # The default is the checkpoint's dtype. Ours is float32, for which ms-swift would train in mixed fp16.
        "torch_dtype": get_setting(job, "torch_dtype", "dtype") or DTYPES[job.plan.precision],
        "check_model": "false",
        "dataset": materials.choose_rows(data, materials.data_file),
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
    is_rlhf = job.trainer in RLHF_FORMS
    if is_rlhf:
        sets |= _cut_rlhf(job, materials, alias)
    has_adapter = any(setting.name.lstrip("-").startswith("adapters") for setting in job.settings)
    if has_adapter:  # trained on a model of another size
        sets["adapters"] = DROP
    system = get_setting(job, "system") or ""
    lacks_system = system.endswith(".txt") and os.path.isabs(system) and not os.path.isfile(system)
    if lacks_system:  # ms-swift 4.6.0 arguments/base_args/template_args.py: such a value must be a file
        sets["system"] = DROP
    pairs = _read_pairs(job) if is_rlhf else None
    option = () if is_at_least(job.version, tables.CONFIG_OPTION_RANGE[1]) else ("--config",)
    source = f"ms-swift {job.version} trainers/seq2seq_trainer.py: transformers' mean over num_items_in_batch"
    objective = Objective(targets, TRAINER_NORMALISATIONS, source)
    has_room = materials.has_tower and materials.max_length >= PICTURE_LENGTH
    return JobCut(
        sets,
        RLHF_FORMS.get(job.trainer, "messages"),
        pairs or (UNDOCUMENTED if is_rlhf else objective),
        environ={"NPROC_PER_NODE": str(materials.processes)} if materials.ring_size > 1 and not launch.words else {},
        command=("swift", "rlhf" if is_rlhf else job.trainer, *option, "{file}"),
        driver="trl" if job.trainer in ("grpo", "gkd") else "",
        model_alias=alias,
        data=data,
        pictures="tagged" if job.trainer == "sft" and has_room else "",
        emulates_flash_attn=attention.emulates_flash_attn,
        remarks=(
            *(["the adapter's checkpoint is not loaded: a new adapter is trained"] if has_adapter else []),
            *([f"{system} was not found: the system prompt is left out"] if lacks_system else []),
            *([f"the loss of ms-swift's {job.trainer} is unknown"] if is_rlhf and pairs is None else []),
            *attention.remarks,
            *list_left_out(job, materials),
            *list_other_references(job, "ref_model"),
        ),
        rank_corrections=TRAINER_RANK_CORRECTIONS,
    )


def _read_pairs(job: Job) -> Objective | None:
    """Return the loss of a pair in DPO, None if it is not known."""
    is_changed = any(get_setting(job, name) is not None for name in CHANGED_PAIRS)
    is_split = is_on(job, "packing") or job.plan.ring_size > 1
    if job.trainer != "dpo" or is_changed or is_split or not is_at_least(job.version, RPO_OFF_SINCE):
        return None
    names = {"beta": 0.1, "label_smoothing": 0.0, "rpo_alpha": 0.0}
    numbers = [(get_setting(job, name), default) for name, default in names.items()]
    preference = read_preference(get_setting(job, "loss_type") or "sigmoid", *numbers)
    if isinstance(preference, str) or preference.loss != "sigmoid":
        return None
    return make_objective(preference, f"ms-swift {job.version} rlhf_trainers/dpo_trainer.py: the mean over its pairs")


def _cut_rlhf(job: Job, materials: Materials, alias: str) -> dict[str, str]:
    """Return the settings of `swift rlhf` for other models, generation and rewards."""
    names = (setting.name.lstrip("-").partition(".")[0] for setting in job.settings)
    sets = {name: DROP for name in names if name in LEFT_OUT or name.startswith("vllm_")}
    sets |= {name: alias for name in OTHER_MODELS if name not in sets and get_setting(job, name) is not None}
    if job.trainer == "grpo":
        sets |= {"num_generations": "2", "max_completion_length": "64", "reward_funcs": "format"}
        sets["per_device_train_batch_size"] = str(max(2, materials.batch - materials.batch % 2))
    return sets
