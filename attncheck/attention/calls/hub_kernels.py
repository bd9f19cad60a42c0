"""Finds kernels of the Hugging Face Hub in the local cache by their files, and loads them without the network.

Loading one imports, and so runs, the Python and the extension that its repository published.

Read in kernels 0.17.2 (`load.py` `get_local_kernel(path)`, `_versions.py`: versions are refs named v1, v2, …;
`resolver.py`: a snapshot's folder build/ has a variant for each torch, CUDA and platform), 0.9.0 and 0.12.3
(`get_local_kernel(path, package)`; repositories of type "model") and huggingface_hub 2.4.0 (`constants.HF_HUB_OFFLINE`,
read again at each use). transformers 5.17 requests version 3 of flash-attn2 and version 1 of the others
(integrations/hub_kernels.py `get_attn_kernel_version`); attncheck uses the newest version in the cache.
"""

import contextlib
import importlib
import importlib.util
import inspect
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from attncheck.attention.backend import Installed, Refused


def find_repository(repository: str) -> Installed:
    """Return the version of a kernel repository in the cache, or why it is missing; nothing is imported."""
    if importlib.util.find_spec("kernels") is None:
        return Installed(missing="kernels, which loads Hub kernels, is not installed")
    version, folder = newest_snapshot(repository)
    return Installed(version=version) if folder else Installed(missing=f"{repository} is not in the local Hub cache")


def newest_snapshot(repository: str) -> tuple[str, Path | None]:
    """Return the newest version's name, such as "v3", and its snapshot's folder; ("", None) if there is none."""
    best: tuple[int, str, Path | None] = (-2, "", None)
    for kind in ("models", "kernels"):
        home = _cache_folder() / f"{kind}--{repository.replace('/', '--')}"
        for name, commit in _iter_refs(home / "refs"):
            folder = home / "snapshots" / commit
            number = re.fullmatch(r"v(\d+)", name)
            order = int(number[1]) if number else -1
            if order >= best[0] and _has_build(folder):
                best = (order, name if number else f"{name} ({commit[:7]})", folder)
    return best[1], best[2]


def _cache_folder() -> Path:
    """Return the folder of kernels, by the rules of huggingface_hub 2.4.0 (constants.py) and kernels 0.17.2."""
    default = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.join("~", ".cache")), "huggingface")
    home = os.path.expanduser(os.path.expandvars(os.environ.get("HF_HOME", default)))
    hub = os.environ.get("HF_HUB_CACHE", os.environ.get("HUGGINGFACE_HUB_CACHE", os.path.join(home, "hub")))
    return Path(os.environ.get("KERNELS_CACHE") or os.path.expanduser(os.path.expandvars(hub)))


def _iter_refs(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (ref, commit) of each file in a repository's refs folder."""
    with contextlib.suppress(OSError, UnicodeError):
        for path in sorted(folder.iterdir()):
            commit = path.read_text().strip() if path.is_file() else ""
            if re.fullmatch(r"\w+", commit):
                yield path.name, commit


def _has_build(folder: Path) -> bool:
    """Return whether the snapshot has a build: a cache may have only a repository's metadata."""
    with contextlib.suppress(OSError):
        return any(next(variant.rglob("*.py"), None) for variant in (folder / "build").iterdir())
    return False


@cache
def load(repository: str) -> Any:
    """Return the kernel's module. Raises `Refused` if the cache has no build for this torch, CUDA and platform."""
    _, folder = newest_snapshot(repository)
    if folder is None:
        raise Refused(f"{repository} is not in the local Hub cache")
    with hub_offline():
        import kernels

        loader = getattr(kernels, "get_local_kernel", None)
        if loader is None:
            raise Refused("this release of kernels cannot load from a folder")
        takes_package_name = "package_name" in inspect.signature(loader).parameters
        arguments = (folder, repository.partition("/")[2].replace("-", "_")) if takes_package_name else (folder,)
        try:
            return loader(*arguments)
        except FileNotFoundError as error:
            raise Refused(
                f"the cached {repository} has no build for this torch: {str(error).splitlines()[0]}"
            ) from None


@contextlib.contextmanager
def hub_offline() -> Iterator[None]:
    """Keep huggingface_hub off the network for a block: it reads its environment variable only when imported."""
    constants: Any = importlib.import_module("huggingface_hub.constants")
    variable, constant = os.environ.get("HF_HUB_OFFLINE"), constants.HF_HUB_OFFLINE
    os.environ["HF_HUB_OFFLINE"], constants.HF_HUB_OFFLINE = "1", True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = constant
        os.environ.pop("HF_HUB_OFFLINE")
        if variable is not None:
            os.environ["HF_HUB_OFFLINE"] = variable


def load_lines(repository: str, name: str) -> tuple[str, ...]:
    """Return the lines of a script that loads the same revision of the kernel and binds its function `name`."""
    _, folder = newest_snapshot(repository)
    version = folder.name if folder else "main"
    load_line = f'kernel = kernels.get_kernel("{repository}", revision="{version}")'
    return ("import kernels", load_line, f"{name} = kernel.{name}")
