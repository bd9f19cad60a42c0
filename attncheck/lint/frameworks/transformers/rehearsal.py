"""Scales down a user's own script on transformers' Trainer, if its model and data are options.

The names of these options are the script's; common ones are known here. The targets are what its collator labels. The
loss is the mean over `num_items_in_batch` (transformers 5.17.0 trainer.py `get_batch_samples`,
`average_tokens_across_devices`; since 4.46, where the division by batches was fixed).
"""

from attncheck.lint.fields import (
    DROP,
    PACKING_SWITCHES,
    TRAINER_NORMALISATIONS,
    TRAINER_RANK_CORRECTIONS,
    WHOLE_ROWS,
    Job,
    JobCut,
    Launch,
    Materials,
    Objective,
    cut_attention,
    cut_training_arguments,
    find_data_option,
    find_switches,
    get_option,
    keep_taken,
    list_left_out,
    list_stand_ins,
    point_to_materials,
    stand_in,
)


def cut(launch: Launch, job: Job, materials: Materials) -> JobCut | str:
    """Return the scaled-down launch of such a script, or why it is not rehearsed."""
    attention = cut_attention(job, materials)
    source = f"transformers {job.version} trainer.py: the mean over num_items_in_batch"
    sets = cut_training_arguments(job, materials)
    sets = (sets if launch.starts_written_script else keep_taken(launch, sets)) | dict(attention.sets)
    return JobCut(
        sets,
        "every",
        Objective("labelled", TRAINER_NORMALISATIONS, source),
        environ=stand_in(materials),
        options=point_to_materials(launch, materials),
        data=get_option(launch, find_data_option(launch)),
        emulates_flash_attn=attention.emulates_flash_attn,
        remarks=(*list_stand_ins(launch), *attention.remarks, *list_left_out(job, materials)),
        corrections=tuple({name: DROP} for name, _ in find_switches(launch, PACKING_SWITCHES)),
        rank_corrections=TRAINER_RANK_CORRECTIONS,
        whole_rows=WHOLE_ROWS,
    )
