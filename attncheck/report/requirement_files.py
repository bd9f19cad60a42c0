"""Reads which packages a project's files name, and in which lines: requirements, pyproject, locks, Dockerfiles, ….

Line by line and by patterns, not by parsers: a parser tells what a file says and not where. What no pattern knows is
passed over; nothing is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Named = tuple[str, int, int]  # a package's normalised name, line and column
LONGEST = 4096  # characters of a line
NAME = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?"
ENDS = r"(?=\s*(?:$|[\[<>=!~@;,#'\"\s]))"  # what may follow a name in a requirement
REQUIREMENT = re.compile(rf"\s*({NAME}){ENDS}")
WHEEL = re.compile(r"(?:^|[/\s=@\"'])([A-Za-z0-9][\w.]*)-\d[^/\s]*\.(?:whl|tar\.gz|zip)\b")
EGG = re.compile(rf"#egg=({NAME})")
CALLED = {"pytorch": "torch", "pytorch-cuda": "torch"}  # conda's names


@dataclass(frozen=True)
class Reader:
    """How one kind of file is read: which names it has, whether it is written by a tool, and what yields its lines."""

    named: re.Pattern[str]
    read: Callable[[str], Iterator[Named]]
    locked: bool = False
    folder: str = ""  # every .txt and .in file in a folder of this name is one too


def normalised(name: str) -> str:
    """Return a package's name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers, without those that no one wrote: they would cost a pattern too much."""
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if len(line) <= LONGEST)


def requirements(text: str) -> Iterator[Named]:
    """Yield the packages of a requirements file."""
    for number, line in _lines(text):
        yield from _of_line(line, number)


def _of_line(line: str, number: int) -> Iterator[Named]:
    found = EGG.search(line) or (WHEEL.search(line) if "://" in line or line.strip().startswith((".", "/")) else None)
    found = REQUIREMENT.match(line) if " @ " in line or found is None else found
    if found and not line.lstrip().startswith("#"):
        yield normalised(found.group(1)), number, found.start(1) + 1


KEY = re.compile(r"\s*([\"']?)([\w.-]+)\1\s*=\s*(.*)")
STRING = re.compile(rf"([\"'])\s*({NAME}){ENDS}[^\"']*\1")
# Tables of pyproject.toml or Pipfile: in these a string is a requirement, whatever the key, …
LISTS = re.compile(r"project\.optional-dependencies|dependency-groups|tool\.pdm\.dev-dependencies")
# … in these the keys are packages, …
TABLES = re.compile(
    r"tool\.poetry\.(?:dev-)?dependencies|tool\.poetry\.group\.[^.]+\.dependencies|tool\.uv\.sources|"
    r"(?:tool\.pixi\.)?(?:.*\.)?(?:pypi-)?dependencies|packages|dev-packages"
)
KEYS = re.compile(r"(?:.*-)?dependencies")  # … and elsewhere only these keys hold requirements: not `keywords`


