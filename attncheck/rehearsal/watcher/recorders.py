"""Replaces a missing package that records or debugs a run by one whose calls do nothing.

In a rehearsal such packages send nothing anyway. Only the script's own `import` gets the replacement: packages use
`importlib.util.find_spec` to check whether they are installed.
"""

from __future__ import annotations

import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .modules import INSTALLED

RECORDERS = (
    *("wandb", "swanlab", "mlflow", "comet_ml", "clearml", "neptune", "aim", "trackio", "dvclive", "tensorboardX"),
    *("IPython", "ipdb", "debugpy"),
)


class AbsentRecorders(MetaPathFinder):
    """The last finder: it is asked only for packages that are not installed."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a package that does nothing, None for all except a script's imports of recorders."""
        package = name.partition(".")[0]
        is_part = isinstance(sys.modules.get(package), _Nothing)
        if package not in RECORDERS or not (is_part or _is_imported_by_script()):
            return None
        with open(os.path.join(self.folder, f"absent-{package}"), "a"):
            return ModuleSpec(name, _Idle(), is_package=True)


class _Idle(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Nothing(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Nothing(ModuleType):
    """A module, function, object and context that does nothing in any use."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return arguments[0] if len(arguments) == 1 and not options and callable(arguments[0]) else _Nothing("result")

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        return None

    def __bool__(self) -> bool:
        return False

    def __getitem__(self, key: Any) -> Any:
        return _Nothing("item")

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __iter__(self) -> Any:
        return iter(())


def _is_imported_by_script() -> bool:
    """Return whether the importing code belongs neither to a package nor to Python's library."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib._bootstrap"):
        frame = frame.f_back
    name = frame.f_code.co_filename if frame is not None else "<"
    if name.startswith("<"):  # `importlib.util` is frozen too
        return False
    path = os.path.realpath(name)
    homes = (os.path.dirname(os.path.realpath(os.__file__)), os.path.dirname(os.path.realpath(__file__)))
    return not path.startswith(homes) and not any(f"{os.sep}{folder}{os.sep}" in path for folder in INSTALLED)
