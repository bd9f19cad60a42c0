"""Parses the files of a `*.dist-info` without `email`, `csv` or `importlib.metadata`, which are slow to import.

Formats: core metadata, RECORD and WHEEL as in the PyPA specifications (packaging.python.org, "Recording installed
projects", "Binary distribution format", "Direct URL data structure").
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..privacy import strip_url_secrets

_KEYS = frozenset(("name", "version", "requires-dist", "requires-python"))
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
_PROJECT = re.compile(r"[\w.-]+")  # at the start of a requirement
_SEPARATORS = re.compile(r"[-_.]+")
_MAX_VALUE_LENGTH = 1000  # characters per value
_MAX_VALUES = 1000  # values per list


def normalise_name(name: str) -> str:
    """Return a distribution's name in PEP 503's normal form."""
    return _SEPARATORS.sub("-", name).lower()


def is_valid_name(name: str) -> bool:
    """Return whether `name` is a valid distribution name."""
    return len(name) <= 200 and _NAME.match(name) is not None


def list_required_names(requires: Iterable[str], with_extras: bool = True) -> set[str]:
    """Return the normalised names of the projects in Requires-Dist lines, with or without those of extras."""
    matches = (_PROJECT.match(line) for line in requires if with_extras or "extra ==" not in line)
    return {normalise_name(match.group()) for match in matches if match}


def split_stem(stem: str) -> tuple[str, str]:
    """Return name and version from a directory's name without its suffix, such as "flash_attn-2.8.3"."""
    name, dash, version = stem.rpartition("-")
    return (name, version) if dash and name and version[:1].isdecimal() else (stem, "")


def parse_headers(data: bytes) -> tuple[dict[str, list[str]], str]:
    """Return the relevant headers of METADATA, by lower-case name, and the problem with the file ("" if none)."""
    headers: dict[str, list[str]] = {}
    problem = ""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        # A read that stopped at its limit may have split the last character, which is not a fault of the file.
        problem = "" if error.start >= len(data) - 4 and error.reason.startswith("unexpected end") else "not UTF-8"
        text = data.decode("utf-8", "replace")
    text = text[: text.find("\n\n") + 1] or text
    values: list[str] | None = None
    for line in text.split("\n"):
        line = line.rstrip("\r")
        if not line:
            break
        if line[0] in " \t":
            if values:
                values[-1] = (values[-1] + " " + line.strip())[:_MAX_VALUE_LENGTH]
            continue
        key, colon, value = line.partition(":")
        key = key.strip().lower()
        values = headers.setdefault(key, []) if colon and key in _KEYS else None
        if values is not None and len(values) < _MAX_VALUES:
            values.append(value.strip()[:_MAX_VALUE_LENGTH])
    return headers, problem


def parse_record(data: bytes) -> list[tuple[str, str, int]]:
    """Return RECORD as (path, hash, size in bytes); hash "" and size -1 if the line lacks them."""
    rows = []
    for line in data.decode("utf-8", "replace").split("\n"):
        path, digest, size = [*line.strip().rsplit(",", 2), "", ""][:3]
        if path[:1] == '"':
            path = path[1:-1].replace('""', '"')
        if path:
            rows.append((path, digest, int(size) if size.isdecimal() and size.isascii() and len(size) < 16 else -1))
    return rows


def parse_wheel_tags(data: bytes) -> list[str]:
    """Return the values of the Tag lines of WHEEL."""
    lines = data.decode("utf-8", "replace").splitlines()
    return [line[4:].strip()[:200] for line in lines if line[:4].lower() == "tag:"][:_MAX_VALUES]


def parse_direct_url(data: bytes) -> tuple[str, bool]:
    """Return the origin in direct_url.json, without credentials, and whether the distribution is editable."""
    import json

    try:
        document = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return "", False
    if not isinstance(document, dict):
        return "", False
    url, folder, vcs = (document.get(key) for key in ("url", "dir_info", "vcs_info"))
    text = strip_url_secrets(url[:_MAX_VALUE_LENGTH]) if isinstance(url, str) else ""
    if text and isinstance(vcs, dict):
        text = f"{vcs.get('vcs', 'git')}+{text}@{vcs.get('commit_id', '')}"[:_MAX_VALUE_LENGTH].rstrip("@")
    return text, isinstance(folder, dict) and folder.get("editable") is True
