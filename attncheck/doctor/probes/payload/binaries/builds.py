"""Reads how compiled packages were built: from a file that is parsed (xformers, flash-attn-3), or from their messages.

xformers 0.0.35, `xformers/_cpp_lib.py` (cpp_lib.json); flash-attn-3 3.0.0, `flash_attn_3/flash_attn_config.py`, written
by hopper/setup.py. Earlier builds install this file next to the package.
"""

from __future__ import annotations

import os
from typing import Any

from .. import files
from .elf import MAX_BLOCK_BYTES, Elf, ElfError

SIZE_LIMIT = 1 << 18
_REFUSAL = b"This flash attention build does not support "
# flash-attn 2.8.3, csrc/flash_attn/flash_api.cpp: each message is inside an #ifdef of the variable in setup.py
FLASH_ATTN_REFUSALS = {
    "FLASHATTENTION_DISABLE_BACKWARD": _REFUSAL + b"backward",
    "FLASHATTENTION_DISABLE_SOFTCAP": _REFUSAL + b"softcap",
    "FLASHATTENTION_DISABLE_DROPOUT": _REFUSAL + b"dropout",
    "FLASHATTENTION_DISABLE_LOCAL": _REFUSAL + b"local attention",
    "FLASHATTENTION_DISABLE_UNEVEN_K": _REFUSAL + b"headdim not being a multiple of 32",
    "FLASHATTENTION_DISABLE_ALIBI": _REFUSAL + b"alibi",
}
FLASH_ATTN_3_FILES = ("flash_attn_3/flash_attn_config.py", "flash_attn_config.py")


def collect_builds(site_dirs: list[str]) -> list[dict[str, object]]:
    """Return the record `core.environment.ExtensionBuild` of each package that states how it was built."""
    records = (_read_xformers(site_dirs), _read_flash_attn_3(site_dirs), _read_flash_attn(site_dirs))
    return [record for record in records if record is not None]


def _read_xformers(site_dirs: list[str]) -> dict[str, object] | None:
    import json

    try:
        version = json.loads(_read_first(site_dirs, "xformers/cpp_lib.json"))["version"]
        torch, number = version["torch"], version["cuda"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    cuda = "%d.%d" % (number // 100, number % 100) if isinstance(number, int) else ""
    return {"distribution": "xformers", "torch": str(torch)[:100], "cuda": cuda}


def _read_flash_attn_3(site_dirs: list[str]) -> dict[str, object] | None:
    for name in FLASH_ATTN_3_FILES:
        flags = _parse_flags(_read_first(site_dirs, name))
        if flags:
            return {"distribution": "flash-attn-3", "flags": flags}
    return None


def _read_flash_attn(site_dirs: list[str]) -> dict[str, object] | None:
    """Read which features a flash-attn 2 build lacks: each omitted one adds a message to the binary."""
    paths = [os.path.join(site, name) for site in site_dirs for name in files.list_folder(site)]
    path = next((p for p in paths if os.path.basename(p).startswith("flash_attn_2_cuda") and p.endswith(".so")), "")
    try:
        with Elf(path) as elf:
            texts = b"".join(
                elf.read(offset, size) for offset, size in elf.find_sections(".rodata") if size <= MAX_BLOCK_BYTES
            )
    except ElfError:
        return None
    refused = {name: message in texts for name, message in FLASH_ATTN_REFUSALS.items()} if texts else {}
    return {"distribution": "flash-attn", "flags": refused} if refused else None


def _parse_flags(source: str) -> dict[str, bool]:
    """Return CONFIG["build_flags"] of the module `source`, without running it; empty if it has none."""
    import ast

    try:
        for node in ast.parse(source).body:
            if isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == ["CONFIG"]:
                flags: dict[Any, Any] = ast.literal_eval(node.value)["build_flags"]
                return {str(name): value for name, value in flags.items() if isinstance(value, bool)}
    except (SyntaxError, ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError):
        return {}
    return {}


def _read_first(site_dirs: list[str], name: str) -> str:
    """Return the text of the first existing file called `name`; "" if there is none."""
    path = next((path for path in (os.path.join(site, name) for site in site_dirs) if os.path.isfile(path)), "")
    return files.read_text(path, SIZE_LIMIT) if path else ""
