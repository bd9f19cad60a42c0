"""Finds the program that a launch starts, as Python will: next to the launch, on PYTHONPATH, or installed.

`python x.py` puts the script's folder first, `python -m x` the working folder
(docs.python.org/3/library/sys_path_init.html). A launch does not state its working folder: a script may be started from
its own folder or from any above it, up to its repository. The first folder that contains the program is used.
"""

import itertools
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath

from attncheck.core.io.files import read_text
from attncheck.core.launch import COMMAND, Launch
from attncheck.lint.programs.modules import SourceModule, SourceTree, locate_module
from attncheck.lint.programs.program import Entry, find_entry

MAX_PARENTS = 6
OPEN_FOLDER = re.compile(r"^\$(?:\w+|\{\w+\})/(?=.*\.py$)")  # "$BASE_PATH/src/train.py": in the tree, if it exists
WORDS = re.compile(r"[_-]")
DISTINCT_WORDS = 3  # "train_online_dpo.py"
REPOSITORY_MARKS = (".git", ".hg")
SOURCE_FOLDERS = ("", "src")
EXTENDS_PATH = re.compile(r"\bsys\.path\.(?:append|insert|extend)\(")
CONFIG_PATH = re.compile(r"\bconfig_path\s*=\s*[\"']([^\"'\n]+)[\"']")


def find_program(
    launch: Launch, target: Entry, site_folders: tuple[Path, ...], closed: frozenset[str] = frozenset()
) -> tuple[Entry, SourceTree] | None:
    """Return the entry of a program and the tree that it imports from; None if its source is not found.

    `target` is a script's path ("train.py") or a dotted module ("openrlhf.cli.train_sft"), possibly with a name in it.
    `closed` are the modules whose installed files are not those of the job.
    """
    written = launch.written if launch.words and target.name == launch.words[0].text else None
    name = OPEN_FOLDER.sub("", target.name if written is None else PurePosixPath(written.name).name)
    if any(character in name for character in "$`{}\n\0") or not name:
        return None
    text = written.text if written is not None else None
    python_path = launch.environ.get("PYTHONPATH", "")
    folders = _start_folders(launch.folder, _script_folders(launch), not name.endswith(".py"))
    place = _find_place(target, name, text, folders, python_path, site_folders, closed)
    return (place[0], SourceTree(*place[1:], closed=closed)) if place is not None else None


@lru_cache(maxsize=4096)
def _find_place(
    target: Entry,
    name: str,
    written: str | None,
    start_folders: tuple[Path, ...],
    python_paths: str,
    site_folders: tuple[Path, ...],
    closed: frozenset[str],
) -> tuple[Entry, tuple[Path, ...], Path] | None:
    """Return the entry of a program, the folders that it imports from, and the one that it starts in."""
    is_script = name.endswith(".py")
    places = () if is_script else itertools.product(start_folders, SOURCE_FOLDERS)
    is_near = any(locate_module(folder / source, name) is not None for folder, source in places)
    for path, base in itertools.product(list_paths(name) if is_script else [name], start_folders):
        python_path = tuple(_python_path(python_paths, base))
        if is_script:
            script_path = os.path.normpath(os.path.join(base, path))
            if written is not None or os.path.isfile(script_path):
                script = Path(script_path)
                ancestors = tuple(folder for folder in script.parents if folder == base or base in folder.parents)
                text = read_text(script) if written is None else written
                above = folders_above(script.parent) if EXTENDS_PATH.search(text) else ()  # sys.path.append("..")
                folders = (script.parent, *python_path, base, *ancestors, base / "src", *above, *site_folders)
                return Entry(str(script), text=written or ""), tuple(dict.fromkeys(folders)), base
            continue
        checkouts = () if is_near else list_checkouts(base, name.partition(".")[0])
        for folder in (*(base / source for source in SOURCE_FOLDERS), *python_path, *checkouts):
            if locate_module(folder, name) is not None:
                return target, tuple(dict.fromkeys((folder, base, *python_path, base / "src", *site_folders))), base
    for folder in site_folders:
        if not is_script and name.partition(".")[0] not in closed and locate_module(folder, name) is not None:
            return target, (folder, *site_folders), folder
    return None


def find_own_program(launch: Launch) -> tuple[Entry, SourceTree] | None:
    """Return the entry and the tree of the program that a launch starts, if it is not only installed."""
    return find_program(launch, Entry(launch.words[0].text), ()) if launch.words else None


def read_own_source(launch: Launch, package: str, path: str) -> str | None:
    """Return a file of a package's source next to a launch, "" if it has no such file; None without that source."""
    place = find_program(launch, Entry(package), ())
    return read_text(place[1].folders[0] / package / path) if place is not None else None


def find_main(launch: Launch) -> tuple[SourceModule, SourceTree] | None:
    """Return the module that a launch starts, and the tree that it imports from; None if it is not found."""
    place = find_own_program(launch)
    main = find_entry(*place) if place is not None else None
    return (main, place[1]) if place is not None and main is not None else None


@lru_cache(maxsize=4)
def open_tree(folders: tuple[Path, ...], base: Path) -> SourceTree:
    """Return the tree of a program, whose modules are parsed once."""
    return SourceTree(folders, base)


def find_working_folder(launch: Launch) -> str:
    """Return the folder in which a launch finds its program by a relative path; otherwise the one it changes into."""
    word = launch.words[0] if launch.words else None
    is_relative = word is not None and word.known and not word.text.startswith("/")
    place = find_own_program(launch) if is_relative else None
    return os.path.relpath(place[1].base) if place is not None else launch.folder


