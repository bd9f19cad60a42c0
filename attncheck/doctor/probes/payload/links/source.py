"""Finds and parses the modules of packages in the folders of sys.path, without importing them."""

from __future__ import annotations

import os
import re

from .. import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from typing import Any, Iterator

MAX_FILE_BYTES = 4 << 20
MAX_PACKAGE_FILES = 6000
_EXTENSIONS = (".so", ".pyd")
_SKIPPED_FOLDERS = frozenset(("tests", "test", "testing", "examples", "__pycache__", "third_party", "node_modules"))


class SourceModule:
    """The file of one module: its dotted name, text and, on first use, syntax tree (None: it does not parse)."""

    def __init__(self, name: str, path: str, is_package: bool) -> None:
        self.name = name
        self.path = path
        self.is_package = is_package
        self._text: str | None = None
        self._tree: ast.Module | None = None
        self._parsed = False
        self.memory: dict[str, Any] = {}  # caches computed facts about the module

    @property
    def text(self) -> str:
        """The text; "" if it cannot be read."""
        if self._text is None:
            self._text = files.read_text(self.path, MAX_FILE_BYTES)
        return self._text

    @property
    def tree(self) -> ast.Module | None:
        """The syntax tree; None if it does not parse under this Python."""
        if not self._parsed:
            self._parsed = True
            self._tree = files.parse_source(self.text)
        return self._tree

    @property
    def package(self) -> str:
        """The package that relative imports start from."""
        return self.name if self.is_package else self.name.rpartition(".")[0]


# "from x import a, b as c", possibly over several lines, and "import x.y as z"; prose may match too. Both patterns
# begin with plain letters, which makes the search fast.
_FROM = re.compile(r"from[ \t]+([\w.]+)[ \t]+import[ \t]*(\((?:[^()#]|#[^\n]*)*\)|(?:[^\n#;(\\]|\\\n)+)")
_IMPORT = re.compile(r"import[ \t]+([\w.][^\n#;(]*)")
_COMMENT = re.compile(r"#[^\n]*")


def read_takes(module: SourceModule) -> list[tuple[str, str, str]]:
    """Return (source, name, bound as) of the apparent imports in a module's text; name "" means the module itself.

    It finds every import, and may match text in a docstring; nothing is parsed.
    """
    if "takes" not in module.memory:
        takes = []
        for source, names in _FROM.findall(module.text):
            for item in _COMMENT.sub("", names).strip("()").replace("\\\n", " ").split(","):
                words = item.split()
                if words:
                    is_renamed = words[1:2] == ["as"] and len(words) > 2
                    name = make_absolute(module.package, source)
                    takes.append((name, words[0], words[2] if is_renamed else words[0]))
        for names in _IMPORT.findall(module.text):
            for item in names.split(","):
                words = item.split()
                if words:
                    is_renamed = words[1:2] == ["as"] and len(words) > 2
                    takes.append((words[0], "", words[2] if is_renamed else ""))
        module.memory["takes"] = takes
    known: list[tuple[str, str, str]] = module.memory["takes"]
    return known


