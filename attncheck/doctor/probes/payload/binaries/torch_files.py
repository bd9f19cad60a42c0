"""Reads torch's version, CUDA and C++ ABI from its files, without importing it."""

from __future__ import annotations

import os
import re

from .. import files
from ..facts import absent, known, unreadable
from .elf import Elf, ElfError

# c10::Error's constructor, with its std::string argument mangled for each C++11 ABI. Present in every torch since 1.8.
_ERROR_NEW = "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
_ERROR_OLD = "_ZN3c105ErrorC1ENS_14SourceLocationESs"


def find_torch_folder(site_dirs: list[str]) -> str:
    """Return the directory of the torch package that an import would load; "" if there is none."""
    for site in site_dirs:
        path = os.path.join(site, "torch")
        if os.path.isfile(os.path.join(path, "__init__.py")):
            return path
    return ""


def collect_torch_build(site_dirs: list[str]) -> dict[str, object]:
    """Return the fact that describes the installed torch, as far as it can be read from files."""
    path = find_torch_folder(site_dirs)
    if not path:
        return absent("torch is not installed")
    text = files.read_text(os.path.join(path, "version.py"))
    version = _assigned_string(text, "__version__")
    if not version:
        return unreadable("torch/version.py has no version")
    return known(
        {
            "version": version,
            "cuda": _build_fact(text, "cuda", "not a CUDA build"),
            "hip": _build_fact(text, "hip", "not a ROCm build"),
            "cxx11_abi": _detect_cxx11_abi(os.path.join(path, "lib", "libc10.so")),
        }
    )


def read_cuda_version(path: str) -> str:
    """Return the CUDA version that the torch in directory `path` was built for; "" for a build without CUDA."""
    return _assigned_string(files.read_text(os.path.join(path, "version.py")), "cuda")


def _build_fact(text: str, name: str, absent_reason: str) -> dict[str, object]:
    value = _assigned_string(text, name)
    return known(value) if value else absent(absent_reason)


def _assigned_string(text: str, name: str) -> str:
    """Return the string assigned to `name` at the top level of version.py; "" for None."""
    match = re.search(r"^%s\s*(?::[^=\n]*)?=\s*['\"]([^'\"\n]*)['\"]" % name, text, re.MULTILINE)
    return match.group(1) if match else ""


def _detect_cxx11_abi(path: str) -> dict[str, object]:
    try:
        with Elf(path) as library:
            if library.defines_symbol(_ERROR_NEW):
                return known(True)
            if library.defines_symbol(_ERROR_OLD):
                return known(False)
    except ElfError as error:
        return unreadable("libc10.so: " + str(error))
    return unreadable("libc10.so exports c10::Error under neither ABI")
