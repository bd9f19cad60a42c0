"""Finds and parses Python modules in some folders, and resolves names across their imports; nothing is run."""

import ast
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from attncheck.core.io.files import CannotRead, read_bounded
from attncheck.doctor.probes.payload.links.source import import_source, imported_modules
from attncheck.lint.programs.syntax import list_imports, list_statements, parse

MAX_MODULE_BYTES = 2 << 20
MAX_MODULES = 400  # per launch
INSTALLED = frozenset({"site-packages", "dist-packages"})
TOO_MANY = f"more than {MAX_MODULES} modules"


@dataclass(frozen=True)
class SourceModule:
    """One parsed module: its file, and its dotted name ("" for a script outside packages)."""

    name: str
    path: Path
    shown_path: str
    body: ast.Module
    is_package: bool
    text: str = ""  # if it is no file
    content: bytes = field(default=b"", compare=False, repr=False)
    resolved: dict[tuple[Path, str], Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def package(self) -> str:
        """Return the package that relative imports start from."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @cached_property
    def bindings(self) -> dict[str, list[ast.AST]]:
        """Return the nodes that bind each name of the module: definitions, assignments and imports, in order."""
        definitions: dict[str, list[ast.AST]] = {}
        for statement in _iter_module_statements(self.body.body):
            for name in _bound_names(statement):
                definitions.setdefault(name, []).append(statement)
        return definitions

    @cached_property
    def local_imports(self) -> dict[str, list[ast.AST]]:
        """Return the imports inside functions, by the name that they bind; programs often import late to start fast."""
        imports: dict[str, list[ast.AST]] = {}
        for node in list_imports(self.body):
            for name in _bound_names(node):
                imports.setdefault(name, []).append(node)
        return imports

    @cached_property
    def _constants(self) -> set[int]:
        """Return the identities of the assigned expressions that are the only values of their names.

        A function may bind a name with `global`, and an augmented assignment extends it.
        """
        rebound = {name for node in list_statements(self.body) if isinstance(node, ast.Global) for name in node.names}
        extended = (node for node in _iter_module_statements(self.body.body) if isinstance(node, ast.AugAssign))
        rebound |= {node.target.id for node in extended if isinstance(node.target, ast.Name)}
        values: dict[bool, set[int]] = {True: set(), False: set()}
        for name, places in self.bindings.items():
            is_single = len(places) == 1 and name not in rebound
            values[is_single] |= {id(vars(place).get("value")) for place in places}
        return values[True] - values[False]

    def is_constant(self, node: ast.AST) -> bool:
        """Return whether an assigned expression is the only value of its names while the module is in use."""
        return id(node) in self._constants

    def locate(self, node: ast.AST) -> str:
        """Return the location of a node: "src/train.py:12"."""
        return f"{self.shown_path}:{getattr(node, 'lineno', 1)}"


@dataclass(frozen=True)
class Definition:
    """The meaning of a name: a class, a function or an assigned expression, and the module that contains it."""

    module: SourceModule
    node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.expr


@dataclass(frozen=True)
class External:
    """A name in a module that was not found: "transformers.TrainingArguments"."""

    name: str


Resolved = Definition | SourceModule | External | None


@dataclass
class SourceTree:
    """The modules in some folders; the first folder that has a name wins, as in sys.path."""

    folders: tuple[Path, ...]
    base: Path  # paths are shown relative to it
    modules: dict[Path, SourceModule | None] = field(default_factory=dict)
    by_name: dict[str, SourceModule | None] = field(init=False, default_factory=dict)
    visited: dict[tuple[Path, str], "Resolved"] = field(default_factory=dict)  # while a name is resolved
    unread: list[str] = field(default_factory=list)
    composed: dict[Any, Any] = field(default_factory=dict)  # Hydra's configurations, by file and choices
    closed: frozenset[str] = frozenset()  # installed packages that are not searched
    follows_stars: bool = True  # transformers' `from .models import *` leads to hundreds of modules

    def find_module(self, name: str) -> SourceModule | None:
        """Return the module with a dotted name; None if no folder has it or it does not parse."""
        if name not in self.by_name:
            self.by_name[name] = self._search_module(name)
        return self.by_name[name]

    def _search_module(self, name: str) -> SourceModule | None:
        top = name.partition(".")[0]
        for folder in _find_homes(self.folders, top):
            path = locate_module(folder, name)
            if path is not None:
                is_closed = top in self.closed and not INSTALLED.isdisjoint(folder.parts)
                return None if is_closed else self.read_file(path, name)
        return None

    def iter_imports(self, module: SourceModule, were_read: bool = False) -> Iterator[SourceModule]:
        """Yield the modules of the tree that a module imports, those inside its functions too; or those read so far."""
        find = self.by_name.get if were_read else self.find_module
        for node in list_imports(module.body):
            yield from filter(None, map(find, imported_modules(module.package, node)))

    def list_imported(self, main: SourceModule, limit: int, were_read: bool = False) -> list[SourceModule]:
        """Return the modules of the tree that a module imports, and those that these import, `limit` at most."""
        modules: dict[Path, SourceModule] = {}
        waiting = [main]
        while waiting and len(modules) < limit:
            for module in self.iter_imports(waiting.pop(0), were_read):
                if module.path not in modules and module is not main:
                    modules[module.path] = module
                    waiting.append(module)
        return list(modules.values())

    def find_definition(self, name: str) -> Resolved:
        """Return the definition of a dotted name, such as "transformers.TrainingArguments"."""
        owner, _, member = name.rpartition(".")
        module = self.find_module(owner) if owner else None
        return self.resolve_name(module, member) if module is not None else None

    def read_file(self, path: Path, name: str = "") -> SourceModule | None:
        """Return a parsed file; None, with a line in `unread`, if it cannot be read or parsed."""
        path = Path(os.path.normpath(path))
        if path not in self.modules:
            is_over = len(self.modules) >= MAX_MODULES
            self.modules[path] = None if is_over else self._parse_file(path, name)
            if is_over and TOO_MANY not in self.unread:
                self.unread.append(TOO_MANY)
        return self.modules[path]

    def parse_text(self, path: Path, text: str) -> SourceModule | None:
        """Return a parsed script that is no file; None, with a line in `unread`, if it cannot be parsed."""
        self.modules[path] = self._parse_file(path, "", text)
        return self.modules[path]

    def _parse_file(self, path: Path, name: str, text: str = "") -> SourceModule | None:
        shown = self.show_path(path)
        try:
            content = text.encode("utf-8", "surrogatepass") if text else read_bounded(path, MAX_MODULE_BYTES)
            body = parse(text or content)
        except CannotRead as error:
            self.unread.append(f"{shown}: {error.reason}")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            self.unread.append(f"{shown} does not parse: {type(error).__name__}")
        else:
            return SourceModule(name, path, shown, body, path.name == "__init__.py", text, content)
        return None

    def show_path(self, path: Path) -> str:
        """Return a path in display form: relative to `base`, the folder of packages, or the current one."""
        bases = [self.base, *(parent for parent in path.parents if parent.name in INSTALLED), Path.cwd()]
        return next((str(path.relative_to(base)) for base in bases if base in path.parents), str(path))

    def resolve(self, module: SourceModule, expression: ast.expr) -> Resolved:
        """Return the definition of a name or dotted name in a module; None if unknown."""
        if isinstance(expression, ast.Name):
            return self.resolve_name(module, expression.id)
        if isinstance(expression, ast.Attribute):
            owner = self.resolve(module, expression.value)
            return self._resolve_attribute(owner, expression.attr)
        return None

    def resolve_base(self, module: SourceModule, node: ast.ClassDef, base: ast.expr) -> Resolved:
        """Return the definition of a class's base. `class Trainer(Trainer)` has the one that the name was bound to."""
        if not isinstance(base, ast.Name) or base.id != node.name:
            return self.resolve(module, base)
        others = (item for item in module.bindings.get(node.name, ()) if not _has_name_of_base(item))
        resolutions = (self._resolve_binding(module, item, node.name) for item in others)
        return next((resolved for resolved in resolutions if resolved is not None), None)

    def resolve_name(self, module: SourceModule, name: str) -> Resolved:
        """Return the definition of a module's name: the first of its bindings that can be resolved.

        Modules import from each other, so each name is visited once.
        """
        key, is_first = (module.path, name), not self.visited
        known = module.resolved if is_first else self.visited
        if key not in known:
            self.visited[key] = None
            try:
                self.visited[key] = known[key] = self._resolve_bindings(module, name)
            finally:
                if is_first:
                    self.visited.clear()
        return known[key]

    def _resolve_bindings(self, module: SourceModule, name: str) -> Resolved:
        first_external: Resolved = None
        statements = module.bindings.get(name) or module.local_imports.get(name) or []
        for statement in sorted(statements, key=_has_name_of_base, reverse=True):
            resolved = self._resolve_binding(module, statement, name)
            if isinstance(resolved, (Definition, SourceModule)):
                return resolved
            first_external = first_external or resolved
        if first_external is not None:
            return first_external
        for statement in module.bindings.get("*", ()) if self.follows_stars else ():
            if isinstance(statement, ast.ImportFrom):
                source = import_source(module.package, statement)
                resolved = self._resolve_attribute(self._find(source), name)
                if isinstance(resolved, (Definition, SourceModule)):
                    return resolved
        return None

    def _resolve_binding(self, module: SourceModule, statement: ast.AST, name: str) -> Resolved:
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            return Definition(module, statement)
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                if (alias.asname or alias.name.partition(".")[0]) == name:
                    return self._find(alias.name if alias.asname else name)
        if isinstance(statement, ast.ImportFrom):
            source = import_source(module.package, statement)
            imported = next((alias.name for alias in statement.names if (alias.asname or alias.name) == name), name)
            return self._resolve_attribute(self._find(source), imported)
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            value = statement.value
            if isinstance(value, ast.Attribute) or (isinstance(value, ast.Name) and value.id != name):
                return self.resolve(module, value) or Definition(module, value)
            return Definition(module, value)
        return None

    def _find(self, name: str) -> Resolved:
        return self.find_module(name) or External(name)

    def _resolve_attribute(self, owner: Resolved, name: str) -> Resolved:
        if isinstance(owner, External):
            return External(f"{owner.name}.{name}")
        if isinstance(owner, SourceModule):
            resolved = self.resolve_name(owner, name)
            if resolved is None and owner.is_package:
                resolved = self.find_module(f"{owner.name}.{name}")
            return resolved or External(f"{owner.name}.{name}")
        if isinstance(owner, Definition) and isinstance(owner.node, ast.ClassDef):
            for statement in owner.node.body:
                if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) and name in _bound_names(statement):
                    return Definition(owner.module, statement)
        return None


