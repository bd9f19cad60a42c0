"""Finds the row fields that a script may read, in its source and in the modules that it imports."""

import ast
import contextlib
import functools
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attncheck.core.launch import Launch
from attncheck.core.rehearsal import DATA_ENDINGS, TEXT_COLUMNS
from attncheck.lint.fields.rehearsing import get_setting
from attncheck.lint.programs.modules import SourceModule, SourceTree
from attncheck.lint.programs.program import Entry, find_entry
from attncheck.lint.programs.reached import HELPERS
from attncheck.lint.programs.syntax import list_kind, list_nodes
from attncheck.lint.rewriting import ReadLaunch
from attncheck.rehearsal.shapes import read_shapes
from attncheck.rehearsal.worker.turns import SHAREGPT

VARIABLE_FOLDER = re.compile(r"^\$\{?\w+\}?/")  # a path that begins with a variable
PROJECT = ("pyproject.toml", "setup.py", "setup.cfg")
PLAIN_PROGRAM = re.compile(r"(?!python)[A-Za-z][\w-]*")  # neither a path nor a module
MODULE = re.compile(r"\w+(?:\.\w+)*(?<!\.py)")
COLUMN = re.compile(r"[a-z]\w*")
ROW = re.compile(r"ex|example|row|sample|item|record|instance|entry|data")
DATA_NAME = re.compile(r"\w[\w-]*")  # no path, and no repository of the Hub
OWN_COLLATOR = re.compile(r"\bdata_collator\s*=\s*(?!None\b)\w|[\"'](?:labels|completion)[\"']\]?\s*[:=]")
TARGET_SETTINGS = ("assistant_only_loss", "completion_only_loss")
MODEL_CLASS = re.compile(r"AutoModelFor(CausalLM|Vision2Seq|ImageTextToText)|\w+For(CausalLM|ConditionalGeneration)")
# Settings that name a column -> the part of a row that it has.
COLUMN_SETTING = re.compile(r"(?:^|_)(?:column|field|key)(?:_name)?$")
PARTS = {
    "prompt": re.compile(r"prompt|question|query|input|instruction|problem|source"),
    "answer": re.compile(r"answer|response|output|completion|solution|target"),
    **{name: re.compile(name) for name in ("chosen", "rejected", "text", "messages")},
}
MEDIA_NAME = re.compile(r"image|picture|video|audio|sound|pixel")
LITERALS = ("true", "false", "none")
MARKER = re.compile(r"<\|(im_start|im_end|start_header_id|eot_id)\|>")
CONVERSATIONS = {"messages", "conversations"}
ROW_SUFFIXES = (".jsonl", ".json")
SPEAKERS = {**{name: role for role, name in SHAREGPT.items()}, "observation": "tool"}
MAX_BYTES, MAX_ROWS, MAX_KINDS = 1 << 20, 50, 8  # of the user's data
MAX_WORD = 24  # letters of a value that is no text
MAX_MODULES = 200  # in addition to the script
MAX_COLUMNS = 200
OWN_ROWS = (*DATA_ENDINGS, ".arrow")
NO_ROWS = re.compile(
    r"config|_args|template|index|tokenizer|vocab|dataset_info|deepspeed|^ds_|zero\d|requirements|package|readme|license"
    r"|special_tokens|merges|(?<![a-z])(?:trainer_)?(?:state|log)",
    re.IGNORECASE,
)
MAX_NAME = 200  # letters of a text that may be a path
MAX_OWN_FOLDERS, MAX_OWN_FILES = 300, 2000  # that are searched for rows
MAX_FOLDERS = 5000  # that are searched for a launch's script


def read_columns(read: ReadLaunch) -> list[str]:
    """Return the fields that the script of a launch may read from its rows; none if the script is not found."""
    return list_columns(_read_modules(read))


def read_optional_columns(read: ReadLaunch) -> tuple[str, ...]:
    """Return the fields that the script of a launch reads if its rows have them, except for images: `row.get("x")`."""
    bodies = [module.body for module in _read_modules(read)]
    names = (name for body in bodies for call in list_kind(body, ast.Call) if (name := _read_optional(call)))
    return tuple(name for name in dict.fromkeys(names) if COLUMN.fullmatch(name) and not MEDIA_NAME.search(name))


