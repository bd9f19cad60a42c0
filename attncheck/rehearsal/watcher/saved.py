"""Loads what a launch saves of its model again, in a fork: it must compute what the model computes in the process.

Sources: transformers 5.17.0 and 4.57.3 modeling_utils.py (`save_pretrained` writes the names that the model has,
`from_pretrained` draws the parameters that the files lack, and drops those that the class lacks); peft 0.21.2 and
0.17.1 peft_model.py (`save_pretrained` writes only adapters, `from_pretrained` adds them to the base model).
"""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from .absent import is_guarded, is_script
from .continuing import can_fork
from .relations import ask_in_fork, report
from .script_code import find_script_frame, name_line

TOKENS = 8  # of the row that both compute
NAMED = 3  # the most parameters in a message
LIMIT, HALF_LIMIT = 1e-3, 0.05  # relative difference of outputs: rounding, also in half precision
READ_BACK = "loaded again, it computes what the trained model does"  # ends a note
FIRST = "has the weights from before the first step, not the trained ones"
WRAPPER = re.compile(r"\b(?:module|_orig_mod)\.")  # a part of names: DistributedDataParallel's, and torch.compile's


class SavedModels:
    """The places that save models after training has begun. The first save of each is loaded again."""

    def __init__(self, recorder: Any) -> None:
        self._recorder, self._places = recorder, set[str]()
        self._first: Any = None

    def watch(self, cls: Any) -> None:
        """Follow a class's `save_pretrained`."""
        original = cls.save_pretrained

        @functools.wraps(original)
        def save_pretrained(model: Any, save_directory: Any, *arguments: Any, **options: Any) -> Any:
            given = options.get("state_dict")
            given = given if given is None else dict(given)  # transformers 5 empties it
            place = self._find_new(f"{type(model).__name__}.save_pretrained")
            try:
                result = original(model, save_directory, *arguments, **options)
            except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
                if place and not is_guarded((type(error).__name__,)):
                    text = f"{place} cannot save the model: {type(error).__name__}: {str(error)[:300]}"
                    report(self._recorder.folder, "update", violations=[text])
                raise
            if place:
                folder = os.path.abspath(save_directory)
                ask_in_fork(self._recorder, "update", functools.partial(self._compare, model, folder, place, given))
            return result

        cls.save_pretrained = save_pretrained

    def watch_states(self, torch: Any) -> None:
        """Follow a script's `torch.save` of a model's state, or of a dictionary that has one."""
        original = torch.save

        @functools.wraps(original)
        def save(value: Any, *arguments: Any, **options: Any) -> None:
            original(value, *arguments, **options)
            parts = (value, *value.values()) if isinstance(value, Mapping) else ()
            states = [own for own in parts if isinstance(own, Mapping) and own]
            place = self._find_new("") if states and is_script(sys._getframe(1).f_globals) else ""
            if place:
                ask_in_fork(self._recorder, "update", functools.partial(self._compare_state, states, place))

        torch.save = save

    def _find_new(self, name: str) -> str:
        """Return the line of a script that saves after training has begun, or `name`; "" if it is followed already."""
        frame = find_script_frame(sys._getframe(2))
        place = name_line(frame) if frame is not None else name
        is_new = self._recorder.steps and place not in self._places and can_fork()
        self._places |= {place} if is_new else set()
        return place * bool(is_new)

    def keep_first(self, *arguments: Any) -> None:
        """Keep what the model computes before the first step of an optimiser."""
        recorder = self._recorder
        is_asked = "ATTNCHECK_CONTINUES" in os.environ and recorder.trained is not None and not recorder.is_paused
        if self._first is None and is_asked and can_fork():
            recorder.is_paused, self._first = True, ()
            with contextlib.suppress(Exception):  # it needs other inputs
                self._first = _compute(recorder.trained)
            recorder.is_paused = False

    def _compare(
        self, model: Any, folder: str, place: str, given: Mapping[str, Any] | None, answers: dict[str, Any]
    ) -> None:
        """Compare what a model computes with what the one that is loaded again computes."""
        loaded, why, is_lost = _load(model, folder)
        if loaded is None:
            return
        if given is not None:  # such as averaged weights
            model.load_state_dict(given, strict=False)
        right, own = _compute(model), _compute(loaded)
        limit = _find_limit(model)
        error, is_first = _measure(own, right), self._is_first(own, limit)
        begin = f"{place} saves a model that"
        if error > limit or is_lost:
            first = ": those before the first step" * is_first
            is_fault = is_first or is_lost or why  # otherwise other code, or another base, may compute otherwise
            kind = "violations" if is_fault else "warnings"
            answers[kind] = [
                f"{begin} is not the trained one when it is loaded again: its outputs differ by {error:.2g}{first}{why}"
            ]
        elif is_first and not self._is_first(_compute(self._recorder.trained), limit):
            answers["warnings"] = [f"{begin} {FIRST}"]
        else:
            answers["notes"] = [f"what {place} saves: {READ_BACK}"]

    def _compare_state(self, states: Sequence[Mapping[str, Any]], place: str, answers: dict[str, Any]) -> None:
        """Compare what the model computes with what it computes with a saved state, which may be an average of others.

        Other models' states say nothing, nor do parts of one.
        """
        model = self._recorder.trained
        known, trained = (
            model.state_dict(),
            {name for name, value in model.named_parameters() if value.requires_grad},
        )
        named = [{WRAPPER.sub("", name): value for name, value in state.items()} for state in states]
        state = max(named, key=lambda own: len(trained & own.keys()))
        lost = sorted(trained - state.keys())
        if len(lost) * 2 > len(trained):
            return
        right, limit = _compute(model), _find_limit(model)
        model.load_state_dict({name: value for name, value in state.items() if name in known}, strict=False)
        own = _compute(model)
        if lost:
            answers["warnings"] = [f"{place} saves a state without {', '.join(lost[:NAMED])}, which the launch trains"]
        elif _measure(own, right) <= limit:
            answers["notes"] = [f"what {place} saves: {READ_BACK}"]
        elif self._is_first(own, limit):
            answers["warnings"] = [f"{place} saves a state that {FIRST}"]

    def _is_first(self, outputs: Any, limit: float) -> bool:
        first = self._first
        return hasattr(first, "shape") and first.shape == outputs.shape and _measure(outputs, first) <= limit


