"""Finds configuration files and modules that a command names and that its working folder or PYTHONPATH does not have.

The working folder is certain if the command finds its program there and in no other folder that it may start in.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from attncheck.core.io.files import read_text
from attncheck.core.job import Job, SettingProblem
from attncheck.core.launch import Launch, Word
from attncheck.doctor.knowledge.frameworks import TRAINER_FRAMEWORKS
from attncheck.lint.arguments import iter_option_values
from attncheck.lint.called_scripts import resolve_path
from attncheck.lint.programs.modules import locate_module
from attncheck.lint.programs.paths import find_files
from attncheck.lint.programs.places import find_main, find_tree, folders_above, list_start_folders
from attncheck.lint.programs.trainers import compose_program

SUFFIXES = (".yaml", ".yml", ".json")
OTHER_FOLDERS = frozenset({"container", "ray"})  # launchers whose command runs in a folder of theirs
ACCELERATE = "accelerate 1.11.0 to 1.15.0 commands/config/config_args.py, load_config_from_file: FileNotFoundError"
DEEPSPEED = "accelerate 1.15.0 utils/deepspeed.py:139-156, HfDeepSpeedConfig: json.load of an existing file"
PLUGIN = (
    "accelerate 1.15.0 utils/deepspeed.py:139-163, HfDeepSpeedConfig: a string path to an existing deepspeed config"
)
CURRENT = "."
MISSING_FILE = "hydra-core 1.3.2 _internal/defaults_list.py, config_not_found_error: Could not find"
REGISTERS = re.compile(rb"\bConfigStore\b|\bSearchPathPlugin\b|\bhydra_zen\b")
MAX_MODULES, MAX_SHOWN = 400, 8
LOADING = ("slime",)  # --custom-rm-path module.function
LOAD_FUNCTION = "slime 0.3.1 slime/utils/misc.py, load_function: importlib.import_module"
FUNCTION = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)\.[A-Za-z_]\w*")
UNKNOWN_FOLDER = "/\0"


def find_missing_files(job: Job, launch: Launch, reads_deepspeed: bool) -> Iterator[SettingProblem]:
    """Yield the problems of files that accelerate and transformers' trainer refuse.

    `reads_deepspeed`: `--deepspeed` is certainly the setting of transformers' TrainingArguments.
    """
    bases = _find_working_folders(launch)
    yield from _find_missing_groups(launch)
    if job.framework in LOADING:
        yield from _find_missing_modules(launch, bases)
    if not bases or launch.is_remote or OTHER_FOLDERS.intersection(launch.launchers):
        return
    words = launch.launcher_words if "accelerate" in launch.launchers else ()
    entries = (entry for entry in launch.launcher_entries if entry.name == "deepspeed_config.deepspeed_config_file")
    named = (Word(f"--deepspeed_config_file={entry.value}", entry.span, entry.location) for entry in entries)
    own = _list_values(launch.words, "deepspeed") if job.framework in TRAINER_FRAMEWORKS else []
    checks = (
        (_list_values(words, "config_file"), "FileNotFoundError", ACCELERATE, False),
        (_list_values((*words, *named), "deepspeed_config_file"), "ValueError", PLUGIN, False),
        (own, "ValueError", DEEPSPEED, not reads_deepspeed),
    )
    for values, error, evidence, is_mild in checks:
        for word in values:
            if _is_missing(launch, word, bases):
                yield _make_problem(launch, word, bases, f"{word.text} does not exist: {error}", evidence, is_mild)
    for word in own:
        file = next((base / word.text for base in bases if (base / word.text).is_file()), None)
        if file is not None and not _is_json(file):
            text = f"{word.text} is not JSON: JSONDecodeError"
            yield _make_problem(launch, word, bases, text, DEEPSPEED, not reads_deepspeed)


def _find_missing_groups(launch: Launch) -> Iterator[SettingProblem]:
    """Yield the problem of a file of a Hydra group that does not exist, unless the program registers configurations."""
    program = launch.program or (compose_program(launch) if launch.starts_written_script else None)
    main, tree = (find_main(launch) if program is not None and program.missing else None) or (None, None)
    modules = [main, *tree.list_imported(main, MAX_MODULES)] if main is not None and tree is not None else []
    if program is None or not modules or any(REGISTERS.search(module.content) for module in modules):
        return
    ignored = _list_ignored(folders_above(modules[0].path.parent))
    made = any(fnmatch(part, line) for part in "/".join(program.missing[:1]).split("/") for line in ignored)
    for path in program.missing[:1] if not made else ():  # Hydra names the first
        group, _, option = path.rpartition("/")
        words = [word for word in launch.words[1:] if word.text.partition("=")[2] == option]
        if all(word.known for word in words):
            known = ", ".join(program.groups.get(group, ())[:MAX_SHOWN])
            text = f"{path}: no folder of its configuration has this file: MissingConfigException"
            advice = f"choose one of {known}" if known else f"add the file to the configuration of {program.path}"
            location = (words or launch.words)[0].location
            yield SettingProblem("refuses", text, (MISSING_FILE,), location, advice=advice, universal=True)


def _find_missing_modules(launch: Launch, bases: list[Path]) -> Iterator[SettingProblem]:
    """Yield the functions in modules that the tree has in a folder which is not on the path: a warning.

    The path may have folders of another machine, which are not known here.
    """
    parts = launch.environ.get("PYTHONPATH", "").split(":")
    folders = [Path(resolve_path(part, launch.source, launch.folder) or UNKNOWN_FOLDER) for part in parts if part]
    for option, word in iter_option_values(launch.words[1:]):
        match = FUNCTION.fullmatch(word.text) if option.endswith("-path") and word.known else None
        if match is None or not bases or Path(UNKNOWN_FOLDER) in folders:
            continue
        is_found = any(locate_module(folder, match[1]) for folder in (*bases, *folders))
        place = "" if is_found or "." in match[1] else _find_same_name(launch, f"{match[1]}.py")
        if place:
            text = f"{option} {word.text}: no folder of PYTHONPATH has {match[1]}: ModuleNotFoundError"
            advice = f"add {os.path.dirname(place)} to PYTHONPATH"
            evidence = (f"{place} is in none of {', '.join(filter(None, parts)) or 'its folders'}", LOAD_FUNCTION)
            yield SettingProblem("refuses", text, evidence, word.location, advice=advice, mild=True, universal=True)


def _find_working_folders(launch: Launch) -> list[Path]:
    """Return the folders, of those that a launch may start in, in which it finds its program; [] if that is open."""
    word = launch.words[0] if launch.words else None
    has_unknown = bool(launch.directories) and not launch.folder
    if word is None or not word.known or word.text.startswith("/") or launch.written is not None or has_unknown:
        return []
    is_module = bool(launch.launcher_words) and launch.launcher_words[-1].text in ("-m", "--module")
    path = f"{word.text.replace('.', '/')}.py" if is_module else word.text
    return [base for base in list_start_folders(launch) if path.endswith(".py") and (base / path).is_file()]


def _list_values(words: tuple[Word, ...], name: str) -> list[Word]:
    """Return the relative paths of configuration files that an option has."""
    values = [word for option, word in iter_option_values(words) if option[2:].replace("-", "_") == name]
    return [word for word in values if word.known and word.text.endswith(SUFFIXES) and word.text[:1] not in "/~"]


def _is_missing(launch: Launch, word: Word, bases: list[Path]) -> bool:
    """Return whether no folder with the program has a file, which nothing seems to make.

    The script makes it if it names it elsewhere; git ignores files that people make, and submodules may be empty. A
    path that an expansion gives may be one from the folder in which the script starts.
    """
    path, top = word.text, find_tree(launch)
    name = PurePosixPath(path).name
    bases = [*bases, *list_start_folders(replace(launch, folder=""))] if word.shell else bases
    is_made = launch.source.text.count(name) > sum(word.text.count(name) for word in launch.whole)
    if is_made or any((base / path).exists() for base in bases):
        return False
    if any(folder.is_dir() and not any(folder.iterdir()) for folder in _list_parents(path, bases)):
        return False
    parts = PurePosixPath(os.path.normpath(path)).parts
    ignored = [line.lstrip("/") for line in _list_ignored({top, *bases})]
    return not any(fnmatch(part, line) for line in ignored for part in (*parts, os.path.normpath(path)))


def _list_ignored(folders: Iterable[Path]) -> list[str]:
    """Return the patterns of files that git ignores, which people make; "/data" is one in that folder alone."""
    lines = (line.strip().rstrip("/") for folder in folders for line in read_text(folder / ".gitignore").splitlines())
    return [line for line in lines if line]


def _list_parents(path: str, bases: list[Path]) -> Iterator[Path]:
    yield from (base / parent for base in bases for parent in PurePosixPath(path).parents if str(parent) != CURRENT)


def _is_json(path: Path) -> bool:
    try:
        json.loads(read_text(path) or "{}")  # one that cannot be read may be
    except ValueError:
        return False
    return True


def _make_problem(
    launch: Launch, word: Word, bases: list[Path], text: str, evidence: str, mild: bool = False
) -> SettingProblem:
    folder = os.path.relpath(bases[0])
    where = f"{'the current folder' if folder == CURRENT else folder} has the program {launch.words[0].text}"
    same = _find_same_name(launch, PurePosixPath(word.text).name) if "exist" in text else ""
    advice = f"the tree has {same}" if same else f"name {'a file that exists' if 'exist' in text else 'a JSON file'}"
    return SettingProblem("refuses", text, (where, evidence), word.location, advice=advice, mild=mild, universal=True)


def _find_same_name(launch: Launch, name: str) -> str:
    """Return a file of the tree that has a name, "" if none is found."""
    path = next(find_files(find_tree(launch), name), None)
    return os.path.relpath(path) if path is not None else ""
