"""Finds and judges the user's own programs that divide rows across ranks with a library, from their calls.

They have their own training loop, so no framework's options describe them, but their calls do. Nothing in them is run.
"""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from attncheck.core.findings import Problem
from attncheck.core.launch import Launch, Source
from attncheck.lint.programs import ring_calls
from attncheck.lint.programs.modules import SourceModule, SourceTree
from attncheck.lint.programs.places import find_program
from attncheck.lint.programs.program import Entry
from attncheck.lint.programs.syntax import parse

MAX_MODULES = 40  # per program
MAX_PROGRAMS = 20  # per source
LIBRARIES = (ring_calls.RING, ring_calls.USP, ring_calls.ULYSSES)  # the program itself must contain one of these words


def find_problems(source: Source, launches: Sequence[Launch]) -> Iterator[Problem]:
    """Yield the problems of the programs that a source's launches start, or of the source if it is a program."""
    seen: set[Path] = set()
    if source.kind == "python":
        yield from _judge(_parse(source), SourceTree((Path(source.name).absolute().parent,), Path.cwd()))
        seen.add(Path(source.name).absolute())
    for launch in [launch for launch in launches if launch.source == source][:MAX_PROGRAMS]:
        yield from _judge_launch(launch, seen)


def _judge_launch(launch: Launch, seen: set[Path]) -> Iterator[Problem]:
    name = launch.words[0].text if launch.words else ""
    place = find_program(launch, Entry(name), ()) if name.endswith(".py") else None
    if place is not None and Path(place[0].name).absolute() not in seen:
        seen.add(Path(place[0].name).absolute())
        yield from _judge(place[1].read_file(Path(place[0].name)), place[1])


def _parse(source: Source) -> SourceModule | None:
    try:
        content = source.text.encode("utf-8", "surrogatepass")
        return SourceModule("", Path(source.name), source.name, parse(source.text), False, content=content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _judge(main: SourceModule | None, tree: SourceTree) -> Iterator[Problem]:
    words = [word for word in LIBRARIES if main is not None and word.encode() in main.content]
    text = ast.dump(main.body) if main is not None and words else ""  # without comments
    if main is None or not any(word in text for word in words):
        return
    yield from ring_calls.find_problems([main, *tree.list_imported(main, MAX_MODULES)])
