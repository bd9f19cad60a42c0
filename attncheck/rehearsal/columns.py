"""Finds the row fields that a script may read, in its source and in the modules that it imports."""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from attncheck.lint.programs.modules import SourceTree
from attncheck.lint.programs.program import Entry, find_entry
from attncheck.lint.rewriting import ReadLaunch

COLUMN = re.compile(r"[a-z]\w*")
MAX_MODULES = 200  # in addition to the script
MAX_COLUMNS = 200


def read_columns(read: ReadLaunch) -> list[str]:
    """Return the fields that the script of a launch may read from its rows; none if the script is not found."""
    launch = read.recognised.launch
    program = Path(launch.program.path if launch.program else launch.words[0].text if launch.words else "")
    nearby = (program, Path(launch.source.name), Path(launch.source.name).parent / program.name)
    scripts = [path for path in nearby if path.suffix == ".py" and path.is_file()]
    return list_columns(scripts[0], (Path(), Path("src"))) if scripts else []


def list_columns(program: Path, places: Sequence[Path]) -> list[str]:
    """Return the row fields that are read by a script and by the modules that it imports from these folders."""
    tree = SourceTree((program.parent, *places), program.parent)
    main = find_entry(Entry(str(program)), tree)
    modules = [main, *tree.list_imported(main, MAX_MODULES)] if main is not None else []
    names = (name for module in modules for name in _iter_columns(module.body))
    return list(dict.fromkeys(names))[:MAX_COLUMNS]


def _iter_columns(body: ast.Module) -> Iterator[str]:
    """Yield the string subscripts in a module, in order: "text" for `row["text"]`."""
    nodes = (node for node in ast.walk(body) if isinstance(node, ast.Subscript))
    items = [node for node in nodes if isinstance(node.ctx, ast.Load)]
    for node in sorted(items, key=lambda node: (node.lineno, node.col_offset)):
        name = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if isinstance(node.value, (ast.Name, ast.Attribute)) and isinstance(name, str) and COLUMN.fullmatch(name):
            yield name
