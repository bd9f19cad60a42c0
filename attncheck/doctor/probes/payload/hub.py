"""Lists the kernel repositories in the Hugging Face cache.

Read in kernels 0.17.2 (`hf_hub.py`, `_versions.py`: KERNELS_CACHE or the Hub's cache; repositories of type "kernel",
formerly "model") and huggingface_hub 2.4.0 (`constants.py`: cache path and offline switch; `file_download.py`
`repo_folder_name`: "kernels--owner--name").
"""

from __future__ import annotations

import os
from typing import Any

from . import files

_TRUE = ("1", "ON", "YES", "TRUE")
_MODEL_PREFIX = "models--kernels-"  # kernels-community, kernels-test: used before kernels had their own type


def collect_hub_cache() -> dict[str, Any]:
    """Return the record `core.environment.Hub`."""
    return {
        "offline": is_offline(),
        "kernels": list_cached_kernels(os.environ.get("KERNELS_CACHE") or find_cache_folder()),
    }


def is_offline() -> bool:
    """Return whether huggingface_hub is set to offline mode."""
    switch = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return switch.upper() in _TRUE


def find_cache_folder() -> str:
    """Return the folder of the Hub's cache."""
    default = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.join("~", ".cache")), "huggingface")
    home = _expand_path(os.environ.get("HF_HOME", default))
    folder = os.environ.get("HUGGINGFACE_HUB_CACHE", os.path.join(home, "hub"))
    return _expand_path(os.environ.get("HF_HUB_CACHE", folder))


def list_cached_kernels(folder: str) -> list[str]:
    """Return the kernel repositories with a snapshot in the cache, and each one with its branches and tags.

    For example "kernels-community/flash-attn2" and "kernels-community/flash-attn2@v3".
    """
    repositories = set()
    for name in files.list_folder(folder):
        if name.startswith(("kernels--", _MODEL_PREFIX)) and files.list_folder(os.path.join(folder, name, "snapshots")):
            repository = "/".join(name.split("--")[1:])
            repositories.add(repository)
            repositories.update(f"{repository}@{ref}" for ref in files.list_folder(os.path.join(folder, name, "refs")))
    return sorted(repositories)


def _expand_path(path: str) -> str:
    return os.path.expandvars(os.path.expanduser(path))
