"""Traces the model that a program passes to a trainer back to the call that loads it; nothing is run.

A name leads to what is assigned to it, a parameter to what callers pass, and a call of a function of the program to
what it returns. Any other call leads to its first argument or `model`, as `get_peft_model(model, config)` does.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

LOADS = ("from_pretrained", "from_config", "_from_config")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@lru_cache(maxsize=64)
def trace_models(modules: tuple[ast.Module, ...]) -> "ModelTrace":
    """Return the trace of some modules."""
    return ModelTrace(modules)


@dataclass
class ModelTrace:
    """The nodes of some modules, each with the function that contains it, or the module."""

    modules: Sequence[ast.Module]
    scopes: dict[ast.AST, ast.AST] = field(default_factory=dict)
    calls: list[ast.Call] = field(default_factory=list)
    returns: list[ast.Return] = field(default_factory=list)
    assignments: list[ast.Assign | ast.AnnAssign | ast.NamedExpr] = field(default_factory=list)

    def __post_init__(self) -> None:
        waiting: list[tuple[ast.AST, ast.AST]] = [(module, module) for module in self.modules]
        while waiting:
            node, scope = waiting.pop()
            self.scopes[node] = scope
            if isinstance(node, ast.Call):
                self.calls.append(node)
            elif isinstance(node, ast.Return):
                self.returns.append(node)
            elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
                self.assignments.append(node)
            inner = node if isinstance(node, FUNCTIONS) else scope
            waiting += [(child, inner) for child in ast.iter_child_nodes(node)]

    @cached_property
    def trained(self) -> list[ast.expr] | None:
        """Return the origins of the models that the trainers get; None if there is no trainer, or one is unknown."""
        calls = list(filter(_is_trainer, self.calls))
        origins = [origin for call in calls for origin in self.find_origins(call)]
        is_unknown = any(
            isinstance(origin, (ast.Call, ast.Subscript)) and not loads_model(origin) for origin in origins
        )
        return None if is_unknown or not origins else origins

    def find_origins(self, trainer: ast.Call) -> list[ast.expr]:
        """Return the expressions that a trainer's model may come from; without a model, none."""
        values = (value for value in _list_first(trainer) if value in self.scopes)
        return [origin for value in values for origin in self._follow(value, None, set())]

    def _follow(self, value: ast.expr, index: int | None, seen: set[ast.AST]) -> list[ast.expr]:
        """Return the origins of an expression, or of its element if an index is given."""
        if value in seen:
            return []
        seen.add(value)
        if isinstance(value, ast.Tuple) and index is not None and index < len(value.elts):
            return self._follow(value.elts[index], None, seen)
        if isinstance(value, ast.IfExp):
            return [*self._follow(value.body, index, seen), *self._follow(value.orelse, index, seen)]
        if isinstance(value, ast.Call):
            return self._follow_call(value, index, seen)
        sources = list(self._list_sources(value))
        return [origin for source, place in sources for origin in self._follow(source, place, seen)] or (
            [] if sources else [value]
        )

    def _follow_call(self, call: ast.Call, index: int | None, seen: set[ast.AST]) -> list[ast.expr]:
        """Return the origins of a call's value: the model that it loads, returns or wraps; otherwise the call."""
        name = _find_name(call)
        returned = [
            node.value
            for node in self.returns
            if node.value is not None and getattr(self.scopes[node], "name", "") == name
        ]
        wrapped = _list_first(call)
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
            wrapped.append(call.func.value)  # model.to(device)
        origins = [origin for value in returned for origin in self._follow(value, index, seen)]
        origins = origins or [origin for value in wrapped for origin in self._follow(value, None, seen)]
        return (origins if returned else list(filter(loads_model, origins))) or [call]

    def _list_sources(self, value: ast.expr) -> Iterator[tuple[ast.expr, int | None]]:
        """Yield what a name or an attribute gets, each with its index in a tuple: assigned values, callers' arguments.

        A name is looked for in its function, and then in those around it.
        """
        scope, is_attribute = self.scopes[value], isinstance(value, ast.Attribute)
        name = getattr(value, "attr", getattr(value, "id", ""))
        while name:
            bound = [
                item
                for node in self.assignments
                if is_attribute or self.scopes[node] is scope
                for item in _match(node, name, type(value))
            ]
            bound += [] if is_attribute else self._list_passed(scope, name)
            yield from bound
            if bound or is_attribute or name in _list_parameters(scope) or self.scopes[scope] is scope:
                return
            scope = self.scopes[scope]

    def _list_passed(self, function: ast.AST, name: str) -> list[tuple[ast.expr, None]]:
        """Return what the program's calls of a function pass for a parameter."""
        names = _list_parameters(function)
        calls = [call for call in self.calls if _find_name(call) == getattr(function, "name", "")] if names else []
        values = [
            *(word.value for call in calls for word in call.keywords if word.arg == name),
            *(value for call in calls for parameter, value in zip(names, call.args) if parameter == name),
        ]
        return [(value, None) for value in values]


def loads_model(node: ast.AST) -> bool:
    """Return whether a node is a call that loads a language model: `AutoModelForCausalLM.from_pretrained(…)`.

    `PeftModel.from_pretrained(model, …)` loads an adapter.
    """
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in LOADS:
        return False
    owner = ast.unparse(node.func.value)
    is_adapter = owner.rpartition(".")[2].startswith("PeftModel")
    return ("model" in owner.lower() or "For" in owner) and not is_adapter


def _list_parameters(node: ast.AST) -> list[str]:
    """Return the parameters of a function, without `self`; of a module, none."""
    names = [argument.arg for argument in node.args.args] if isinstance(node, FUNCTIONS) else []
    return names[1:] if names[:1] == ["self"] else names


def _find_name(call: ast.Call) -> str:
    """Return the last name of a callee: "train" of `own.train(…)`."""
    return str(getattr(call.func, "id", getattr(call.func, "attr", "")))


def _is_trainer(call: ast.Call) -> bool:
    name = _find_name(call)
    return name.endswith("Trainer") or (
        "trainer" in name.lower() and any(word.arg == "model" for word in call.keywords)
    )


def _list_first(call: ast.Call) -> list[ast.expr]:
    """Return the call's `model`, otherwise its first positional argument, if it has one of them."""
    return [word.value for word in call.keywords if word.arg == "model"] or call.args[:1]


def _match(
    node: ast.Assign | ast.AnnAssign | ast.NamedExpr, name: str, kind: type[ast.expr]
) -> Iterator[tuple[ast.expr, int | None]]:
    """Yield the value that an assignment gives a name or an attribute, with its index if a tuple is unpacked."""
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        elements = target.elts if isinstance(target, ast.Tuple) else [target]
        for index, element in enumerate(elements):
            is_same = isinstance(element, kind) and name == getattr(element, "attr", getattr(element, "id", ""))
            if is_same and node.value is not None:
                yield node.value, index if isinstance(target, ast.Tuple) else None
