"""How compiled packages say they were built: xformers in a JSON file, flash-attn-3 in a Python one that is parsed.

xformers 0.0.35, `xformers/_cpp_lib.py` (cpp_lib.json); flash-attn-3 3.0.0, `flash_attn_3/flash_attn_config.py`, which
hopper/setup.py writes; earlier builds have it beside the package.
"""

from __future__ import annotations

import os

from .. import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SIZE_LIMIT = 1 << 18
FLASH_ATTN_3_FILES = ("flash_attn_3/flash_attn_config.py", "flash_attn_config.py")


def collect_builds(site_dirs: list[str]) -> list[dict[str, object]]:
    """Return the record `core.environment.ExtensionBuild` of each package that says how it was built."""
    records = (_read_xformers(site_dirs), _read_flash_attn_3(site_dirs))
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


def _parse_flags(source: str) -> dict[str, bool]:
    """Return CONFIG["build_flags"] of the module `source`, which is not run; nothing where there is none."""
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
    """Return the text of the first file called `name` that there is, "" for none."""
    path = next((path for path in (os.path.join(site, name) for site in site_dirs) if os.path.isfile(path)), "")
    return files.read_text(path, SIZE_LIMIT) if path else ""
