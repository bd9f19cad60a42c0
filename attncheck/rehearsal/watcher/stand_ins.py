"""Gives the user's own script the small model and the made-up rows for those that it names itself.

Sources: transformers 5.17.0 utils/hub.py (`cached_file`, `cached_files`: every file of a model or tokenizer that is no
folder comes through one of them; 4.x the same); datasets 5.2.0 load.py (`load_dataset`).
"""

from __future__ import annotations

import functools
import os
from typing import Any

SPLITS = ("train", "validation", "test")


def find_small_model(hub: Any) -> None:
    """Let names of models that are not folders lead to the small model."""

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
    """Let `load_dataset` give the made-up rows, whatever it is to load, except for what the rehearsal laid."""
    original, rows = load.load_dataset, os.environ["ATTNCHECK_ROWS"]

    @functools.wraps(original)
    def load_dataset(path: Any, *arguments: Any, **options: Any) -> Any:
        if os.path.dirname(rows) in f"{path} {options.get('data_files')} {options.get('data_dir')}":
            return original(path, *arguments, **options)
        split = options.get("split")
        files = dict.fromkeys(SPLITS if split is None else ("train",), rows)
        return original("json", data_files=files, split=split and "train")

    load.load_dataset = load_dataset


def use_gloo_without_gpu(distributed_c10d: Any) -> None:
    """Let a script that asks for NCCL if no GPU is have gloo."""
    original = distributed_c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: Any = None, *arguments: Any, **options: Any) -> Any:
        return original("gloo" if backend == "nccl" else backend, *arguments, **options)

    distributed_c10d.init_process_group = init_process_group
