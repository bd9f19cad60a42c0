"""Follows a program with the values of a launch, and collects the errors and warnings that it certainly reaches.

Each value is known or unknown. A condition counts only if its value follows from what is known; the branches of any
other are not followed, and everything that they may change becomes unknown. Code that may catch an error, repeat, or
that was not found, is treated in the same way. Nothing is run.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from attncheck.lint.programs.dataclass_fields import is_dataclass, read_fields
from attncheck.lint.programs.literals import UNKNOWN
from attncheck.lint.programs.modules import INSTALLED, Definition, SourceModule, SourceTree, unparse
from attncheck.lint.programs.reached import HELPERS
from attncheck.lint.programs.records import Closure, Function, Record, find_nothing, list_classes

MAX_HELPER = 3  # statements of a function that is followed for its value alone
# Variables that launchers, shells or users' profiles set; of any other that an installed package reads, its default
# counts if the launch does not set it.
SET_ELSEWHERE = re.compile(
    r"(LOCAL_|GROUP_|NODE_|ROLE_)?(RANK|WORLD_SIZE)|(ACCELERATE|FSDP|PET|TORCH|MASTER|CUDA|SLURM|HF)_.*"
    r"|.*(KEY|TOKEN|SECRET|PASSWORD|PATH|DIR|HOME|USER|HOST|URL|CACHE).*"
)
MAX_DEPTH, MAX_CALLS, MAX_STEPS, MAX_ITEMS = 14, 600, 60_000, 64
NOT_FOLLOWED = HELPERS - {"transformers"}
WARNING_CALLS = frozenset({"warn", "warning", "warning_once", "warning_rank0", "warning_rank0_once", "warning_advice"})
DEPRECATED = re.compile("deprecated|deprecation", re.IGNORECASE)
PRINTED_WARNING = re.compile(r"\W*warning\b", re.IGNORECASE)
PARSES = frozenset({
    "parse_args_into_dataclasses", "parse_args_and_config", "parse_dict", "parse_args", "parse_yaml_file",
    "parse_json_file",
})  # fmt: skip
LOADS = frozenset({"json.load", "yaml.safe_load", "yaml.load"})  # a table of a file that the program opens
ENDS = frozenset({"exit", "_exit", "quit"})
RESHAPES = frozenset({"hierarchize"})  # openrlhf 0.11.2 utils/config.py: the same options, with a name's parts nested
READING_METHODS: dict[type[Any], frozenset[str]] = {
    str: frozenset({
        "lower", "upper", "strip", "lstrip", "rstrip", "startswith", "endswith", "split", "rsplit", "replace", "count",
        "casefold", "removeprefix", "removesuffix", "join", "isdigit", "isdecimal",
    }),
    list: frozenset({"count", "copy"}),
    dict: frozenset({"get", "copy"}),
}  # fmt: skip
ALL_READING = frozenset[str]().union(*READING_METHODS.values())
TYPES: dict[str, type] = {
    "str": str, "int": int, "float": float, "bool": bool, "list": list, "tuple": list, "dict": dict,
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "len": len, "int": int, "float": float, "bool": bool, "str": str, "any": any, "all": all, "min": min, "max": max,
    "abs": abs, "list": list, "tuple": list, "set": list, "sorted": sorted, "sum": sum,
}  # fmt: skip
OPERATIONS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda left, right: left in right, ast.NotIn: lambda left, right: left not in right,
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


class Returned(Exception):
    """A function returns `value`."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Unsure(Exception):
    """The rest of a function may not be reached."""


class Stopped(Exception):
    """The program ends here, or what follows is not worth following."""


class Outcome(NamedTuple):
    """An error or a warning that the program reaches, with its text and place; `names` are in the conditions before."""

    kind: Literal["raises", "warns"]
    text: str
    place: str
    names: tuple[str, ...]


@dataclass
class Frame:
    """The names of a function that is followed, its module, and the class that contains it."""

    module: SourceModule
    names: dict[str, Any] = field(default_factory=dict)
    owner: Definition | None = None
    this: Record | None = None


