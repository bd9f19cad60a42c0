"""Answers a script's imports of packages and names that are not installed, so that it can reach its training.

A package that records, logs or measures gets calls that do nothing: a rehearsal sends nothing and evaluates nothing.
Any other package or name can only be imported, annotated with and derived from, or called where an imported
module defines its own names: its use raises the error of the import.
A function or class that the installed package defines elsewhere is taken from there, and `former` has some that it no
longer defines.

Only the script's own `import` is answered, and no import that it guards itself (`except ImportError`). Packages look
around by `importlib.util.find_spec`, and see what is installed. A package's own import of one that only reads pictures
or sound is answered too: llamafactory 0.9.5 data/mm_plugin.py:30 imports torchaudio for every job.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.util
import inspect
import linecache
import os
import re
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, NoReturn

from . import former
from .modules import is_installed

IDLE = (
    *(
        "wandb",
        "swanlab",
        "mlflow",
        "comet_ml",
        "clearml",
        "neptune",
        "aim",
        "trackio",
        "dvclive",
        "tensorboardX",
        "tensorboard",
    ),
    *("IPython", "ipdb", "debugpy", "loguru", "coloredlogs", "icecream", "dotenv", "matplotlib", "seaborn", "plotly"),
    *("evaluate", "rouge_score", "sacrebleu", "bert_score", "pynvml", "GPUtil", "tensorboard"),
    *("tabulate", "prettytable", "termcolor", "colorama", "rich"),
)
MEDIA = (
    *("torchvision", "torchaudio", "decord", "av", "cv2", "PIL", "librosa", "soundfile", "audioread", "moviepy"),
    *("imageio", "eva_decord", "torchcodec", "qwen_vl_utils", "qwen_omni_utils"),
)
PASSING = ("track", "ic", "colored")  # rich's, icecream's and termcolor's functions return their first argument
RENAMED = {
    "AutoModelForVision2Seq": "AutoModelForImageTextToText",  # transformers 5
    "prepare_model_for_int8_training": "prepare_model_for_kbit_training",  # peft 0.10
}
AVAILABLE = re.compile(r"is_([a-z]+)_available")  # functions that packages share, and move
LIGER = re.compile(r"_?apply_liger_kernel|AutoLigerKernelForCausalLM$")  # whose kernels need a GPU
GUARDS = ("ImportError", "ModuleNotFoundError")
ANY_ERROR = ("Exception", "BaseException", "")
MAX_NOTE = 120  # characters of a file's name
MAX_FILES = 4000  # of a package that are searched for a name


def install(folder: str) -> None:
    """Answer the imports of this process, and note in `folder` what was absent."""
    original, is_without_gpu = builtins.__import__, bool(os.environ.get("ATTNCHECK_WITHOUT_GPU"))

    @functools.wraps(original)
    def answer(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        is_liger = is_without_gpu and name.startswith("liger_kernel") and bool(fromlist) and is_script(globals)
        if is_liger and all(map(LIGER.match, fromlist)):
            note(folder, "gpu", "liger_kernel")
            return _Completed(
                _Idle(), {"AutoLigerKernelForCausalLM": importlib.import_module("transformers").AutoModelForCausalLM}
            )
        try:
            module = original(name, globals, locals, fromlist, level)
        except ModuleNotFoundError as error:
            if level:  # a file that the script's own package lacks
                name = importlib.util.resolve_name("." * level + name, str(globals["__package__"]))
            is_foreign = error.name is None or not f"{name}.".startswith(f"{error.name}.")
            if error.name in IDLE and is_foreign:  # `from torch.utils.tensorboard import SummaryWriter`
                name, is_foreign = error.name, False
            if is_foreign and name.partition(".")[0] in IDLE and is_script(globals) and not is_guarded(GUARDS):
                note(folder, "broken", f"{name} {error.name}")  # installed without its own requirements
                return _Idle()
            takes = is_script(globals) or name.partition(".")[0] in MEDIA
            if is_foreign or not takes or is_guarded(GUARDS, not is_script(globals)):
                raise
            return _make_absent(folder, name, fromlist or (), error)
        if level or not is_script(globals):
            return module
        if not fromlist:
            return _complete_attributes(folder, module, globals["__file__"])
        missing = _list_missing(module, fromlist)
        return _complete(folder, module, missing) if missing and not is_guarded(GUARDS) else module

    builtins.__import__ = answer


def _make_absent(folder: str, name: str, names: Any, error: ModuleNotFoundError) -> Any:
    """Return the replacement of a missing module, or its package if no names are imported from it."""
    package = name.partition(".")[0]
    if package in ("ujson", "simplejson", "rapidjson"):  # they have its functions
        note(folder, "twin", f"{package} json")
        return importlib.import_module("json")
    if package in IDLE:
        note(folder, "idle", package)
        return _Idle()
    unused = _Unused(ModuleNotFoundError(str(error), name=error.name))
    modules = {word: _find_elsewhere(package, word) for word in names if package in sys.modules}
    moved = {word: getattr(module, RENAMED.get(word, word)) for word, module in modules.items() if module is not None}
    for word in moved:
        note(folder, "moved", f"{name}.{word} {modules[word].__name__}")
    if len(moved) < max(len(names), 1):
        note(folder, "unused", str(error.name))
    return _Completed(unused, moved)


def _list_missing(module: Any, names: Any) -> list[str]:
    """Return the names that an installed package does not have."""
    path = getattr(module, "__file__", None) or ""
    if not isinstance(module, ModuleType) or not is_installed(path):
        return []
    known = {"*", *dir(module)}  # lazy modules import what `hasattr` looks up
    return [name for name in names if name not in known and not hasattr(module, name)]


def _complete_attributes(folder: str, module: Any, path: str) -> Any:
    """Return a module with the names that a script takes from it by attribute, if they are now defined elsewhere."""
    package = getattr(module, "__name__", "")
    taken = _list_attributes(path).get(package, ())
    missing = [name for name in _list_missing(module, taken) if _find_elsewhere(package, name)]
    missing += [name for name in taken if former.has(package, name) and not hasattr(module, name)]
    return _complete(folder, module, missing)


@functools.cache
def _list_attributes(path: str) -> dict[str, list[str]]:
    """Return the names that a file takes by attribute from the packages that it imports: `trl.CPOTrainer`."""
    tree = _parse(path)
    nodes = list(ast.walk(tree)) if tree is not None else []
    imports = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    packages = {alias.asname or alias.name: alias.name for alias in imports if "." not in alias.name}
    taken: dict[str, list[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in packages:
            taken.setdefault(packages[node.value.id], []).append(node.attr)
    return {package: list(dict.fromkeys(names)) for package, names in taken.items()}


def _complete(folder: str, module: ModuleType, missing: list[str]) -> Any:
    """Return an object with a module's names and its missing ones, from which IMPORT_FROM reads."""
    return _Completed(module, {}, functools.partial(_make_missing, folder, module), missing) if missing else module


