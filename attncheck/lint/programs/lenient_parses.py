"""Determines whether a call of a dataclass parser ignores options that it does not know."""

import ast
from collections.abc import Iterator

from attncheck.lint.programs.literals import evaluate
from attncheck.lint.programs.modules import SourceModule
from attncheck.lint.programs.syntax import list_nodes

EXITS = ("error", "exit", "_exit")  # parser.error, sys.exit


def is_lenient_parse(module: SourceModule, call: ast.Call) -> bool:
    """Return whether a call ignores unknown options, without later code that refuses them.

    `return_remaining_strings=True`: transformers 4.51.3 hf_argparser.py:367 raises without it. TRL's scripts drop the
    remaining options (trl 0.19.1 scripts/sft.py:151); LLaMA-Factory raises itself (llamafactory 0.9.3
    hparams/parser.py:84). `fail_with_unknown_args=False` ignores the keys of the configuration file (trl 1.16.0
    scripts/utils.py:353).
    """
    options = {keyword.arg: keyword.value for keyword in call.keywords}
    if "fail_with_unknown_args" in options and evaluate(options["fail_with_unknown_args"], {}) is not True:
        return True
    if "return_remaining_strings" not in options or evaluate(options["return_remaining_strings"], {}) is False:
        return False
    scope = _find_scope(module, call)
    names = set(_find_remaining_names(scope, call))
    tests = (node for node in ast.walk(scope) if isinstance(node, ast.If))
    return not any(
        any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(test.test)) and _leaves(test.body)
        for test in tests
    )


def _find_scope(module: SourceModule, call: ast.Call) -> ast.AST:
    """Return the innermost function that contains a call, or the module if there is none."""
    scope: ast.AST = module.body
    for node in list_nodes(module.body):  # outer functions come first
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (
            node.lineno <= call.lineno <= (node.end_lineno or node.lineno)
        ):
            scope = node
    return scope


def _find_remaining_names(scope: ast.AST, call: ast.Call) -> Iterator[str]:
    """Yield the names bound to the last of the returned values: `*parsed, unknown = parser.parse_…(…)`."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and any(part is call for part in ast.walk(node.value)):
            for target in node.targets:
                last = target.elts[-1] if isinstance(target, (ast.Tuple, ast.List)) and target.elts else None
                if isinstance(last, ast.Name):
                    yield last.id


def _leaves(statements: list[ast.stmt]) -> bool:
    """Return whether a block raises or ends the program."""
    return any(
        isinstance(node, ast.Raise)
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in EXITS)
        for statement in statements
        for node in ast.walk(statement)
    )
