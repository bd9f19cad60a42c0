"""Replaces the model, rows and settings in the user's own script by the small, synthetic and scaled-down ones.

Sources: transformers 5.17.0 utils/hub.py (`cached_file`, `cached_files`: every file of a model or tokenizer outside a
folder passes through one of them; the same in 4.x); datasets 5.2.0 load.py (`load_dataset`); training_args.py
(`TrainingArguments`, a dataclass, as are TRL's configurations that derive from it: the generated `__init__` assigns
every field once, before `__post_init__`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import sys
import zlib
from typing import Any

SPLITS = ("train", "validation", "test")


def find_small_model(hub: Any) -> None:
    """Make names of models that are not folders resolve to the small model."""

    def follow(original: Any) -> Any:
        @functools.wraps(original)
        def find(*arguments: Any, **options: Any) -> Any:
            name, *others = arguments or (options.pop("path_or_repo_id"),)
            return original(name if os.path.isdir(name) else os.environ["ATTNCHECK_MODEL"], *others, **options)

        return find

    for name in ("cached_file", "cached_files"):
        if hasattr(hub, name):
            setattr(hub, name, follow(getattr(hub, name)))


def find_rows(load: Any) -> None:
    """Make `load_dataset` return the synthetic rows for any data set except those that the rehearsal created."""
    original, rows, kind = load.load_dataset, os.environ["ATTNCHECK_ROWS"], "json"
    stage = os.path.dirname(os.path.dirname(rows))
    if os.path.isdir(os.path.join(stage, "pictures")):  # decoded from Parquet; paths in the other file
        rows, kind = os.path.join(stage, "data", "train.parquet"), "parquet"

    @functools.wraps(original)
    def load_dataset(path: Any, *arguments: Any, **options: Any) -> Any:
        if os.path.dirname(rows) in f"{path} {options.get('data_files')} {options.get('data_dir')}":
            return original(path, *arguments, **options)
        source = json.dumps([path, arguments, options.get("name"), options.get("data_files")], default=str)
        watch = os.environ["ATTNCHECK_WATCH"]
        with open(os.path.join(watch, f"data-set-{zlib.crc32(source.encode())}"), "w"):
            pass  # every other data set has the same rows
        split = options.get("split")
        files = dict.fromkeys(SPLITS if split is None else ("train",), rows)
        return original(kind, data_files=files, split=split and "train")

    load.load_dataset = load_dataset


def cut_settings(training_args: Any) -> None:
    """Make TrainingArguments use the values of `ATTNCHECK_SETTINGS` for the script's settings; null is a default.

    Later assignments by transformers or TRL are unchanged.
    """
    cls, settings = training_args.TrainingArguments, json.loads(os.environ["ATTNCHECK_SETTINGS"])
    original = cls.__setattr__

    def assign(self: Any, name: str, value: Any) -> None:
        if name in settings and (name not in vars(self) or sys._getframe(1).f_globals.get("__name__") == "__main__"):
            value = _parse(settings[name]) if settings[name] is not None else _find_default(self, name, value)
        original(self, name, value)

    cls.__setattr__ = assign


def _parse(text: str) -> Any:
    with contextlib.suppress(ValueError):
        return json.loads(text)
    return text


def _find_default(settings: Any, name: str, value: Any) -> Any:
    field = type(settings).__dataclass_fields__.get(name)
    if field is None or field.default is dataclasses.MISSING:
        return value if field is None or field.default_factory is dataclasses.MISSING else field.default_factory()
    return field.default


def use_gloo_without_gpu(distributed_c10d: Any) -> None:
    """Make a script that requests NCCL without a GPU use gloo."""
    original = distributed_c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: Any = None, *arguments: Any, **options: Any) -> Any:
        return original("gloo" if backend == "nccl" else backend, *arguments, **options)

    distributed_c10d.init_process_group = init_process_group
