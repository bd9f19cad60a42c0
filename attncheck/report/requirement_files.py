"""Reads which packages a project's requirements files and pyproject.toml name, and on which lines.

They are read line by line with patterns, because parsers do not return line numbers. Text that matches no pattern is
ignored; nothing is evaluated.
"""

import re
from collections.abc import Iterator

from attncheck.core.snapshot import normalise_name

NamedPackage = tuple[str, int, int]  # a package's normalised name, line and column
MAX_LINE = 4096  # characters; longer lines are skipped, because patterns would take too long
NAME = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?"
NAME_END = r"(?=\s*(?:$|[\[<>=!~@;,#'\"\s]))"  # text that may follow a name in a requirement
REQUIREMENT = re.compile(rf"\s*({NAME}){NAME_END}")
WHEEL = re.compile(r"(?:^|[/\s=@\"'])([A-Za-z0-9][\w.]*)-\d[^/\s]*\.(?:whl|tar\.gz|zip)\b")
EGG = re.compile(rf"#egg=({NAME})")
KEY = re.compile(r"\s*([\"']?)([\w.-]+)\1\s*=\s*(.*)")
STRING = re.compile(rf"([\"'])\s*({NAME}){NAME_END}[^\"']*\1")
# Tables of pyproject.toml: in these, a string under any key is a requirement, …
LIST_TABLES = re.compile(r"project\.optional-dependencies|dependency-groups|tool\.pdm\.dev-dependencies")
# … in these the keys are packages, …
KEY_TABLES = re.compile(
    r"tool\.poetry\.(?:dev-)?dependencies|tool\.poetry\.group\.[^.]+\.dependencies|tool\.uv\.sources|"
    r"(?:tool\.pixi\.)?(?:.*\.)?(?:pypi-)?dependencies"
)
LIST_KEYS = re.compile(r"(?:.*-)?dependencies")  # … and elsewhere only these keys hold requirements: not `keywords`


def read_requirements(text: str) -> Iterator[NamedPackage]:
    """Yield the packages that a requirements file names."""
    for number, line in _numbered_lines(text):
        is_link = "://" in line or line.strip().startswith((".", "/"))
        match = EGG.search(line) or (WHEEL.search(line) if is_link else None)
        match = REQUIREMENT.match(line) if " @ " in line or match is None else match
        if match and not line.lstrip().startswith("#"):
            yield normalise_name(match.group(1)), number, match.start(1) + 1


def read_pyproject(text: str) -> Iterator[NamedPackage]:
    """Yield the packages that a pyproject.toml requires."""
    table, key, depth = "", "", 0
    for number, line in _numbered_lines(text):
        code = line.split("#", 1)[0] if "#egg=" not in line else line
        table_header = re.match(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*$", code)
        if table_header and depth <= 0:
            table, key, depth = re.sub(r"[\"'\s]", "", table_header.group(1)), "", 0
            continue
        key_match = KEY.match(code) if depth <= 0 else None
        if key_match:
            key = key_match.group(2)
            if KEY_TABLES.fullmatch(table) and not LIST_TABLES.fullmatch(table) and key != "python":
                yield normalise_name(key), number, key_match.start(2) + 1
        if LIST_TABLES.fullmatch(table) or LIST_KEYS.fullmatch(key):
            for match in STRING.finditer(code, key_match.start(3) if key_match else 0):
                yield normalise_name(match.group(2)), number, match.start(2) + 1
        outside_strings = re.sub(r"\"[^\"]*\"|'[^']*'", "", code)  # the brackets of "torch[cuda]" open no array
        depth = max(depth, 0) + outside_strings.count("[") - outside_strings.count("]")


def _numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if len(line) <= MAX_LINE)
