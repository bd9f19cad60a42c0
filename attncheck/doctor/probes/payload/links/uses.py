"""Checks how a module uses its imports: attributes of modules and classes, and the arguments of calls.

A cheap text search finds candidates; the syntax tree is walked only if something may be missing.
"""

from __future__ import annotations

import ast
import re
from typing import Iterator, NamedTuple

from .conditions import dotted_name
from .signatures import Signatures, find_refusal
from .source import read_takes
from .takes import Take

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .names import Names
    from .source import SourceModule

MAX_CLASSES = 20  # per chain of bases
MAX_CALL = 4000  # characters between the brackets of one call
_ASSIGNED = re.compile(r"^[ \t]*(\w+)[ \t]*(?::[^=\n]+)?=(?!=)", re.MULTILINE)
_NOT_FOLLOWED = ("torch", "triton")  # their attributes are created at run time, in C++
_FOLLOWED_CLASSES = "Cache"  # in packages, only variables of cache classes; in the user's own code, all classes


class Bindings(NamedTuple):
    """The names in a file that refer to other packages."""

    modules: dict[str, str]  # alias -> module
    members: dict[str, tuple[str, str]]  # alias -> module, name


class Scope(NamedTuple):
    """The names inside a function: parameters shadow imports, and some variables have a class of another package."""

    hidden: frozenset[str]
    instances: dict[str, tuple[str, str]]


class Uses:
    """Checks the expressions of one module."""

    def __init__(self, module: SourceModule, providers: set[str], names: Names, signatures: Signatures) -> None:
        self.module = module
        self.names = names
        self.signatures = signatures
        self.bindings = self._bind(providers)
        self.follows_instances = False
        self.tracks_instances = True
        self._suspect: bool | None = None
        self.scope = Scope(frozenset(), {})

    def _bind(self, providers: set[str]) -> Bindings:
        modules: dict[str, str] = {}
        members: dict[str, tuple[str, str]] = {}
        for source, name, alias in read_takes(self.module):
            top = source.partition(".")[0]
            if top not in providers or top in _NOT_FOLLOWED or name == "*":
                continue
            if not name:
                modules[alias or top] = source if alias else top
            elif self.names.finder.kind(source + "." + name):
                modules[alias or name] = source + "." + name
            else:
                members[alias or name] = source, name
        for alias in _ASSIGNED.findall(self.module.text):  # bound again, so its meaning is open
            modules.pop(alias, None)
            members.pop(alias, None)
        return Bindings(modules, members)

    def is_suspect(self) -> bool:
        """Return whether the text uses anything that may be missing."""
        if self._suspect is None:
            self._suspect = self.follows_instances or self._uses_suspects(self.module.text)
        return self._suspect

    def _uses_suspects(self, text: str) -> bool:
        if not self.bindings.modules and not self.bindings.members:
            return False
        self.tracks_instances = any(self._is_instance_suspect(alias, text) for alias in self.bindings.members)
        aliases = [alias for alias in {*self.bindings.modules, *self.bindings.members} if alias + "." in text]
        for alias, chain in set(_find_chains(text, aliases)):
            if self._missing_attribute(alias, chain[1:].split("."), 0) is not None:
                return True
        called = [name for name in self.bindings.members if name + "(" in text]
        if any(self._refused(call, 0) is not None for call in _iter_calls(text, called)):
            return True
        return self.tracks_instances

    def _is_instance_suspect(self, alias: str, text: str) -> bool:
        """Return whether a variable that seems to hold a cache object uses an attribute that its class lacks."""
        module, name = self.bindings.members[alias]
        if not alias.endswith(_FOLLOWED_CLASSES):
            return False
        typed = r"\b(\w+)\s*(?::[^=,()\n]*|=\s*)\b%s\b" % re.escape(alias)
        variables = sorted(set(re.findall(typed, text)))
        attributes = {attribute for _, chain in _find_chains(text, variables) for attribute in chain[1:].split(".")[:1]}
        return any(self._class_lacks(module, name, attribute, is_instance=True) for attribute in attributes)

    def iter_missing(self, node: ast.AST) -> Iterator[Take]:
        """Yield the names that an expression or statement uses and that do not exist."""
        for inner in _walk_expressions(node):
            if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Load):
                parts = dotted_name(inner).split(".")
                is_own = not parts[0] or parts[0] in self.scope.hidden
                take = None if is_own else self._missing_attribute(parts[0], parts[1:], inner.lineno)
                take = take or self._missing_of_instance(inner)
                if take is not None and not self._is_guarded(take.name):
                    yield take
            elif isinstance(inner, ast.Call):
                take = self._refused(inner, inner.lineno)
                if take is not None and not self._is_guarded(take.argument or take.name):
                    yield take

    def enter_function(self, function: ast.AST) -> Scope:
        """Record a function's parameters and the variables with a known class; return the scope to restore."""
        outer = self.scope
        if not self.tracks_instances:
            self.scope = Scope(outer.hidden.union(_parameter_names(function)), {})
            return outer
        parameters = {node.arg: node.annotation for node in ast.walk(function) if isinstance(node, ast.arg)}
        values: dict[str, list[ast.expr | None]] = {name: [node] for name, node in parameters.items()}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    value = node.value.func if isinstance(node.value, ast.Call) else None
                    for inner in ast.walk(target):
                        if isinstance(inner, ast.Name):
                            values.setdefault(inner.id, []).append(value if inner is target else None)
            elif isinstance(node, (ast.For, ast.AugAssign, ast.NamedExpr)):
                for inner in ast.walk(node.target):
                    values.setdefault(getattr(inner, "id", ""), []).append(None)
        instances = dict(outer.instances)
        for name, nodes in values.items():
            classes = {self._find_class(node) for node in nodes}
            instances.pop(name, None)
            if len(classes) == 1 and None not in classes:
                instances[name] = classes.pop()  # type: ignore[assignment]
        self.scope = Scope(outer.hidden.union(parameters), instances)
        return outer

    def _find_class(self, node: ast.expr | None) -> tuple[str, str] | None:
        """Return the class that an annotation or a constructor names; None if it is not from another package."""
        named = [getattr(inner, "id", "") for inner in ast.walk(node)] if node is not None else []
        known = [name for name in named if name in self.bindings.members]
        others = [name for name in named if name and name not in known and name not in ("Optional", "None", "Union")]
        return self.bindings.members[known[0]] if len(known) == 1 and not others else None

    def _missing_of_instance(self, node: ast.Attribute) -> Take | None:
        owner = getattr(node.value, "id", "")
        if owner not in self.scope.instances:
            return None
        module, name = self.scope.instances[owner]
        missing = self._class_lacks(module, name, node.attr, is_instance=True)
        return Take(module, name + "." + node.attr, node.lineno, "attribute") if missing else None

    def _missing_attribute(self, alias: str, parts: list[str], line: int) -> Take | None:
        if alias in self.bindings.modules:
            module = self.bindings.modules[alias]
            for part in parts:
                if self.names.finder.kind(module + "." + part):
                    module += "." + part
                    continue
                is_there = self.names.has_name(module, part)
                return Take(module, part, line, "attribute") if is_there is False else None
        elif alias in self.bindings.members and parts and alias[:1].isupper():
            module, name = self.bindings.members[alias]
            if self._class_lacks(module, name, parts[0], is_instance=False):
                return Take(module, name + "." + parts[0], line, "attribute")
        return None

    def _class_lacks(self, module: str, name: str, attribute: str, is_instance: bool) -> bool:
        """Return whether a class and all its bases certainly lack the attribute."""
        if attribute.startswith("__") or attribute == "mro":  # provided by Python: "__dataclass_fields__"
            return False
        pending, seen = [(module, name)], 0
        while pending:
            seen += 1
            definition = self.signatures.find_definition(*pending.pop())
            node = definition[1] if definition is not None else None
            if definition is None or seen > MAX_CLASSES or not isinstance(node, ast.ClassDef):
                return False
            owner = definition[0]
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            if node.keywords or len(bases) < len(node.bases):
                return False
            if "__getattr__" in owner.text or _sets_attribute(owner.text, attribute, is_instance):
                return False
            pending += [(owner.name, base) for base in bases if base != "object"]
        return True

    def _refused(self, call: ast.Call, line: int) -> Take | None:
        alias = getattr(call.func, "id", "")
        if alias not in self.bindings.members or alias in self.scope.hidden:
            return None
        module, name = self.bindings.members[alias]
        signature = self.signatures.read(module, name)
        refusal = find_refusal(signature, call) if signature is not None else None
        if refusal is None:
            return None
        return Take(module, name, line, "argument", refusal.argument, refusal.reason)

    def _is_guarded(self, name: str) -> bool:
        """Return whether the file first checks that the name exists."""
        quoted = r"[\"']%s[\"']" % re.escape(name.rpartition(".")[2])
        asks = r"hasattr\([^()\n]*%s|getattr\([^()\n]*%s|%s\s+(?:not )?in\b" % (quoted, quoted, quoted)
        return re.search(asks, self.module.text) is not None


