"""Makes a launch's adapters again, in forks: without each setting that it states, and with another value of it.

`effects-N.json` holds the settings that change nothing: no parameter, size, initial value or scaling. A default that a
launch states is none of them, because its other values change something.

Source: peft 0.17.1 mapping_func.py and 0.14.0 mapping.py (`get_peft_model`), config.py (dataclasses).
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from typing import Any

from .continuing import can_fork, run_in_fork

# Which modules, layers and tokens are adapted, and how: a launch that states one means it.
SELECTING = (
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern"),
    *("modules_to_save", "target_parameters", "trainable_token_indices", "use_rslora", "lora_bias", "r", "lora_alpha"),
)
MAX_SETTINGS = 8


def watch_adapters(recorder: Any, module: Any) -> None:
    """Compare the adapters that a call of `get_peft_model` makes with those of other settings."""
    original = vars(module).get("get_peft_model")
    if original is None or hasattr(original, "is_compared") or not os.environ.get("ATTNCHECK_CONTINUES"):
        return

    @functools.wraps(original)
    def make(model: Any, peft_config: Any, *arguments: Any, **options: Any) -> Any:
        others: dict[str, list[str]] = {}

        def describe(config: Any, place: str, answers: dict[str, Any]) -> None:
            recorder.is_paused = True
            answers["digest"] = _describe(original(model, config, *arguments, **options))

        with contextlib.suppress(Exception), tempfile.TemporaryDirectory() as folder:
            for name, config in _iter_changed(peft_config) if can_fork() else ():
                answer = run_in_fork(functools.partial(describe, config), folder)
                others.setdefault(name, []).append(answer.get("digest", ""))
        result = original(model, peft_config, *arguments, **options)
        if others:
            with contextlib.suppress(Exception):
                _write(recorder.folder, result, peft_config, others)
        return result

    vars(make)["is_compared"] = True
    module.get_peft_model = make


def _write(folder: str, model: Any, config: Any, others: dict[str, list[str]]) -> None:
    """Write `effects-N.json`; `others` are the digests of the adapters with other settings."""
    own, layers = _describe(model), getattr(config, "layers_to_transform", None)
    same = [name for name, digests in others.items() if len(digests) > 1 and {*digests} == {own}]
    record = {
        "kind": type(config).__name__,
        "idle": {name: str(getattr(config, name)) for name in same},
        "layers": str(layers),
        "astray": _list_astray(model, layers),
    }
    number = len([name for name in os.listdir(folder) if name.startswith("effects-")])
    with open(os.path.join(folder, f"effects-{number}.json"), "w") as stream:
        json.dump(record, stream)


def _iter_changed(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield configurations that differ in one setting: with its default, and with another value."""
    fields = {field.name: field for field in dataclasses.fields(config) if field.name in SELECTING}
    values = {name: getattr(config, name) for name in SELECTING if name in fields}
    defaults = {
        name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for name, field in fields.items()
    }
    stated = [name for name, value in values.items() if value not in (defaults[name], None)]
    for name in stated[:MAX_SETTINGS]:
        for value in (defaults[name], *_iter_others(values[name])):
            changed = copy.deepcopy(config)
            setattr(changed, name, value)
            yield name, changed


def _iter_others(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, dict):
        yield {name: own + 1 for name, own in value.items() if isinstance(own, int)}
    elif isinstance(value, (list, tuple, set)) and value:
        kept = sorted(value, key=str)[:-1]
        is_number = isinstance(next(iter(value)), int)
        others = [number for number in (0, 1) if number not in value][:1] if is_number else kept
        yield from [type(value)(others)] if others else []


def _list_astray(model: Any, layers: Any) -> list[str]:
    """Return the trained parameters of layers that a configuration of adapters does not name."""
    import torch

    named = {layers} if isinstance(layers, int) else {*(layers or ())}
    count = getattr(getattr(model, "config", None), "num_hidden_layers", None)
    lists = [n for n, m in model.named_modules() if isinstance(m, torch.nn.ModuleList) and len(m) == count]
    prefix = f"{min(lists, key=len, default='')}."
    trained = [name for name, value in model.named_parameters() if value.requires_grad and name.startswith(prefix)]
    return [name for name in trained if named and int(name.removeprefix(prefix).partition(".")[0]) not in named]


def _describe(model: Any) -> str:
    """Return a digest of a model's parameters, and of its adapters' scalings and rates."""
    import torch

    digest = hashlib.sha256()
    for name, value in model.named_parameters():
        digest.update(f"{name} {tuple(value.shape)} {value.requires_grad} ".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    for name, module in model.named_modules():
        digest.update(f"{name} {vars(module).get('scaling')} {vars(module).get('p')} ".encode())
    return digest.hexdigest()