def _make_missing(folder: str, module: ModuleType, name: str) -> Any:
    """Return the replacement of a name that a script takes from a module, and note it."""
    package = module.__name__.partition(".")[0]
    elsewhere = _find_elsewhere(package, name)
    available = AVAILABLE.fullmatch(name)
    if available is not None:
        return functools.partial(_is_installed, available[1])
    if elsewhere is not None:
        note(folder, "moved", f"{module.__name__}.{name} {elsewhere.__name__}")
        return getattr(elsewhere, RENAMED.get(name, name))
    if former.has(package, name):
        note(folder, "former", f"{module.__name__}.{name}")
        return former.make(package, name)
    note(folder, "removed", f"{module.__name__}.{name}")
    text = f"cannot import name {name!r} from {module.__name__!r} ({module.__file__})"
    return "" if name.endswith("_DOCSTRING") else _Unused(ImportError(text, name=module.__name__))


def _is_installed(package: str, *arguments: Any, **options: Any) -> bool:
    return importlib.util.find_spec(package) is not None


def _find_elsewhere(package: str, name: str) -> Any:
    """Return the only module of an installed package that defines a name or its new name, None if there is none."""
    name = RENAMED.get(name, name)
    path = getattr(sys.modules[package], "__file__", None) or ""
    root = os.path.dirname(path)
    if os.path.basename(root) != package or not is_installed(path):
        return None
    defines = re.compile(rf"^(?:(?:class|def) {re.escape(name)}\b|{re.escape(name)} ?=)".encode(), re.MULTILINE)
    paths = [path for path in _list_files(root) if _contains(path, defines)]
    if len(paths) != 1:
        return None
    parts = os.path.relpath(paths[0], os.path.dirname(root)).removesuffix(".py").split(os.sep)
    try:
        elsewhere = importlib.import_module(".".join(parts).removesuffix(".__init__"))
    except Exception:
        return None
    return elsewhere if hasattr(elsewhere, name) else None


