"""What a source build of flash-attn would find: nvcc, ninja, g++, and how packages are installed here.

CUDA is looked for where torch's `torch.utils.cpp_extension` looks (torch 2.13.0, `_find_cuda_home`): CUDA_HOME,
CUDA_PATH, the nvcc on PATH, /usr/local/cuda. Versions are read from files; a program is run, with a deadline, only
where no file tells.
"""

from __future__ import annotations

import os
import re
import sys

from .. import files
from ..facts import absent, failure, known, unreadable
from . import metadata, pip_config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NOTHING = {
    **{name: unreadable("looking for it failed") for name in ("nvcc", "cuda_home", "ninja", "gcc", "pip", "uv")},
    "pip_config": {},
    "externally_managed": False,
}
_HEADER = r"#define\s+(?:CUDART_VERSION|CUDA_VERSION)\s+(\d{4,5})\b"  # patterns are compiled when first used
_RELEASE = r"release (\d+\.\d+)"
_COMPILER_NAME = r"-(\d+(?:\.\d+)*)\Z"


def look(site_dirs: list[str]) -> dict[str, Any]:
    """Return the record `snapshot.BuildTools`."""
    versions = _installed(site_dirs, ("pip", "ninja"))
    home = cuda_home()
    uv = files.find_program("uv")
    return {
        "nvcc": nvcc(home),
        "cuda_home": home,
        "ninja": _ninja(versions.get("ninja", "")),
        "gcc": gcc(),
        "pip": known(versions["pip"]) if "pip" in versions else absent("pip is not installed here"),
        "uv": known(uv) if uv else absent("uv is not on PATH"),
        "pip_config": pip_config.look(),
        "externally_managed": sys.prefix == sys.base_prefix
        and os.path.isfile(os.path.join(os.path.dirname(os.__file__), "EXTERNALLY-MANAGED")),
    }


def cuda_home() -> dict[str, object]:
    """Return the CUDA toolkit that a build of a torch extension would use."""
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if named:
        return known(named) if os.path.isdir(named) else absent(f"CUDA_HOME names {named}, which does not exist")
    program = files.find_program("nvcc")
    if program:
        return known(os.path.dirname(os.path.dirname(program)))
    if os.path.isdir("/usr/local/cuda"):
        return known("/usr/local/cuda")
    return absent("CUDA_HOME is not set, nvcc is not on PATH and there is no /usr/local/cuda")


def nvcc(home: dict[str, object]) -> dict[str, object]:
    """Return the version of the nvcc in the toolkit `home`: "12.8"."""
    folder = home.get("known")
    if not isinstance(folder, str):
        return absent("no CUDA toolkit")
    program = os.path.join(folder, "bin", "nvcc.exe" if sys.platform == "win32" else "nvcc")
    if not os.path.isfile(program):
        return absent(f"no bin/nvcc in {folder}")
    real = os.path.dirname(os.path.dirname(os.path.realpath(program)))
    version = _version_json(folder) or _version_header(folder) or _version_json(real) or _version_header(real)
    return known(version) if version else _ask(program, "--version", _RELEASE)


def _version_json(folder: str) -> str:
    import json

    try:
        document = json.loads(files.text(folder + "/version.json"))
        version = document["cuda_nvcc"]["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    parts = str(version).split(".")
    return ".".join(parts[:2]) if len(parts) >= 2 and parts[0].isdigit() and parts[1].isdigit() else ""


def _version_header(folder: str) -> str:
    for path in ("include", "targets/x86_64-linux/include", "targets/sbsa-linux/include"):
        for name in ("cuda_runtime_api.h", "cuda.h"):
            match = re.search(_HEADER, files.text(f"{folder}/{path}/{name}", 1 << 20))
            if match:
                number = int(match.group(1))
                return f"{number // 1000}.{number % 1000 // 10}"
    return ""


def gcc() -> dict[str, object]:
    """Return the version of the g++ that a build would call, from file names where they tell."""
    program = files.find_program("g++")
    if not program:
        return absent("gcc is on PATH but g++ is not" if files.find_program("gcc") else "g++ is not on PATH")
    real = os.path.realpath(program)
    match = re.search(_COMPILER_NAME, os.path.basename(real))
    if match:
        return known(match.group(1))
    libraries = os.path.join(os.path.dirname(os.path.dirname(real)), "lib", "gcc")
    found = {name for target in files.names(libraries) for name in files.names(os.path.join(libraries, target))}
    numbered = [name for name in found if name[:1].isdigit()]
    return known(numbered[0]) if len(numbered) == 1 else _ask(program, "-dumpfullversion", r"^([\d.]+)\s*$")


def _ninja(installed: str) -> dict[str, object]:
    if installed:
        return known(installed)
    return known("on PATH") if files.find_program("ninja") else absent("ninja is neither installed nor on PATH")


def _ask(program: str, option: str, pattern: str) -> dict[str, object]:
    import subprocess

    try:
        answer = subprocess.run(
            [program, option], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=5
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return unreadable(f"running {program} {option} failed: " + failure(error))
    match = re.search(pattern, answer.stdout[:10000].decode("utf-8", "replace"))
    return known(match.group(1)) if match else unreadable(f"{program} {option} does not tell a version")


def _installed(site_dirs: list[str], wanted: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of the distributions `wanted`, from the names of their metadata directories."""
    found: dict[str, str] = {}
    for place in site_dirs:
        for entry in files.names(place):
            if entry.endswith((".dist-info", ".egg-info")) and entry.startswith(wanted):
                name, version = metadata.split_stem(entry.rpartition(".")[0])
                if name in wanted:
                    found.setdefault(name, version)
    return found