def pyproject(text: str) -> Iterator[Named]:
    """Yield the packages of a pyproject.toml or Pipfile."""
    table, key, depth = "", "", 0
    for number, line in _lines(text):
        bare = line.split("#", 1)[0] if "#egg=" not in line else line
        head = re.match(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*$", bare)
        if head and depth <= 0:
            table, key, depth = re.sub(r"[\"'\s]", "", head.group(1)), "", 0
            continue
        opened = KEY.match(bare) if depth <= 0 else None
        if opened:
            key = opened.group(2)
            if TABLES.fullmatch(table) and not LISTS.fullmatch(table) and key != "python":
                yield normalised(key), number, opened.start(2) + 1
        if LISTS.fullmatch(table) or KEYS.fullmatch(key):
            start = opened.start(3) if opened else 0
            for found in STRING.finditer(bare, start):
                yield normalised(found.group(2)), number, found.start(2) + 1
        outside = re.sub(r"\"[^\"]*\"|'[^']*'", "", bare)  # "torch[cuda]" opens nothing
        depth = max(depth, 0) + outside.count("[") - outside.count("]")


LOCKED = re.compile(rf"^name[ \t]*=[ \t]*[\"']({NAME})[\"']", re.MULTILINE)
LOCKED_JSON = re.compile(rf"^[ \t]+\"({NAME})\":[ \t]*\{{", re.MULTILINE)


def lock(text: str) -> Iterator[Named]:
    """Yield the packages of poetry.lock, uv.lock, pdm.lock or pylock.toml."""
    return _all(LOCKED, text)


def pipfile_lock(text: str) -> Iterator[Named]:
    """Yield the packages of a Pipfile.lock."""
    return _all(LOCKED_JSON, text)


def _all(pattern: re.Pattern[str], text: str) -> Iterator[Named]:
    line, counted = 1, 0
    for found in pattern.finditer(text):
        line += text.count("\n", counted, found.start(1))
        counted = found.start(1)
        yield normalised(found.group(1)), line, counted - text.rfind("\n", 0, counted)


CONDA = re.compile(rf"\s*-\s+([\"']?)(?:[\w./-]+::)?({NAME}){ENDS}")


def environment(text: str) -> Iterator[Named]:
    """Yield the packages of conda's environment.yml, those under `pip:` too."""
    inside = False
    for number, line in _lines(text):
        if line[:1].strip() and not line.startswith(("#", "-")):
            inside = line.startswith("dependencies:")
        found = CONDA.match(line) if inside else None
        if found and not line.rstrip().endswith(":"):
            name = normalised(found.group(2))
            yield CALLED.get(name, name), number, found.start(2) + 1


def setup_cfg(text: str) -> Iterator[Named]:
    """Yield the packages of setup.cfg's install_requires and extras."""
    table, key = "", ""
    for number, line in _lines(text):
        head = re.match(r"\[\s*([^\]]+?)\s*\]", line)
        if head:
            table, key = head.group(1), ""
            continue
        opened = re.match(r"([\w.-]+)\s*[=:]\s*", line)
        key = opened.group(1) if opened else key
        if key == "install_requires" or table == "options.extras_require":
            start = opened.end() if opened else 0
            for name, _, column in _of_line(line[start:], number):
                yield name, number, column + start


def dockerfile(text: str) -> Iterator[Named]:
    """Yield the packages that a Dockerfile or a script of its kind installs."""
    installing = False
    for number, line in _lines(text):
        if line.lstrip().startswith("#"):
            continue
        for found in re.finditer(r"\S+", line):
            word = found.group().strip("'\"")
            if word in ("install", "add"):
                installing = bool(re.search(r"\b(?:pip3?|uv|conda|mamba|poetry)\b", line[: found.start()]))
            elif word in ("&&", "||", ";", "|"):
                installing = False
            elif installing and not word.startswith("-"):
                yield from ((name, number, found.start() + 1) for name, _, _ in _of_line(word, number))
        installing = installing and line.rstrip().endswith("\\")


def _named(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


READERS = (  # the order in which they are believed
    Reader(_named(r".*requirements.*\.in|constraints.*\.in"), requirements),
    Reader(_named(r"pyproject\.toml|Pipfile|pixi\.toml"), pyproject),
    Reader(_named(r".*requirements.*\.txt|constraints.*\.txt"), requirements, folder="requirements"),
    Reader(_named(r"setup\.cfg"), setup_cfg),
    Reader(_named(r"(?:conda[-_]?)?env(?:ironment)?(?:[-_.]\w+)*\.ya?ml"), environment),
    Reader(_named(r"(?:.*[.-])?(?:Docker|Container)file(?:[.-].*)?"), dockerfile),
    Reader(_named(r"poetry\.lock|uv\.lock|pdm\.lock|pylock(?:\..+)?\.toml"), lock, locked=True),
    Reader(_named(r"Pipfile\.lock"), pipfile_lock, locked=True),
)