def _load(model: Any, folder: str) -> tuple[Any, str, bool]:
    """Return the model that a folder's files give, what they lack, and whether that is trained.

    None if it is not known how they are loaded.
    """
    if hasattr(model, "get_base_model"):
        return _load_adapter(model, folder)
    if not os.path.exists(os.path.join(folder, "config.json")):
        return None, "", False
    kernels = {"attn_implementation": model.config._attn_implementation, "torch_dtype": model.dtype}
    loaded, keys = type(model).from_pretrained(folder, output_loading_info=True, **kernels)
    lost, drawn = (sorted(keys[f"{kind}_keys"]) for kind in ("unexpected", "missing"))
    why = f"; its class has no {', '.join(lost[:NAMED])}" * bool(lost)
    why += f"; the files have no {', '.join(drawn[:NAMED])}" * bool(drawn)
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    return loaded, why, not trained.isdisjoint((*lost, *drawn))


def _load_adapter(model: Any, folder: str) -> tuple[Any, str, bool]:
    """Return the launch's base model with a saved adapter."""
    config, base = next(iter(model.peft_config.values())), model.get_base_model()
    if not config.base_model_name_or_path or not os.path.exists(os.path.join(folder, "adapter_config.json")):
        return None, "", False
    kernels = {"attn_implementation": base.config._attn_implementation, "torch_dtype": base.dtype}
    start, size = type(base).from_pretrained(config.base_model_name_or_path, **kernels), base.config.vocab_size
    if start.config.vocab_size != size:
        start.resize_token_embeddings(size)
    is_empty, safetensors = False, sys.modules["safetensors"]
    for path in glob.glob(os.path.join(folder, "adapter_model.safetensors")):
        with safetensors.safe_open(path, "pt") as tensors:
            is_empty = not tensors.keys()
    return type(model).from_pretrained(start, folder), "; its file has no tensors" * is_empty, is_empty


def _find_limit(model: Any) -> float:
    """Return the limit of the difference of two outputs of a model."""
    return LIMIT if all(value.element_size() > 2 for value in model.parameters()) else HALF_LIMIT


def _compute(model: Any) -> Any:
    """Return a model's outputs for a row, without training mode and autocast; both are restored.

    accelerate 1.15.0 accelerator.py (`prepare_model` replaces `forward` by one that enters autocast).
    """
    import torch

    casts: Any = torch.autocast
    modes, enter, leave = [(own, own.training) for own in model.modules()], casts.__enter__, casts.__exit__
    for module, _ in modes:
        module.training = False
    casts.__enter__, casts.__exit__ = (lambda own: own), (lambda *arguments: None)
    try:
        with torch.no_grad():
            outputs = model(input_ids=torch.arange(1, TOKENS + 1, device=next(model.parameters()).device)[None])
    finally:
        casts.__enter__, casts.__exit__ = enter, leave
        for module, is_training in modes:
            module.training = is_training
    logits = getattr(outputs, "logits", None)
    return (outputs[0] if logits is None else logits).float()


def _measure(own: Any, other: Any) -> float:
    return float((own - other).norm() / other.norm().clamp_min(1e-30))
