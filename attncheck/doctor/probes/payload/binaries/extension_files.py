"""Finds the compiled files of the attention stack: from each distribution's RECORD, or else from known module names."""

from __future__ import annotations

import os
import re

from .. import files
from . import torch_files

# Distributions whose extensions decide whether attention works, and their modules, for installations without a RECORD
# (editable or old-style). torch itself is found separately: its RECORD has 14,000 lines.
EXTENSION_MODULES: dict[str, tuple[str, ...]] = {
    "flash-attn": ("flash_attn_2_cuda",),  # setup.py of flash-attn 2.8.3
    "flash-attn-3": ("flash_attn_3",),  # hopper/setup.py of flash-attn 2.8.3: flash_attn_3._C
    "flashattn-hopper": ("flashattn_hopper_cuda", "flash_attn_3_cuda"),
    "ring-flash-attn": (),
    "liger-kernel": (),
    "xformers": ("xformers",),
    "vllm": ("vllm",),
    "sgl-kernel": ("sgl_kernel",),
    "sglang-kernel": ("sgl_kernel",),
    "sglang": (),
    "causal-conv1d": ("causal_conv1d_cuda",),
    "mamba-ssm": ("selective_scan_cuda",),
    "apex": ("amp_C", "apex_C", "fused_layer_norm_cuda"),
    "transformer-engine": (),
    "transformer-engine-cu12": (),
    "transformer-engine-cu13": (),
    "transformer-engine-torch": ("transformer_engine_torch",),
    "deepspeed": (),
    "bitsandbytes": (),
    "torchvision": ("torchvision",),
    "torchaudio": ("torchaudio",),
    "torchao": ("torchao",),
}
TORCH_LIBRARIES = ("libc10.so", "libtorch_cpu.so", "libtorch_python.so", "libc10_cuda.so", "libtorch_cuda.so")
RECORD_LIMIT = 16 << 20  # bytes
MAX_FOLDERS = 200

_RECORD_LIBRARY = re.compile(rb"^\"?([^,\"\n]+\.so(?:\.\d+)*)\"?,", re.MULTILINE)
# bitsandbytes 0.50.2 ships a library for each CUDA, ROCm and XPU version, and loads one that matches torch's major
# version (bitsandbytes/cextension.py, get_cuda_bnb_library_path).
_VARIANT = re.compile(r"libbitsandbytes_(?!cpu)([a-z]+)(\d\d)")


def find_extensions(installed: list[dict[str, object]], site_dirs: list[str], torch: str) -> list[tuple[str, str]]:
    """Return (distribution, path) of each compiled file, once each, torch's files first."""
    paths = [("torch", path) for path in _find_torch_files(torch)]
    for distribution in installed:
        name = str(distribution["name"])
        if name in EXTENSION_MODULES:
            recorded = _files_in_record(str(distribution["_path"])) or _files_by_name(
                EXTENSION_MODULES[name], site_dirs
            )
            paths += [(name, path) for path in recorded if _is_loaded_variant(path, torch)]
    return [(name, path) for path, name in {path: name for name, path in reversed(paths)}.items()][::-1]


def _find_torch_files(torch: str) -> list[str]:
    if not torch:
        return []
    bindings = [os.path.join(torch, name) for name in sorted(files.list_folder(torch)) if re.match(r"_C\..*so$", name)]
    libraries = [os.path.join(torch, "lib", name) for name in TORCH_LIBRARIES]
    return bindings + [path for path in libraries if os.path.exists(path)]


def _files_in_record(info: str) -> list[str]:
    """Return the existing compiled files that RECORD names."""
    try:
        record = files.read_bytes(os.path.join(info, "RECORD"), RECORD_LIMIT)
    except (OSError, ValueError):
        return []
    site = os.path.dirname(info)
    names = dict.fromkeys(match.decode("utf-8", "replace") for match in _RECORD_LIBRARY.findall(record))
    paths = [os.path.normpath(os.path.join(site, name)) for name in names]
    return [path for path in paths if path.startswith(site + os.sep) and os.path.isfile(path)]


def _files_by_name(names: tuple[str, ...], site_dirs: list[str]) -> list[str]:
    paths: list[str] = []
    for site in site_dirs if names else []:
        for entry in sorted(files.list_folder(site)):
            if entry.split(".")[0] in names and entry.endswith(".so"):
                paths.append(os.path.join(site, entry))
        for name in names:
            paths += _files_in_package(os.path.join(site, name))
    return paths


def _files_in_package(package: str) -> list[str]:
    """Return the compiled files of a package's directory; at most MAX_FOLDERS folders are searched."""
    paths: list[str] = []
    for count, (folder, subfolders, names) in enumerate(os.walk(package)):
        subfolders.sort()
        paths += [os.path.join(folder, name) for name in sorted(names) if name.endswith(".so")]
        if count >= MAX_FOLDERS:
            break
    return paths


def _is_loaded_variant(path: str, torch: str) -> bool:
    """Return whether a library that comes in variants is the one for this torch's CUDA version."""
    variant = _VARIANT.match(os.path.basename(path))
    if variant is None:
        return True
    cuda = torch_files.read_cuda_version(torch) if torch else ""
    return variant.group(1) == "cuda" and cuda.split(".")[0] == variant.group(2)
