"""Decides guards in source code, as far as the installed versions and files decide them."""

from __future__ import annotations

import ast
import operator
import re
import sys
from collections.abc import Callable

from .source import ModuleFinder, SourceModule, bound_names, import_source, iter_statements

_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)\s*(?:[-_.]?(dev|a|b|c|rc|alpha|beta|pre)[-_.]?(\d*))?")
_STAGES = {"dev": 0, "a": 1, "alpha": 1, "b": 2, "beta": 2, "pre": 3, "c": 3, "rc": 3}
OPERATORS: dict[str, Callable[..., bool]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}


def parse_version(text: str) -> tuple[tuple[int, ...], int, int] | None:
    """Return a version in a comparable form (release, stage, number); None if the text is not a version."""
    match = _VERSION.match(text.strip())
    if match is None:
        return None
    release = tuple(int(part) for part in match.group(1).split("."))
    while release and release[-1] == 0:
        release = release[:-1]
    stage = _STAGES[match.group(2)] if match.group(2) else 4
    return release, stage, int(match.group(3) or 0)


def compare_versions(left: str, symbol: str, right: str) -> bool | None:
    """Return whether `left` `symbol` `right` holds; None if one of them is not a version."""
    first, second = parse_version(left), parse_version(right)
    if first is None or second is None or symbol not in OPERATORS:
        return None
    return OPERATORS[symbol](first, second)


_SYMBOLS = {ast.GtE: ">=", ast.Gt: ">", ast.LtE: "<=", ast.Lt: "<", ast.Eq: "==", ast.NotEq: "!="}
# transformers.utils' is_torch_greater_or_equal, ms-swift's and LLaMA-Factory's is_transformers_version_greater_than
# (which means ">=" despite its name), accelerate's and trl's is_…_version and …_version_at_least.
_AT_LEAST = ("greater_or_equal", "at_least", "greater_than", "_gte")
_PACKAGES = ("transformers", "torch", "peft", "accelerate", "trl", "deepspeed", "kernels", "liger_kernel", "vllm")
_IMPORT_NAMES = (*_PACKAGES, "flash_attn", "ring_flash_attn", "xformers", "sglang", "unsloth", "triton", "yunchang")
_PARSERS = ("parse", "Version", "parse_version")
MAX_DEPTH = 8


