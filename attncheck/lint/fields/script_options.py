"""Options of the user's own scripts: the names that many scripts share, and what a rehearsal puts in their place."""

from attncheck.core.launch import Launch
from attncheck.core.rehearsal import Materials
from attncheck.lint.fields.rehearsing import find_options, get_option

MODEL_OPTIONS = ("model_name_or_path", "model_name", "model_path", "model_id", "base_model", "model")
TOKENIZER_OPTIONS = ("tokenizer_name", "tokenizer_path", "tokenizer_name_or_path", "tokenizer")
FILE_OPTIONS = ("data_path", "train_file", "data_file", "train_data", "data_files", "train_path")  # take a file
FOLDER_OPTIONS = ("dataset_name", "dataset_path", "dataset", "data", "data_dir")  # take what load_dataset takes
LENGTH_OPTIONS = ("max_length", "max_seq_length", "model_max_length", "block_size", "cutoff_len", "max_len", "seq_len")
PACKING_SWITCHES = ("packing", "use_packing", "enable_packing", "pack_sequences")  # without a value


def point_to_materials(launch: Launch, materials: Materials) -> dict[str, str]:
    """Return the options that name the model, its tokenizer, the data and the length, with what is put in their place.

    What the program names itself is replaced in its process: `stand_in`.
    """
    model, data = find_options(launch, MODEL_OPTIONS), find_data_option(launch)
    options = dict.fromkeys((*model[:1], *find_options(launch, TOKENIZER_OPTIONS)), materials.model)
    if data:
        options[data] = _choose_data(data, get_option(launch, data), materials)
    return options | dict.fromkeys(find_options(launch, LENGTH_OPTIONS), str(materials.max_length))


def stand_in(materials: Materials) -> dict[str, str]:
    """Return the variables by which models and data sets that a program names itself are those of the rehearsal."""
    environ = {} if materials.uses_gpu else {"ATTNCHECK_WITHOUT_GPU": "1"}
    if materials.full_model or materials.real_data:
        return environ
    return {**environ, "ATTNCHECK_MODEL": materials.model, "ATTNCHECK_ROWS": materials.data_file}


def list_stand_ins(launch: Launch) -> tuple[str, ...]:
    """Return the remark on what no option of the launch names."""
    names = [
        *([] if find_options(launch, MODEL_OPTIONS) else ["model"]),
        *([] if find_data_option(launch) else ["data"]),
    ]
    return (f"no option names the {' or the '.join(names)}: the program gets the rehearsal's",) if names else ()


def find_data_option(launch: Launch) -> str:
    """Return the option that names the data, "" if none of the known ones is written."""
    return next(iter(find_options(launch, (*FILE_OPTIONS, *FOLDER_OPTIONS))), "")


def _choose_data(option: str, value: str, materials: Materials) -> str:
    """Return the documents as a script reads them: what the name that it is given ends in says so, else the option."""
    if materials.real_data:
        return materials.name_data(value)
    by_ending = {".parquet": materials.parquet_file, ".json": materials.json_file, ".jsonl": materials.data_file}
    ending = next((ending for ending in by_ending if value.endswith(ending)), "")
    return by_ending.get(ending) or (materials.data_file if option in FILE_OPTIONS else materials.data)
