"""Validates configurations with axolotl's own pydantic schema, out of its wheel, with all it imports left out.

    python axolotl_schema.py WHEEL < list of configurations as JSON  ->  list of [refusal or "", what it logged] as JSON

Run in its own process: every module that is neither Python's own, pydantic's nor axolotl's is replaced by names
that represent anything and are false.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import logging
import sys
import types
from collections.abc import Sequence
from typing import Any

REAL_PACKAGES = {
    "pydantic",
    "pydantic_core",
    "annotated_types",
    "typing_extensions",
    "typing_inspection",
    "packaging",
    "axolotl",
}
LOG_MESSAGES: list[str] = []


class StubMeta(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub

    def __or__(cls, other: object) -> Any:
        return object

    __ror__ = __or__


class Stub(metaclass=StubMeta):
    def __init__(self, *values: object, **words: object) -> None: ...

    def __bool__(self) -> bool:
        return False

    def __call__(self, *values: Any, **words: object) -> Any:
        return values[0] if len(values) == 1 and callable(values[0]) else None

    def __class_getitem__(cls, item: object) -> Any:
        return cls

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()


class StubModule(types.ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Stub,), {})


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> Any:
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in REAL_PACKAGES or top.startswith("_"):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StubModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


class LogCollector(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        LOG_MESSAGES.append(record.getMessage())


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    sys.meta_path.insert(0, StubFinder())
    logging.getLogger().addHandler(LogCollector())
    logging.getLogger("axolotl").addHandler(LogCollector())
    schema: Any = importlib.import_module("axolotl.utils.schemas.config")
    answers = []
    for configuration in json.load(sys.stdin):
        LOG_MESSAGES.clear()
        try:
            schema.AxolotlInputConfig(**configuration)
            answers.append(["", " | ".join(LOG_MESSAGES)])
        except (ValueError, ImportError, DeprecationWarning, TypeError) as error:
            answers.append([f"{type(error).__name__}: {error}", " | ".join(LOG_MESSAGES)])
    sys.__stdout__.write(json.dumps(answers)) if sys.__stdout__ else None


if __name__ == "__main__":
    main()
