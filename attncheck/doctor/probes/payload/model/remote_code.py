"""Reads what a model's own code imports, using ast; the code is never executed.

It follows transformers' check (`dynamic_module_utils.get_imports`, read in 4.57.3 and 5.23.0): an import inside `try`
or inside `if is_flash_attn…available()` is not a requirement. For two packages whose changes break such code, it also
records which names are imported from which module, such as
"transformers.modeling_flash_attention_utils:_flash_supports_window_size".
"""

from __future__ import annotations

import os
import re

from .. import files
from . import registered_attention

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from typing import Any

MAX_FILES = 40
MAX_BYTES = 2 << 20
_ROUNDED = re.compile(r"\barange\([^#]*dtype\s*=\s*[\w.]*inv_freq\.dtype")
_WATCHED = ("transformers", "flash_attn")


def collect_remote_imports(folder: str) -> list[str]:
    """Return the packages that the *.py files in `folder` require, and the names imported from watched ones."""
    required: set[str] = set()
    for source in _read_sources(folder):
        required.update(required_imports(source))
    return sorted(required)[:400]


def list_code_files(folder: str) -> list[str]:
    """Return the *.py files in a model's folder that its `auto_map` names."""
    from .files import read_json

    document = read_json(folder, "config.json").get("known", {})
    entries = document.get("auto_map")
    names = set()
    for entry in entries.values() if isinstance(entries, dict) else ():
        for reference in entry if isinstance(entry, (list, tuple)) else [entry]:
            if isinstance(reference, str) and "--" not in reference and "." in reference:
                names.add(reference.rpartition(".")[0].replace(".", os.sep) + ".py")
    paths = [os.path.join(folder, name) for name in sorted(names)]
    return [path for path in paths if os.path.isfile(path)][:MAX_FILES]


def collect_unmasked_attentions(folder: str) -> list[str]:
    """Return the attention functions that the *.py files in `folder` register without a mask function."""
    return sorted(registered_attention.find_unmasked_attentions(*_read_sources(folder)))[:100]


def collect_rounded_positions(folder: str) -> list[str]:
    """Return where the *.py files in `folder` count positions in the dtype of inv_freq, as "modeling.py:12"."""
    names = _list_sources(folder)
    places = [(name, line) for name, text in zip(names, _read_sources(folder)) for line in _find_rounded(text)]
    return ["{}:{}".format(name, line) for name, line in places][:20]


def _find_rounded(source: str) -> list[int]:
    return [number for number, line in enumerate(source.splitlines(), 1) if _ROUNDED.search(line)]


def _list_sources(folder: str) -> list[str]:
    return sorted(name for name in files.list_folder(folder) if name.endswith(".py"))[:MAX_FILES]


def _read_sources(folder: str) -> list[str]:
    return [files.read_text(os.path.join(folder, name), MAX_BYTES) for name in _list_sources(folder)]


def required_imports(source: str) -> set[str]:
    """Return the unconditional imports of one file; empty if it cannot be parsed."""
    import ast

    required: set[str] = set()
    tree = files.parse_source(source)
    pending: list[ast.AST] = [tree] if tree is not None else []
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Try) or (isinstance(node, ast.If) and _is_availability_guard(node.test)):
            continue
        if isinstance(node, ast.Import):
            required.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            package = node.module.split(".")[0]
            required.add(package)
            if package in _WATCHED:
                required.update(node.module + ":" + alias.name for alias in node.names)
        else:
            pending.extend(ast.iter_child_nodes(node))
    return required


def _is_availability_guard(test: Any) -> bool:
    import ast

    for node in ast.walk(test):
        name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
        if name.startswith("is_") and ("available" in name or "greater" in name):
            return True
    return False