class Conditions:
    """Decides conditions from the versions of installed distributions (by normalised name) and from files on disk."""

    def __init__(self, finder: ModuleFinder, versions: dict[str, str]) -> None:
        self.finder = finder
        self.versions = versions
        self.is_missing: Callable[[str, str], bool] = lambda module, name: False  # set when packages are linked

    def decide(self, test: ast.expr, module: SourceModule, depth: int = 0) -> bool | None:
        """Return whether `test` holds in `module`; None if it is known only at run time."""
        if depth > MAX_DEPTH:
            return None
        if isinstance(test, ast.Constant):
            return bool(test.value)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            value = self.decide(test.operand, module, depth + 1)
            return None if value is None else not value
        if isinstance(test, ast.BoolOp):
            return self._decide_bool(test, module, depth)
        if isinstance(test, ast.Compare):
            return self._decide_compare(test, module)
        if isinstance(test, ast.Call):
            return self._decide_call(test)
        if isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING":
            return False
        if isinstance(test, ast.Name):
            if test.id == "TYPE_CHECKING":
                return False
            return self._decide_name(test.id, module, depth)
        return None

    def _decide_name(self, name: str, module: SourceModule, depth: int) -> bool | None:
        """Decide a flag that is assigned once, in this module or another one of the same package."""
        value = find_assignment(module, name)
        if value is not None:
            return self.decide(value, module, depth + 1)
        if self._is_left_empty(name, module):
            return False
        source, _, original = _find_import(module, name).partition(":")
        origin = self.finder.find(source) if source else None
        return self._decide_name(original, origin, depth + 1) if origin is not None and depth < MAX_DEPTH else None

    def _decide_bool(self, test: ast.BoolOp, module: SourceModule, depth: int) -> bool | None:
        values = [self.decide(value, module, depth + 1) for value in test.values]
        decisive = isinstance(test.op, ast.Or)
        if decisive in values:
            return decisive
        return None if None in values else not decisive

    def _decide_compare(self, test: ast.Compare, module: SourceModule) -> bool | None:
        symbol = _SYMBOLS.get(type(test.ops[0])) if len(test.ops) == 1 else None
        if symbol is None:
            return self._decide_found(test, module) if len(test.ops) == 1 else None
        right = test.comparators[0]
        if dotted_name(test.left) == "sys.version_info" and isinstance(right, ast.Tuple):
            wanted = tuple(part.value for part in right.elts if isinstance(part, ast.Constant))
            return OPERATORS[symbol](tuple(sys.version_info[: len(wanted)]), wanted)
        if dotted_name(test.left) == "sys.platform" and isinstance(right, ast.Constant):
            return OPERATORS[symbol](sys.platform, right.value) if symbol in ("==", "!=") else None
        first, second = self._version(test.left, module), self._version(right, module)
        return compare_versions(first, symbol, second) if first and second else None

    def _decide_found(self, test: ast.Compare, module: SourceModule) -> bool | None:
        """Decide `importlib.util.find_spec("x") is not None`, and `Name is not None` for a name whose import failed."""
        right = test.comparators[0]
        if isinstance(test.left, ast.Name) and isinstance(right, ast.Constant) and right.value is None:
            is_empty = self._is_left_empty(test.left.id, module)
            return isinstance(test.ops[0], ast.Is) if is_empty else None
        if not (isinstance(right, ast.Constant) and right.value is None and isinstance(test.left, ast.Call)):
            return None
        exists = self._decide_call(test.left)
        return exists if exists is None or isinstance(test.ops[0], ast.IsNot) else not exists

    def _decide_call(self, call: ast.Call) -> bool | None:
        name = dotted_name(call.func).rpartition(".")[2]
        arguments = [value.value for value in call.args if isinstance(value, ast.Constant)]
        if name.endswith("version_in_range") and not call.args:
            return self._decide_range(name, call)
        if len(arguments) != len(call.args) or call.keywords:
            return None
        texts = [value for value in arguments if isinstance(value, str)]
        if name == "find_spec" and len(texts) == 1:
            return bool(self.finder.kind(texts[0]))
        if name.startswith("is_") and name.endswith("_available") and not arguments:
            package = re.sub(r"_\d+$", "", name[3 : -len("_available")])
            return False if package in _IMPORT_NAMES and not self.finder.kind(package) else None
        if name == "compare_versions" and len(texts) == len(arguments) == 3:  # accelerate's
            return compare_versions(self._installed(texts[0]), texts[1], texts[2])
        package = next((package for package in _PACKAGES if package in name), "")
        if not package or len(texts) != len(arguments):
            return None
        installed = self.versions.get(package.replace("_", "-"), "")
        if len(texts) == 2 and texts[0] in OPERATORS and "version" in name:
            return compare_versions(installed, texts[0], texts[1])
        if len(texts) == 1 and any(word in name for word in _AT_LEAST):
            return compare_versions(installed, ">=", texts[0])
        return None

    def _is_left_empty(self, name: str, module: SourceModule) -> bool:
        """Return whether a `try` should bind `name` but its import fails, so that the handler sets None or False."""
        if "emptied" not in module.memory:
            module.memory["emptied"] = ()  # set before computing: modules may refer to each other
            module.memory["emptied"] = {
                emptied
                for statement in iter_statements(module)
                if hasattr(statement, "handlers") and self._import_fails(statement, module)
                for emptied in _emptied_names(statement)
            }
        return name in module.memory["emptied"]

    def _import_fails(self, statement: ast.stmt, module: SourceModule) -> bool:
        own = module.name.partition(".")[0]
        for inner in statement.body:  # type: ignore[attr-defined]
            if isinstance(inner, ast.Import) and any(self.is_missing(alias.name, "") for alias in inner.names):
                return True
            if isinstance(inner, ast.ImportFrom):
                source = import_source(module.package, inner)
                if source.partition(".")[0] == own:
                    continue
                if self.is_missing(source, "") or any(self.is_missing(source, alias.name) for alias in inner.names):
                    return True
        return False

    def _decide_range(self, name: str, call: ast.Call) -> bool | None:
        """Decide verl's is_transformers_version_in_range(min_version=…, max_version=…); both ends are included."""
        installed = self.versions.get("transformers", "") if "transformers" in name else ""
        ends = {word.arg: getattr(word.value, "value", None) for word in call.keywords}
        low, high = ends.get("min_version"), ends.get("max_version")
        answers = [compare_versions(installed, ">=", low) if isinstance(low, str) else True]
        answers.append(compare_versions(installed, "<=", high) if isinstance(high, str) else True)
        return None if None in answers or set(ends) - {"min_version", "max_version"} else all(answers)

    def _version(self, node: ast.expr, module: SourceModule, depth: int = 0) -> str:
        """Return the version that an expression represents; "" if unknown."""
        if depth > MAX_DEPTH:
            return ""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else ""
        if isinstance(node, ast.Name):
            value = find_assignment(module, node.id)
            return "" if value is None else self._version(value, module, depth + 1)
        if isinstance(node, ast.Attribute):
            if node.attr == "__version__" and isinstance(node.value, ast.Name):
                return self._installed(node.value.id)
            return self._version(node.value, module, depth + 1) if node.attr in ("base_version", "release") else ""
        if isinstance(node, ast.Call) and len(node.args) == 1:
            name = dotted_name(node.func).rpartition(".")[2]
            first = node.args[0]
            if name in _PARSERS:
                return self._version(first, module, depth + 1)
            if name in ("version", "get_package_version") and isinstance(first, ast.Constant):
                return self._installed(str(first.value))
        return ""

    def _installed(self, name: str) -> str:
        return self.versions.get(name.lower().replace("_", "-"), "")


