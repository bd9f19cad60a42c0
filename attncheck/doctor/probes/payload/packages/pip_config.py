"""pip's effective settings, as far as they change what an install does.

Read like pip does (pip 23.2.1, `_internal/configuration.py` and `_internal/cli/parser.py`): files in the order
global, user, site (the environment's own), PIP_CONFIG_FILE, each over the one before; then section [install] over
[global]; then PIP_* variables over all. An empty value counts as unset. uv reads none of it.
"""

from __future__ import annotations

import os
import sys

from .. import files
from ..privacy import public_url

_SETTINGS = """
index-url extra-index-url find-links no-index no-build-isolation no-cache-dir no-deps constraint build-constraint
requirement require-virtualenv user target prefix root only-binary no-binary prefer-binary require-hashes
break-system-packages ignore-installed pre upgrade upgrade-strategy force-reinstall no-clean use-pep517 dry-run
ignore-requires-python config-settings platform abi python-version
"""
ALLOWED = frozenset(_SETTINGS.split())


def look() -> dict[str, str]:
    """Return setting -> value, several values joined by a space, without credentials."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for path in paths():
        for section, settings in parse(files.text(path)).items():
            if section in sections:
                sections[section].update(settings)
    settings = {**sections["global"], **sections["install"]}
    settings.update((_spelled(key[4:]), value) for key, value in os.environ.items() if key.startswith("PIP_") and value)
    return {key: public_url(" ".join(value.split()))[:500] for key, value in sorted(settings.items()) if key in ALLOWED}


def paths() -> list[str]:
    """Return where pip looks for its configuration, the weakest first."""
    chosen = os.environ.get("PIP_CONFIG_FILE", "")
    if chosen == os.devnull:
        return []
    name = "pip.ini" if sys.platform == "win32" else "pip.conf"
    home = os.path.expanduser("~")
    found = [*_global_files(home)]
    if not (chosen and os.path.exists(chosen)):
        found += [os.path.join(home, "pip" if name == "pip.ini" else ".pip", name), *_user_files(home)]
    return [*found, os.path.join(sys.prefix, name), *([chosen] if chosen else [])]


def _global_files(home: str) -> list[str]:
    if sys.platform == "win32":
        return [os.path.join(os.environ.get("PROGRAMDATA", "C:\\ProgramData"), "pip", "pip.ini")]
    if sys.platform == "darwin":
        return ["/Library/Application Support/pip/pip.conf"]
    shared = os.environ.get("XDG_CONFIG_DIRS", "") or "/etc/xdg"
    return [os.path.join(folder, "pip", "pip.conf") for folder in shared.split(os.pathsep) if folder] + [
        "/etc/pip.conf"
    ]


def _user_files(home: str) -> list[str]:
    if sys.platform == "win32":
        return [os.path.join(os.environ.get("APPDATA", home), "pip", "pip.ini")]
    support = os.path.join(home, "Library", "Application Support", "pip")
    if sys.platform == "darwin" and os.path.isdir(support):
        return [os.path.join(support, "pip.conf")]
    configured = os.environ.get("XDG_CONFIG_HOME", "") or os.path.join(home, ".config")
    return [os.path.join(configured if sys.platform != "darwin" else home + "/.config", "pip", "pip.conf")]


def parse(text: str) -> dict[str, dict[str, str]]:
    """Return an INI text as section -> key -> value; lines that are no INI are passed over."""
    found: dict[str, dict[str, str]] = {}
    section: dict[str, str] = {}
    key = ""
    for line in text.splitlines()[:2000]:
        words = line.strip()
        if not words or words[0] in "#;":
            continue
        if words[0] == "[" and "]" in words:
            section, key = found.setdefault(words[1 : words.index("]")], {}), ""
        elif line[0] in " \t" and key:
            section[key] = (section[key] + " " + words)[:2000]
        else:
            at = min((words.find(mark) for mark in "=:" if mark in words), default=-1)
            key = _spelled(words[:at].strip()) if at > 0 else ""
            if key:
                section[key] = words[at + 1 :].strip()[:2000]
    return {name: {key: value for key, value in settings.items() if value} for name, settings in found.items()}


def _spelled(name: str) -> str:
    name = name.lower().replace("_", "-")
    return name[2:] if name.startswith("--") else name
