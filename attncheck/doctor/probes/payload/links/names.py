"""Determines whether a module has a name: True, False, or None if its source does not decide it.

Covers definitions, assignments, imports, star imports with `__all__`, conditional definitions, submodules, module
`__getattr__` (open) and two lazy forms of transformers' `_LazyModule`. One is an explicit structure, which TRL and
ms-swift use too. The other is `define_import_structure`, which collects `__all__` and `@requires`/`@export` of every
file below (transformers/utils/import_utils.py, read in 4.48.3, 4.57.6 and 5.23.0).
"""

from __future__ import annotations

import ast
import os
import re

from .. import files
from .source import bound_names, import_source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator

    from .conditions import Conditions
    from .source import ModuleFinder, SourceModule

MAX_HOPS = 8
MAX_FILE_BYTES = 4 << 20
MAX_MODEL_FILES = 8000
_DYNAMIC = re.compile(
    r"\bglobals\(\)\s*(?:\[|\.update|\.setdefault)|\bvars\(\)|\bexec\(|\blocals\(\)\["
    r"|setattr\(sys\.modules|sys\.modules\[__name__\]",
    re.MULTILINE,
)
_REPLACES_MODULES = re.compile(r"sys\.modules\[(?!__name__)|sys\.meta_path|\b__path__\b")
_EXPORTS = re.compile(r"__all__\s*=\s*[\[(](.*?)[\])]", re.DOTALL)
_EXPORTED = re.compile(r"^@(?:requires|export)\b.*?\n(?:@.*\n)*(?:class|def)\s+(\w+)", re.MULTILINE)
_TOP_LEVEL = re.compile(r"^(?:(?:class|def|async def)\s+(\w+)|(\w+)\s*(?::(?!\s*$)|=(?!=)))", re.MULTILINE)
_QUOTED = re.compile(r"[\"'](\w+)[\"']")


class Names:
    """The names in the modules of the packages that others import from."""

    def __init__(self, finder: ModuleFinder, conditions: Conditions) -> None:
        self.finder = finder
        self.conditions = conditions
        self._bindings: dict[str, dict[str, list[ast.AST]]] = {}
        self._collected: dict[str, set[str]] = {}

    def has_module(self, name: str) -> bool | None:
        """Return whether `name` can be imported as a module; None if a package creates modules at run time."""
        if self.finder.kind(name):
            return True
        parent, _, last = name.rpartition(".")
        if not parent:
            return False
        if not self.has_module(parent):
            return self.has_module(parent)
        while parent:
            module = self.finder.find(parent)
            if self.finder.kind(parent) == "extension" or (module is not None and _may_make_module(module, last)):
                return None
            parent = parent.rpartition(".")[0]
        return False

    def has_name(self, module_name: str, name: str, hops: int = 0) -> bool | None:
        """Return whether `from module_name import name` finds `name`, provided that the module exists."""
        module = self.finder.find(module_name)
        if module is None or hops > MAX_HOPS:
            return None
        if name in module.text and name in self._top_level_names(module):
            return True
        if module.is_package and self.finder.kind(module_name + "." + name):
            return True
        if name in _MODULE_ATTRIBUTES:
            return True
        if "_LazyModule(" in module.text and "sys.modules[__name__]" in module.text:
            return self._has_lazy_name(module, name)
        if module.tree is None:
            return None
        bindings = self.bindings(module)
        if name in bindings:
            return True
        answers = [self._star_has_name(module, node, name, hops) for node in bindings.get("*", ())]
        if True in answers:
            return True
        is_open = None in answers or "__getattr__" in bindings or _is_dynamic(module) or "global " + name in module.text
        if is_open or (module.is_package and self.has_module(module_name + "." + name) is None):
            return None
        return False

    @staticmethod
    def _top_level_names(module: SourceModule) -> set[str]:
        if "top" not in module.memory:
            module.memory["top"] = {first or second for first, second in _TOP_LEVEL.findall(module.text)}
        names: set[str] = module.memory["top"]
        return names

    def bindings(self, module: SourceModule) -> dict[str, list[ast.AST]]:
        """Return the nodes that bind each name at the top level of a module, without those under a false condition."""
        if module.name not in self._bindings:
            bound: dict[str, list[ast.AST]] = {}
            for statement in self._iter_statements(module.tree.body if module.tree is not None else [], module):
                for name in bound_names(statement):
                    bound.setdefault(name, []).append(statement)
            self._bindings[module.name] = bound
        return self._bindings[module.name]

    def lazy_submodule(self, module: SourceModule, name: str) -> str:
        """Return the submodule from which a lazy package takes `name`; "" if its structure is not explicit."""
        for key, names in lazy_structure(module).items():
            if name in names:
                return module.name + "." + key
        return ""

    def _iter_statements(self, statements: list[ast.stmt], module: SourceModule) -> Iterator[ast.stmt]:
        for statement in statements:
            yield statement
            if isinstance(statement, ast.If):
                decided = self.conditions.decide(statement.test, module)
                if decided is not False:
                    yield from self._iter_statements(statement.body, module)
                if decided is not True:
                    yield from self._iter_statements(statement.orelse, module)
            elif not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                for block in ("body", "orelse", "finalbody"):
                    yield from self._iter_statements(getattr(statement, block, []), module)
                for handler in getattr(statement, "handlers", ()):
                    yield from self._iter_statements(handler.body, module)

    def _star_has_name(self, module: SourceModule, node: ast.AST, name: str, hops: int) -> bool | None:
        source = import_source(module.package, node)
        target = self.finder.find(source)
        if target is None:
            return None
        exports = _EXPORTS.search(target.text)
        if "__all__" in target.text:
            is_plain = exports is not None and target.text.count("__all__") == 1
            if is_plain and name not in _QUOTED.findall(exports.group(1) if exports else ""):
                return False
        elif name.startswith("_"):
            return False
        return self.has_name(source, name, hops + 1)

    def _has_lazy_name(self, module: SourceModule, name: str) -> bool | None:
        forms = r"[\"']{0}[\"']|\b{0}\s*=(?!=)|\b{0} as {0}\b".format(name)
        if name in module.text and re.search(forms, module.text):
            return True
        if "define_import_structure" in module.text:
            return name in self._collect_exports(os.path.dirname(module.path))
        return None if "__getattr__" in self.bindings(module) else False

    def _collect_exports(self, folder: str) -> set[str]:
        """Return the names that the files below a folder export."""
        if folder not in self._collected:
            exported: set[str] = set()
            for path in _iter_files(folder):
                text = files.read_text(path, MAX_FILE_BYTES)
                if "__all__" in text:
                    for block in _EXPORTS.findall(text, text.index("__all__")):
                        exported.update(_QUOTED.findall(block))
                if "@requires(" in text or "@export(" in text:
                    exported.update(_EXPORTED.findall(text))
            self._collected[folder] = exported
        return self._collected[folder]


