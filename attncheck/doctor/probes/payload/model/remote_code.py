"""What a model's own code imports: read with ast, never executed.

It follows transformers' check (`dynamic_module_utils.get_imports`, read in 4.57.3 and 5.23.0): an import inside `try`
or inside `if is_flash_attn…available()` is no requirement. Of two packages that break such code when they move, it
also keeps what is taken from where, as "transformers.modeling_flash_attention_utils:_flash_supports_window_size".
"""

from __future__ import annotations

import os

from .. import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from typing import Any

MOST_FILES = 40
LIMIT = 2 << 20
_WATCHED = ("transformers", "flash_attn")


def look(folder: str) -> list[str]:
    """Return the packages that the *.py files in `folder` require, and the names taken from watched ones."""
    found: set[str] = set()
    names = sorted(name for name in files.names(folder) if name.endswith(".py"))
    for name in names[:MOST_FILES]:
        source = files.text(os.path.join(folder, name), LIMIT)
        found.update(imports(source))
    return sorted(found)[:400]


def imports(source: str) -> set[str]:
    """Return what one file imports; nothing where it cannot be parsed."""
    import ast
    import warnings

    found: set[str] = set()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            todo: list[ast.AST] = [ast.parse(source)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return found
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Try) or (isinstance(node, ast.If) and _guards(node.test)):
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            package = node.module.split(".")[0]
            found.add(package)
            if package in _WATCHED:
                found.update(node.module + ":" + alias.name for alias in node.names)
        else:
            todo.extend(ast.iter_child_nodes(node))
    return found


def _guards(test: Any) -> bool:
    import ast

    for node in ast.walk(test):
        name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
        if name.startswith("is_") and ("available" in name or "greater" in name):
            return True
    return False