def list_config_folders(launch: Launch) -> tuple[Path, ...]:
    """Return the folders in which Hydra finds a configuration that the command names: its module's, and folders in it.

    `--config-path` and `@hydra.main`'s config_path are relative to the module (hydra-core 1.3.2 _internal/utils.py,
    compute_search_path_dir).
    """
    is_named = any(word.text.split("=")[0] in ("--config-name", "-cn") for word in launch.words)
    place = find_own_program(launch) if is_named else None
    if place is None:
        return ()
    entry, tree = place
    is_script = entry.name.endswith(".py")
    path = (
        Path(entry.name)
        if is_script
        else next(filter(None, (locate_module(f, entry.name) for f in tree.folders)), None)
    )
    if path is None:
        return ()
    folders = ("config", *CONFIG_PATH.findall(read_text(path)))  # the first is verl's
    return (path.parent, *(path.parent / folder for folder in folders))


def list_paths(name: str) -> list[str]:
    """Return a path, and if it leads to another tree its ends, longest first: on another machine it led into this one.

    That is so for an absolute path, and for a script in a folder whose own name has several words: other trees may have
    a "train.py" too.
    """
    parts = PurePosixPath(name).parts
    is_distinct = name.endswith(".py") and len(WORDS.split(parts[-1])) >= DISTINCT_WORDS
    ends = range(1, len(parts)) if name.startswith("/") or is_distinct else ()
    return [name, *("/".join(parts[start:]) for start in ends)]


def describe_moved(name: str, path_read: str) -> tuple[str, ...]:
    """Return a remark if a path does not exist here and another file was read for it."""
    path = os.path.abspath(path_read)
    end = os.path.normpath(OPEN_FOLDER.sub("", name)).rpartition("../")[2]  # "src/x.py" of "$HERE/../src/x.py"
    is_same = path == os.path.normpath(name) if name.startswith("/") else f"/{end}" in path
    is_moved = not is_same and (name.startswith("/") or os.path.isfile(Path(path)))
    return (f"{name} does not exist here: {os.path.relpath(path_read)} was read instead",) if is_moved else ()


def find_tree(launch: Launch) -> Path:
    """Return the top of the tree that a launch is in: its repository, or the current folder."""
    folders = _script_folders(launch)
    return folders[-1] if _is_repository(folders[-1]) else folders[0]


def list_start_folders(launch: Launch) -> tuple[Path, ...]:
    """Return the folders that a launch may start in, or if it changes into another one, those that this may be."""
    folders = (Path(os.path.normpath(base / launch.folder)) for base in _script_folders(launch))
    return tuple(dict.fromkeys(folders))


@lru_cache(maxsize=1024)
def _start_folders(entered: str, script_folders: tuple[Path, ...], is_module: bool) -> tuple[Path, ...]:
    """Return the folders that a launch may start in; the one that it changes into comes first.

    An absolute one of another machine is the folder of this tree that has its end. A module is that of the script's own
    tree, if the current folder holds several trees: "third_party/other/verl" of "third_party/other/examples/run.sh".
    """
    current, *own = script_folders
    inner = [folder for folder in own if is_module and current in folder.parents]
    folders: list[Path] = []
    for base in (*inner, current, *own):
        for path in list_paths(entered) if entered else ():
            folder = Path(os.path.normpath(base / path))
            folders += [folder] * (path == entered or folder.is_dir())
        folders.append(base)
    return tuple(folders)


def _script_folders(launch: Launch) -> tuple[Path, ...]:
    """Return the folders that a script may be started from: the current one, its own, those above in its repository."""
    return _list_script_folders(launch.source.name, os.getcwd())


@lru_cache(maxsize=256)
def _list_script_folders(script: str, current: str) -> tuple[Path, ...]:
    own = () if script in (COMMAND, "-") else folders_above(Path(current, script).parent)
    return Path(current), *own


@lru_cache(maxsize=256)
def folders_above(folder: Path) -> tuple[Path, ...]:
    """Return a folder and those above it, up to the top of its repository."""
    folders = [folder]
    while len(folders) < MAX_PARENTS and folder.parent != folder and not _is_repository(folder):
        folder = folder.parent
        folders.append(folder)
    return tuple(folders)


def list_checkouts(folder: Path, package: str) -> tuple[Path, ...]:
    """Return the folder in another one that is the checkout of a package, to install in place: "verl-0.4.0/verl".

    If there are several, none is returned, because any of them may be installed. Nor is one above the current folder
    outside a repository: clones that lie side by side do not belong to one another.
    """
    return _find_checkouts(folder, package, os.getcwd())


@lru_cache(maxsize=1024)
def _find_checkouts(folder: Path, package: str, current: str) -> tuple[Path, ...]:
    if folder in Path(current).parents and not any(map(_is_repository, (folder, *folder.parents))):
        return ()
    try:
        places = [folder / name for name in os.listdir(folder) if package in name.lower()]
    except (OSError, ValueError):  # a null byte
        return ()
    holding = [place for place in places if locate_module(place, package) and not (place / "__init__.py").is_file()]
    return tuple(holding) if len(holding) == 1 else ()


def _is_repository(folder: Path) -> bool:
    return any(os.path.exists(os.path.join(folder, mark)) for mark in REPOSITORY_MARKS)


def _python_path(texts: str, base: Path) -> Iterator[Path]:
    for text in texts.split(":"):
        if text and "$" not in text and "\0" not in text:
            yield base / text