def read_named_columns(read: ReadLaunch) -> dict[str, str]:
    """Return the columns that settings name, each with the part of a row that it has: {"statement": "prompt"}."""
    settings = [setting for setting in read.job.settings if COLUMN_SETTING.search(setting.name)]
    parts = ((own.value, next((part for part in PARTS if PARTS[part].search(own.name)), "")) for own in settings)
    return {name: part for name, part in parts if part and COLUMN.fullmatch(name)}


def reads_pairs(read: ReadLaunch) -> bool:
    """Return whether the script of a launch takes chosen and rejected answers from its rows, and no conversations."""
    columns = {*read_columns(read)}
    return columns >= {"chosen", "rejected"} and not columns & {"messages", "conversations", "text"}


def read_field_shapes(read: ReadLaunch) -> dict[str, Any]:
    """Return the shapes of the fields that the script of a launch reads, as far as its use of them decides it."""
    return read_shapes(_read_modules(read))


def find_script(launch: Launch) -> Path | None:
    """Return the Python file that a launch starts, or its own; None if it is not found."""
    name = launch.program.path if launch.program else launch.words[0].text if launch.words else ""
    if MODULE.fullmatch(name) and {"-m", "--module"} & {word.text for word in launch.launcher_words}:
        name = f"{name.replace('.', os.sep)}.py"
    elif (entry := find_console_script(launch, name)) is not None:
        name = os.path.join(entry.folder, f"{entry.module.replace('.', os.sep)}.py")
    nearby = (os.path.join(launch.folder, name), name, launch.source.name, find_here(launch, name), find_below(name))
    return next((Path(path) for path in nearby if path.endswith(".py") and os.path.isfile(path)), None)


@dataclass(frozen=True)
class ConsoleScript:
    """A console script of a project: the folder of its package, and the function that it calls."""

    folder: str
    module: str
    function: str


def find_console_script(launch: Launch, program: str) -> ConsoleScript | None:
    """Return the console script that a program is, if the launch's project declares one of this name."""
    if not PLAIN_PROGRAM.fullmatch(program):
        return None
    entry = re.compile(rf"(?<![\w-]){re.escape(program)}[\"']?\s*=\s*[\"']?([\w.]+):(\w+)")
    for folder, name in ((folder, name) for folder in list_folders_above(launch) for name in PROJECT):
        file = Path(folder, name)
        match = entry.search(file.read_text(errors="replace")) if file.is_file() else None
        if match is not None:
            package = match[1].partition(".")[0]
            place = next((place for place in (f"{folder}/src", folder) if os.path.isdir(f"{place}/{package}")), folder)
            return ConsoleScript(place, match[1], match[2])
    return None


def list_folders_above(launch: Launch, script: str = "") -> Iterator[str]:
    """Yield the folders above a launch's program and file, up to the current one."""
    for name in (script, launch.source.name, os.path.join(launch.folder, "launch")):
        above = Path(os.path.abspath(name)).parents
        yield from (str(folder) for folder in above if folder.is_relative_to(os.getcwd()))


def find_here(launch: Launch, path: str) -> str:
    """Return the file near a launch with the longest end of this path; "" for a path that exists, or no such file."""
    path = os.path.expanduser(VARIABLE_FOLDER.sub("/", path))
    places = dict.fromkeys((os.getcwd(), os.path.dirname(os.path.abspath(launch.source.name))))
    parts = () if os.path.exists(path) else path.strip(os.sep).split(os.sep)
    tails = (os.path.join(place, *parts[first:]) for first in range(len(parts)) for place in places)
    return next(filter(os.path.isfile, tails), "")


def find_below(path: str) -> str:
    """Return the only file below the current folder that has this relative path; "" if none or several have it."""
    return "" if os.path.isabs(path) or not path.endswith(".py") else _search(os.getcwd(), path)


@functools.lru_cache(maxsize=64)
def _search(root: str, path: str) -> str:
    paths: list[str] = []
    for count, (folder, names, _) in enumerate(os.walk(root)):
        names[:] = [name for name in names if not name.startswith(".")]
        paths += [place for place in (os.path.join(folder, path),) if os.path.isfile(place)]
        if count >= MAX_FOLDERS or len(paths) > 1:
            return ""
    return next(iter(paths), "")


