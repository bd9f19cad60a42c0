"""Reads which packages a project's requirements files and pyproject.toml name, and in which lines.

Line by line and by patterns, not by parsers: a parser tells what a file says and not where. What no pattern knows is
passed over; nothing is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

NamedPackage = tuple[str, int, int]  # a package's normalised name, line and column
MAX_LINE = 4096  # characters: nobody writes longer ones, and they would cost a pattern too much
NAME = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?"
ENDS = r"(?=\s*(?:$|[\[<>=!~@;,#'\"\s]))"  # what may follow a name in a requirement
REQUIREMENT = re.compile(rf"\s*({NAME}){ENDS}")
WHEEL = re.compile(r"(?:^|[/\s=@\"'])([A-Za-z0-9][\w.]*)-\d[^/\s]*\.(?:whl|tar\.gz|zip)\b")
EGG = re.compile(rf"#egg=({NAME})")
KEY = re.compile(r"\s*([\"']?)([\w.-]+)\1\s*=\s*(.*)")
STRING = re.compile(rf"([\"'])\s*({NAME}){ENDS}[^\"']*\1")
# Tables of pyproject.toml: in these a string is a requirement, whatever the key, …
LIST_TABLES = re.compile(r"project\.optional-dependencies|dependency-groups|tool\.pdm\.dev-dependencies")
# … in these the keys are packages, …
KEY_TABLES = re.compile(
    r"tool\.poetry\.(?:dev-)?dependencies|tool\.poetry\.group\.[^.]+\.dependencies|tool\.uv\.sources|"
    r"(?:tool\.pixi\.)?(?:.*\.)?(?:pypi-)?dependencies"
)
LIST_KEYS = re.compile(r"(?:.*-)?dependencies")  # … and elsewhere only these keys hold requirements: not `keywords`


def normalize_name(name: str) -> str:
    """Return a package's name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_requirements(text: str) -> Iterator[NamedPackage]:
    """Yield the packages of a requirements file."""
    for number, line in _numbered_lines(text):
        is_link = "://" in line or line.strip().startswith((".", "/"))
        found = EGG.search(line) or (WHEEL.search(line) if is_link else None)
        found = REQUIREMENT.match(line) if " @ " in line or found is None else found
        if found and not line.lstrip().startswith("#"):
            yield normalize_name(found.group(1)), number, found.start(1) + 1


def read_pyproject(text: str) -> Iterator[NamedPackage]:
    """Yield the packages of a pyproject.toml."""
    table, key, depth = "", "", 0
    for number, line in _numbered_lines(text):
        code = line.split("#", 1)[0] if "#egg=" not in line else line
        head = re.match(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*$", code)
        if head and depth <= 0:
            table, key, depth = re.sub(r"[\"'\s]", "", head.group(1)), "", 0
            continue
        opened = KEY.match(code) if depth <= 0 else None
        if opened:
            key = opened.group(2)
            if KEY_TABLES.fullmatch(table) and not LIST_TABLES.fullmatch(table) and key != "python":
                yield normalize_name(key), number, opened.start(2) + 1
        if LIST_TABLES.fullmatch(table) or LIST_KEYS.fullmatch(key):
            for found in STRING.finditer(code, opened.start(3) if opened else 0):
                yield normalize_name(found.group(2)), number, found.start(2) + 1
        outside_strings = re.sub(r"\"[^\"]*\"|'[^']*'", "", code)  # "torch[cuda]" opens nothing
        depth = max(depth, 0) + outside_strings.count("[") - outside_strings.count("]")


def _numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if len(line) <= MAX_LINE)
