"""The tools that a source build of flash-attn would use: nvcc, ninja, g++, and how packages are installed here.

CUDA is searched for in the same places as torch's `torch.utils.cpp_extension` (torch 2.13.0, `_find_cuda_home`):
CUDA_HOME, CUDA_PATH, the nvcc on PATH, /usr/local/cuda. Versions are read from files; a program is run, with a
deadline, only if no file states them.

triton 3.2.0 and 3.6.0, `triton/runtime/build.py` (`_build`): CC, else gcc or clang on PATH; headers from sysconfig's
"include".
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from typing import Any

from .. import files
from ..facts import absent, known, unreadable
from . import metadata, pip_config


def find_c_compiler() -> dict[str, object]:
    """Return the compiler that triton would call, as a fact."""
    named = os.environ.get("CC", "")
    if named:
        program = named.split()[0] if named.split() else ""
        return known(named) if files.find_program(program) else absent("CC names %s, which does not exist" % named)
    program = files.find_program("gcc") or files.find_program("clang")
    return known(program) if program else absent("CC is not set, and neither gcc nor clang is on PATH")


def find_python_headers() -> dict[str, object]:
    """Return the folder that holds Python.h, as a fact."""
    scheme = sysconfig.get_default_scheme() if hasattr(sysconfig, "get_default_scheme") else ""
    scheme = "posix_prefix" if scheme in ("", "posix_local") else scheme  # Debian's own scheme, also avoided by triton
    folder = sysconfig.get_paths(scheme=scheme).get("include", "")
    if os.path.isfile(os.path.join(folder, "Python.h")):
        return known(folder)
    return absent("%s has no Python.h" % folder)


UNREADABLE_TOOLS = {
    **{name: unreadable("looking for it failed") for name in ("nvcc", "cuda_home", "ninja", "gcc", "pip", "uv")},
    "pip_config": {},
    "externally_managed": False,
}
_VERSION_DEFINE = r"#define\s+(?:CUDART_VERSION|CUDA_VERSION)\s+(\d{4,5})\b"  # compiled on first use
_NVCC_RELEASE = r"release (\d+\.\d+)"
_COMPILER_NAME = r"-(\d+(?:\.\d+)*)\Z"


def collect_build_tools(site_dirs: list[str]) -> dict[str, Any]:
    """Return the record `core.environment.BuildTools`."""
    versions = _read_installed_versions(site_dirs, ("pip", "ninja"))
    home = find_cuda_home()
    uv = files.find_program("uv")
    return {
        "nvcc": read_nvcc_version(home),
        "cuda_home": home,
        "ninja": _read_ninja_version(versions.get("ninja", "")),
        "gcc": read_gcc_version(),
        "c_compiler": find_c_compiler(),
        "python_headers": find_python_headers(),
        "pip_cache_apart": pip_config.compare_file_systems(),
        "pip": known(versions["pip"]) if "pip" in versions else absent("pip is not installed here"),
        "uv": known(uv) if uv else absent("uv is not on PATH"),
        "pip_config": pip_config.collect_pip_settings(),
        "externally_managed": sys.prefix == sys.base_prefix
        and os.path.isfile(os.path.join(os.path.dirname(os.__file__), "EXTERNALLY-MANAGED")),
    }


def find_cuda_home() -> dict[str, object]:
    """Return the CUDA toolkit that a build of a torch extension would use, as a fact."""
    folder = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if folder:
        return known(folder) if os.path.isdir(folder) else absent(f"CUDA_HOME names {folder}, which does not exist")
    program = files.find_program("nvcc")
    if program:
        return known(os.path.dirname(os.path.dirname(program)))
    if os.path.isdir("/usr/local/cuda"):
        return known("/usr/local/cuda")
    return absent("CUDA_HOME is not set, nvcc is not on PATH and there is no /usr/local/cuda")


def read_nvcc_version(home: dict[str, object]) -> dict[str, object]:
    """Return the version of the nvcc in the toolkit `home` as a fact, such as "12.8"."""
    folder = home.get("known")
    if not isinstance(folder, str):
        return absent("no CUDA toolkit")
    program = os.path.join(folder, "bin", "nvcc.exe" if sys.platform == "win32" else "nvcc")
    if not os.path.isfile(program):
        return absent(f"no bin/nvcc in {folder}")
    real = os.path.dirname(os.path.dirname(os.path.realpath(program)))
    version = (
        _version_from_json(folder)
        or _version_from_header(folder)
        or _version_from_json(real)
        or _version_from_header(real)
    )
    return known(version) if version else _run_for_version(program, "--version", _NVCC_RELEASE)


def _version_from_json(folder: str) -> str:
    import json

    try:
        document = json.loads(files.read_text(folder + "/version.json"))
        version = document["cuda_nvcc"]["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    parts = str(version).split(".")
    return ".".join(parts[:2]) if len(parts) >= 2 and parts[0].isdecimal() and parts[1].isdecimal() else ""


def _version_from_header(folder: str) -> str:
    for path in ("include", "targets/x86_64-linux/include", "targets/sbsa-linux/include"):
        for name in ("cuda_runtime_api.h", "cuda.h"):
            match = re.search(_VERSION_DEFINE, files.read_text(f"{folder}/{path}/{name}", 1 << 20))
            if match:
                number = int(match.group(1))
                return f"{number // 1000}.{number % 1000 // 10}"
    return ""


def read_gcc_version() -> dict[str, object]:
    """Return the version of the g++ that a build would call, as a fact; from file names if they state it."""
    program = files.find_program("g++")
    if not program:
        return absent("gcc is on PATH but g++ is not" if files.find_program("gcc") else "g++ is not on PATH")
    real = os.path.realpath(program)
    match = re.search(_COMPILER_NAME, os.path.basename(real))
    if match:
        return known(match.group(1))
    libraries = os.path.join(os.path.dirname(os.path.dirname(real)), "lib", "gcc")
    entries = {
        name for target in files.list_folder(libraries) for name in files.list_folder(os.path.join(libraries, target))
    }
    numbered = [name for name in entries if name[:1].isdecimal()]
    return known(numbered[0]) if len(numbered) == 1 else _run_for_version(program, "-dumpfullversion", r"^([\d.]+)\s*$")


def _read_ninja_version(installed: str) -> dict[str, object]:
    if installed:
        return known(installed)
    return known("on PATH") if files.find_program("ninja") else absent("ninja is neither installed nor on PATH")


def _run_for_version(program: str, option: str, pattern: str) -> dict[str, object]:
    from ..processes.limits import run_programs

    run = run_programs({program: [program, option]}, 5.0)[program]
    if run.problem and not run.text:
        return unreadable(f"running {program} {option} failed: {run.problem}")
    match = re.search(pattern, run.text[:10000])
    return known(match.group(1)) if match else unreadable(f"{program} {option} does not report a version")


def _read_installed_versions(site_dirs: list[str], names: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of the distributions `names`, from the names of their metadata directories."""
    versions: dict[str, str] = {}
    for folder in site_dirs:
        for entry in files.list_folder(folder):
            if entry.endswith((".dist-info", ".egg-info")) and entry.startswith(names):
                name, version = metadata.split_stem(entry.rpartition(".")[0])
                if name in names:
                    versions.setdefault(name, version)
    return versions
