"""Reads the parameters of another package's function or class, from the text of its definition alone.

An unknown decorator leaves the signature open: transformers' `deprecate_kwarg`, for example, also accepts the old name.
A class accepts the parameters of the first `__init__` among its bases, a data class the fields of all its bases.
"""

from __future__ import annotations

import ast
import difflib
import re
from typing import NamedTuple

from .. import files
from .source import import_source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .names import Names
    from .source import SourceModule

MAX_HOPS = 8
NEAR = 0.75  # difflib ratio above which a name may be another spelling of the same one
_KEEPS_SIGNATURE = frozenset(
    (
        *(
            "no_grad",
            "inference_mode",
            "lru_cache",
            "cache",
            "wraps",
            "ignore",
            "disable",
            "unused",
            "final",
            "override",
        ),
        *("auto_docstring", "add_start_docstrings", "add_start_docstrings_to_model_forward", "staticmethod"),
        *("replace_return_docstrings", "requires", "export", "torch_compilable_check"),
        *("use_kernel_func_from_hub", "use_kernel_forward_from_hub"),
    )
)
_INDENTED = re.compile(r"[ \t]")


class Signature(NamedTuple):
    """The arguments that a call may pass."""

    positional: tuple[str, ...]  # names that may be passed by position, in order
    keywords: tuple[str, ...]  # names that may be passed by keyword
    required: tuple[str, ...]
    takes_any_positional: bool = False
    takes_any_keyword: bool = False


class Refusal(NamedTuple):
    """Why a call does not fit: the argument, and the reason as text."""

    argument: str
    reason: str


