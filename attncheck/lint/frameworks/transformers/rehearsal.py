"""Scales down a user's own script on transformers' Trainer, if its model and data are options.

The names of these options are the script's; common ones are known here. The targets are what its collator labels. The
loss is the mean over `num_items_in_batch` (transformers 5.17.0 trainer.py `get_batch_samples`,
`average_tokens_across_devices`; since 4.46, where the division by batches was fixed).
"""

import json

from attncheck.lint.fields import DROP, PACKING_SWITCHES, Job, Launch, find_switches
from attncheck.lint.fields.cutting import (
    TRAINER_NORMALISATIONS,
    TRAINER_RANK_CORRECTIONS,
    UNDOCUMENTED,
    WHOLE_ROWS,
    JobCut,
    Materials,
    Objective,
    cut_attention,
    cut_training_arguments,
    find_data_option,
    get_option,
    keep_taken,
    list_left_out,
    list_stand_ins,
    point_to_materials,
    stand_in,
)
from attncheck.lint.frameworks.trl.policy_rehearsal import STANDS_FOR, cut_policy

BATCH = "per_device_train_batch_size"


def cut(launch: Launch, job: Job, materials: Materials) -> JobCut | str:
    """Return the scaled-down launch of such a script, or why it is not rehearsed."""
    attention = cut_attention(job, materials)
    source = f"transformers {job.version} trainer.py: the mean over num_items_in_batch"
    policy = _cut_copied_policy(launch, job, materials)
    sets = cut_training_arguments(job, materials) | {name: value for name, value in policy.items() if name == BATCH}
    sets = (sets if launch.starts_written_script else keep_taken(launch, sets)) | dict(attention.sets)
    settings = {name: None if value == DROP else value for name, value in policy.items()}
    return JobCut(
        sets,
        "prompt_texts" if policy else "every",
        UNDOCUMENTED if policy else Objective("labelled", TRAINER_NORMALISATIONS, source),
        environ=stand_in(materials) | ({"ATTNCHECK_SETTINGS": json.dumps(settings)} if settings else {}),
        options=point_to_materials(launch, materials),
        data=get_option(launch, find_data_option(launch)),
        driver="trl" if policy else "",
        emulates_flash_attn=attention.emulates_flash_attn,
        remarks=(
            *([STANDS_FOR] if policy else ()),
            *list_stand_ins(launch),
            *attention.remarks,
            *list_left_out(job, materials),
        ),
        corrections=tuple({name: DROP} for name, _ in find_switches(launch, PACKING_SWITCHES)),
        rank_corrections=TRAINER_RANK_CORRECTIONS,
        whole_rows=WHOLE_ROWS,
    )


def _cut_copied_policy(launch: Launch, job: Job, materials: Materials) -> dict[str, str]:
    """Return the settings that limit generation in a script's own copy of TRL's GRPO; {} for another trainer.

    They are set in its process, because transformers' Trainer has none of them.
    """
    options = launch.program.options if launch.program is not None else {}
    if not {"num_generations", "max_completion_length"} <= options.keys():
        return {}
    return {**cut_policy(job, materials, True), "use_vllm": "false"}
