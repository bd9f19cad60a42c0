"""Follows a program from its first statement and collects the arguments of its parsers; nothing is run.

Both branches of a condition are followed. Loops over literal values are followed once for each value, and functions of
the same tree with the arguments of each call. Every name that may be taken is collected: an extra name is harmless,
while a missing one would cause a false error."""

import ast
import builtins
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from attncheck.core.program import ProgramOption
from attncheck.lint.programs.lenient_parses import is_lenient_parse
from attncheck.lint.programs.literals import UNKNOWN, evaluate
from attncheck.lint.programs.modules import Definition, External, SourceModule, SourceTree

MAX_CALLS, MAX_DEPTH, MAX_LOOP = 300, 10, 64
HF_PARSERS = ("HfArgumentParser", "TrlParser", "H4ArgumentParser", "HfArg")
DATACLASS_PARSES = ("parse_args_into_dataclasses", "parse_args_and_config")
OTHER_PARSERS = ("tyro", "fire", "click", "typer", "simple_parsing", "draccus", "pyrallis", "jsonargparse", "absl")
SWITCH_ACTIONS = ("store_true", "store_false", "store_const", "append_const", "count", "help", "version")
# Installed packages whose functions read no command line; they are not followed, because they may have many modules.
# fmt: off
HELPERS = frozenset({
    "PIL", "accelerate", "aiohttp", "bitsandbytes", "datasets", "deepspeed", "diffusers", "einops", "evaluate",
    "fastapi", "flash_attn", "fsspec", "gradio", "huggingface_hub", "hydra", "jsonlines", "liger_kernel",
    "loguru", "matplotlib", "mlflow", "modelscope", "modelscope_hub", "nltk", "numpy", "omegaconf", "openai",
    "pandas", "peft", "pyarrow", "pydantic", "ray", "requests", "rich", "safetensors", "scipy", "sentencepiece",
    "sglang", "sklearn", "swanlab", "tensorboard", "tensordict", "tiktoken", "timm", "tokenizers", "torch",
    "torchaudio", "torchvision", "tqdm", "transformers", "triton", "uvicorn", "vllm", "wandb", "xformers",
    "yaml",
})
# fmt: on
# deepspeed 0.18 __init__.py `_add_core_arguments`
DEEPSPEED_OPTIONS = ("deepspeed", "deepspeed_config", "deepscale", "deepscale_config", "deepspeed_mpi")


@dataclass
class Reached:
    """Everything found while following a program: options of argparse, dataclasses, Hydra's and OmegaConf's sources."""

    options: dict[str, ProgramOption] = field(default_factory=dict)
    parsers: int = 0  # how many `ArgumentParser`s are created
    dataclasses: list[Definition | External] = field(default_factory=list)
    dataclass_parsers: int = 0
    hydra: list[tuple[SourceModule, str | None, str | None]] = field(default_factory=list)  # module, path, name
    structured: list[Definition] = field(default_factory=list)
    reads_command_line: bool = False  # OmegaConf.from_cli
    own_names: set[str] = field(default_factory=set)  # names removed from the command line besides the configuration
    takes_config_file: bool = False  # TrlParser's --config
    gaps: list[str] = field(default_factory=list)