class Signatures:
    """The signatures of definitions in other packages; None if the source leaves one open."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._definitions: dict[tuple[str, str], tuple[SourceModule, ast.stmt] | None] = {}
        self._known: dict[tuple[str, str], Signature | None] = {}

    def read(self, module_name: str, name: str, hops: int = 0) -> Signature | None:
        """Return the signature of `name` in a module."""
        key = module_name, name
        if key not in self._known:
            self._known[key] = None  # in case a class refers to itself
            definition = self.find_definition(module_name, name)
            if definition is not None and hops < MAX_HOPS:
                module, node = definition
                is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                self._known[key] = _of_function(node) if is_function else self._of_class(module, node, hops)
        return self._known[key]

    def find_definition(self, module_name: str, name: str, hops: int = 0) -> tuple[SourceModule, ast.stmt] | None:
        """Return the definition of `name` and the module that holds it, across re-exports; None if that is open."""
        key = module_name, name
        if key not in self._definitions:
            self._definitions[key] = self._look_up(module_name, name, hops)
        return self._definitions[key]

    def _look_up(self, module_name: str, name: str, hops: int) -> tuple[SourceModule, ast.stmt] | None:
        module = self.names.finder.find(module_name)
        if module is None or hops > MAX_HOPS:
            return None
        heads = _find_heads(module.text, name)
        if heads:
            return (module, heads[0]) if len(heads) == 1 else None
        if "_LazyModule(" in module.text:
            source = self.names.lazy_submodule(module, name)
            return self.find_definition(source, name, hops + 1) if source else None
        if not re.search(r"\b%s\b" % re.escape(name), module.text) and "import *" not in module.text:
            return None
        for statement in self.names.bindings(module).get(name, ()):
            if isinstance(statement, ast.ImportFrom):
                original = next(a.name for a in statement.names if (a.asname or a.name) == name)
                return self.find_definition(import_source(module.package, statement), original, hops + 1)
        for statement in self.names.bindings(module).get("*", ()):
            definition = self.find_definition(import_source(module.package, statement), name, hops + 1)
            if definition is not None:
                return definition
        return None

    def _of_class(self, module: SourceModule, node: ast.stmt, hops: int) -> Signature | None:
        if not isinstance(node, ast.ClassDef) or node.keywords:
            return None
        decorators = {_last_name(decorator) for decorator in node.decorator_list}
        if decorators - _KEEPS_SIGNATURE - {"dataclass"}:
            return None
        methods = {statement.name: statement for statement in node.body if isinstance(statement, ast.FunctionDef)}
        if "__new__" in methods:
            return None
        if "__init__" in methods:
            return _of_function(methods["__init__"], skip_self=True)
        if "dataclass" in decorators:
            return self._of_dataclass(module, node, hops)
        if not node.bases:
            return Signature((), (), ())
        base = node.bases[0]
        return self._read_base(module, base, hops) if len(node.bases) == 1 else None

    def _of_dataclass(self, module: SourceModule, node: ast.ClassDef, hops: int) -> Signature | None:
        inherited = Signature((), (), ())
        for base in node.bases:
            signature = self._read_base(module, base, hops)
            if signature is None or len(node.bases) > 1:
                return None
            inherited = signature
        fields = [
            statement.target.id
            for statement in node.body
            if isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and "ClassVar" not in ast.dump(statement.annotation)
            and "init" not in [word.arg for word in getattr(statement.value, "keywords", ())]
        ]
        names = (*inherited.positional, *(name for name in fields if name not in inherited.positional))
        return Signature(names, names, (), inherited.takes_any_positional, inherited.takes_any_keyword)

    def _read_base(self, module: SourceModule, base: ast.expr, hops: int) -> Signature | None:
        if not isinstance(base, ast.Name):
            return None
        return Signature((), (), ()) if base.id == "object" else self.read(module.name, base.id, hops + 1)


def find_refusal(signature: Signature, call: ast.Call) -> Refusal | None:
    """Return why `call` does not fit a signature; None if it fits."""
    has_star = any(isinstance(argument, ast.Starred) for argument in call.args)
    words = [word.arg for word in call.keywords]
    for word in words:
        if word is not None and word not in signature.keywords and not signature.takes_any_keyword:
            near = difflib.get_close_matches(word, signature.keywords, 1, NEAR)
            return Refusal(word, "it takes no argument %s" % word + (", but %s" % near[0] if near else ""))
    count = len(call.args)
    if not has_star and count > len(signature.positional) and not signature.takes_any_positional:
        limit = len(signature.positional)
        return Refusal("", "it takes %d arguments by position, not %d" % (limit, count))
    if has_star or None in words:
        return None
    given = {*signature.positional[:count], *words}
    missing = [name for name in signature.required if name not in given]
    return Refusal(missing[0], "it wants %s" % ", ".join(missing)) if missing else None


def _of_function(node: ast.stmt, skip_self: bool = False) -> Signature | None:
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    if any(_last_name(decorator) not in _KEEPS_SIGNATURE for decorator in node.decorator_list):
        return None
    arguments = node.args
    only_positional = [argument.arg for argument in getattr(arguments, "posonlyargs", [])]
    positional = [*only_positional, *(argument.arg for argument in arguments.args)]
    required = positional[: len(positional) - len(arguments.defaults)] if arguments.defaults else list(positional)
    if skip_self:
        positional, required = positional[1:], required[1:]
    keyword_only = [argument.arg for argument in arguments.kwonlyargs]
    required += [name for name, default in zip(keyword_only, arguments.kw_defaults) if default is None]
    keywords = [name for name in positional if name not in only_positional] + keyword_only
    return Signature(
        tuple(positional),
        tuple(keywords),
        tuple(required),
        arguments.vararg is not None,
        arguments.kwarg is not None,
    )


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _find_heads(text: str, name: str) -> list[ast.stmt]:
    """Return the top-level definitions of `name`: a function's head, or a class with the heads of its methods.

    This is cheap because it parses a few lines instead of the file: transformers' modules have thousands.
    """
    heads = []
    for match in re.finditer(r"^(?:async )?(?:def|class)\s+%s\b" % re.escape(name), text, re.MULTILINE):
        start = _decorators_start(text, match.start())
        source = _top_level_block(text, start, match.end())
        tree = files.parse_source(source)
        if tree is not None and tree.body:
            heads.append(tree.body[0])
    return heads


def _decorators_start(text: str, start: int) -> int:
    """Return where the decorators above a definition begin; a multi-line decorator ends with ")" in column 0."""
    while start > 0:
        previous = text.rfind("\n", 0, start - 1) + 1
        line = text[previous : start - 1]
        if not line.startswith(("@", ")")) and not (_INDENTED.match(line) and _is_inside_decorator(text, previous)):
            break
        start = previous
    return start


def _is_inside_decorator(text: str, position: int) -> bool:
    """Return whether the indented line at `position` belongs to a decorator that is closed below it."""
    while position > 0:
        position = text.rfind("\n", 0, position - 1) + 1
        if text[position] == "@":
            return True
        if not _INDENTED.match(text[position : position + 1]):
            return False
    return False


def _top_level_block(text: str, start: int, end_of_name: int) -> str:
    """Return the text from `start` to the next statement in column 0."""
    for match in re.finditer(r"^[^\s)\]}#\"']", text[end_of_name:], re.MULTILINE):
        if match.start() > 0 and _is_balanced(text[start : end_of_name + match.start()]):
            return text[start : end_of_name + match.start()]
    return text[start:]


def _is_balanced(text: str) -> bool:
    return text.count("(") == text.count(")") or len(text) > 200_000
