"""Asks the adapters that a launch adds to its model: which settings act, and whether they keep what they promise.

In a fork, untrained adapters must leave the model as it is. If their parameters are moved as by a training, switching
them off must give back the model, and merging them, or saving and loading them, must keep the outputs. A promise that
is not kept is asked again without each setting, which names the cause.

Sources: peft 0.17.1 mapping_func.py and 0.14.0 mapping.py (`get_peft_model`), config.py (dataclasses). 0.21.2
tuners/lora/config.py: with `init_lora_weights` True "the LoRA adapter will be a no-op", and with trained biases "even
when disabling the adapters, the model will not produce the same output"; other kinds have such a setting without these
words. peft_model.py (`disable_adapter`, which computes the reference of TRL's trainers).
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from .absent import read_scripts
from .continuing import can_fork, run_in_fork, write_answer
from .effects import Trials, change_settings, describe_model, iter_settings
from .relations import report

INIT = re.compile(r"init_(\w+_)?weights")
NEUTRAL = (True, "gaussian", "eva", "orthogonal")  # values that leave the model's own weights
CHANGED, TOKENS, NOISE = 0.02, 16, 0.1  # of the outputs' deviation; of a row; that moves the trained parameters
MAX_CAUSES = 8
CHOOSES = re.compile(r"requires_grad|set_adapter|train_adapter")  # in a script that chooses what is trained
STATES = {True: "trained", False: "frozen"}
PROMISES = {
    "untrained": "changes what the model computes before it is trained",
    "switched off": "does not give back the model if it is switched off, as for a reference",
    "loaded": "computes something else after it is saved, and loaded on the same model",
    "merged": "computes something else after it is merged",
}


def watch_adapters(recorder: Any, module: Any) -> None:
    """Compare the adapters that a call of `get_peft_model` makes with those of other settings."""
    original = vars(module).get("get_peft_model")
    if original is None or hasattr(original, "is_compared") or "ATTNCHECK_CONTINUES" not in os.environ:
        return

    @functools.wraps(original)
    def make(model: Any, peft_config: Any, *arguments: Any, **options: Any) -> Any:
        def adapt(changes: dict[str, Any], own: Any = model) -> Any:
            change_settings(peft_config, changes)
            return original(own, peft_config, *arguments, **options)

        trials = Trials(recorder, lambda changes, observe_part: observe_part(describe_model(adapt(changes))))
        trials.try_all([peft_config])
        with contextlib.suppress(Exception):  # the launch continues without the answer
            _ask_promises(recorder, adapt, model, peft_config)
        result = original(model, peft_config, *arguments, **options)
        layers = getattr(peft_config, "layers_to_transform", None)
        trials.write(kind=type(peft_config).__name__, layers=str(layers), astray=_list_astray(result, layers))
        return result

    vars(make)["is_compared"] = True
    module.get_peft_model = make


def watch_loading(recorder: Any, module: Any) -> None:
    """Report adapters that are loaded to be trained and are not at the first step, or that train without it.

    peft 0.21.2 peft_model.py: with `is_trainable` False "the adapter will be frozen". A script that chooses itself what
    is trained is not judged.
    """
    from torch.optim import optimizer

    cls, loaded = module.PeftModel, list[tuple[Any, str, bool]]()

    def keep(original: Any, is_class: bool) -> Any:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def load(own: Any, *arguments: Any, **options: Any) -> Any:
            inner = len(loaded)
            result = original(own, *arguments, **options)
            given = signature.bind(own, *arguments, **options).arguments
            del loaded[inner:]  # one calls the other
            name, is_trainable = given.get("adapter_name", "default"), bool(given.get("is_trainable"))
            loaded.append((result if is_class else own, name, is_trainable))
            return result

        return load

    def judge(*arguments: Any) -> None:
        known, names = [*loaded], list[tuple[str, bool]]()
        loaded.clear()
        for model, name, is_trainable in () if CHOOSES.search(read_scripts()) else known:
            own = [value.requires_grad for key, value in model.named_parameters() if f".{name}." in f"{key}."]
            names += [(name, is_trainable)] * (bool(own) and any(own) is not is_trainable)
        if names:
            texts = (
                f"{name} was loaded with is_trainable={trains} and is {STATES[not trains]}" for name, trains in names
            )
            report(recorder.folder, "update", violations=[f"the adapter {', '.join(texts)}: peft {_read_version()}"])

    cls.from_pretrained = classmethod(keep(cls.from_pretrained.__func__, True))
    cls.load_adapter = keep(cls.load_adapter, False)
    optimizer.register_optimizer_step_pre_hook(judge)


def _read_version() -> str:
    return str(getattr(sys.modules.get("peft"), "__version__", ""))


def _ask_promises(recorder: Any, adapt: Callable[..., Any], model: Any, config: Any) -> None:
    """Report the promises that adapters do not keep, each with the setting without which they do."""
    inits = [field for field in dataclasses.fields(config) if INIT.fullmatch(field.name)]
    if not (inits and all(getattr(config, field.name) in NEUTRAL for field in inits) and can_fork()):
        return

    def measure(changes: dict[str, Any]) -> dict[str, float]:
        def answer(place: str, answers: dict[str, Any]) -> None:
            recorder.is_paused = True
            answers["changes"] = dict(_measure(lambda own: adapt(changes, own), model, config, place))

        with tempfile.TemporaryDirectory() as folder:
            return {**run_in_fork(answer, folder).get("changes", {})}

    broken = {name: change for name, change in measure({}).items() if change > CHANGED}
    others = list(iter_settings(config))[: MAX_CAUSES * bool(broken)]
    without = {own.name: measure({own.name: own.default}) for own in others}
    is_documented = any("no-op" in str(field.metadata.get("help")) for field in inits)
    kinds: dict[str, list[str]] = {"violations": [], "warnings": []}
    for name, change in broken.items():
        causes = [own for own in others if without[own.name].get(name, CHANGED + 1) <= CHANGED]
        cause = "".join(f"; without {own.name}={own.value} they are the same" for own in causes[:1])
        is_fault = is_documented and name in ("untrained", "loaded")
        kinds["violations" if is_fault else "warnings"].append(
            f"{type(config).__name__} of peft {_read_version()} {PROMISES[name]}: outputs differ by {change:.2g} of "
            f"their deviation{cause}"
        )
    if broken:
        write_answer(recorder.folder, "relations", {"check": "update", **kinds})


def _measure(adapt: Callable[[Any], Any], model: Any, config: Any, folder: str) -> Iterator[tuple[str, float]]:
    """Yield how far each promise is not kept, relative to the deviation of the outputs that it promises."""
    import torch

    base, right = copy.deepcopy(model), _compute_outputs(model)
    adapted = adapt(model)
    if any(value.is_meta for value in adapted.parameters()):  # they get values later
        return
    yield "untrained", _compare(adapted, right)
    torch.manual_seed(0)
    for value in adapted.parameters():
        if value.requires_grad:
            value.data += NOISE * torch.randn_like(value)
    trained = _compute_outputs(adapted)
    if getattr(config, "bias", "none") == "none":
        with contextlib.suppress(Exception), adapted.disable_adapter():
            yield "switched off", _compare(adapted, right)
    with contextlib.suppress(Exception):
        adapted.save_pretrained(folder)
        yield "loaded", _compare(type(adapted).from_pretrained(base, folder), trained)
    with contextlib.suppress(Exception):  # many kinds cannot be merged
        yield "merged", _compare(adapted.merge_and_unload(), trained)


def _compare(model: Any, right: Any) -> float:
    return float((_compute_outputs(model) - right).std() / right.std())


def _compute_outputs(model: Any) -> Any:
    """Return a model's first outputs for some tokens, without dropout."""
    import torch

    size = model.get_input_embeddings().weight.shape[0]
    tokens = torch.randint(size, (2, TOKENS), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return model.eval()(input_ids=tokens, use_cache=False)[0].float()


def _list_astray(model: Any, layers: Any) -> list[str]:
    """Return the trained parameters of layers that a configuration of adapters does not name."""
    import torch

    named = {layers} if isinstance(layers, int) else {*(layers or ())}
    count = getattr(getattr(model, "config", None), "num_hidden_layers", None)
    lists = [n for n, m in model.named_modules() if isinstance(m, torch.nn.ModuleList) and len(m) == count]
    prefix = f"{min(lists, key=len, default='')}."
    trained = [name for name, value in model.named_parameters() if value.requires_grad and name.startswith(prefix)]
    return [name for name in trained if named and int(name.removeprefix(prefix).partition(".")[0]) not in named]
