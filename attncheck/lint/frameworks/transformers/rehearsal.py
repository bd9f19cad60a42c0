"""How a script of one's own on transformers' Trainer is cut small, where its model and data are options.

The names of these options are the script's; those that many scripts share are known here. What it learns is what its
collator labels; the loss is the mean over `num_items_in_batch` (transformers 5.17.0 trainer.py `get_batch_samples`,
`average_tokens_across_devices`; 4.46 and later, where the fault of dividing by batches was mended).
"""

from __future__ import annotations

from attncheck.core.job import DROP, Job
from attncheck.core.launch import Launch
from attncheck.core.rehearsal import JobCut, Materials, Objective
from attncheck.lint.fields.rehearsing import (
    TRAINER_NORMALISATIONS,
    TRAINER_RANK_MENDS,
    WHOLE_ROWS,
    cut_attention,
    cut_training_arguments,
    find_options,
    find_switches,
    get_option,
    keep_taken,
    list_left_out,
)

MODEL_OPTIONS = ("model_name_or_path", "model_name", "model_path", "model_id", "base_model", "model")
TOKENIZER_OPTIONS = ("tokenizer_name", "tokenizer_path", "tokenizer_name_or_path", "tokenizer")
FILE_OPTIONS = ("data_path", "train_file", "data_file", "train_data", "data_files", "train_path")  # take a file
FOLDER_OPTIONS = ("dataset_name", "dataset_path", "dataset", "data", "data_dir")  # take what load_dataset takes
LENGTH_OPTIONS = ("max_length", "max_seq_length", "model_max_length", "block_size", "cutoff_len", "max_len")
PACKING_SWITCHES = (
    "packing",
    "use_packing",
    "enable_packing",
    "pack_sequences",
)  # of scripts: without a value


def cut(launch: Launch, job: Job, materials: Materials) -> JobCut | str:
    """Return the cut of a launch of such a script."""
    script = launch.words[0].text if launch.words else "the launch"
    model = find_options(launch, MODEL_OPTIONS)
    data = find_options(launch, (*FILE_OPTIONS, *FOLDER_OPTIONS))
    if not model:
        return f"which option of {script} names the model is not known (--model_name_or_path would be)"
    if not data:
        return f"which option of {script} names the data is not known (--data_path or --dataset_name would be)"
    options = dict.fromkeys(model[:1], materials.model)
    options |= dict.fromkeys(find_options(launch, TOKENIZER_OPTIONS), materials.model)
    named = get_option(launch, data[0])
    own = materials.name_data(named)
    options |= {
        data[0]: own if materials.real_data else materials.data_file if data[0] in FILE_OPTIONS else materials.data
    }
    options |= dict.fromkeys(find_options(launch, LENGTH_OPTIONS), str(materials.max_length))
    attention = cut_attention(job, materials)
    source = f"transformers {job.version} trainer.py: the mean over num_items_in_batch"
    sets = keep_taken(launch, cut_training_arguments(job, materials)) | dict(attention.sets)
    return JobCut(
        sets,
        "every",
        Objective("labelled", TRAINER_NORMALISATIONS, source),
        options=options,
        data=named,
        emulates_flash_attn=attention.emulates_flash_attn,
        remarks=(*attention.remarks, *list_left_out(job, materials)),
        mends=tuple({name: DROP} for name, _ in find_switches(launch, PACKING_SWITCHES)),
        rank_mends=TRAINER_RANK_MENDS,
        whole_rows=WHOLE_ROWS,
    )