def _sets_attribute(text: str, attribute: str, is_instance: bool) -> bool:
    if attribute not in text:
        return False
    name = re.escape(attribute)
    forms = [r"\bdef %s\b" % name, r"^[ \t]+%s\s*[:=]" % name, r"^[ \t]+%s," % name]
    if is_instance:
        forms.append(r"\.%s\b" % name)
    return re.search("|".join(forms), text, re.MULTILINE) is not None


def _find_chains(text: str, names: list[str]) -> list[tuple[str, str]]:
    """Return (name, ".attribute.attribute") for the attribute chains that follow each of `names`."""
    if not names:
        return []
    return re.findall(r"(?<![\w.\"'])(%s)((?:\.[A-Za-z_]\w*)+)" % "|".join(map(re.escape, names)), text)


def _iter_calls(text: str, names: list[str]) -> Iterator[ast.Call]:
    """Yield the calls of `names` in a text, each parsed separately."""
    if not names:
        return
    for match in re.finditer(r"(?<![\w.])(?:%s)\(" % "|".join(map(re.escape, names)), text):
        end, depth = match.end(), 1
        while end < len(text) and depth and end - match.end() < MAX_CALL:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        try:
            node = ast.parse(text[match.start() : end], mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if isinstance(node, ast.Call):
            yield node


def _walk_expressions(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a statement's own expressions, but not the statements inside it, which are visited separately."""
    pending = [node]
    while pending:
        current = pending.pop()
        yield current
        for child in ast.iter_child_nodes(current):
            if not isinstance(child, (ast.stmt, ast.ExceptHandler)):
                pending.append(child)


def _parameter_names(function: ast.AST) -> list[str]:
    arguments = function.args  # type: ignore[attr-defined]
    every = [*getattr(arguments, "posonlyargs", ()), *arguments.args, *arguments.kwonlyargs]
    return [argument.arg for argument in every]