def _emptied_names(statement: ast.stmt) -> list[str]:
    """Return the names to which the handlers of a `try` assign None or False."""
    return [
        target.id
        for handler in statement.handlers  # type: ignore[attr-defined]
        for inner in handler.body
        if isinstance(inner, ast.Assign) and isinstance(inner.value, ast.Constant) and not inner.value.value
        for target in inner.targets
        if isinstance(target, ast.Name)
    ]


def find_assignment(module: SourceModule, name: str) -> ast.expr | None:
    """Return the value of a name if every assignment in `module` gives it the same one; otherwise None."""
    if "assignments" not in module.memory:
        module.memory["assignments"] = _collect_assignments(module)
    value: ast.expr | None = module.memory["assignments"].get(name)
    return value


def _collect_assignments(module: SourceModule) -> dict[str, ast.expr | None]:
    values: dict[str, list[ast.expr | None]] = {}
    for statement in iter_statements(module):
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            values.setdefault(getattr(statement.targets[0], "id", ""), []).append(statement.value)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            values.setdefault(getattr(statement.target, "id", ""), []).append(statement.value)
        elif isinstance(statement, (ast.Assign, ast.AugAssign, ast.For)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                for node in ast.walk(target):
                    values.setdefault(getattr(node, "id", ""), []).append(None)
        else:
            for name in bound_names(statement):  # bound by a definition or an import: its value is unknown
                values.setdefault(name, []).append(None)
    return {name: nodes[0] for name, nodes in values.items() if _are_alike(nodes)}


def _are_alike(nodes: list[ast.expr | None]) -> bool:
    if len(nodes) == 1:
        return True
    return None not in nodes and len(nodes) < 5 and len({ast.dump(node) for node in nodes if node is not None}) == 1


def _find_import(module: SourceModule, name: str) -> str:
    """Return the module of the same package from which `module` imports a name at its top level; "" for none."""
    if "imported" not in module.memory:
        module.memory["imported"] = {
            alias.asname or alias.name: (import_source(module.package, statement), alias.name)
            for statement in (module.tree.body if module.tree is not None else ())
            if isinstance(statement, ast.ImportFrom)
            for alias in statement.names
        }
    source, original = module.memory["imported"].get(name, ("", ""))
    is_own = source.partition(".")[0] == module.name.partition(".")[0]
    return source + ":" + original if is_own else ""


def dotted_name(node: ast.expr) -> str:
    """Return a dotted name, such as "sys.platform"; "" for another expression."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