@functools.cache
def _list_files(root: str) -> list[str]:
    walk = ((folder, names) for folder, _, names in os.walk(root) if f"{os.sep}tests" not in folder)
    paths = (os.path.join(folder, name) for folder, names in walk for name in names if name.endswith(".py"))
    return [path for path, _ in zip(paths, range(MAX_FILES))]


def _contains(path: str, pattern: re.Pattern[bytes]) -> bool:
    with open(path, "rb") as stream:
        return pattern.search(stream.read()) is not None


@functools.cache  # a training loop may call it at each step
def note(folder: str, kind: str, name: str) -> None:
    """Note a replacement; the report has a line for each kind."""
    with open(os.path.join(folder, f"absent-{kind}-{name[:MAX_NOTE]}"), "a"):
        pass


class _Completed:
    """A module, and the names that it does not have: each is made when it is taken, unless the script expects that."""

    def __init__(self, module: Any, names: dict[str, Any], make: Any = None, missing: Iterable[str] = ()) -> None:
        self.__dict__.update(names, __wrapped__=module, __make__=make, __missing__=frozenset(missing))

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        if name in own["__missing__"] and not is_guarded(("AttributeError",)):
            own[name] = own["__make__"](name)
            return own[name]
        return getattr(own["__wrapped__"], name)


