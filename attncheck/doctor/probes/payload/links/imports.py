"""Follows the import statements of one module and finds those that fail because a name no longer exists.

Each failure has its guards and code path. If the body of a `try` fails, its handler is followed, which may fail too, up
to the last alternative. If the installed versions decide a condition, that branch is taken; an undecided condition is
stored with the failure. Imports inside a function fail when it is called.
"""

from __future__ import annotations

import ast
from typing import Callable, Iterator

from .source import import_source
from .takes import Failure, Fallback, Take

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .conditions import Conditions
    from .source import SourceModule
    from .uses import Uses

    Check = Callable[[str, str], bool]  # (module, name; "": the module itself) -> certainly missing

MAX_CONDITION = 120
_CATCH_ALL = ("Exception", "BaseException")


class ImportFollower:
    """Follows one module; `is_missing` returns whether a module or a name in it is certainly missing."""

    def __init__(
        self, module: SourceModule, is_missing: Check, conditions: Conditions, uses: Uses | None = None
    ) -> None:
        self.module = module
        self.uses = uses
        self.enters_functions = True
        self.is_missing = is_missing
        self.conditions = conditions
        self.fallbacks: list[Fallback] = []
        self.later: list[Failure] = []  # inside functions

    def follow(self) -> list[Failure]:
        """Return the failures while the module is imported; `later` and `fallbacks` hold the others."""
        tree = self.module.tree
        return self._run_block(tree.body, "") if tree is not None else []

    def _run_block(self, statements: list[ast.stmt], function: str) -> list[Failure]:
        failures: list[Failure] = []
        for statement in statements:
            if self.uses is not None:
                failures += [Failure(take, function=function) for take in self.uses.iter_missing(statement)]
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                failures += [Failure(take, function=function) for take in self._missing_takes(statement)]
            elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._run_function(statement, _join_name(function, statement.name))
            elif isinstance(statement, ast.ClassDef):
                failures += self._run_class(statement, function)
            elif isinstance(statement, ast.If):
                failures += self._run_if(statement, function)
                if self._always_leaves(statement):
                    break
            elif hasattr(statement, "handlers"):
                failures += self._run_try(statement, function)
            elif isinstance(statement, (ast.With, ast.AsyncWith)):
                inner = self._run_block(statement.body, function)
                if any("suppress" in ast.dump(item.context_expr) for item in statement.items):
                    self.fallbacks += [Fallback(f.take, statement.lineno, function) for f in inner]
                else:
                    failures += inner
            else:
                for block in ("body", "orelse"):
                    failures += self._run_block(getattr(statement, block, []), function)
        return failures

    def follow_import(self) -> list[Failure]:
        """Return the failures while the module is imported, ignoring the bodies of functions."""
        self.enters_functions = False
        return self.follow()

    def _run_function(self, statement: ast.stmt, name: str) -> None:
        if not self.enters_functions:
            return
        outer = self.uses.enter_function(statement) if self.uses is not None else None
        self.later += self._run_block(statement.body, name)  # type: ignore[attr-defined]
        if self.uses is not None and outer is not None:
            self.uses.scope = outer

    def _run_class(self, statement: ast.ClassDef, function: str) -> list[Failure]:
        """Follow a class; its body runs with the module, its methods run when they are called."""
        name = _join_name(function, statement.name)
        failures: list[Failure] = []
        for inner in statement.body:
            if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._run_function(inner, name + "." + inner.name)
            else:
                failures += self._run_block([inner], function)
        return failures

    def _run_if(self, statement: ast.If, function: str) -> list[Failure]:
        """Follow an `if`; the condition is evaluated only if a branch has a failure, because most are irrelevant."""
        failures: list[Failure] = []
        decided: bool | None = None
        for block, branch, form in ((statement.body, True, "%s"), (statement.orelse, False, "not (%s)")):
            later, self.later = self.later, []
            fallbacks, self.fallbacks = self.fallbacks, []
            inside = self._run_block(block, function)
            if inside or self.later or self.fallbacks:
                decided = self.conditions.decide(statement.test, self.module)
                if decided is (not branch):
                    inside, self.later, self.fallbacks = [], [], []
                elif decided is None:
                    condition = (form % self._source_of(statement.test),)
                    inside = [f._replace(conditions=(*condition, *f.conditions)) for f in inside]
                    self.later = [f._replace(conditions=(*condition, *f.conditions)) for f in self.later]
            failures += inside
            self.later = later + self.later
            self.fallbacks = fallbacks + self.fallbacks
        return failures

    def _always_leaves(self, statement: ast.If) -> bool:
        ends = [block[-1:] for block in (statement.body, statement.orelse)]
        if not any(isinstance(last, (ast.Return, ast.Raise)) for end in ends for last in end):
            return False
        decided = self.conditions.decide(statement.test, self.module)
        block = statement.body if decided else statement.orelse if decided is False else []
        return bool(block) and isinstance(block[-1], (ast.Return, ast.Raise))

    def _run_try(self, statement: ast.stmt, function: str) -> list[Failure]:
        failures: list[Failure] = []
        body = self._run_block(statement.body, function)  # type: ignore[attr-defined]
        if not body:
            failures += self._run_block(statement.orelse, function)  # type: ignore[attr-defined]
        for handler in statement.handlers:  # type: ignore[attr-defined]
            caught = [f for f in body if _catches(handler, f.take)]
            body = [f for f in body if f not in caught]
            if caught:
                failures += self._run_handler(handler, caught, function)
        return failures + body + self._run_block(statement.finalbody, function)  # type: ignore[attr-defined]

    def _run_handler(self, handler: ast.ExceptHandler, caught: list[Failure], function: str) -> list[Failure]:
        if any(isinstance(statement, ast.Raise) for statement in handler.body):
            return caught
        tried = tuple(take for failure in caught for take in (*failure.tried, failure.take))
        conditions = caught[0].conditions
        again = self._run_block(handler.body, function)
        if not again:
            self.fallbacks += [Fallback(f.take, handler.body[0].lineno, function) for f in caught]
        return [f._replace(tried=tried + f.tried, conditions=(*conditions, *f.conditions)) for f in again]

    def _missing_takes(self, statement: ast.stmt) -> Iterator[Take]:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                if self.is_missing(alias.name, ""):
                    yield Take(alias.name, "", statement.lineno)
            return
        source = import_source(self.module.package, statement)
        if self.is_missing(source, ""):
            yield Take(source, "", statement.lineno)
            return
        for alias in statement.names:  # type: ignore[attr-defined]
            if alias.name != "*" and self.is_missing(source, alias.name):
                yield Take(source, alias.name, statement.lineno)

    def _source_of(self, node: ast.expr) -> str:
        text = " ".join((ast.get_source_segment(self.module.text, node) or "a condition").split())
        return text if len(text) <= MAX_CONDITION else text[: MAX_CONDITION - 1] + "…"


def _catches(handler: ast.ExceptHandler, take: Take) -> bool:
    """Return whether a handler catches the exception of a failed take, such as ImportError or AttributeError."""
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {getattr(node, "id", getattr(node, "attr", "")) for node in types}
    if names.intersection(_CATCH_ALL):
        return True
    if take.kind != "import":
        return ("AttributeError" if take.kind == "attribute" else "TypeError") in names
    return "ImportError" in names or ("ModuleNotFoundError" in names and not take.name)


def _join_name(outer: str, name: str) -> str:
    return outer + "." + name if outer else name