class Interpreter:
    """Follows one program; `outcomes` holds what it reaches."""

    def __init__(
        self,
        tree: SourceTree,
        parsed: Sequence[Record] = (),
        environ: Mapping[str, str] | None = None,
        has_one_parser: bool = True,
    ) -> None:
        self.tree, self.environ = tree, environ or {}
        self.plain_tree = replace(tree, closed=tree.closed | NOT_FOLLOWED, follows_stars=False)
        self.parsed, self.has_one_parser = parsed, has_one_parser  # the objects that its parsers return
        self.outcomes: list[Outcome] = []
        self.tests: list[ast.expr] = []
        self.depth = self.calls = self.steps = 0

    def follow(self, action: Callable[[], object]) -> None:
        """Do an action, such as calling a method, up to the end of the program."""
        self.tests.clear()
        self.depth = 0
        try:
            action()
        except (Stopped, Returned, Unsure, RecursionError):
            pass

    # Statements ------------------------------------------------------------------------------------------------------
    def run(self, statements: Sequence[ast.stmt], frame: Frame) -> None:
        """Follow the statements of a block."""
        for statement in statements:
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise Stopped
            self._run_statement(statement, frame)

    def _run_statement(self, statement: ast.stmt, frame: Frame) -> None:
        if isinstance(statement, ast.Expr):
            self.value(statement.value, frame)
        elif isinstance(statement, ast.Assign):
            value = self.value(statement.value, frame)
            for target in statement.targets:
                self._assign(target, value, frame)
        elif isinstance(statement, ast.AnnAssign):
            if statement.value is not None:
                self._assign(statement.target, self.value(statement.value, frame), frame)
        elif isinstance(statement, ast.If):
            self._run_branch(statement, frame)
        elif isinstance(statement, ast.Raise):
            self._report_error(statement, frame)
        elif isinstance(statement, ast.Assert):
            if self.truth(statement.test, frame) is False:
                with self._under(statement.test):
                    text = self.render(statement.msg, frame) if statement.msg else unparse(statement.test)
                    self._report("raises", f"AssertionError: {text}", statement, frame)
                raise Stopped
        elif isinstance(statement, ast.Return):
            raise Returned(None if statement.value is None else self.value(statement.value, frame))
        elif isinstance(statement, Function):
            frame.names[statement.name] = Closure(frame.module, statement, names=frame.names)
        elif isinstance(statement, ast.For):
            self._run_loop(statement, frame)
        elif isinstance(statement, ast.With):
            if any("suppress" in unparse(item.context_expr) for item in statement.items):
                self.smear([statement], frame)
                return
            for item in statement.items:
                self.value(item.context_expr, frame)
                if item.optional_vars is not None:
                    self._assign(item.optional_vars, UNKNOWN, frame)
            self.run(statement.body, frame)
        elif not isinstance(statement, (ast.Import, ast.ImportFrom, ast.Pass, ast.ClassDef, ast.Global)):
            self.smear([statement], frame)

    def _run_branch(self, statement: ast.If, frame: Frame) -> None:
        truth = self.truth(statement.test, frame)
        if truth is None:
            self.smear([*statement.body, *statement.orelse], frame)
            return
        with self._under(statement.test):
            self.run(statement.body if truth else statement.orelse, frame)

    def _run_loop(self, statement: ast.For, frame: Frame) -> None:
        items = _list_items(self.value(statement.iter, frame))
        leaves = any(isinstance(node, (ast.Break, ast.Continue)) for node in ast.walk(statement))
        if not isinstance(items, list) or len(items) > MAX_ITEMS or leaves:
            self.smear([statement], frame)
            return
        for item in items:
            self._assign(statement.target, item, frame)
            self.run(statement.body, frame)
        self.run(statement.orelse, frame)

    @contextmanager
    def _under(self, test: ast.expr) -> Iterator[None]:
        self.tests.append(test)
        try:
            yield
        finally:
            self.tests.pop()

    def _report_error(self, statement: ast.Raise, frame: Frame) -> None:
        error = statement.exc
        if isinstance(error, ast.Call):
            text = self.render(error.args[0], frame) if error.args else ""
            name = unparse(error.func).rpartition(".")[2]
            self._report("raises", f"{name}: {text}" if text else name, statement, frame)
        raise Stopped

    def _report(self, kind: Literal["raises", "warns"], text: str, node: ast.AST, frame: Frame) -> None:
        tests = [test for test in self.tests if "__name__" not in unparse(test)]
        words = (item for test in tests for item in ast.walk(test))
        names = [item.attr if isinstance(item, ast.Attribute) else getattr(item, "value", "") for item in words]
        known = tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name.isidentifier()))
        outcome = Outcome(kind, " ".join(text.split()), frame.module.locate(node), known)
        if tests and outcome not in self.outcomes:
            self.outcomes.append(outcome)

    def render(self, expression: ast.expr, frame: Frame) -> str:
        """Return a message; a part that is not known stays as its source."""
        if isinstance(expression, ast.JoinedStr):
            return "".join(self.render(part, frame) for part in expression.values)
        if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Add):
            return self.render(expression.left, frame) + self.render(expression.right, frame)
        inner = expression.value if isinstance(expression, ast.FormattedValue) else expression
        value = self.value(inner, frame)
        known = isinstance(value, (str, int, float, list)) or value is None
        return str(value) if known else f"{{{unparse(inner)}}}"

    # What may change --------------------------------------------------------------------------------------------------
    def smear(self, statements: Sequence[ast.AST], frame: Frame, depth: int = 0) -> None:
        """Forget what statements may change that may run or not; raises `Unsure` if they may leave the function."""
        leaves = False
        for statement in statements:
            for node in walk_scope(statement):
                self.steps += 1
                leaves |= isinstance(node, ast.Return)
                if isinstance(node, ast.Call):
                    self._smear_call(node, frame, depth)
                elif isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
                    self._assign(node, UNKNOWN, frame)
        if leaves and depth == 0:
            raise Unsure

    def _smear_call(self, call: ast.Call, frame: Frame, depth: int) -> None:
        """Forget what a call may change in the objects that it is given."""
        given = self._list_records(call, frame)
        name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
        if name in ("setattr", "pop", "setdefault") and given and len(call.args) > (name == "setattr"):
            key = self.value(call.args[name == "setattr"], frame)
            if isinstance(key, str):
                given[0 if name == "setattr" else -1].values[key] = UNKNOWN
                return
        if not given or self._is_reading(call):
            self._smear_container(call, frame)
            return
        callee = self._find_callee(call, frame)
        if not isinstance(callee, Closure) or depth >= MAX_DEPTH // 2 or self.steps > MAX_STEPS:
            for record in given:
                record.forget()
            return
        names = {name: value for name, value in self._bind(callee, call, frame).items() if isinstance(value, Record)}
        self.smear(callee.node.body, Frame(callee.module, names, callee.owner, callee.this), depth + 1)

    def _smear_container(self, call: ast.Call, frame: Frame) -> None:
        """Forget a list or table whose method may change it."""
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, (ast.Name, ast.Attribute)):
            value = self._peek(call.func.value, frame)
            if isinstance(value, (list, dict)) and call.func.attr not in READING_METHODS[type(value)]:
                self._assign(call.func.value, UNKNOWN, frame)

    def _list_records(self, call: ast.Call, frame: Frame) -> list[Record]:
        """Return the objects that a call is given: arguments, and the object whose method is called."""
        expressions = [*call.args, *(keyword.value for keyword in call.keywords)]
        if isinstance(call.func, ast.Attribute):
            expressions.append(call.func.value)
        expressions = [item.value if isinstance(item, ast.Starred) else item for item in expressions]
        if isinstance(call.func, ast.Attribute) and unparse(call.func.value) == "super()":
            return [frame.this] if frame.this is not None else []
        values = (self._peek(item, frame) for item in expressions)
        return [value for value in values if isinstance(value, Record)]

    def _is_reading(self, call: ast.Call) -> bool:
        name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
        return name in ("getattr", "hasattr", "isinstance", "id", "type", "asdict", "print", "get", "repr", "str")

    def _peek(self, expression: ast.expr, frame: Frame) -> Any:
        """Return the value of a name or an attribute, without following calls."""
        is_path = all(isinstance(node, (ast.Name, ast.Attribute, ast.Load)) for node in ast.walk(expression))
        return self.value(expression, frame) if is_path else UNKNOWN

    def _assign(self, target: ast.AST, value: Any, frame: Frame) -> None:
        if isinstance(target, ast.Name):
            frame.names[target.id] = value
        elif isinstance(target, (ast.Attribute, ast.Subscript)) and _root(target) not in frame.names:
            return
        elif isinstance(target, ast.Attribute):
            owner = self._peek(target.value, frame)
            if isinstance(owner, Record):
                owner.values[target.attr] = value
        elif isinstance(target, ast.Subscript):
            owner = self._peek(target.value, frame)
            key = self.value(target.slice, frame)
            if isinstance(owner, Record) and isinstance(key, str):
                owner.values[key] = value
            elif isinstance(owner, Record):
                owner.forget()
            elif isinstance(owner, (list, dict)):
                self._assign(target.value, UNKNOWN, frame)
        elif isinstance(target, (ast.Tuple, ast.List)):
            fits = isinstance(value, list) and len(value) == len(target.elts)
            for number, element in enumerate(target.elts):
                self._assign(element, value[number] if fits else UNKNOWN, frame)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, UNKNOWN, frame)

    # Conditions ------------------------------------------------------------------------------------------------------
    def truth(self, expression: ast.expr, frame: Frame) -> bool | None:
        """Return whether a condition holds; None if that is not known."""
        if isinstance(expression, ast.BoolOp):
            decisive = isinstance(expression.op, ast.Or)
            truths = []
            for operand in expression.values:
                truths.append(self.truth(operand, frame))
                if truths[-1] is decisive:
                    return decisive
            return None if None in truths else not decisive
        if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.Not):
            truth = self.truth(expression.operand, frame)
            return None if truth is None else not truth
        value = self.value(expression, frame)
        return None if value is UNKNOWN else bool(value)

    def _compare(self, expression: ast.Compare, frame: Frame) -> Any:
        left = self.value(expression.left, frame)
        for operation, comparator in zip(expression.ops, expression.comparators):
            right = self.value(comparator, frame)
            holds = self._compare_two(operation, left, right)
            if holds is UNKNOWN or not holds:
                return holds
            left = right
        return True

    def _compare_two(self, operation: ast.cmpop, left: Any, right: Any) -> Any:
        if isinstance(right, Record) and isinstance(operation, (ast.In, ast.NotIn)) and isinstance(left, str):
            has = right.has(left)
            return UNKNOWN if has is None else has is isinstance(operation, ast.In)
        if isinstance(operation, (ast.Is, ast.IsNot)):
            if left is UNKNOWN or right is UNKNOWN:
                return UNKNOWN
            is_same = left is right if right is None or isinstance(right, bool) else UNKNOWN
            return UNKNOWN if is_same is UNKNOWN else is_same is isinstance(operation, ast.Is)
        if any(value is UNKNOWN or isinstance(value, (Record, Closure)) for value in (left, right)):
            return UNKNOWN
        return self._compute(OPERATIONS.get(type(operation)), left, right)

    def _compute(self, function: Callable[..., Any] | None, *values: Any) -> Any:
        if function is None or any(value is UNKNOWN or isinstance(value, (Record, Closure)) for value in values):
            return UNKNOWN
        try:
            result = function(*values)
        except Exception:  # the program would fail here too, but in another way than it says
            return UNKNOWN
        return result if not isinstance(result, (str, list)) or len(result) < 10_000 else UNKNOWN

    # Values ----------------------------------------------------------------------------------------------------------
    def value(self, expression: ast.expr, frame: Frame) -> Any:
        """Return the value of an expression, and follow the calls in it; `UNKNOWN` if it is not known."""
        if isinstance(expression, ast.Constant):
            return expression.value
        if isinstance(expression, ast.Name):
            return frame.names[expression.id] if expression.id in frame.names else self._resolve(expression, frame)
        if isinstance(expression, ast.Attribute):
            return self._attribute(expression, frame)
        if isinstance(expression, ast.Call):
            return self._call(expression, frame)
        if isinstance(expression, ast.Compare):
            return self._compare(expression, frame)
        if isinstance(expression, ast.BoolOp):
            return self._boolean(expression, frame)
        if isinstance(expression, ast.UnaryOp):
            if isinstance(expression.op, ast.Not):
                truth = self.truth(expression.operand, frame)
                return UNKNOWN if truth is None else truth
            return self._compute(
                operator.neg if isinstance(expression.op, ast.USub) else None, self.value(expression.operand, frame)
            )
        if isinstance(expression, ast.BinOp):
            left, right = self.value(expression.left, frame), self.value(expression.right, frame)
            return self._compute(OPERATIONS.get(type(expression.op)), left, right)
        if isinstance(expression, (ast.List, ast.Tuple, ast.Set)):
            values = [self.value(element, frame) for element in expression.elts]
            is_open = any(isinstance(element, ast.Starred) for element in expression.elts)
            return UNKNOWN if is_open or any(value is UNKNOWN for value in values) else values
        if isinstance(expression, ast.IfExp):
            truth = self.truth(expression.test, frame)
            if truth is None:
                return UNKNOWN
            return self.value(expression.body if truth else expression.orelse, frame)
        if isinstance(expression, ast.JoinedStr):
            values = [self.value(getattr(part, "value", part), frame) for part in expression.values]
            return "".join(map(str, values)) if not any(value is UNKNOWN for value in values) else UNKNOWN
        if isinstance(expression, ast.Subscript):
            return self._subscript(expression, frame)
        if isinstance(expression, ast.Dict):
            keys = [self.value(key, frame) if key is not None else UNKNOWN for key in expression.keys]
            values = [self.value(value, frame) for value in expression.values]
            is_plain = all(isinstance(key, (str, int)) for key in keys)
            return dict(zip(keys, values)) if is_plain and not any(value is UNKNOWN for value in values) else UNKNOWN
        if isinstance(expression, (ast.GeneratorExp, ast.ListComp, ast.SetComp)):
            return self._comprehension(expression, frame)
        if isinstance(expression, ast.NamedExpr):
            value = self.value(expression.value, frame)
            self._assign(expression.target, value, frame)
            return value
        return UNKNOWN

    def _boolean(self, expression: ast.BoolOp, frame: Frame) -> Any:
        """Return the operand that decides; if an unknown one comes first, only a decided truth value."""
        decisive, value = isinstance(expression.op, ast.Or), UNKNOWN
        for operand in expression.values:
            value = self.value(operand, frame)
            if value is UNKNOWN:
                truth = self.truth(expression, frame)
                return UNKNOWN if truth is None else truth
            if bool(value) is decisive:
                return value
        return value

    def _comprehension(self, expression: ast.GeneratorExp | ast.ListComp | ast.SetComp, frame: Frame) -> Any:
        generator = expression.generators[0]
        items = _list_items(self.value(generator.iter, frame))
        if len(expression.generators) > 1 or not isinstance(items, list) or len(items) > MAX_ITEMS:
            return UNKNOWN
        inner, results = Frame(frame.module, dict(frame.names), frame.owner, frame.this), []
        for item in items:
            self._assign(generator.target, item, inner)
            truths = [self.truth(test, inner) for test in generator.ifs]
            if None in truths:
                return UNKNOWN
            if all(truths):
                results.append(self.value(expression.elt, inner))
        return UNKNOWN if any(result is UNKNOWN for result in results) else results

    def _subscript(self, expression: ast.Subscript, frame: Frame) -> Any:
        owner, key = self.value(expression.value, frame), self.value(expression.slice, frame)
        if isinstance(owner, Record):
            return owner.values.get(key, UNKNOWN) if isinstance(key, str) else UNKNOWN
        return self._compute(operator.getitem, owner, key)

    def _attribute(self, expression: ast.Attribute, frame: Frame) -> Any:
        root = _root(expression)
        if root and root not in frame.names:
            return self._resolve(expression, frame)
        owner = self.value(expression.value, frame)
        return self._get(owner, expression.attr) if isinstance(owner, Record) else UNKNOWN

    def _get(self, record: Record, name: str) -> Any:
        """Return the value of an attribute: the object's own, or a constant of its classes."""
        value = record.get(name)
        for owner in record.classes if value is UNKNOWN and name not in record.values else ():
            for statement in getattr(owner.node, "body", ()):
                is_constant = isinstance(statement, ast.Assign) or "ClassVar" in unparse(
                    getattr(statement, "annotation", None) or ast.Pass()
                )
                if is_constant and name in _list_bound(statement):
                    return self.value(statement.value, Frame(owner.module)) if statement.value else UNKNOWN
        return value

    def _resolve(self, expression: ast.Name | ast.Attribute, frame: Frame) -> Any:
        """Return the value of a module's constant, or of a member of an enumeration of texts."""
        if isinstance(expression, ast.Attribute):
            owner = self.plain_tree.resolve(frame.module, expression.value)
            if isinstance(owner, Definition) and isinstance(owner.node, ast.ClassDef):
                member = self._list_members(owner).get(expression.attr, UNKNOWN)
                record = Record(list_classes(self.tree, owner)[0], is_whole=False)
                return self._get(record, expression.attr) if member is UNKNOWN else member
        resolved = self.plain_tree.resolve(frame.module, expression)
        if isinstance(resolved, Definition) and isinstance(resolved.node, ast.expr) and self.depth < MAX_DEPTH:
            if not resolved.module.is_constant(resolved.node):
                return UNKNOWN
            self.depth += 1
            try:
                is_literal = not any(isinstance(node, ast.Call) for node in ast.walk(resolved.node))
                return self.value(resolved.node, Frame(resolved.module)) if is_literal else UNKNOWN
            finally:
                self.depth -= 1
        return UNKNOWN

    def _list_members(self, definition: Definition) -> dict[str, Any]:
        """Return the members of an enumeration whose members equal their texts; empty for any other class."""
        classes, _ = list_classes(self.tree, definition)
        bases = {unparse(base).rpartition(".")[2] for item in classes for base in getattr(item.node, "bases", ())}
        if not ({"Enum", "StrEnum"} & bases and {"str", "StrEnum"} & bases):
            return {}
        members = [item for item in getattr(definition.node, "body", ()) if isinstance(item, ast.Assign)]
        return {
            item.targets[0].id: item.value.value
            for item in members
            if isinstance(item.targets[0], ast.Name) and isinstance(item.value, ast.Constant)
        }

    # Calls -----------------------------------------------------------------------------------------------------------
    def _call(self, call: ast.Call, frame: Frame) -> Any:
        name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
        if name in WARNING_CALLS or name == "print" or name.startswith("rank0_print"):
            self._report_warning(name, call, frame)
            return None
        if unparse(call.func) in LOADS:
            return Record(is_whole=False, is_mapping=True)
        if name in PARSES and self.parsed and self.has_one_parser:
            values = [self.value(argument, frame) for argument in call.args]
            if any(isinstance(value, Record) and value.is_mapping for value in values):
                self.parsed = ()  # a table of the program's own: the launch's settings are not read
                raise Stopped
            self.take_parsed(self.parsed)
            is_one = name == "parse_args" and not self.parsed[0].classes
            return self.parsed[0] if is_one else list(self.parsed)
        if name in ENDS or (name == "error" and unparse(call.func).endswith("parser.error")):
            raise Stopped
        if name in RESHAPES and call.args:
            return self.value(call.args[0], frame)
        if name == "instantiate" and call.args:
            return self._instantiate(self.value(call.args[0], frame))
        if isinstance(call.func, ast.Name) and call.func.id not in frame.names:
            known = self._call_builtin(call.func.id, call, frame)
            if known is not None:
                return known[0]
        if unparse(call.func) in ("os.getenv", "os.environ.get"):
            return self._read_variable(frame.module, [self.value(argument, frame) for argument in call.args])
        if isinstance(call.func, ast.Attribute):
            known = self._call_method(call.func, call, frame)
            if known is not None:
                return known[0]
        callee = self._find_callee(call, frame)
        if isinstance(callee, Closure) and self.depth < MAX_DEPTH and self.calls < MAX_CALLS:
            given = self._bind(callee, call, frame)
            is_given = any(isinstance(value, Record) for value in given.values())
            is_helper = len(callee.node.body) <= MAX_HELPER and not any(value is UNKNOWN for value in given.values())
            if callee.this is not None or is_given or callee.names or is_helper:
                return self.call_closure(callee, given)
        if isinstance(callee, Definition) and self.depth < MAX_DEPTH and self.calls < MAX_CALLS:
            return self._create(callee, call, frame)
        return self._call_unknown(call, frame, callee)

    def _read_variable(self, module: SourceModule, arguments: Sequence[Any]) -> Any:
        """Return the value of an environment variable, or the default that a call gives."""
        name, default = (*arguments, None, None)[:2]
        if not isinstance(name, str):
            return UNKNOWN
        is_default_known = not INSTALLED.isdisjoint(module.path.parts) and not SET_ELSEWHERE.fullmatch(name)
        value = self.environ.get(name, default if is_default_known else UNKNOWN)
        return UNKNOWN if isinstance(value, str) and "$" in value else value

    def _call_unknown(self, call: ast.Call, frame: Frame, callee: object) -> Any:
        """Follow the arguments of a call that is not followed itself, and forget what it may change."""
        owner = [call.func.value] if isinstance(call.func, ast.Attribute) and not _root(call.func) else []
        for argument in (*call.args, *(keyword.value for keyword in call.keywords), *owner):
            if not isinstance(argument, (ast.Name, ast.Attribute, ast.Constant, ast.Starred)):
                self.value(argument, frame)
        self._smear_call(call, frame, 0 if not isinstance(callee, Closure) else MAX_DEPTH)
        return self._read_annotation(callee) if isinstance(callee, Closure) else UNKNOWN

    def _report_warning(self, name: str, call: ast.Call, frame: Frame) -> None:
        categories = " ".join(map(unparse, (*call.args[1:], *(keyword.value for keyword in call.keywords))))
        text = self.render(call.args[0], frame) if call.args else ""
        is_old = "Future" in categories or DEPRECATED.search(f"{categories} {text}")
        is_warning = name in WARNING_CALLS or PRINTED_WARNING.match(text)
        if is_warning and text and not is_old:
            self._report("warns", text, call, frame)

    def _call_builtin(self, name: str, call: ast.Call, frame: Frame) -> tuple[Any] | None:
        """Return the value of a call of Python's own function; None if it is another."""
        if name == "isinstance" and len(call.args) == 2:
            return (self._is_instance(call.args[0], call.args[1], frame),)
        if name in ("getattr", "hasattr", "setattr") and len(call.args) > 1:
            return (self._call_attribute(name, call, frame),)
        if name in FUNCTIONS and not call.keywords:
            values = [self.value(argument, frame) for argument in call.args]
            known = not any(isinstance(value, dict) for value in values)
            return (self._compute(FUNCTIONS[name] if known or name in ("len", "bool") else None, *values),)
        return None

    def _call_attribute(self, name: str, call: ast.Call, frame: Frame) -> Any:
        owner, key = self.value(call.args[0], frame), self.value(call.args[1], frame)
        if not isinstance(owner, Record) or not isinstance(key, str):
            if name == "setattr" and isinstance(owner, Record):
                owner.forget()
            return UNKNOWN
        if name == "setattr":
            owner.values[key] = self.value(call.args[2], frame) if len(call.args) > 2 else UNKNOWN
            return None
        has = owner.has(key)
        if name == "hasattr":
            return UNKNOWN if has is None else has
        if has is False and len(call.args) > 2:
            return self.value(call.args[2], frame)
        return self._get(owner, key)

    def _is_instance(self, expression: ast.expr, kinds: ast.expr, frame: Frame) -> Any:
        value = self.value(expression, frame)
        names = [unparse(kind).rpartition(".")[2] for kind in (kinds.elts if isinstance(kinds, ast.Tuple) else [kinds])]
        if isinstance(value, Record):
            own = {getattr(item.node, "name", "") for item in value.classes} | ({"dict"} if value.is_mapping else set())
            is_known = value.is_whole and value.classes and not value.is_mapping
            return True if own & set(names) else False if is_known else UNKNOWN
        if value is UNKNOWN or isinstance(value, Closure):
            return UNKNOWN
        if any(isinstance(value, TYPES[name]) for name in names if name in TYPES):
            return True
        return False if value is None or all(name in TYPES for name in names) else UNKNOWN

    def _call_method(self, function: ast.Attribute, call: ast.Call, frame: Frame) -> tuple[Any] | None:
        """Return the value of a call that reads a text, list, table or mapping; None if it is another."""
        root = _root(function)
        if (root and root not in frame.names) or not (function.attr in ("get", "pop") or function.attr in ALL_READING):
            return None
        owner = self.value(function.value, frame)
        if isinstance(owner, Record) and owner.is_mapping and function.attr in ("get", "pop") and call.args:
            key = self.value(call.args[0], frame)
            if function.attr == "pop" and not isinstance(key, str):
                return None
            has = owner.has(key) if isinstance(key, str) else None
            if has is False:
                return (self.value(call.args[1], frame) if len(call.args) > 1 else None,)
            value = owner.values.get(key, UNKNOWN) if has else UNKNOWN
            if function.attr == "pop":
                del owner.values[key]
            return (value,)
        if function.attr in READING_METHODS.get(type(owner), ()) and not call.keywords:
            values = [self.value(argument, frame) for argument in call.args]
            values = [
                tuple(value) if isinstance(value, list) and function.attr != "join" else value for value in values
            ]
            return (self._compute(getattr(owner, function.attr), *values),)
        return None

    def _find_callee(self, call: ast.Call, frame: Frame) -> "Closure | Definition | None":
        """Return the function or the class that a call calls, if its source was found."""
        function = call.func
        local = frame.names.get(function.id) if isinstance(function, ast.Name) else None
        if isinstance(local, Closure):
            return local
        if isinstance(function, ast.Attribute):
            is_super = unparse(function.value) == "super()"
            owner = frame.this if is_super else self._peek(function.value, frame)
            if isinstance(owner, Record):
                return owner.find_method(function.attr, frame.owner if is_super else None)
        if not isinstance(function, (ast.Name, ast.Attribute)) or _root(function) in frame.names:
            return None
        if isinstance(function, ast.Attribute) and self._list_records(call, frame):  # Base.__post_init__(self)
            owner = self.tree.resolve(frame.module, function.value)
            if isinstance(owner, Definition) and isinstance(owner.node, ast.ClassDef):
                method = Record(list_classes(self.tree, owner)[0]).find_method(function.attr)
                return replace(method, this=None) if method else None
        resolved = self.plain_tree.resolve(frame.module, function)
        if not isinstance(resolved, Definition) or isinstance(resolved.node, ast.expr):
            return None
        if isinstance(resolved.node, ast.ClassDef):
            return resolved
        return Closure(resolved.module, resolved.node)

    def _bind(self, callee: Closure, call: ast.Call, frame: Frame) -> dict[str, Any]:
        """Return the values of a function's parameters at a call."""
        parameters = callee.node.args
        names = [parameter.arg for parameter in (*parameters.posonlyargs, *parameters.args)]
        decorators = {unparse(item) for item in callee.node.decorator_list}
        given: dict[str, Any] = {}
        if callee.this is not None and names and "staticmethod" not in decorators:
            given[names.pop(0)] = callee.this if "classmethod" not in decorators else UNKNOWN
        elif "classmethod" in decorators and names:
            given[names.pop(0)] = UNKNOWN
        is_open = any(isinstance(item, ast.Starred) for item in call.args) or any(not k.arg for k in call.keywords)
        for name, argument in zip(names, call.args):
            given[name] = self.value(argument, frame)
        for keyword in call.keywords:
            if keyword.arg:
                given[keyword.arg] = self.value(keyword.value, frame)
        return {**self._read_defaults(callee, is_open), **given}

    def _read_defaults(self, callee: Closure, is_open: bool) -> dict[str, Any]:
        parameters = callee.node.args
        positional = [*parameters.posonlyargs, *parameters.args]
        every = [*positional, *parameters.kwonlyargs, parameters.vararg, parameters.kwarg]
        defaults: dict[str, Any] = {item.arg: UNKNOWN for item in every if item is not None}
        pairs: list[tuple[ast.arg, ast.expr | None]] = [*zip(reversed(positional), reversed(parameters.defaults))]
        pairs += zip(parameters.kwonlyargs, parameters.kw_defaults)
        for parameter, default in pairs if not is_open else ():
            if default is not None:
                defaults[parameter.arg] = self.value(default, Frame(callee.module))
        return defaults

    def call_closure(self, callee: Closure, given: Mapping[str, Any]) -> Any:
        """Follow a function with the values of its parameters; return its value."""
        frame = Frame(callee.module, {**callee.names, **given}, callee.owner, callee.this)
        if frame.this is None and callee.owner is not None:
            frame.this = next((value for value in given.values() if isinstance(value, Record)), None)
        self.calls += 1
        self.depth += 1
        try:
            if _is_generator(callee.node):
                raise Unsure
            self.run(callee.node.body, frame)
        except Returned as returned:
            return self._read_annotation(callee) if returned.value is UNKNOWN else returned.value
        except Unsure:
            self.smear(callee.node.body, frame, 1)
            return self._read_annotation(callee)
        finally:
            self.depth -= 1
        return None

    def _read_annotation(self, callee: Closure) -> Any:
        """Return the parsed objects that a function returns by its annotation: `-> tuple[ModelArguments, …]`."""
        annotation: ast.expr | None = callee.node.returns
        module = callee.module
        resolved = self.plain_tree.resolve(module, annotation) if isinstance(annotation, ast.Name) else None
        if isinstance(resolved, Definition) and isinstance(resolved.node, ast.expr):
            annotation, module = resolved.node, resolved.module
        if not isinstance(annotation, ast.Subscript) or not isinstance(annotation.slice, ast.Tuple):
            return UNKNOWN
        classes = [self.tree.resolve(module, element) for element in annotation.slice.elts]
        records = [[record for record in self.parsed if item in record.classes[:1]] for item in classes]
        if not all(len(group) == 1 for group in records):
            return UNKNOWN
        self.take_parsed([record for (record,) in records])
        return [record for (record,) in records]

    def _instantiate(self, configuration: Any) -> Any:
        """Return the object that Hydra makes of a configuration whose `_target_` names its dataclass."""
        target = configuration.values.get("_target_") if isinstance(configuration, Record) else None
        resolved = self.tree.find_definition(target) if isinstance(target, str) else None
        if not isinstance(resolved, Definition):
            return UNKNOWN
        return self._make_record(resolved, configuration.values)

    def _make_record(self, definition: Definition, values: Mapping[str, Any]) -> Record:
        """Return the object of a dataclass with some values, after its `__post_init__`."""
        classes, is_whole = list_classes(self.tree, definition)
        fields, _ = read_fields(self.tree, definition, find_nothing)
        defaults = {name: row.option.default if row.has_default else UNKNOWN for name, row in fields.items()}
        record = Record(classes, {**defaults, **values}, is_whole, is_made=False)
        self.take_parsed([record])
        return record

    def take_parsed(self, records: Sequence[Record]) -> None:
        """Follow the `__post_init__` of the objects that a parser returns, each once."""
        for record in records:
            method = None if record.is_made else record.find_method("__post_init__")
            record.is_made = True
            if method is not None:
                self.call_closure(method, {item.arg: record for item in method.node.args.args[:1]})

    def _create(self, definition: Definition, call: ast.Call, frame: Frame) -> Any:
        """Return a new object of a class, after its `__init__`; a member of an enumeration is its text."""
        members = self._list_members(definition)
        if members:
            value = self.value(call.args[0], frame) if call.args else UNKNOWN
            return value if value in members.values() else UNKNOWN
        if is_dataclass(definition.node) and not call.args:
            is_open = any(keyword.arg is None for keyword in call.keywords)
            given = {item.arg: self.value(item.value, frame) for item in call.keywords if item.arg}
            return UNKNOWN if is_open else self._make_record(definition, given)
        record = Record(list_classes(self.tree, definition)[0], is_whole=False)
        method = record.find_method("__init__")
        if method is None:
            return self._call_unknown(call, frame, None)
        given = self._bind(method, call, frame)
        if not any(isinstance(value, Record) and value is not record for value in given.values()):
            return UNKNOWN
        self.call_closure(method, given)
        return record


def walk_scope(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those in it, without the bodies of the functions and classes that it defines."""
    waiting = [node]
    while waiting:
        item = waiting.pop()
        yield item
        is_scope = isinstance(item, (*Function.__args__, ast.ClassDef, ast.Lambda)) and item is not node
        waiting += [] if is_scope else ast.iter_child_nodes(item)


@lru_cache(maxsize=4096)
def _is_generator(function: Function) -> bool:
    return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in walk_scope(function))


def _list_items(value: Any) -> Any:
    """Return what a loop over a value takes: a table's keys."""
    return list(value) if isinstance(value, dict) else value


def _list_bound(statement: ast.stmt) -> list[str]:
    """Return the names that an assignment binds."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _root(expression: ast.expr) -> str:
    """Return the first name of a dotted path; "" if it begins with something else."""
    while isinstance(expression, (ast.Attribute, ast.Subscript)):
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else ""