class _Idle:
    """An object that does nothing, used as a module, function, object or context manager."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Idle() if name not in PASSING else lambda first, *arguments, **options: first

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return arguments[0] if len(arguments) == 1 and not options and callable(arguments[0]) else _Idle()

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return ()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        return None

    def __bool__(self) -> bool:
        return False

    def __add__(self, other: Any) -> Any:  # of a colour and a text
        return other

    __radd__ = __add__

    def __getitem__(self, key: Any) -> Any:
        return _Idle()

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __iter__(self) -> Any:
        return iter(())


class _Unused:
    """A name that may be imported, annotated with, subclassed and called in an imported module's body."""

    def __init__(self, error: ImportError) -> None:
        self.__dict__["__error__"] = error

    def __getattr__(self, name: str) -> Any:
        if name in ("__version__", "__dataclass_fields__"):
            self._fail()
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (type("Absent", (), {"__new__": lambda cls, *arguments, **options: self._fail()}),)

    def __instancecheck__(self, value: Any) -> bool:
        return False

    __subclasscheck__ = __instancecheck__

    def __getitem__(self, key: Any) -> Any:  # of a type in an annotation
        return self

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def _fail(self, *arguments: Any, **options: Any) -> NoReturn:
        error = self.__dict__["__error__"]
        raise type(error)(str(error), name=error.name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("__"):  # decorators mark a function: `typing.override`
            self._fail()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Return a result that is unused too in the body of a module that only defines names."""
        frame = sys._getframe(1)
        is_in_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
        is_main = frame.f_globals.get("__name__") == "__main__"
        return self._fail() if is_in_function or (is_main and not _has_main(frame.f_code.co_filename)) else self

    __bool__ = __len__ = __iter__ = __enter__ = __str__ = __format__ = __int__ = __float__ = _fail
    __add__ = __radd__ = __mod__ = __contains__ = __setitem__ = _fail


@functools.cache
def _has_main(path: str) -> bool:
    """Return whether a script trains only below `if __name__ == "__main__"`, and its body defines names."""
    tree = _parse(path)
    return tree is not None and any(
        isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) for node in tree.body
    )


@functools.cache
def _is_script_file(name: str) -> bool:
    """Return whether a file belongs to no package, nor to Python's library or the watcher."""
    homes = (os.path.dirname(os.__file__), os.path.dirname(__file__))
    if name.startswith(homes) or is_installed(name):  # thousands of files: their links are not followed
        return False
    return not os.path.realpath(name).startswith(tuple(map(os.path.realpath, homes)))


def is_script(scope: Any) -> bool:
    """Return whether the variables of a module are those of a script."""
    name = scope.get("__file__") if isinstance(scope, dict) else None
    return isinstance(name, str) and not name.startswith("<") and _is_script_file(name)


def read_scripts() -> str:
    """Return the text of every loaded module that is a script's; what stands in `sys.modules` need not be a module."""
    scopes: list[Any] = [getattr(module, "__dict__", None) for module in [*sys.modules.values()]]
    return "".join(line for own in scopes if is_script(own) for line in linecache.getlines(str(own["__file__"])))


def is_guarded(errors: tuple[str, ...], by_any: bool = False) -> bool:
    """Return whether the script catches one of these errors at its current statement, for example an import.

    `by_any`: or whether a package does.
    """
    frame: Any = sys._getframe(2)
    caught: tuple[str, ...] = (*errors, *ANY_ERROR)
    while frame is not None:
        if is_script(frame.f_globals) or (by_any and frame.f_code.co_filename != __file__):  # not `answer`
            guards = _list_guards(frame.f_code.co_filename)
            if any(start <= frame.f_lineno <= end and name in caught for start, end, name in guards):
                return True
            caught = errors  # a script may catch everything around its main function
        frame = frame.f_back
    return False


@functools.cache
def _list_guards(path: str) -> list[tuple[int, int, str]]:
    """Return the lines of a file in which errors are caught, each with the error's name, "" for all."""
    tree = _parse(path)
    return list(_iter_guards(tree)) if tree is not None else []


@functools.cache
def list_requirements(path: str) -> list[tuple[int, int]]:
    """Return the lines of a file's conditions without which it raises: `assert a`, `if not a: raise`."""
    tree, lines = _parse(path), []
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.If):
            ends = node.body if isinstance(node.test, ast.UnaryOp) else node.orelse
            if not ends or not isinstance(ends[-1], ast.Raise):
                continue
        elif not isinstance(node, ast.Assert) or isinstance(node.test, ast.UnaryOp):
            continue
        lines.append((node.test.lineno, node.test.end_lineno or node.test.lineno))
    return lines


def _parse(path: str) -> ast.Module | None:
    try:
        with open(path, "rb") as stream:
            return ast.parse(stream.read())
    except (OSError, ValueError, SyntaxError):
        return None


def _iter_guards(tree: ast.AST) -> Iterator[tuple[int, int, str]]:
    for node in ast.walk(tree):
        caught: list[ast.expr | None] = []
        if isinstance(node, ast.Try):
            caught = [handler.type for handler in node.handlers]
        elif isinstance(node, ast.With):
            calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
            caught = [kind for call in calls if ast.unparse(call.func).endswith("suppress") for kind in call.args]
        if caught and isinstance(node, (ast.Try, ast.With)):
            start, end = node.body[0].lineno, node.body[-1].end_lineno or node.body[-1].lineno
            for kind in caught:
                kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
                yield from ((start, end, ast.unparse(name) if name is not None else "") for name in kinds)