_MODULE_ATTRIBUTES = frozenset(("__version__", "__name__", "__file__", "__path__", "__doc__", "__spec__", "__dict__"))


def _iter_files(folder: str) -> Iterator[str]:
    top = os.path.join(folder, "models")  # the other modules of transformers are listed explicitly
    count = 0
    for inner, folders, names in os.walk(top if os.path.isdir(top) else folder):
        folders.sort()
        for name in sorted(names):
            if name.endswith(".py") and name != "__init__.py" and count < MAX_MODEL_FILES:
                count += 1
                yield os.path.join(inner, name)


def _is_dynamic(module: SourceModule) -> bool:
    if "dynamic" not in module.memory:
        module.memory["dynamic"] = _DYNAMIC.search(module.text) is not None
    return bool(module.memory["dynamic"])


def _may_make_module(module: SourceModule, last: str) -> bool:
    """Return whether a package may put a module called `last`, or one with its suffix, into sys.modules.

    transformers 5 keeps its old modules this way: "tokenization_utils_fast", "image_processing_*_fast".
    """
    if not _REPLACES_MODULES.search(module.text):
        return False
    suffix = re.escape("_" + last.rpartition("_")[2])  # written as "{name}_fast" or r"(\w+)_fast"
    return re.search(r"\b%s\b|[})]%s[\"')]" % (re.escape(last), suffix), module.text) is not None


def lazy_structure(module: SourceModule) -> dict[str, set[str]]:
    """Return the explicit part of a lazy package's `_import_structure`: submodule -> names."""
    if "structure" not in module.memory:
        module.memory["structure"] = _read_structure(module)
    structure: dict[str, set[str]] = module.memory["structure"]
    return structure


def _read_structure(module: SourceModule) -> dict[str, set[str]]:
    structure: dict[str, set[str]] = {}
    if "_import_structure" not in module.text or module.tree is None:
        return structure
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values):
                if isinstance(key, ast.Constant) and isinstance(value, (ast.List, ast.Set, ast.Tuple)):
                    structure.setdefault(str(key.value), set()).update(_constants(value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            key_node = _structure_key(node.func.value)
            if key_node and node.func.attr in ("append", "extend", "add", "update") and node.args:
                structure.setdefault(key_node, set()).update(_constants(node.args[0]))
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            key_node = _structure_key(node.targets[0])
            if key_node:
                structure.setdefault(key_node, set()).update(_constants(node.value))
    return structure


def _structure_key(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "_import_structure":
        index = getattr(node.slice, "value", node.slice)  # Python 3.8 wraps it in ast.Index
        return index if isinstance(index, str) else str(getattr(index, "value", ""))
    return ""


def _constants(node: ast.expr) -> set[str]:
    if isinstance(node, ast.Constant):
        return {str(node.value)}
    return {str(item.value) for item in getattr(node, "elts", ()) if isinstance(item, ast.Constant)}
