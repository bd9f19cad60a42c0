"""Replaces the model, rows and settings in the user's own script by the small, synthetic and scaled-down ones.

Sources: transformers 5.17.0 utils/hub.py (`cached_file`, `cached_files`: every file of a model or tokenizer outside a
folder passes through one of them; the same in 4.x); datasets 5.2.0 load.py (`load_dataset`); training_args.py
(`TrainingArguments`, a dataclass, as are TRL's configurations that derive from it: the generated `__init__` assigns
every field once, before `__post_init__`).
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import dataclasses
import functools
import glob
import inspect
import io
import json
import linecache
import os
import re
import sys
import zlib
from collections.abc import Iterable
from typing import Any

from . import own_rows
from .absent import is_guarded, is_script, list_requirements, note, read_scripts
from .modules import is_foreign, unwrap
from .script_code import find_script_frame, note_code
from .towers import build_own, find_tower

# Files that are not data: a script that cannot read them ends as the launch would.
NO_ROWS = re.compile(
    r"config(?!s_)|_args|template|index|tokenizer|vocab|dataset_info|deepspeed|^ds_|zero\d", re.IGNORECASE
)
# Arguments that transformers 5 and TRL 0.20 to 0.27 renamed.
NEW_NAMES = {
    "tokenizer": "processing_class",
    "max_seq_length": "max_length",
    "evaluation_strategy": "eval_strategy",
    "torch_dtype": "dtype",
}
SETTINGS: dict[str, str | None] = {}  # of TrainingArguments in this process
GPU_SETTINGS = ("fp16", "tf32", "deepspeed", "fsdp", "torch_compile", "use_liger_kernel")
SHARDING = ("deepspeed", "fsdp")
GPU_OPTIMIZERS = ("8bit", "4bit", "paged", "bnb")
ALIASES = ("OSError", "IOError", "EnvironmentError")
MISSING = ("FileNotFoundError", *ALIASES)
SPLITS = ("train", "validation", "test")
TAKEN_SPLIT = re.compile(r"""\[["']((?:train|test|val|valid|validation|eval|dev)(?:_\w+)?)["']\]""")
LOOPS_OVER_SPLITS = re.compile(r"\bfor \w*split\w*(?:, \w+)? in ")  # of a dictionary of data sets
UNEXPECTED = re.compile(r"__init__\(\) got an unexpected keyword argument '(\w+)'")
ROW_FILES = (".jsonl", ".json", ".csv")
PICTURE_FILES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
# Words in an array's name -> the column of a document's tokens, and its padding.
ARRAYS = {
    "label": ("labels", -100),
    "target": ("labels", -100),
    "mask": ("attention_mask", 0),
    "weight": ("attention_mask", 0),
    "input": ("input_ids", 0),
}
# Ends of the names of variables that identify a user, which a rehearsal without a network does not need.
KEYS = re.compile(r"(?:TOKEN|KEY|SECRET|USER|USERNAME|LOGNAME|ENTITY)$")
CACHES = re.compile(r"^(?:HF|HUGGINGFACE|TRANSFORMERS|TORCH|TRITON|XDG)_\w*(?:HOME|CACHE|DIR)$|^HF_HOME$")
READER_FRAMES = 3  # of a library's function that opens a file for the script: jsonlines.open, Path.read_text
BUILDERS = ("json", "csv", "parquet", "text", "arrow", "pandas")  # datasets' readers of files
FRAMES = ("read_csv", "read_json", "read_parquet", "read_excel", "read_table")  # pandas' readers of rows


def find_small_model(hub: Any) -> None:
    """Make the files of models resolve to those of the small model, or of a small tower."""

    def follow(original: Any) -> Any:
        @functools.wraps(original)
        def find(*arguments: Any, **options: Any) -> Any:
            name, *others = arguments or (options.pop("path_or_repo_id"),)
            return original(_choose_folder(name), *others, **options)

        return find

    for name in ("cached_file", "cached_files"):
        if hasattr(hub, name):
            setattr(hub, name, follow(getattr(hub, name)))
    hub.list_repo_templates = lambda *arguments, **options: []  # refuses another machine's paths


def _choose_folder(name: Any) -> Any:
    """Return the folder of the small model, or of a small tower, in place of a model's name or folder.

    A folder that the launch itself writes is kept, as one with code or adapters is.
    """
    rows = os.environ["ATTNCHECK_ROWS"]
    small = os.environ["ATTNCHECK_OWN_MODEL" if own_rows.begin() else "ATTNCHECK_MODEL"]
    if os.path.realpath(name) == os.path.realpath(os.environ["ATTNCHECK_MODEL"]):
        return small
    if os.path.isdir(name):
        files = [os.path.join(name, file) for file in os.listdir(name)]
        is_model = any(file.endswith(("/config.json", "/tokenizer_config.json")) for file in files)
        is_new = any(os.path.getmtime(file) > os.path.getmtime(rows) for file in files)
        is_ours = os.path.realpath(name).startswith(os.path.realpath(os.path.dirname(os.path.dirname(rows))))
        if not is_model or is_new or is_ours or any(file.endswith(".py") for file in files):
            return name
    return find_tower(name) or small


def find_rows(load: Any) -> None:
    """Make `load_dataset` return the synthetic rows for any data set except those that the rehearsal created."""
    original, rows, kind = load.load_dataset, os.environ["ATTNCHECK_ROWS"], "json"
    stage = os.path.dirname(os.path.dirname(rows))
    if os.path.isdir(os.path.join(stage, "pictures")):  # decoded from Parquet; paths in the other file
        rows, kind = os.path.join(stage, "data", "train.parquet"), "parquet"

    @functools.wraps(original)
    def load_dataset(path: Any, *arguments: Any, **options: Any) -> Any:
        if own_rows.begin():
            place = "data_files" if options.get("data_files") else "data_dir" if path in BUILDERS else ""
            if place:
                options[place] = own_rows.find_here(options.get(place), _find_nearby)
            else:
                path = own_rows.find_here(path, _find_nearby)
            return own_rows.keep(original(path, *arguments, **options))
        folder = os.path.dirname(rows)
        split, files = options.get("split"), options.get("data_files")
        is_ours = folder in f"{path} {options.get('data_dir')}" or f"{folder}/" in str(files)
        named = list(files.values()) if isinstance(files, dict) else files if isinstance(files, list) else [files]
        # a script that takes the name of its data for a file's, or adds its own file's name
        takes_file = any(
            name == folder or (name.startswith(f"{folder}/") and not glob.glob(name)) for name in map(str, named)
        )
        if is_ours and not takes_file and (path != folder or split is not None or files is not None):
            return original(path, *arguments, **options)
        _note_data_set(json.dumps([path, arguments, options.get("name"), files], default=str))
        files = dict.fromkeys(_list_splits(files) if split is None else ("train",), rows)
        streams = {"streaming": True} if options.get("streaming") and "ATTNCHECK_STREAMS" in os.environ else {}
        loaded = original(kind, data_files=files, split=split and "train", **streams)
        part = "all" if isinstance(loaded, dict) else re.sub(r"\W", "", str(split))
        note(os.environ["ATTNCHECK_WATCH"], "split", part)
        if isinstance(loaded, dict):
            loaded.__class__ = answer_any_split(type(loaded))
        return loaded

    load.load_dataset = load_dataset
    from_disk = load.load_from_disk

    @functools.wraps(from_disk)
    def load_from_disk(path: Any, *arguments: Any, **options: Any) -> Any:
        if own_rows.begin():
            return own_rows.keep(from_disk(own_rows.find_here(path, _find_nearby), *arguments, **options))
        if os.path.exists(path) and path != os.path.dirname(rows):
            return from_disk(path, *arguments, **options)
        _note_rows(path)
        if LOOPS_OVER_SPLITS.search(_read_main()):
            return load_dataset(os.path.dirname(rows))
        return _split(original(kind, data_files=rows, split="train"))

    load.load_from_disk = load_from_disk


def take_known_columns(arrow_dataset: Any) -> None:
    """Let the script rename, remove and add fields, whether or not the synthetic rows have them.

    It may also take more rows than there are.
    """
    kind = arrow_dataset.Dataset
    kind.filter = _leave_failing_reader(kind.filter)
    rename, remove, add, apply = kind.rename_column, kind.remove_columns, kind.add_column, kind.map
    take, split = kind.select, kind.train_test_split

    def keep_present(rows: Any, names: Any) -> list[str]:
        return [name for name in ([names] if isinstance(names, str) else names) if name in rows.column_names]

    @functools.wraps(rename)
    def rename_column(rows: Any, original_column_name: str, new_column_name: str, **options: Any) -> Any:
        is_present = original_column_name in rows.column_names
        if not is_present and new_column_name in rows.column_names:
            return rows
        rows = remove(rows, keep_present(rows, new_column_name) if original_column_name != new_column_name else [])
        return rename(rows, original_column_name, new_column_name, **options)

    @functools.wraps(remove)
    def remove_columns(rows: Any, column_names: Any, **options: Any) -> Any:
        return remove(rows, keep_present(rows, column_names), **options)

    @functools.wraps(add)
    def add_column(rows: Any, name: str, *arguments: Any, **options: Any) -> Any:
        return add(remove(rows, keep_present(rows, name)), name, *arguments, **options)

    @functools.wraps(apply)
    def apply_to(rows: Any, *arguments: Any, **options: Any) -> Any:
        note_code("data", arguments[0] if arguments else options.get("function"))
        if options.get("remove_columns"):
            named = keep_present(rows, options["remove_columns"])
            options["remove_columns"] = [*named, *(name for name in _list_unread(rows) if name not in named)]
        return apply_or_leave(rows, *arguments, **options)

    @functools.wraps(kind.rename_columns)
    def rename_columns(rows: Any, column_mapping: dict[str, str], **options: Any) -> Any:
        return functools.reduce(lambda made, pair: rename_column(made, *pair, **options), column_mapping.items(), rows)

    @functools.wraps(take)
    def select(rows: Any, indices: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return take(rows, indices, *arguments, **options)
        except IndexError:
            note(os.environ["ATTNCHECK_WATCH"], "fewer", "select")
        return take(rows, [number for number in indices if number < len(rows)], *arguments, **options)

    @functools.wraps(split)
    def train_test_split(rows: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return split(rows, *arguments, **options)
        except ValueError:
            note(os.environ["ATTNCHECK_WATCH"], "fewer", "train_test_split")
        return split(rows, **{name: value for name, value in options.items() if not name.endswith("_size")})

    def read_rows(path: Any) -> Any:
        _note_rows(path)
        return from_json(os.environ["ATTNCHECK_ROWS"])

    from_json = kind.from_json
    for reader in ("from_json", "from_csv", "from_parquet"):
        read = own_rows.read_own(getattr(kind, reader), own_rows.keep)
        setattr(kind, reader, staticmethod(_answer_missing(read, read_rows)))
    for reader in ("from_list", "from_dict"):
        setattr(kind, reader, staticmethod(own_rows.read_own(getattr(kind, reader), own_rows.keep_made)))
    apply_or_leave = _leave_failing_reader(apply)
    for own in (rename_column, rename_columns, remove_columns, add_column, select, train_test_split):
        setattr(kind, own.__name__, own)
    kind.map = apply_to


def _list_unread(rows: Any) -> list[str]:
    """Return the columns of the synthetic rows that no script names: the launch's own rows may not have them.

    A script that removes its columns one by one leaves none to a collator that cannot read them.
    """
    if own_rows.is_own():
        return []
    with open(os.environ["ATTNCHECK_ROWS"]) as stream:
        made = json.loads(stream.readline()).keys()
    text = read_scripts()
    return [name for name in rows.column_names if name in made and not re.search(rf"[\"'.]{name}\b", text)]


def _leave_failing_reader(apply: Any) -> Any:
    """Return a data set's method that applies a function, and leaves the rows if the script's fails on them.

    Only a reader of the script knows what is in its rows. Its failure is noted, and left out if the launch runs again.
    """

    @functools.wraps(apply)
    def call(rows: Any, function: Any = None, *arguments: Any, **options: Any) -> Any:
        try:
            return apply(rows, function, *arguments, **options)
        except (AssertionError, LookupError, TypeError, ValueError, AttributeError) as error:
            kind = "reader" if "ATTNCHECK_WITHOUT_READERS" in os.environ else "unread"
            if is_foreign(function):
                note(os.environ["ATTNCHECK_WATCH"], kind, f"{unwrap(function).__name__} {type(error).__name__}")
            if kind == "unread" or not is_foreign(function):
                raise
            names = rows.column_names
            return rows.remove_columns([name for name in ("messages",) if "prompt" in names and name in names])

    return call


@functools.cache
def answer_any_split(kind: Any) -> Any:
    """Return the class of a dictionary of splits that has one under any name: a script may compute it."""
    return type(kind.__name__, (kind,), {"__missing__": lambda self, key: self["train"]})


def _list_splits(files: Any) -> tuple[str, ...]:
    """Return the names of a data set's splits: its files', or the usual ones and those that the script takes."""
    if isinstance(files, dict) and files:
        return tuple(files)
    return tuple(dict.fromkeys((*SPLITS, *TAKEN_SPLIT.findall(_read_main()))))


def _read_main() -> str:
    """Return the text of the script that runs, "" if it has no file."""
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None:
        return ""
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read()


def _split(rows: Any) -> Any:
    """Return a data set that also serves as a dictionary of its splits, because a missing folder shows neither."""
    kind: Any = type(rows)

    class Rows(kind):  # type: ignore[misc]
        def __getitem__(self, key: Any) -> Any:
            return self if key in SPLITS else super().__getitem__(key)

        def __contains__(self, key: Any) -> bool:
            return key in SPLITS

    rows.__class__ = Rows
    return rows


def find_frames(pandas: Any) -> None:
    """Make pandas read the synthetic rows for a script's data file that does not exist."""
    rows, read_json = os.environ["ATTNCHECK_ROWS"], pandas.read_json
    folder = os.path.dirname(rows)
    stage = os.path.dirname(folder)

    def read_rows(path: Any) -> Any:
        _note_rows(path)
        return read_json(rows, lines=True)

    def is_ours(name: str, path: Any) -> bool:  # a data option whose value is not known is the folder
        return str(path) == folder or (name == "read_json" and str(path).startswith(stage))

    for name in FRAMES:
        read = own_rows.read_own(getattr(pandas, name), own_rows.keep_frame)
        setattr(pandas, name, _answer_missing(read, read_rows, functools.partial(is_ours, name)))


def open_rows() -> None:
    """Let the script open the synthetic rows for a data file that does not exist, unless it is a configuration.

    Rows that it names itself are replaced too, if no option of the command does.
    """
    original, rows = builtins.open, os.environ["ATTNCHECK_ROWS"]
    is_named = any(os.path.dirname(rows) in word for word in sys.argv)
    table = os.path.join(os.path.dirname(os.path.dirname(rows)), "array", "train.csv")

    @functools.wraps(original)
    def open_file(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if (
            mode in ("r", "rt")
            and _is_own_rows(file, rows, ROW_FILES)
            and find_script_frame(sys._getframe(1), READER_FRAMES) is not None
            and own_rows.begin()
        ):
            own = find_script_frame(sys._getframe(1), READER_FRAMES)
            return original(own_rows.shorten(file, original, own, options), mode, *arguments, **options)
        if not is_named and mode == "r" and _is_own_rows(file, rows) and is_script(sys._getframe(1).f_globals):
            _note_rows(file, "taken")
            return original(rows, mode, *arguments, **options)
        try:
            return original(file, mode, *arguments, **options)
        except (FileNotFoundError, IsADirectoryError):
            name = os.path.basename(str(file))
            is_folder = file == os.path.dirname(rows)  # a data option whose value is not known
            is_read = mode in ("r", "rt", "rb") and find_script_frame(sys._getframe(1), READER_FRAMES) is not None
            if is_read and (here := _find_nearby(str(file))):
                note(os.environ["ATTNCHECK_WATCH"], "nearby", name)
                return original(here, mode, *arguments, **options)
            ending = ".jsonl" if is_folder else os.path.splitext(name)[1]
            if ending not in ROW_FILES or not is_read or NO_ROWS.search(name) or is_guarded(MISSING, True):
                raise
            _note_rows(file)
            return original(table if ending == ".csv" else rows, mode, *arguments, **options)

    builtins.open = io.open = open_file  # pathlib's


def _is_own_rows(path: Any, rows: str, endings: tuple[str, ...] = (".jsonl",)) -> bool:
    """Return whether a path is that of rows that existed before the rehearsal."""
    is_rows = str(path).endswith(endings) and not NO_ROWS.search(os.path.basename(str(path))) and os.path.isfile(path)
    return is_rows and os.path.getmtime(path) < os.path.getmtime(rows)


def find_required_files() -> None:
    """Let a data file that is replaced by the synthetic rows, or an image, exist for a script that otherwise ends.

    A tower that an option names exists too: scripts of LLaVA's family choose its class by that.
    """
    for name in ("exists", "isfile"):
        setattr(os.path, name, _answer_required(getattr(os.path, name)))


def answer_keys() -> None:
    """Give a script the user's keys and names that it requires: `os.environ["HF_TOKEN"]`.

    The cache of another machine, which it sets, is not written.
    """
    kind = type(os.environ)
    find, write = kind.__getitem__, kind.__setitem__

    def get(self: Any, name: str) -> str:
        try:
            return find(self, name)
        except KeyError:
            if not KEYS.search(name) or not is_script(sys._getframe(1).f_globals) or is_guarded(("KeyError",)):
                raise
        note(os.environ["ATTNCHECK_WATCH"], "key", name)
        return "attncheck"

    def keep(self: Any, name: str, value: str) -> None:
        if CACHES.search(name) and not os.path.isdir(value) and is_script(sys._getframe(1).f_globals):
            note(os.environ["ATTNCHECK_WATCH"], "cache", name)
        else:
            write(self, name, value)

    kind.__getitem__, kind.__setitem__ = get, keep  # type: ignore[method-assign]


def list_rows() -> None:
    """Let a script find the synthetic rows in a folder of data that does not exist: by its list, or by a pattern."""
    rows, find = os.environ["ATTNCHECK_ROWS"], glob.glob
    array = os.path.join(os.path.dirname(os.path.dirname(rows)), "array", "train")

    def list_names(path: Any) -> list[str]:
        note(os.environ["ATTNCHECK_WATCH"], "rows", os.path.basename(str(path).rstrip(os.sep)))
        return [os.path.basename(rows)]

    @functools.wraps(find)
    def find_paths(pathname: Any, *arguments: Any, **options: Any) -> list[Any]:
        paths, (name, ending) = find(pathname, *arguments, **options), os.path.splitext(str(pathname))
        is_data = ending in ROW_FILES and not NO_ROWS.search(os.path.basename(name))
        if paths or not is_data or not is_script(sys._getframe(1).f_globals):
            return paths
        list_names(pathname)
        return [rows if ending == ".jsonl" else f"{array}{ending}"]

    os.listdir, glob.glob = _answer_missing(os.listdir, list_names), find_paths


def _answer_required(original: Any) -> Any:
    @functools.wraps(original)
    def exists(path: Any) -> bool:
        name, frame = os.path.basename(str(path)), sys._getframe(1)
        may_be_tower = "transformers" in sys.modules and path in sys.argv and is_script(frame.f_globals)
        if original(path) or (may_be_tower and find_tower(path)):
            return True
        is_data = os.path.splitext(name)[1].lower() in (*ROW_FILES, *PICTURE_FILES) and not NO_ROWS.search(name)
        lines = list_requirements(frame.f_code.co_filename) if is_data and is_script(frame.f_globals) else []
        return any(first <= frame.f_lineno <= last for first, last in lines)

    return exists


def _find_nearby(path: str) -> str:
    """Return the file below the current folder with the longest end of another machine's path, "" if there is none."""
    parts = path.split(os.sep)[1:] if os.path.isabs(path) else []
    tails = (os.path.join(os.getcwd(), *parts[first:]) for first in range(len(parts) - 1))  # a name is not enough
    return next(filter(os.path.isfile, tails), "")


def read_lines_as_array() -> None:
    """Let the script parse the synthetic rows, one per line, as a single JSON document too: an array of them."""
    original, size = json.loads, os.path.getsize(os.environ["ATTNCHECK_LINES"])

    @functools.wraps(original)
    def loads(text: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return original(text, *arguments, **options)
        except json.JSONDecodeError:
            if len(text) != size:  # the rows are plain ASCII
                raise
            return [original(line, *arguments, **options) for line in text.splitlines()]

    json.loads = loads  # type: ignore[assignment]


def _note_rows(path: Any, kind: str = "rows") -> None:
    note(os.environ["ATTNCHECK_WATCH"], kind, os.path.basename(str(path).rstrip(os.sep)))
    _note_data_set(str(path))


def _note_data_set(source: str) -> None:
    """Note one of the data sets that a script loads, all of which have the same rows."""
    if own_rows.is_own():
        own_rows.leave()
    path = os.path.join(os.environ["ATTNCHECK_WATCH"], f"data-set-{zlib.crc32(source.encode())}")
    with open(path, "w"):
        pass


def cut_settings(training_args: Any) -> None:
    """Make TrainingArguments use the values of `ATTNCHECK_SETTINGS` for the script's settings; null means the default.

    So do options of the scaled-down launch that the script's parser does not take. Later assignments by transformers or
    TRL are unchanged.
    """
    cls = training_args.TrainingArguments
    _add_settings(json.loads(os.environ.get("ATTNCHECK_SETTINGS", "{}")))
    original = cls.__setattr__

    def assign(self: Any, name: str, value: Any) -> None:
        is_cut = name in SETTINGS and not (own_rows.is_own() and name in own_rows.OF_ROWS)
        if is_cut and (name not in vars(self) or sys._getframe(1).f_globals.get("__name__") == "__main__"):
            text = SETTINGS[name]
            value = _parse(text) if text is not None else _find_default(self, name, value)
        original(self, name, value)

    cls.__setattr__ = assign


def _add_settings(settings: dict[str, str | None]) -> None:
    SETTINGS.update({own: value for name, value in settings.items() for own in (name, NEW_NAMES.get(name, name))})


def take_known(base: Any) -> None:
    """Let settings and trainers accept arguments of other releases: rename them, move them into settings, or drop
    them. A script's own methods get the arguments that they have."""

    def make(kind: Any, *arguments: Any, **options: Any) -> Any:
        for owner in kind.__mro__[: kind.__mro__.index(base) + 1]:
            if "__init__" in vars(owner) and not hasattr(vars(owner)["__init__"], "takes_known"):
                owner.__init__ = _pass_known(owner.__init__, owner.__name__)
            for name, method in [*vars(owner).items()] if owner is not base else ():
                if inspect.isfunction(method) and inspect.isfunction(getattr(base, name, None)) and name != "__init__":
                    setattr(owner, name, _pass_former(owner, method, getattr(base, name)))
        return object.__new__(kind)

    base.__new__ = make


def _pass_former(owner: Any, method: Any, base: Any) -> Any:
    """Return a script's method that can be called with the arguments which its base class has had since.

    Without the number of items, a loss is divided by the accumulation, as in those releases: transformers 5.17.0
    trainer.py:2035 (`training_step`).
    """
    known = inspect.signature(method).parameters
    added = inspect.signature(base).parameters.keys() - known.keys()
    takes_all = any(own.kind in (own.VAR_KEYWORD, own.VAR_POSITIONAL) for own in known.values())
    if takes_all or not added or hasattr(method, "takes_known") or not is_script(method.__globals__):
        return method

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        kept = {name: value for name, value in options.items() if name in known}
        if len(arguments) > len(known) or len(kept) < len(options):
            note(os.environ["ATTNCHECK_WATCH"], "argument", f"{method.__qualname__} {','.join(sorted(added))}")
        return method(*arguments[: len(known)], **kept)

    call.takes_known = True  # type: ignore[attr-defined]
    if "num_items_in_batch" in added:
        owner._get_num_items_in_batch = lambda *arguments, **options: None
    return call


def number_markers(module: Any) -> None:
    """Give ms-swift's templates the model's numbers of image markers: some classes have the released tokenizers'.

    ms-swift 4.6.0 template/templates/qwen.py:310 (`image_token_id = 151655`), template/base.py:231 (`init_processor`).
    """
    original = module.Template.init_processor

    @functools.wraps(original)
    def init_processor(template: Any, processor: Any) -> None:
        original(template, processor)
        for name in ("image_token_id", "video_token_id"):
            if hasattr(type(template), name) and hasattr(template.config, name):
                setattr(template, name, getattr(template.config, name))

    module.Template.init_processor = init_processor


def choose_model_type(module: Any) -> None:
    """Let ms-swift choose the first type that fits the small model if several do, or if it does not know the launch's.

    ms-swift 4.6.0 model/model_meta.py, 3.12.0 llm/model/register.py (`_get_model_info` ends otherwise). 2.x has the
    names of models as types.
    """
    find, read = module.get_matched_model_types, module.get_model_info_meta
    module.get_matched_model_types = lambda architectures: find(architectures)[:1]

    @functools.wraps(read)
    def read_known(*arguments: Any, model_type: str | None = None, **options: Any) -> Any:
        if model_type not in (None, *module.MODEL_MAPPING):
            model_type = note(os.environ["ATTNCHECK_WATCH"], "setting", f"model_type={model_type}")
        return read(*arguments, model_type=model_type, **options)

    module.get_model_info_meta = read_known


def choose_template(register: Any) -> None:
    """Let ms-swift choose the first template that fits the small model if the launch's own folder would name it.

    ms-swift 4.6.0 template/register.py:31 (`get_template_meta` reads a checkpoint's args.json, and ends otherwise).
    """
    find = register.get_template_meta

    @functools.wraps(find)
    def find_or_choose(model_info: Any, model_meta: Any, template_type: str | None = None) -> Any:
        candidates: Any = getattr(model_meta, "candidate_templates", ())
        has_folder = os.path.exists(os.path.join(model_info.model_dir, "args.json")) if model_info else False
        if template_type is None and model_meta.template is None and len(candidates) > 1 and not has_folder:
            template_type = candidates[0]
            note(os.environ["ATTNCHECK_WATCH"], "chosen", template_type)
        return find(model_info, model_meta, template_type=template_type)

    register.get_template_meta = find_or_choose


def take_known_template(module: Any) -> None:
    """Let LLaMA-Factory write turns by its default template if it does not have the launch's, for example a fork's.

    llamafactory 0.9.5 data/template.py:638; releases before 0.8.4 take the template's name, as many forks do.
    """
    original = module.get_template_and_fix_tokenizer

    @functools.wraps(original)
    def get_template(tokenizer: Any, given: Any, *arguments: Any, **options: Any) -> Any:
        name = getattr(given, "template", given)
        if name not in (None, *getattr(module, "TEMPLATES", (name,))):
            note(os.environ["ATTNCHECK_WATCH"], "template", name)
            if given is name:
                given = "default"
            else:
                given.template = "default"
        return original(tokenizer, given, *arguments, **options)

    module.get_template_and_fix_tokenizer = get_template


def name_layers(modeling_layers: Any) -> None:
    """Let a script's own checkpointing read the layer of a function, which transformers wraps since 4.50.

    LLaMA-Factory up to 0.9.3 model/model_utils/checkpointing.py:86 (`func.__self__`), often a fork next to the launch.
    """

    class Partial(functools.partial):  # type: ignore[type-arg]
        @property
        def __self__(self) -> Any:
            return self.func.__self__  # type: ignore[attr-defined]

    modeling_layers.partial = Partial


def leave_early_stopping(trainer_callback: Any) -> None:
    """Let transformers' early stopping do nothing, because nothing is evaluated: without a metric it ends the launch.

    5.17.0 trainer_callback.py (`EarlyStoppingCallback.on_train_begin`).
    """
    kind = trainer_callback.EarlyStoppingCallback
    kind.on_train_begin = kind.on_evaluate = lambda *arguments, **options: None


def seed_with_defaults(trainer_utils: Any) -> None:
    """Let a script copy a data loader that seeds a worker by its number alone: transformers 4.49.0, but not 4.52.3."""
    original = trainer_utils.seed_worker

    @functools.wraps(original)
    def seed_worker(worker_id: int, *arguments: Any, **options: Any) -> Any:
        missing = [name for name in [*inspect.signature(original).parameters][1:] if name not in options]
        if missing and not arguments:
            note(os.environ["ATTNCHECK_WATCH"], "lacking", f"seed_worker {','.join(missing)}")
            options |= dict.fromkeys(missing, 1)
        return original(worker_id, *arguments, **options)

    trainer_utils.seed_worker = seed_worker


def leave_login(module: Any) -> None:
    """Do nothing if the script logs in to the hub, because a rehearsal has no network."""
    module.login = lambda *arguments, **options: note(os.environ["ATTNCHECK_WATCH"], "network", "login")


def load_with_known(model_class: Any) -> None:
    """Let models be loaded without the arguments of other releases, which end in their `__init__`.

    `warnings_issued`, which trainers copied from TRL set, was removed in transformers 5.
    """
    if not hasattr(model_class, "warnings_issued"):
        model_class.warnings_issued = {}
    original = vars(model_class)["from_pretrained"].__func__

    @functools.wraps(original)
    def from_pretrained(cls: Any, *arguments: Any, **options: Any) -> Any:
        if arguments and not os.path.isdir(str(arguments[0])) and find_tower(arguments[0]):
            options.setdefault("attn_implementation", "eager")  # towers' default until transformers 4.46
        if arguments and os.path.isdir(str(arguments[0])):  # whose weights are not found by `cached_files`
            arguments = (_choose_folder(arguments[0]), *arguments[1:])
        if arguments and (made := build_own(cls, arguments[0], options)) is not None:
            return made
        while True:
            try:
                return original(cls, *arguments, **options)
            except TypeError as error:
                unknown = UNEXPECTED.search(str(error))
                if unknown is None or unknown[1] not in options:
                    raise
            options.pop(unknown[1])
            note(os.environ["ATTNCHECK_WATCH"], "setting", f"from_pretrained.{unknown[1]}")

    model_class.from_pretrained = classmethod(from_pretrained)


def load_with_head(modeling_auto: Any) -> None:
    """Let `AutoModel` load the small model with its head, as the own code of the launch's model may."""
    modeling_auto.AutoModel = modeling_auto.AutoModelForCausalLM
    note(os.environ["ATTNCHECK_WATCH"], "head", "AutoModel")


def leave_options() -> None:
    """Let a script's own parser leave out the options that it does not have; each is noted."""
    original = argparse.ArgumentParser.parse_args

    @functools.wraps(original)
    def parse_args(self: Any, *arguments: Any, **options: Any) -> Any:
        if is_script(sys._getframe(1).f_globals):
            parsed, remaining = self.parse_known_args(*arguments, **options)
            if remaining and remaining[0].startswith("--"):
                _note_unknown((word for word in remaining if word.startswith("--")), "refused")
                return parsed
        return original(self, *arguments, **options)

    argparse.ArgumentParser.parse_args = parse_args  # type: ignore[method-assign]


def leave_unknown(module: Any) -> None:
    """Let a parser of dataclasses leave out the options and keys that they do not have; each is noted."""
    parser = module.HfArgumentParser
    parse, parse_keys = parser.parse_args_into_dataclasses, parser.parse_dict

    @functools.wraps(parse)
    def parse_args_into_dataclasses(self: Any, *arguments: Any, **options: Any) -> Any:
        if len(arguments) > 1 or options.get("return_remaining_strings"):
            return parse(self, *arguments, **options)
        *parsed, remaining = parse(self, *arguments, **{**options, "return_remaining_strings": True})
        _note_unknown(word for word in remaining if word.startswith("--"))
        return tuple(parsed)

    @functools.wraps(parse_keys)
    def parse_dict(self: Any, args: Any, allow_extra_keys: bool = False) -> Any:
        fields = {field.name for kind in self.dataclass_types for field in dataclasses.fields(kind)}
        _note_unknown(() if allow_extra_keys else args.keys() - fields)
        return parse_keys(self, args, allow_extra_keys=True)

    add_group = parser.add_argument_group

    def keep_last(self: Any, action: Any, conflicting: Any) -> None:
        note(os.environ["ATTNCHECK_WATCH"], "twice", action.dest)
        self._handle_conflict_resolve(action, conflicting)

    def add_argument_group(self: Any, *arguments: Any, **options: Any) -> Any:
        group = add_group(self, *arguments, **options)
        group._handle_conflict_error = functools.partial(keep_last, group)
        return group

    parser.parse_args_into_dataclasses, parser.parse_dict = parse_args_into_dataclasses, parse_dict
    # transformers may have had one of the script's own settings since then
    parser._handle_conflict_error, parser.add_argument_group = keep_last, add_argument_group
    parse_known = parser.parse_known_args
    parser.parse_known_args = lambda self, args=None, namespace=None: parse_known(self, args, namespace or _Parsed())


class _Parsed(argparse.Namespace):
    """Options, of which a dataclass may take one that another has taken."""

    def __delattr__(self, name: str) -> None:
        if name in vars(self):
            super().__delattr__(name)


def leave_unknown_keys(utils: Any) -> None:
    """Let TRL's parser leave out the keys of its configuration file that no dataclass has."""
    original = utils.TrlParser.set_defaults_with_config

    @functools.wraps(original)
    def set_defaults_with_config(self: Any, **options: Any) -> list[str]:
        _note_unknown(word for word in original(self, **options) if word.startswith("--"))
        return []

    utils.TrlParser.set_defaults_with_config = set_defaults_with_config


def _note_unknown(words: Iterable[str], kind: str = "setting") -> None:
    """Note options that the launch has; those that scale it down become settings."""
    added = json.loads(os.environ.get("ATTNCHECK_ADDED", "{}"))
    for option in (word.partition("=")[0] for word in words):
        name = option.lstrip("-").replace("-", "_")
        if name in added:
            _add_settings({name: added[name]})
        else:
            note(os.environ["ATTNCHECK_WATCH"], kind, option)


def answer_removed(*kinds: Any) -> None:
    """Answer a script that reads settings of another release: by their new name, or None.

    A trainer of TRL that reads settings which a script's own class of a configuration's name lacks gets the defaults.
    """

    def find(self: Any, name: str) -> Any:
        released = getattr(sys.modules.get("trl"), type(self).__name__, None)
        if (field := getattr(released, "__dataclass_fields__", {}).get(name)) is not None:
            note(os.environ["ATTNCHECK_WATCH"], "lacking", f"{type(self).__name__} {name}")
            return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        frame = sys._getframe(1)
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        is_read = f".{name}" in line and not re.search(rf"attr\(.*,\s*['\"]{name}['\"]", line)  # not by hasattr
        if name.startswith("_") or not (is_read and is_script(frame.f_globals)) or is_guarded(("AttributeError",)):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        note(os.environ["ATTNCHECK_WATCH"], "setting", f"{type(self).__name__}.{name}")
        return vars(self).get(NEW_NAMES.get(name, name))

    for kind in kinds:
        kind.__getattr__ = find


def _pass_known(initialize: Any, kind: str) -> Any:
    parameters = inspect.signature(initialize).parameters
    takes_all = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values())

    @functools.wraps(initialize)
    def call(self: Any, *arguments: Any, **options: Any) -> None:
        unknown = [] if takes_all else [name for name in options if name not in parameters]
        for name in unknown:
            value, new = options.pop(name), NEW_NAMES.get(name, name)
            note(os.environ["ATTNCHECK_WATCH"], "setting", f"{kind}.{name}")
            if new in parameters:
                options.setdefault(new, value)
            elif hasattr(options.get("args"), new):  # settings that trainers accepted before their configurations did
                setattr(options["args"], new, value)
        if "report_to" in parameters:
            options["report_to"] = "none"
            _drop_unknown_optimizer(options)
        if "use_cpu" in parameters and os.environ.get("ATTNCHECK_WITHOUT_GPU"):
            options = _fit_cpu(options)
        initialize(self, *arguments, **options)

    call.takes_known = True  # type: ignore[attr-defined]
    return call


def _drop_unknown_optimizer(options: dict[str, Any]) -> None:
    """Leave the optimiser of another release to the default: transformers 5 has no `adamw_hf`."""
    from transformers.training_args import OptimizerNames

    if options.get("optim") not in (None, *OptimizerNames, *(name.value for name in OptimizerNames)):
        note(os.environ["ATTNCHECK_WATCH"], "setting", f"optim={options.pop('optim')}")


def _fit_cpu(options: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of TrainingArguments without those that need a GPU."""
    watch, optimizer = os.environ["ATTNCHECK_WATCH"], str(options.get("optim", ""))
    left_out = [name for name in GPU_SETTINGS if options.get(name) and name != os.environ.get("ATTNCHECK_LIGER")]
    for name in left_out:
        note(watch, "gpu", name)
        if name in SHARDING:
            os.environ["ATTNCHECK_WITHOUT_SHARDING"] = "1"
    changed = {name: value for name, value in options.items() if name not in left_out} | {"use_cpu": True}
    if any(word in optimizer for word in GPU_OPTIMIZERS):
        note(watch, "gpu", optimizer)
        changed["optim"] = "adamw_torch"
    return changed


def leave_kernels(module: Any) -> None:
    """Leave a model without liger's kernels, which need a GPU; its losses of pairs and policies are torch's."""
    if {"ATTNCHECK_LIGER", "ATTNCHECK_WITHOUT_GPU"} & os.environ.keys():
        module._apply_liger_kernel_to_instance = lambda *models, **options: None
        torch = sys.modules["torch"]
        vars(torch)["compile"] = _leave_compiling(torch.compile)


def _leave_compiling(original: Any) -> Any:
    """Return torch.compile that leaves liger's functions as they are: a compiler may be missing."""

    @functools.wraps(original)
    def compile_others(model: Any = None, *arguments: Any, **options: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__", "").startswith("liger_kernel."):
            return model or (lambda own: own)
        return original(model, *arguments, **options)

    return compile_others


def _parse(text: str) -> Any:
    with contextlib.suppress(ValueError):
        return json.loads(text)
    return text


def _find_default(settings: Any, name: str, value: Any) -> Any:
    field = type(settings).__dataclass_fields__.get(name)
    if field is None or field.default is dataclasses.MISSING:
        return value if field is None or field.default_factory is dataclasses.MISSING else field.default_factory()
    return field.default


def _answer_missing(original: Any, answer: Any, is_ours: Any = lambda path: False) -> Any:
    """Return a function that reads a file, and calls `answer` with its path if the script's file does not exist.

    It also does for a path of the rehearsal. The path is the first argument, possibly by its name.
    """
    first = next(iter(inspect.signature(original).parameters))

    @functools.wraps(original)
    def read(*arguments: Any, **options: Any) -> Any:
        path = arguments[0] if arguments else options.get(first)
        try:
            if not is_ours(path):
                return original(*arguments, **options)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            caught = (*ALIASES, type(error).__name__)  # a folder in place of a file may not be expected
            if not is_script(sys._getframe(1).f_globals) or is_guarded(caught):
                raise
        return answer(path)

    return read


def find_tokens(numpy: Any) -> None:
    """Let the script load the synthetic documents as rows of tokens, their labels or weights, for a missing array."""
    path = os.path.join(os.path.dirname(os.environ["ATTNCHECK_ROWS"]), os.pardir, "array", "tokens.json")

    def load(file: Any) -> Any:
        name = os.path.basename(str(file)).lower()
        with open(path) as stream:
            rows = json.load(stream)
        _note_rows(file)
        column, padding = next((value for word, value in ARRAYS.items() if word in name), ARRAYS["input"])
        length = max(len(row[column]) for row in rows)
        array = numpy.array([row[column] + [padding] * (length - len(row[column])) for row in rows])
        return array.astype("float32") if "weight" in name else array

    if os.path.isfile(path):  # rows of pairs, and the user's own, have no tokens
        numpy.load = _answer_missing(numpy.load, load)


def find_pictures(module: Any) -> None:
    """Let the script open a small image for a path that does not exist, one colour for each path."""

    def make(file: Any) -> Any:
        note(os.environ["ATTNCHECK_WATCH"], "picture", "images")  # once, for any number of them
        return module.new("RGB", (56, 56), f"#{zlib.crc32(str(file).encode()) % 0x1000000:06x}")

    module.open = _answer_missing(module.open, make)


def use_gloo_without_gpu(distributed_c10d: Any) -> None:
    """Make a script that requests NCCL without a GPU use gloo."""
    original = distributed_c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: Any = None, *arguments: Any, **options: Any) -> Any:
        return original("gloo" if backend == "nccl" else backend, *arguments, **options)

    distributed_c10d.init_process_group = init_process_group