def list_columns(modules: Sequence[SourceModule]) -> list[str]:
    """Return the row fields that modules read."""
    bodies = [module.body for module in modules]
    made = [_list_written(body) for body in bodies]  # by the script itself, from other fields
    names = (name for body, own in zip(bodies, made) for name in _iter_columns(body) if name not in own)
    return list(dict.fromkeys(names))[:MAX_COLUMNS]


def _list_written(body: ast.Module) -> set[str]:
    """Return the strings that a module assigns to subscripts before it reads them: "text" of `row["text"] = "x"`."""
    nodes = list_kind(body, ast.Assign)
    targets = ((target, node.end_lineno or node.lineno) for node in nodes for target in node.targets)
    written = {name: line for target, line in reversed(list(targets)) if (name := _read_column(target))}
    loads = [node for node in list_kind(body, ast.Subscript) if isinstance(node.ctx, ast.Load)]
    return written.keys() - {name for node in loads if node.lineno <= written.get(name := _read_column(node), 0)}


def find_marker(read: ReadLaunch) -> str:
    """Return the marker of a chat template's turns that the script of a launch names, "" if it names none.

    A script may name those of several models, of which Llama's have headers.
    """
    markers = [match[0] for text in iter_texts(read) if (match := MARKER.search(text))]
    fitting = (marker for marker in markers if ("im_" not in marker) == ("llama" in read.job.model.lower()))
    return next(fitting, next(iter(markers), ""))


def names_data(read: ReadLaunch, value: str) -> bool:
    """Return whether the script of a launch, or LLaMA-Factory's list of data, has data sets by names such as this."""
    if not DATA_NAME.fullmatch(value):
        return False
    lists = (Path(place, "dataset_info.json") for place in (Path(), Path("data")))
    return value in iter_texts(read) or any(f'"{value}"' in file.read_text() for file in lists if file.is_file())


def names_flash_attn(read: ReadLaunch) -> bool:
    """Return whether the script of a launch, or a module that it imports or starts, names flash-attn's implementation.

    A console script often starts a file of its package. A module may also import flash-attn itself, for its own model.
    """
    words = read.recognised.launch.words
    entry = find_console_script(read.recognised.launch, words[0].text if words else "")
    package = Path(entry.folder, entry.module.partition(".")[0]) if entry is not None else None
    started = sorted(package.rglob("*.py"))[:MAX_MODULES] if package is not None else []
    texts = (file.read_text(errors="replace") for file in started)
    if "flash_attention_2" in iter_texts(read) or any('"flash_attention_2"' in text for text in texts):
        return True
    imports = (node for module in _read_modules(read) for node in list_kind(module.body, ast.ImportFrom))
    return any(str(node.module).partition(".")[0] == "flash_attn" for node in imports)


def iter_texts(read: ReadLaunch) -> Iterator[str]:
    """Yield the strings in the script of a launch and in the modules that it imports."""
    for module in _read_modules(read):
        yield from (node.value for node in list_kind(module.body, ast.Constant) if isinstance(node.value, str))


def read_model_classes(read: ReadLaunch) -> list[str]:
    """Return transformers' classes of models that the script of a launch imports, none if it may use others."""
    return list_model_classes(_read_modules(read))


def list_model_classes(modules: Sequence[SourceModule]) -> list[str]:
    """Return these classes for modules; an `Auto` class may be any of them."""
    every = (node for module in modules for node in list_kind(module.body, ast.ImportFrom))
    imports = (node for node in every if str(node.module).startswith("transformers"))
    names = {alias.name for node in imports for alias in node.names if MODEL_CLASS.fullmatch(alias.name)}
    return [] if any(name.startswith("Auto") for name in names) else sorted(names)


def chooses_targets(read: ReadLaunch) -> bool:
    """Return whether the script of a launch has a collator, labels, completions or a setting for only some tokens."""
    script = find_script(read.recognised.launch)
    text = script.read_text(errors="replace") if script is not None else ""
    values = ((get_setting(read.job, name) or "").lower() for name in TARGET_SETTINGS if name in text)
    return any(value not in LITERALS for value in values) or OWN_COLLATOR.search(text) is not None