class Follower:
    """Follows one program; `reached` holds what it found."""

    def __init__(self, tree: SourceTree, entry: SourceModule) -> None:
        self.tree, self.entry = replace(tree, closed=tree.closed | HELPERS), entry
        self.reached = Reached()
        self.called: set[tuple[str, int, str]] = set()  # functions, with the arguments that distinguish their options

    def follow_entry(self) -> Reached:
        """Return everything that the module reaches when it is run as a program."""
        self._follow_block(self.entry, self.entry.body.body, {}, 0)
        return self.reached

    def follow_function(self, definition: Definition) -> Reached:
        """Return everything that a function reaches when a console script calls it."""
        self._follow_call(definition, None, self.entry, {}, 0)
        return self.reached

    def _follow_block(
        self, module: SourceModule, statements: Sequence[ast.stmt], values: dict[str, Any], depth: int
    ) -> None:
        for statement in statements:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._check_decorators(module, statement)
            elif isinstance(statement, ast.ClassDef):
                continue
            elif isinstance(statement, ast.For):
                self._follow_expression(module, statement.iter, values, depth)
                self._follow_loop(module, statement, values, depth)
            elif isinstance(statement, (ast.If, ast.While, ast.With, ast.Try)):
                self._follow_compound(module, statement, values, depth)
            else:
                for expression in ast.iter_child_nodes(statement):
                    if isinstance(expression, ast.expr):
                        self._follow_expression(module, expression, values, depth)
                if isinstance(statement, ast.Delete):
                    self._collect_deleted_names(statement, values)
                if isinstance(statement, ast.Assign):
                    for target in statement.targets:
                        if isinstance(target, ast.Name):
                            values[target.id] = self._keep_value(module, statement.value, values)

    def _collect_deleted_names(self, statement: ast.Delete, values: dict[str, Any]) -> None:
        """Collect the names that `del cli_args.config` removes from the command line."""
        for target in statement.targets:
            key = target.attr if isinstance(target, ast.Attribute) else None
            if isinstance(target, ast.Subscript):
                key = evaluate(target.slice, values)
            if isinstance(key, str):
                self.reached.own_names.add(key)

    def _keep_value(self, module: SourceModule, expression: ast.expr, values: dict[str, Any]) -> Any:
        value = evaluate(expression, values)
        return Definition(module, expression) if value is UNKNOWN else value

    def _follow_compound(self, module: SourceModule, statement: ast.stmt, values: dict[str, Any], depth: int) -> None:
        test = getattr(statement, "test", None)
        if test is not None:
            if module is not self.entry and "__main__" in ast.dump(test):
                return
            self._follow_expression(module, test, values, depth)
        for item in getattr(statement, "items", []):
            self._follow_expression(module, item.context_expr, values, depth)
        body, orelse = getattr(statement, "body", []), getattr(statement, "orelse", [])
        handled = [handler.body for handler in getattr(statement, "handlers", [])]
        branches = [body, orelse] if isinstance(statement, ast.If) else [[*body, *orelse], *handled]
        ends = [dict(values) for _ in branches]
        for branch, end in zip(branches, ends):
            self._follow_block(module, branch, end, depth)
        names = dict.fromkeys(name for end in ends for name in end)
        values |= {name: _join_values([end[name] for end in ends if name in end]) for name in names}
        self._follow_block(module, getattr(statement, "finalbody", []), values, depth)

    def _follow_loop(self, module: SourceModule, loop: ast.For, values: dict[str, Any], depth: int) -> None:
        items = evaluate(loop.iter, values)
        if not isinstance(items, list) or len(items) > MAX_LOOP:
            self._follow_block(module, loop.body, _without(values, loop.target), depth)
            return
        for item in items:
            bound = dict(values)
            if isinstance(loop.target, ast.Name):
                bound[loop.target.id] = item
            elif isinstance(loop.target, ast.Tuple) and isinstance(item, list):
                bound.update({n.id: v for n, v in zip(loop.target.elts, item) if isinstance(n, ast.Name)})
            self._follow_block(module, loop.body, bound, depth)

    def _check_decorators(self, module: SourceModule, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Collect `@hydra.main(config_path=…, config_name=…)`."""
        for decorator in function.decorator_list:
            if not isinstance(decorator, ast.Call):
                continue
            resolved = self.tree.resolve(module, decorator.func)
            if ast.unparse(decorator.func) != "hydra.main" and resolved != External("hydra.main"):
                continue
            arguments = dict(zip(("config_path", "config_name"), decorator.args))
            arguments |= {keyword.arg: keyword.value for keyword in decorator.keywords if keyword.arg}
            path, name = (self._read_text(module, arguments.get(name)) for name in ("config_path", "config_name"))
            self.reached.hydra.append((module, path, name))

    def _read_text(self, module: SourceModule, expression: ast.expr | None) -> str | None:
        """Return a text, including that of a module's constant; "" for None or no expression, None if unknown."""
        node: ast.AST | None = expression
        if isinstance(expression, (ast.Name, ast.Attribute)):
            resolved = self.tree.resolve(module, expression)
            node = resolved.node if isinstance(resolved, Definition) else expression
        value = evaluate(node, {}) if isinstance(node, ast.expr) else ""
        return value if isinstance(value, str) else "" if value is None else None

    def _follow_expression(
        self, module: SourceModule, expression: ast.expr, values: dict[str, Any], depth: int
    ) -> None:
        for call in _list_calls(expression):
            self._follow_one_call(module, call, values, depth)

    def _follow_one_call(self, module: SourceModule, call: ast.Call, values: dict[str, Any], depth: int) -> None:
        attribute = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        place = module.locate(call)
        if attribute == "add_argument":
            self._add_option(module, call, values)
        elif attribute in ("add_subparsers", "add_arguments_to_parser"):
            self.reached.gaps.append(f"commands of its own ({place})")
        elif attribute in ("parse_known_args", "parse_known_intermixed_args"):
            self.reached.gaps.append(f"parse_known_args ({place})")
        elif attribute in DATACLASS_PARSES and is_lenient_parse(module, call):
            self.reached.gaps.append(f"{attribute}, which ignores unknown options ({place})")
        elif attribute == "from_cli":
            self.reached.reads_command_line = True
        elif attribute == "structured" and call.args:
            self._add_structured(module, call.args[0], values)
        elif attribute in ("pop", "get") and call.args and isinstance(evaluate(call.args[0], values), str):
            self.reached.own_names.add(evaluate(call.args[0], values))
        else:
            self._follow_named_call(module, call, values, depth)

    def _follow_named_call(self, module: SourceModule, call: ast.Call, values: dict[str, Any], depth: int) -> None:
        resolved = self.tree.resolve(module, call.func)
        name = self._called_name(resolved, call)
        short = name.rpartition(".")[2]
        place = module.locate(call)
        if short == "hasattr" and len(call.args) == 2 and isinstance(evaluate(call.args[1], values), str):
            self.reached.own_names.add(evaluate(call.args[1], values))
        elif short in HF_PARSERS or self._is_dataclass_parser(resolved):
            self._add_dataclass_parser(module, call, values)
        elif short.endswith("ArgumentParser") or self._derives_from(resolved, "ArgumentParser"):
            self.reached.parsers += 1
            if any(keyword.arg in ("parents", "fromfile_prefix_chars") for keyword in call.keywords):
                self.reached.gaps.append(f"a parser with parents or files of options ({place})")
        elif short == "add_config_arguments":
            for option in DEEPSPEED_OPTIONS:
                self.reached.options.setdefault(option, ProgramOption(nargs="?", place=place))
        elif name.partition(".")[0] in OTHER_PARSERS:
            self.reached.gaps.append(f"{name} ({place})")
        elif isinstance(resolved, Definition) and isinstance(resolved.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._follow_call(resolved, call, module, values, depth)
        elif self._passes_parser(call) and not hasattr(builtins, name):
            self.reached.gaps.append(f"{ast.unparse(call.func)} gets the parser ({place}), but was not found")

    def _called_name(self, resolved: object, call: ast.Call) -> str:
        if isinstance(resolved, External):
            return resolved.name
        return ast.unparse(call.func) if isinstance(call.func, (ast.Name, ast.Attribute)) else ""

    def _passes_parser(self, call: ast.Call) -> bool:
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        names = [ast.unparse(argument) for argument in arguments if isinstance(argument, (ast.Name, ast.Attribute))]
        return any(name.lower().endswith("parser") for name in names)

    def _derives_from(self, resolved: object, name: str, depth: int = 0) -> bool:
        """Return whether a class of the tree derives from one of that name."""
        if not isinstance(resolved, Definition) or not isinstance(resolved.node, ast.ClassDef) or depth > MAX_DEPTH:
            return False
        for base in resolved.node.bases:
            if ast.unparse(base).rpartition(".")[2] == name:
                return True
            if self._derives_from(self.tree.resolve_base(resolved.module, resolved.node, base), name, depth + 1):
                return True
        return False

    def _is_dataclass_parser(self, resolved: object) -> bool:
        return any(self._derives_from(resolved, name) for name in HF_PARSERS)

    def _follow_call(
        self, definition: Definition, call: ast.Call | None, module: SourceModule, values: dict[str, Any], depth: int
    ) -> None:
        node = definition.node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return
        bound = self._bind_arguments(node, call, module, values)
        adds_options = b"add_argument" in definition.module.content and _adds_options(node)
        makes_options = call is not None and (adds_options or self._passes_parser(call))
        known = {name: value for name, value in bound.items() if isinstance(value, (str, int, float, list))}
        key = (str(definition.module.path), node.lineno, repr(known) if makes_options else "")
        if definition.module.path.parts[-1:] == ("hf_argparser.py",) or self._is_foreign(definition.module):
            return
        if key in self.called:
            return
        if depth >= MAX_DEPTH or len(self.called) >= MAX_CALLS:
            self.reached.gaps.append(f"too many nested calls ({definition.module.locate(node)})")
            return
        self.called.add(key)
        self._check_decorators(definition.module, node)
        self._follow_block(definition.module, node.body, bound, depth + 1)

    def _is_foreign(self, module: SourceModule) -> bool:
        """Return whether a module belongs to a package of helpers, whose parsers are not the program's."""
        return module.name.partition(".")[0] in ("torch", "transformers", "deepspeed", "accelerate", "datasets", "ray")

    def _bind_arguments(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef,
        call: ast.Call | None,
        module: SourceModule,
        values: dict[str, Any],
    ) -> dict[str, Any]:
        """Return the known values of a function's parameters at one call."""
        names = [argument.arg for argument in node.args.args]
        bound: dict[str, Any] = {}
        for name, default in zip(reversed(names), reversed(node.args.defaults)):
            bound[name] = self._keep_value(module, default, {})
        if call is not None:
            for name, argument in zip(names, call.args):
                bound[name] = self._keep_value(module, argument, values)
            for keyword in call.keywords:
                if keyword.arg:
                    bound[keyword.arg] = self._keep_value(module, keyword.value, values)
        return bound

    def _add_option(self, module: SourceModule, call: ast.Call, values: dict[str, Any]) -> None:
        """Collect one `add_argument`: its flags, or the name of a positional argument."""
        flags = [evaluate(argument, values) for argument in call.args]
        place = module.locate(call)
        if not flags or not all(isinstance(flag, str) for flag in flags):
            self.reached.gaps.append(f"an option whose name is known only at run time ({place})")
            return
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        action = evaluate(keywords.get("action"), values)
        nargs = evaluate(keywords.get("nargs"), values)
        choices = evaluate(keywords.get("choices"), values)
        default = evaluate(keywords.get("default"), values)
        type_name = ast.unparse(keywords["type"]).rpartition(".")[2] if "type" in keywords else ""
        is_switch = action in SWITCH_ACTIONS or "BooleanOptionalAction" in ast.unparse(keywords.get("action") or call)
        option = ProgramOption(
            "bool" if is_switch else type_name if type_name in ("int", "float", "str") else "" if type_name else "str",
            None if default is UNKNOWN else default,
            tuple(map(str, choices)) if isinstance(choices, list) else (),
            0 if is_switch else nargs if isinstance(nargs, (int, str)) else 1,
            place,
            "default" not in keywords or default is not UNKNOWN,
        )
        for flag in flags:
            if flag.startswith("-"):
                self.reached.options[flag.lstrip("-")] = option
                if is_switch and action not in SWITCH_ACTIONS and flag.startswith("--"):
                    self.reached.options[f"no-{flag[2:]}"] = option

    def _add_dataclass_parser(self, module: SourceModule, call: ast.Call, values: dict[str, Any]) -> None:
        self.reached.dataclass_parsers += 1
        self.reached.takes_config_file |= "Trl" in ast.unparse(call.func) or "H4" in ast.unparse(call.func)
        arguments = [*call.args[:1], *(item.value for item in call.keywords if item.arg == "dataclass_types")]
        if not arguments:
            self.reached.gaps.append(f"a parser of dataclasses that is known only at run time ({module.locate(call)})")
        for argument in arguments:
            self._add_dataclasses(module, argument, values, 0)

    def _add_dataclasses(self, module: SourceModule, expression: ast.expr, values: dict[str, Any], hops: int) -> None:
        """Collect the dataclasses of a tuple, a list, one name, or a name that refers to those."""
        place = module.locate(expression)
        if isinstance(expression, (ast.Tuple, ast.List)):
            for element in expression.elts:
                self._add_dataclasses(module, element, values, hops)
            return
        if isinstance(expression, ast.Starred):
            self._add_dataclasses(module, expression.value, values, hops)
            return
        if isinstance(expression, ast.Name) and isinstance(values.get(expression.id), Definition) and hops < MAX_DEPTH:
            known = values[expression.id]
            if isinstance(known.node, ast.expr) and known.node is not expression:
                self._add_dataclasses(known.module, known.node, {}, hops + 1)
                return
        resolved = self.tree.resolve(module, expression)
        if isinstance(resolved, Definition) and isinstance(resolved.node, ast.ClassDef):
            self.reached.dataclasses.append(resolved)
        elif isinstance(resolved, Definition) and isinstance(resolved.node, ast.expr) and hops < MAX_DEPTH:
            self._add_dataclasses(resolved.module, resolved.node, {}, hops + 1)
        elif isinstance(resolved, External):
            self.reached.dataclasses.append(resolved)
        else:
            self.reached.gaps.append(f"a dataclass that is known only at run time ({place})")

    def _add_structured(self, module: SourceModule, expression: ast.expr, values: dict[str, Any]) -> None:
        callee = expression.func if isinstance(expression, ast.Call) else expression
        resolved = self.tree.resolve(module, callee)
        if isinstance(resolved, Definition) and isinstance(resolved.node, ast.ClassDef):
            self.reached.structured.append(resolved)


def _without(values: dict[str, Any], target: ast.expr) -> dict[str, Any]:
    names = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
    return {name: value for name, value in values.items() if name not in names}


@lru_cache(maxsize=1 << 14)
def _list_calls(expression: ast.expr) -> tuple[ast.Call, ...]:
    return tuple(node for node in ast.walk(expression) if isinstance(node, ast.Call))


@lru_cache(maxsize=1 << 12)
def _adds_options(function: ast.AST) -> bool:
    """Return whether a function calls `add_argument`; cached, because large programs call the same ones often."""
    return any(isinstance(part, ast.Attribute) and part.attr == "add_argument" for part in ast.walk(function))


def _join_values(values: Sequence[Any]) -> Any:
    """Return the value that a name has after branches: classes of all of them as a tuple; `UNKNOWN` if texts differ."""
    expressions = [value for value in values if isinstance(value, Definition)]
    if not expressions:
        return values[0] if all(value == values[0] for value in values) else UNKNOWN
    nodes = list(dict.fromkeys(item.node for item in expressions if isinstance(item.node, ast.expr)))
    module = expressions[0].module
    if any(item.module is not module for item in expressions):
        return UNKNOWN
    return expressions[0] if len(nodes) < 2 else Definition(module, ast.Tuple(nodes, ast.Load()))
