"""Reads the launches of a request, as the releases in the examined environment read them."""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from attncheck.core.launch import ReadFile, Source
from attncheck.core.snapshot import Snapshot
from attncheck.lint.context import ReadModel
from attncheck.lint.judging import add_model
from attncheck.lint.launches import CONFIG_SUFFIXES
from attncheck.lint.rewriting import ReadLaunch, read_launches
from attncheck.rehearsal import cutting, paired
from attncheck.rehearsal.columns import find_script

MAX_SCRIPTS = 200  # in addition to a launch's own


@dataclass(frozen=True)
class Request:
    """The launches to rehearse, each with its source; the permitted fixes; the seed of documents and weights."""

    sources: tuple[Source, ...]
    read_model: ReadModel
    make_reader: Callable[[Source], ReadFile]
    fix: bool = True
    seed: int = 0
    steps: int = 0  # 0: as many as needed
    full_model: bool = False  # whether to use the user's own full-size model instead of a small one of its architecture
    real_data: bool = False  # whether to use the first rows of the user's data instead of synthetic documents
    own_loops: bool = True  # whether to run scripts with their own training loop, whose other effects are unknown
    trusts_script: bool = False  # whether to run the user's own script even if nothing protects their files from it
    trusts_remote_code: bool = False  # whether to run code of model repositories if the launch requests it
    runs_substitutions: bool = False  # whether to run commands in the launch's options and exports, `$(…)`
    only: tuple[str, ...] = ()  # the checks to answer; (): all
    model: str = ""  # the launches' model, if they do not name it or its class is not known; "": their own


def list_scripts(snapshot: Snapshot, request: Request, source: Source) -> list[str]:
    """Return the Python files that a source's launches start, and files next to them that they may import."""
    launches = read_launches_of(snapshot, request, source)
    words = [word.text for read in launches for word in read.recognised.launch.words[:1]]
    scripts = [word for word in words if word.endswith(".py") and os.path.isfile(word)]
    siblings = [
        os.path.join(os.path.dirname(script), name)
        for script in scripts
        for name in sorted(os.listdir(os.path.dirname(script) or "."))[:MAX_SCRIPTS]
        if name.endswith(".py")
    ]
    return list(dict.fromkeys((*scripts, *siblings)))


def runs_own_script(read: ReadLaunch) -> bool:
    """Return whether a launch starts the user's own script or module, whose other effects are unknown."""
    launch = read.recognised.launch
    if read.recognised.framework.general or not launch.words:
        return read.recognised.framework.general
    program = launch.words[0].text
    package = os.path.join(launch.folder, program.partition(".")[0])
    return (
        program.endswith(".py") or os.path.sep in program or os.path.isdir(package) or os.path.isfile(f"{package}.py")
    )


def read_launches_of(snapshot: Snapshot, request: Request, source: Source) -> list[ReadLaunch]:
    """Return the launches of a source, as the examined environment's releases read them."""
    read_file = _read_nearby(request.make_reader(source))
    launches = read_launches(snapshot, source, request.read_model, read_file, request.own_loops)
    if all(map(paired.is_alone, launches)):  # or if there are none: a script's arguments may name its program

        def read_texts(texts: Sequence[Source], reason: str) -> Iterator[ReadLaunch]:
            for text in texts:
                reads = read_launches(snapshot, text, request.read_model, read_file, request.own_loops)
                yield from (
                    replace(read, origin=reason and f"{reason}{text.name}")
                    for read in reads
                    if paired.reads_file(read, source)
                )

        is_started = "it needs arguments: started as in " * (not launches)
        own = [*itertools.islice(read_texts(paired.list_commands(source), is_started), 1)]
        if not own and launches:
            reason = f"no command names {source.name}: started as others are in "
            others = [*read_texts(paired.list_commands_of_others(source), reason)]
            own = others[: len({find_script(read.recognised.launch) for read in others}) == 1]
        launches = own or launches
    models = (request.model or _find_model_folder(read) for read in launches)
    return [
        replace(
            read,
            job=replace(read.job, model=model),
            snapshot=add_model(snapshot if request.model else read.snapshot, model, request.read_model),
        )
        if model
        else read
        for read, model in zip(launches, models)
    ]


def _find_model_folder(read: ReadLaunch) -> str:
    """Return the first word of a script's command that is the folder of a model, "" if an option names its model."""
    launch = read.recognised.launch
    words = () if cutting.name_model(read) or not runs_own_script(read) else launch.words[1:]
    places = (word.text for word in words if not word.text.startswith("-"))
    return next((name for name in places if os.path.isfile(os.path.join(launch.folder, name, "config.json"))), "")


def _read_nearby(read_file: ReadFile) -> ReadFile:
    """Return a reader that, if a configuration file is missing, takes one with the longest end of its path.

    With a folder the end is that of the same file in another checkout.
    """

    def read(name: str) -> Source | None:
        parts = name.split("/") if name.endswith(CONFIG_SUFFIXES) else []
        ends = ("/".join(parts[first:]) for first in range(1, len(parts)))
        nearby = (replace(file, name=name, is_nearby="/" not in end) for end in ends if (file := read_file(end)))
        return read_file(name) or next(nearby, None)

    return read