def read_turns(read: ReadLaunch, rows: Iterable[dict[str, Any]]) -> list[list[str]]:
    """Return the speakers in each kind of conversation among the first rows of the launch's data, if their file exists.

    Nothing is returned if the script reads other fields than conversations, or all are a question and an answer.
    """
    columns = {*read_columns(read)}
    if not columns & CONVERSATIONS or columns & (TEXT_COLUMNS - CONVERSATIONS):
        return []
    kinds: dict[tuple[str, ...], None] = {}
    for row in rows:
        with contextlib.suppress(AttributeError, TypeError, StopIteration):
            turns = next(row[name] for name in CONVERSATIONS if name in row)
            speakers = [SPEAKERS.get(own, own) for own in (turn.get("role", turn.get("from")) for turn in turns)]
            if {*speakers} <= {"system", "user", "assistant", "tool"} and speakers[-1:] == ["assistant"]:
                kinds[tuple(speakers)] = None
    return [list(kind) for kind in kinds][:MAX_KINDS] if any(len(kind) > 2 for kind in kinds) else []


def has_text_pairs(rows: Iterable[dict[str, Any]]) -> bool:
    """Return whether the first rows of the launch's data are pairs of answers as texts, each with its prompt."""
    values = [row.get(name) for row in rows for name in ("prompt", "chosen", "rejected")]
    return bool(values) and all(isinstance(value, str) for value in values)


