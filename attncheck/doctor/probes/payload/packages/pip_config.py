"""pip's effective settings, as far as they affect an installation.

They are read as pip does (pip 23.2.1, `_internal/configuration.py` and `_internal/cli/parser.py`): files in the order
global, user, site (the environment's own), PIP_CONFIG_FILE, each overriding the previous one. Section [install]
overrides [global], and PIP_* variables override everything. An empty value counts as unset. uv reads none of this.
"""

from __future__ import annotations

import os
import sys

from .. import files
from ..facts import known, unreadable
from ..privacy import strip_url_secrets

_SETTINGS = """
index-url extra-index-url find-links no-index no-build-isolation no-cache-dir no-deps constraint build-constraint
requirement require-virtualenv user target prefix root only-binary no-binary prefer-binary require-hashes
break-system-packages ignore-installed pre upgrade upgrade-strategy force-reinstall no-clean use-pep517 dry-run
ignore-requires-python config-settings platform abi python-version
"""
ALLOWED_SETTINGS = frozenset(_SETTINGS.split())


def collect_pip_settings() -> dict[str, str]:
    """Return setting -> value, several values joined by a space, without credentials."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for path in config_paths():
        for section, settings in parse_ini(files.read_text(path)).items():
            if section in sections:
                sections[section].update(settings)
    settings = {**sections["global"], **sections["install"]}
    settings.update(
        (_normalise_key(key[4:]), value) for key, value in os.environ.items() if key.startswith("PIP_") and value
    )
    return {
        key: strip_url_secrets(" ".join(value.split()))[:500]
        for key, value in sorted(settings.items())
        if key in ALLOWED_SETTINGS
    }


def compare_file_systems() -> dict[str, object]:
    """Return as a fact whether pip's cache is on another file system than the folder in which pip unpacks and builds.

    The cache: PIP_CACHE_DIR or the setting cache-dir, else XDG_CACHE_HOME, else ~/.cache (pip 25.3,
    `_internal/utils/appdirs.py`); the other: TMPDIR, TEMP, TMP or /tmp (tempfile.gettempdir, which would write there).
    """
    if not sys.platform.startswith("linux"):
        return unreadable("pip keeps its cache elsewhere on this system")
    folders = [os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP")]
    temporary = next((folder for folder in (*folders, "/tmp") if folder and os.path.isdir(folder)), "")
    cache_home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    cache = os.path.expanduser(_read_cache_setting() or os.path.join(cache_home, "pip"))
    try:
        return known(os.stat(temporary).st_dev != os.stat(_nearest_folder(cache)).st_dev)
    except OSError as error:
        return unreadable("%s: %s" % (error.filename, error.strerror))


def _read_cache_setting() -> str:
    setting = ""
    for path in config_paths():
        sections = parse_ini(files.read_text(path))
        setting = sections.get("global", {}).get("cache-dir", "") or setting
        setting = sections.get("install", {}).get("cache-dir", "") or setting
    return os.environ.get("PIP_CACHE_DIR", "") or setting


def _nearest_folder(path: str) -> str:
    """Return `path`, or the nearest existing folder above it, in which pip would create it."""
    while not os.path.isdir(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def config_paths() -> list[str]:
    """Return the paths of pip's configuration files, lowest precedence first."""
    configured = os.environ.get("PIP_CONFIG_FILE", "")
    if configured == os.devnull:
        return []
    name = "pip.ini" if sys.platform == "win32" else "pip.conf"
    home = os.path.expanduser("~")
    paths = [*_global_files()]
    if not (configured and os.path.exists(configured)):
        paths += [os.path.join(home, "pip" if name == "pip.ini" else ".pip", name), *_user_files(home)]
    return [*paths, os.path.join(sys.prefix, name), *([configured] if configured else [])]


def _global_files() -> list[str]:
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


def parse_ini(text: str) -> dict[str, dict[str, str]]:
    """Return an INI text as section -> key -> value; malformed lines are skipped."""
    sections: dict[str, dict[str, str]] = {}
    section: dict[str, str] = {}
    key = ""
    for line in text.splitlines()[:2000]:
        content = line.strip()
        if not content or content[0] in "#;":
            continue
        if content[0] == "[" and "]" in content:
            section, key = sections.setdefault(content[1 : content.index("]")], {}), ""
        elif line[0] in " \t" and key:
            section[key] = (section[key] + " " + content)[:2000]
        else:
            split_at = min((content.find(separator) for separator in "=:" if separator in content), default=-1)
            key = _normalise_key(content[:split_at].strip()) if split_at > 0 else ""
            if key:
                section[key] = content[split_at + 1 :].strip()[:2000]
    return {name: {key: value for key, value in settings.items() if value} for name, settings in sections.items()}


def _normalise_key(name: str) -> str:
    name = name.lower().replace("_", "-")
    return name[2:] if name.startswith("--") else name