class ModuleFinder:
    """The modules in some folders; the first folder that has a top-level name wins, as on sys.path."""

    def __init__(self, folders: list[str]) -> None:
        self.folders = folders
        self._modules: dict[str, SourceModule | None] = {}
        self._kinds: dict[str, str] = {}
        self._listed: dict[str, list[str]] = {}

    def find(self, name: str) -> SourceModule | None:
        """Return the module called `name`; None if no Python source file has that name."""
        if name not in self._modules:
            path = self._locate(name)
            is_source = path.endswith(".py")
            self._modules[name] = SourceModule(name, path, path.endswith("__init__.py")) if is_source else None
        return self._modules[name]

    def kind(self, name: str) -> str:
        """Return the kind of `name`: "source", "extension", "folder" (without __init__.py), or "" if it is missing."""
        if name not in self._kinds:
            path = self._locate(name)
            self._kinds[name] = (
                "source" if path.endswith(".py") else "extension" if path.endswith(_EXTENSIONS) else path and "folder"
            )
        return self._kinds[name]

    def add(self, module: SourceModule) -> None:
        """Register a file that is in none of the folders: a script, or a model's own code."""
        self._modules[module.name] = module

    def _locate(self, name: str) -> str:
        head, _, tail = name.rpartition(".")
        if not head:
            parents = self.folders
        else:
            parent = self._locate_folder(head)
            parents = [parent] if parent else []
        folder = ""
        for parent in parents:
            place = os.path.join(parent, tail)
            for path in (os.path.join(place, "__init__.py"), place + ".py"):
                if os.path.isfile(path):
                    return path
            if self._has_extension(parent, tail):
                return place + _EXTENSIONS[0]
            folder = folder or (place if os.path.isdir(place) else "")
        return folder

    def _locate_folder(self, name: str) -> str:
        module = self.find(name)
        if module is not None:
            return os.path.dirname(module.path) if module.is_package else ""
        path = self._locate(name)
        return path if path and not path.endswith(_EXTENSIONS) else ""

    def _has_extension(self, parent: str, tail: str) -> bool:
        if parent not in self._listed:
            self._listed[parent] = files.list_folder(parent)
        return any(name.startswith(tail + ".") and name.endswith(_EXTENSIONS) for name in self._listed[parent])

    def iter_package(self, name: str) -> Iterator[SourceModule]:
        """Yield the modules of the package `name`, without tests and examples."""
        root = self.find(name)
        if root is None:
            return
        if not root.is_package:
            yield root
            return
        top = os.path.dirname(root.path)
        count = 0
        for folder, folders, names in os.walk(top):
            folders[:] = sorted(f for f in folders if f not in _SKIPPED_FOLDERS and not f.startswith("."))
            inner = os.path.relpath(folder, top)
            dotted = name if inner == "." else name + "." + inner.replace(os.sep, ".")
            for file_name in sorted(names):
                if file_name.endswith(".py") and count < MAX_PACKAGE_FILES:
                    count += 1
                    stem = file_name[:-3]
                    module = self.find(dotted if stem == "__init__" else dotted + "." + stem)
                    if module is not None:
                        yield module


def imported_modules(package: str, node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the absolute names that an import in a module of `package` may load: `from a import b` is a, and a.b."""
    import ast

    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    source = import_source(package, node)
    return [source, *(source + "." + alias.name for alias in node.names)]


def import_source(package: str, node: ast.AST) -> str:
    """Return the absolute name of the module in a `from … import`."""
    return make_absolute(package, "." * (getattr(node, "level", 0) or 0) + (getattr(node, "module", "") or ""))


def make_absolute(package: str, source: str) -> str:
    """Return the absolute name of a relative module name such as "..models.llama"."""
    name = source.lstrip(".")
    level = len(source) - len(name)
    if not level:
        return name
    parts = package.split(".") if package else []
    parts = parts[: len(parts) - (level - 1)] if level > 1 else parts
    return ".".join([*parts, *(name.split(".") if name else [])])


def iter_statements(module: SourceModule) -> list[ast.stmt]:
    """Return every statement of a module, including those in functions and classes, but not expressions."""
    if "statements" not in module.memory:
        collected: list[Any] = []
        pending: list[Any] = list(module.tree.body) if module.tree is not None else []
        while pending:
            statement = pending.pop()
            collected.append(statement)
            for block in ("body", "orelse", "finalbody", "handlers", "cases"):
                pending += getattr(statement, block, ())
        module.memory["statements"] = collected
    statements: list[ast.stmt] = module.memory["statements"]
    return statements


def bound_names(statement: ast.AST) -> Iterator[str]:
    """Yield the names that a statement binds; "*" for a star import."""
    import ast

    if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        yield statement.name
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(statement, ast.ImportFrom):
        for alias in statement.names:
            yield alias.asname or alias.name
    elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.With)):
        for target in _targets(statement):
            for node in ast.walk(target):
                if isinstance(node, ast.Name):
                    yield node.id


def _targets(statement: ast.AST) -> list[ast.AST]:
    import ast

    if isinstance(statement, ast.Assign):
        return list(statement.targets)
    if isinstance(statement, ast.With):
        return [item.optional_vars for item in statement.items if item.optional_vars is not None]
    return [statement.target]  # type: ignore[attr-defined]