def read_prefixes(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the fields that begin with another field in all first rows of the launch's data: {"chosen": "prompt"}."""
    names = [name for name in rows[0] if all(row.get(name) for row in rows)] if rows else []
    pairs = ((name, prefix) for name in names for prefix in names if name != prefix)
    return {name: prefix for name, prefix in pairs if all(_begins(row[name], row[prefix]) for row in rows)}


def read_values(read: ReadLaunch, rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the values that the first rows of the launch's data have in each field that its script reads.

    They are no texts, but numbers, or a few words that repeat: {"quality": [0.5, 1.0], "label": ["good", "bad"]}.
    """
    fields = {name: [row[name] for row in rows if name in row] for name in read_columns(read)}
    return {name: values for name, values in fields.items() if values and _is_plain(values)}


def _is_plain(values: Sequence[Any]) -> bool:
    """Return whether values are numbers, or words of which there are few."""
    if not all(isinstance(value, str) for value in values):
        return all(isinstance(value, (bool, int, float)) for value in values)
    distinct = {*values}
    return 2 * len(distinct) <= len(values) and len(distinct) <= MAX_KINDS and max(map(len, distinct)) <= MAX_WORD


def _begins(value: Any, prefix: Any) -> bool:
    """Return whether a field's text or turns begin with those of another, and continue."""
    if isinstance(value, str) and isinstance(prefix, str):
        return len(value.strip()) > len(prefix.strip()) and value.strip().startswith(prefix.strip())
    return isinstance(value, list) and isinstance(prefix, list) and value != prefix == value[: len(prefix)]


def iter_first_rows(read: ReadLaunch, data: str) -> Iterator[dict[str, Any]]:
    """Yield the first rows of each file of rows that a launch or its script names, if it exists."""
    names = (data, *(word.text for word in read.recognised.launch.words), *iter_texts(read))
    paths = (Path(read.recognised.launch.folder, name) for name in dict.fromkeys(names) if name.endswith(ROW_SUFFIXES))
    for path in filter(Path.is_file, paths):
        with path.open(errors="replace") as stream:
            lines = stream.read(MAX_BYTES).splitlines()
        for line in lines[:MAX_ROWS]:
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                yield from [row] if isinstance(row, dict) else []


def list_own_files(read: ReadLaunch, data: str) -> list[str]:
    """Return the files of rows near a launch that it, or its script, names, or whose folder it names."""
    launch = read.recognised.launch
    script = find_script(launch)
    places = dict.fromkeys((os.path.abspath(launch.folder), *([str(script.absolute().parent)] if script else [])))
    words = (data, *(word.text.rpartition("=")[2] for word in launch.words), *iter_texts(read))
    named = {os.path.basename(os.path.normpath(word)) for word in words if 1 < len(word) < MAX_NAME} - {"."}
    return [path for place in places for path in _list_rows(place) if not named.isdisjoint(_name_parts(path, place))]


def _name_parts(path: str, place: str) -> tuple[str, ...]:
    """Return the names by which a file may be meant: its own, without its ending too, and its folders'."""
    parts = Path(os.path.relpath(path, place)).parts
    return (*parts, Path(path).stem) if len(parts) > 1 else parts


@functools.lru_cache(maxsize=64)
def _list_rows(root: str) -> list[str]:
    paths: list[str] = []
    for count, (folder, names, files) in enumerate(os.walk(root)):
        names[:] = [name for name in names if not name.startswith(".")]
        paths += [os.path.join(folder, name) for name in files if name.endswith(OWN_ROWS) and not NO_ROWS.search(name)]
        if count >= MAX_OWN_FOLDERS or len(paths) > MAX_OWN_FILES:
            break
    return paths


def freezes_parameters(read: ReadLaunch) -> bool:
    """Return whether the script of a launch, or a module that it imports, sets which parameters are trained."""
    return any(b"requires_grad" in module.content for module in _read_modules(read))


def _read_modules(read: ReadLaunch) -> tuple[SourceModule, ...]:
    """Return the script of a launch and the modules that it imports, from where the launch starts it first."""
    script, words = find_script(read.recognised.launch), read.recognised.launch.words
    root = str(script).removesuffix(os.path.normpath(words[0].text)) if words else ""
    return list_modules(script, (Path(root), Path(), Path("src"))) if script is not None else ()


def list_modules(program: Path, places: Sequence[Path]) -> tuple[SourceModule, ...]:
    """Return a script and the modules that it imports from these folders, without libraries whose source is there."""
    tree = SourceTree((program.parent, *places), program.parent)
    main = find_entry(Entry(str(program)), tree)
    imported = tree.list_imported(main, MAX_MODULES) if main is not None else []
    own = (module for module in imported if module.name.partition(".")[0] not in HELPERS)
    return (main, *own) if main is not None else ()


def _read_column(node: ast.AST) -> str:
    """Return the name in `row["name"]`, "" for anything else."""
    key = node.slice if isinstance(node, ast.Subscript) else None
    name = key.value if isinstance(key, ast.Constant) else None
    return name if isinstance(name, str) and COLUMN.fullmatch(name) else ""


def _iter_columns(body: ast.Module) -> Iterator[str]:
    """Yield the string subscripts in a module, in order: "text" for `row["text"]`, and for `row.get("text")`."""
    loops: list[ast.For | ast.comprehension] = [*list_kind(body, ast.For)]
    loops += list_kind(body, ast.comprehension)  # `row[key] for key in ("a", "b")`
    listed = {ast.dump(loop.target): loop.iter.elts for loop in loops if isinstance(loop.iter, (ast.Tuple, ast.List))}
    nodes = (node for node in list_nodes(body) if isinstance(node, (ast.Subscript, ast.Call)))
    items = [node for node in nodes if isinstance(node, ast.Call) or isinstance(node.ctx, ast.Load)]
    for node in sorted(items, key=lambda node: (node.lineno, node.col_offset)):
        if isinstance(node, ast.Call):
            if (name := _read_optional(node)) in TEXT_COLUMNS:
                yield name
        elif isinstance(node.value, (ast.Name, ast.Attribute)):
            key = ast.dump(node.slice).replace("Load()", "Store()")
            keys = [ast.Subscript(node.value, item, node.ctx) for item in listed.get(key, [node.slice])]
            yield from filter(None, map(_read_column, keys))


def _read_optional(call: ast.Call) -> str:
    """Return the name in `row.get("name")`, "" for another call, or for an object that is not called like a row."""
    match call:
        case ast.Call(ast.Attribute(ast.Name(owner), "get"), [ast.Constant(str(name)), *_]) if ROW.fullmatch(owner):
            return name
    return ""
