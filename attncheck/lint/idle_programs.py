"""Finds programs that end at once: a module that defines functions and calls none, without `if __name__ == "__main__"`.

`python -m nemo_rl.algorithms.grpo` imports the module, exits with 0, and has trained nothing.
"""

import ast
import sys
from collections.abc import Iterable, Iterator

from attncheck.core.job import SettingProblem
from attncheck.core.launch import Launch
from attncheck.lint.programs.modules import External, SourceModule, SourceTree
from attncheck.lint.programs.places import find_main

ENDS_AT_ONCE = "calls nothing: it ends at once and trains nothing"
MAX_MODULES = 40  # that it imports
DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Pass)
HARMLESS = frozenset({"TypeVar", "NewType", "namedtuple", "getLogger", "get_logger", "TypedDict", "ParamSpec"})


def find_idle_program(launch: Launch) -> Iterator[SettingProblem]:
    """Yield the problem of a launch whose program certainly starts nothing."""
    word = launch.words[0] if launch.words and launch.words[0].known else None
    is_module = bool(launch.launcher_words) and launch.launcher_words[-1].text in ("-m", "--module")
    if word is None or not (is_module or word.text.endswith(".py")):
        return
    main, tree = find_main(launch) or (None, None)
    if main is None or tree is None or not any(isinstance(node, ast.FunctionDef) for node in main.body.body):
        return
    is_idle = all(_is_definition(statement, main, tree) for statement in main.body.body)  # nothing calls what trains
    if is_idle and all(_imports_only(module, tree) for module in tree.list_imported(main, MAX_MODULES)):
        text = f"{main.shown_path} {ENDS_AT_ONCE}"
        evidence = f"{main.shown_path} has neither a call outside its functions nor `if __name__ == '__main__'`"
        advice = "start the script that calls it"
        yield SettingProblem("no_step", text, (evidence,), word.location, advice=advice, universal=True)


def _imports_only(module: SourceModule, tree: SourceTree) -> bool:
    """Return whether importing a module starts nothing: it calls no function of the tree at its top."""
    calls = (statement.value for statement in module.body.body if isinstance(statement, ast.Expr))
    return all(isinstance(tree.resolve(module, call.func), External) for call in calls if isinstance(call, ast.Call))


def _is_definition(statement: ast.stmt, module: SourceModule, tree: SourceTree) -> bool:
    if isinstance(statement, DEFINITIONS):
        return True
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return _are_harmless(ast.walk(statement), module, tree)
    if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
        return True
    return isinstance(statement, ast.Try) and all(
        _is_definition(inner, module, tree) for inner in (*statement.body, *statement.orelse, *statement.finalbody)
    )


def _are_harmless(nodes: Iterable[ast.AST], module: SourceModule, tree: SourceTree) -> bool:
    """Return whether all calls are of the standard library, or make a type or a logger."""
    for call in nodes:
        if isinstance(call, ast.Call):
            resolved = tree.resolve(module, call.func)
            name = resolved.name if isinstance(resolved, External) else ""
            top, last = name.partition(".")[0], name.rpartition(".")[2]
            if top not in sys.stdlib_module_names and last not in HARMLESS:
                return False
    return True
