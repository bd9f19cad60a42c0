"""Records the contents of data loaders: a data set's rows, and the plan of its first epoch.

Source: torch 2.13 utils/data/dataloader.py (`_BaseDataLoaderIter`: `_sampler_iter` yields the indices of each batch,
and `_next_data` fetches them; with workers, `_reset` creates it again).
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from .describe import describe_process
from .modules import describe_code
from .randomness import keep_randomness
from .script_code import CODE, note_code, note_order

MAX_LOADERS = 4  # per process, with recorded rows
MAX_ROWS = 4096  # per data set
MAX_SECONDS = 5.0  # for reading a data set
MIN_TOKENS = 4  # a list with at least so many whole numbers is a row of tokens


def mark_hidden(tokens: Any, mask: Any) -> Any:
    """Return tokens, those that an attention mask hides as -1 minus the token: padding may be a word's."""
    if tokens.dim() != 2 or getattr(mask, "shape", None) != tokens.shape:
        return tokens
    return tokens.where(mask != 0, -1 - tokens)


def list_rows(inputs: Mapping[str, Any]) -> dict[str, list[list[int]]]:
    """Return the inputs with a number for each token of a row, by name, as lists: to read them takes no torch."""
    import torch

    tensors = {str(name): value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    return {name: value.tolist() for name, value in tensors.items() if value.dim() == 2}


def watch_epochs(folder: str, on_loader: Callable[[Any, Any], None] = lambda *_: None) -> Callable[[Any], None]:
    """Return a patch for torch.utils.data.dataloader: `epoch-R-N.json` holds a data set's rows and first epoch.

    `on_loader` gets each data set with the function that makes its batches.

    The sampler's indices are drawn at once, instead of batch by batch.
    """
    known: list[Any] = []  # data sets

    def plan(iterator: Any) -> None:
        rows = iterator._dataset
        samplers = _list_samplers(iterator)
        for own in (*samplers, iterator._collate_fn):
            note_code("data", own)
        note_order(sys._getframe(2), samplers)
        _note_shards(samplers)
        if iterator._dataset_kind and iterator._num_workers > 1:
            reader = getattr(iterator._dataset, "__iter__", None)
            CODE["workers"] = [f"each of {iterator._num_workers} workers reads all of {describe_code(reader)}"]
        if iterator._dataset_kind or any(rows is other for other in known) or len(known) >= MAX_LOADERS:
            return  # rows without numbers, or an epoch after the first
        known.append(rows)
        on_loader(rows, iterator._collate_fn)
        count = len(rows)
        drawn = list(itertools.islice(iterator._sampler_iter, 2 * MAX_ROWS))
        iterator._sampler_iter = itertools.chain(drawn, iterator._sampler_iter)
        if count > MAX_ROWS or len(drawn) == 2 * MAX_ROWS:
            return
        CODE["batches"] = [str(max(len(drawn), *map(int, CODE.get("batches", ["0"]))))]  # an evaluation's are fewer
        with keep_randomness():
            tokens = _read_rows(rows, count)
        if tokens is not None:
            batches = [[int(i) for i in (entry if isinstance(entry, (list, tuple)) else [entry])] for entry in drawn]
            path = os.path.join(folder, f"epoch-{describe_process()['rank']}-{len(known)}.json")
            with open(path, "w") as stream:
                replaces = any(getattr(sampler, "replacement", False) for sampler in _list_samplers(iterator))
                json.dump({"rows": tokens, "batches": batches, "replaces": replaces}, stream)

    def patch(module: Any) -> None:
        for name in ("__init__", "_reset"):
            _follow(module._BaseDataLoaderIter, name, plan)

    return patch


def _note_shards(samplers: list[Any]) -> None:
    """Note that rows are split across ranks by a script's sampler, and by accelerate again (1.15.0 data_loader.py)."""
    sizes = {type(own).__name__: getattr(own, "num_replicas", getattr(own, "num_processes", 1)) for own in samplers}
    own, again = sizes.get("DistributedSampler", 1), sizes.get("BatchSamplerShard", 1)
    if min(own, again) > 1:
        CODE["split_twice"] = [f"1 of {own * again} rows for each of {again} ranks"]


def _list_samplers(iterator: Any) -> list[Any]:
    """Return the samplers of a loader, each with the one that it wraps."""
    samplers: list[Any] = []
    sampler = iterator._index_sampler
    while sampler is not None and len(samplers) < MAX_LOADERS:
        samplers.append(sampler)
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
    return samplers


def _follow(cls: Any, name: str, plan: Callable[[Any], None]) -> None:
    original = getattr(cls, name)

    @functools.wraps(original)
    def call(iterator: Any, *arguments: Any, **options: Any) -> None:
        original(iterator, *arguments, **options)
        if name == "_reset" or not iterator._num_workers:  # which `_reset` follows
            try:
                plan(iterator)
            except Exception:
                return  # the trainer continues without a record

    setattr(cls, name, call)


def _read_rows(rows: Any, count: int) -> list[list[int]] | None:
    """Return the tokens of each row, None if a row has none, or if reading takes too long."""
    began = time.monotonic()
    tokens = []
    for number in range(count):
        ids = _find_tokens(rows[number])
        if ids is None or time.monotonic() - began > MAX_SECONDS:
            return None
        tokens.append(ids)
    return tokens


def _find_tokens(row: Any) -> list[int] | None:
    if isinstance(row, Mapping):
        row = row.get("input_ids")
    elif isinstance(row, tuple) and row:
        row = row[0]
    values = row.tolist() if hasattr(row, "tolist") else row
    if isinstance(values, list) and len(values) == 1:  # a batch of one row
        values = values[0]
    is_row = isinstance(values, list) and len(values) >= MIN_TOKENS and all(type(value) is int for value in values)
    return values if is_row else None
