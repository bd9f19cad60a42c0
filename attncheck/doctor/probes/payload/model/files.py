"""Finds and reads a model's small JSON files: in a folder, or in the local Hugging Face cache, never over a network.

Read in huggingface_hub 1.x and 2.4.0 (`constants.py`, `file_download.py` `repo_folder_name`): a repository's cache
folder is "models--owner--name", with refs/main holding a commit and snapshots/<commit>/ its files.
"""

from __future__ import annotations

import json
import os
from typing import Any

from .. import files
from ..facts import describe_error, known, unreadable

FOLDER_VARIABLE = "ATTNCHECK_WORKING_FOLDER"  # the user's working folder; a child starts elsewhere
MAX_BYTES = 20 << 20  # a model config has a few kB, a tokenizer config with added tokens a few MB


def find_model_folder(source: str, cache_dirs: list[str] | None = None) -> dict[str, Any]:
    """Return the folder with the files of `source` as a fact, or why there is none."""
    path = os.path.join(os.environ.get(FOLDER_VARIABLE, ""), os.path.expanduser(source))
    if "\0" in source or not source.strip():
        return unreadable("that is not a model's name")
    if os.path.isdir(path):
        return known(path)
    if os.path.exists(path):
        if os.path.basename(path).endswith(".json"):
            return known(os.path.dirname(path) or ".")
        return unreadable("it is a file, but not a config.json")
    name = source.strip("/")
    if source.startswith(("/", ".", "~")) or name.count("/") > 1 or "--" in name or ".." in name:
        return unreadable("there is no such folder")
    return _find_in_cache(name, cache_dirs)


def _find_in_cache(name: str, cache_dirs: list[str] | None) -> dict[str, Any]:
    for cache in cache_dirs if cache_dirs is not None else _cache_folders():
        repository = os.path.join(cache, "models--" + name.replace("/", "--"))
        if not os.path.isdir(repository):
            continue
        commit = files.read_text(os.path.join(repository, "refs", "main"), 200).strip()
        snapshots = os.path.join(repository, "snapshots")
        for candidate in [commit] if commit else sorted(files.list_folder(snapshots)):
            folder = os.path.join(snapshots, candidate)
            if os.path.basename(candidate) == candidate and os.path.isfile(os.path.join(folder, "config.json")):
                return known(folder)
        return unreadable("the Hugging Face cache holds {}, but not its config.json".format(name))
    return unreadable("{0} is neither a local folder nor in the Hugging Face cache".format(name))


def _cache_folders() -> list[str]:
    from ..hub import find_cache_folder

    return [find_cache_folder()]


def read_json(folder: str, name: str, documents: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the JSON object in the file `name` as a fact; `documents` maps file names to texts already read."""
    try:
        if documents is not None:
            if name not in documents:
                return {"absent": "there is no " + name}
            return _parse_object(documents[name], name)
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            return {"absent": "there is no " + name}
        size = os.path.getsize(path)
        if size > MAX_BYTES:
            return unreadable("{} is {} MB; a model's is a few kB".format(name, size // 1000000))
        return _parse_object(files.read_bytes(path, MAX_BYTES + 1).decode("utf-8-sig"), name)
    except UnicodeDecodeError:
        return unreadable(name + " is not UTF-8 text")
    except (OSError, ValueError, TypeError) as error:
        return unreadable("{}: {}".format(name, describe_error(error)))


def _parse_object(content: str, name: str) -> dict[str, Any]:
    if len(content) > MAX_BYTES:
        return unreadable("{} is {} MB; a model's is a few kB".format(name, len(content) // 1000000))
    if not content.strip():
        return unreadable(name + " is empty")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return unreadable("{} is not JSON: {}".format(name, reason))
    if not isinstance(document, dict):
        return unreadable("{} holds {}, not an object".format(name, type(document).__name__))
    return known(document)
