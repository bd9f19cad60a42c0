"""Options of the user's scripts: names that many scripts share, and their replacements in a rehearsal."""

import os
import re

from attncheck.core.launch import Launch
from attncheck.core.rehearsal import Materials
from attncheck.lint.fields.rehearsing import find_options, get_option

MODEL_OPTIONS = ("model_name_or_path", "model_name", "model_path", "model_id", "base_model", "model")
TOKENIZER_OPTIONS = ("tokenizer_name", "tokenizer_path", "tokenizer_name_or_path", "tokenizer")
FILE_OPTIONS = ("data_path", "train_file", "data_file", "train_data", "data_files", "train_path")  # these take a file
FOLDER_OPTIONS = ("dataset_name", "dataset_path", "dataset", "data", "data_dir")  # these take a load_dataset argument
LENGTH_OPTIONS = ("max_length", "max_seq_length", "model_max_length", "block_size", "cutoff_len", "max_len", "seq_len")
HUB_NAME = re.compile(r"(?!.*\.ya?ml$)(?!(?:data|datasets?|outputs?|\.+)/)[\w-][\w.-]*/[\w.-]+")  # owner/name
DATA_FILE = re.compile(r"\.(?:jsonl?|parquet|csv)$")
# options whose file is no training data
OTHER_FILE = re.compile(
    r"eval|val(?:id|_|$)|test|dev|config|deepspeed|ds_|fsdp|template|token|output|save|log|result", re.I
)


def point_to_materials(launch: Launch, materials: Materials) -> dict[str, str]:
    """Return the options for the model, its tokenizer, the data and the length, with their replacements.

    Names inside the program are replaced in its process: `stand_in`.
    """
    model, data = find_options(launch, MODEL_OPTIONS), find_data_option(launch)
    options = dict.fromkeys((*model[:1], *find_options(launch, TOKENIZER_OPTIONS)), materials.model)
    if data and (materials.real_data or not is_hub_name(get_option(launch, data))):
        options[data] = _choose_data(data, get_option(launch, data), materials)
    return options | dict.fromkeys(
        find_options(launch, (*LENGTH_OPTIONS, "max_source_length", "max_target_length")), str(materials.max_length)
    )


def stand_in(materials: Materials) -> dict[str, str]:
    """Return the variables that replace models and data sets named inside a program with those of the rehearsal."""
    environ = {} if materials.uses_gpu else {"ATTNCHECK_WITHOUT_GPU": "1"}
    if materials.real_data:
        return environ
    environ["ATTNCHECK_LINES"] = materials.data_file
    if materials.full_model:
        return environ
    return {**environ, "ATTNCHECK_MODEL": materials.model, "ATTNCHECK_ROWS": materials.data_file}


def list_stand_ins(launch: Launch) -> tuple[str, ...]:
    """Return the remark on models and data that no option of the launch names."""
    names = [
        *([] if find_options(launch, MODEL_OPTIONS) else ["model"]),
        *([] if find_data_option(launch) else ["data"]),
    ]
    return (
        (f"no option names the {' or the '.join(names)}: the program loads the rehearsal's instead",) if names else ()
    )


def find_data_option(launch: Launch) -> str:
    """Return the option that names the data, by a known name or else by its file of rows; "" if there is none."""
    known = find_options(launch, (*FILE_OPTIONS, *FOLDER_OPTIONS))
    written = (word.text.partition("=")[0] for word in launch.words[1:] if word.text.startswith("--"))
    others = (name.lstrip("-").replace("-", "_") for name in written if not OTHER_FILE.search(name))
    return next(iter(known), "") or next((name for name in others if DATA_FILE.search(get_option(launch, name))), "")


def is_hub_name(value: str) -> bool:
    """Return whether a data set is a repository of the Hub: a script keeps its name, by which it may choose fields."""
    return bool(HUB_NAME.fullmatch(value)) and not DATA_FILE.search(value) and not os.path.exists(value)


def _choose_data(option: str, value: str, materials: Materials) -> str:
    """Return the documents in the form that a script reads, judged by the file extension or else by the option."""
    if materials.real_data:
        return materials.name_data(value)
    by_ending = {".parquet": materials.parquet_file, ".json": materials.json_file, ".jsonl": materials.data_file}
    by_ending |= {".csv": materials.table_file, ".yaml": materials.list_file, ".yml": materials.list_file}
    ending = next((ending for ending in by_ending if value.endswith(ending)), "")
    return by_ending.get(ending) or (materials.data_file if option in FILE_OPTIONS else materials.data)