def _has_name_of_base(node: ast.AST) -> bool:
    """Return whether a node is a class that takes the place of its base: `class Trainer(Trainer)`."""
    return isinstance(node, ast.ClassDef) and any(getattr(base, "id", "") == node.name for base in node.bases)


@lru_cache(maxsize=1 << 15)
def unparse(node: ast.AST) -> str:
    """Return the text of a node; cached, because each launch of a program asks for the same ones."""
    return ast.unparse(node)


@lru_cache(maxsize=4096)
def _find_homes(folders: tuple[Path, ...], top: str) -> tuple[Path, ...]:
    """Return the folders that have a module or a folder of this name, also in a folder of its name, as projects do."""
    places = (*folders, *(folder / top for folder in folders if os.path.isdir(folder / top)))
    return tuple(place for place in places if os.path.isdir(place / top) or os.path.isfile(place / f"{top}.py"))


def locate_module(folder: Path, name: str) -> Path | None:
    """Return the file that a folder has for a dotted name, None if it has none."""
    parts = name.split(".")
    place = os.path.join(folder, *parts)
    paths = (f"{place}/__init__.py", f"{place}.py") if all(map(str.isidentifier, parts)) else ()
    return next(map(Path, filter(os.path.isfile, paths)), None)


def _iter_module_statements(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, including those under `if`, `try` and `with`."""
    for statement in statements:
        yield statement
        if isinstance(statement, (ast.If, ast.Try, ast.With)):
            for block in ("body", "orelse", "finalbody"):
                yield from _iter_module_statements(getattr(statement, block, []))
            for handler in getattr(statement, "handlers", []):
                yield from _iter_module_statements(handler.body)


def is_signature(node: ast.AST) -> bool:
    """Return whether a function only adds a signature to another one: `@overload def load(path: str) -> Model: ...`."""
    decorators = getattr(node, "decorator_list", ())
    return any("overload" in (getattr(item, "id", ""), getattr(item, "attr", "")) for item in decorators)


def _bound_names(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        if not is_signature(statement):
            yield statement.name
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(statement, ast.ImportFrom):
        for alias in statement.names:
            yield alias.asname or alias.name
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Name):
                yield target.id
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        yield statement.target.id
