"""Records the attention layers of a model during its first call: their inputs, and the operators that ran."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from .relations import report
from .script_code import find_script_frame, name_line

ATTENTION_MODULE = re.compile(r"(self_attn|attn|attention)$")
# Operators that compute attention, and the collectives within it.
OPERATOR = re.compile(r"scaled_dot_product|_softmax|flash_attn|flex_attention|flash_attention|sage|xformers|c10d")


def watch_padding(recorder: Any, kind: Any) -> None:
    """Report a script that hides its tokens and shows its padding to torch's attention.

    torch 2.13 nn/modules/activation.py (`MultiheadAttention.forward`: True in `key_padding_mask` hides a key), and
    tokenizers' `attention_mask` is 1 for a token.
    """
    original, judged = kind.forward, list[str]()

    @functools.wraps(original)
    def forward(
        self: Any, query: Any, key: Any, value: Any, key_padding_mask: Any = None, *rest: Any, **named: Any
    ) -> Any:
        frame = find_script_frame(sys._getframe(1)) if key_padding_mask is not None and not judged else None
        while frame is not None and not judged:
            mask = frame.f_locals.get("attention_mask")
            if getattr(mask, "shape", None) == key_padding_mask.shape and not bool(mask.all()):
                judged.append(name_line(frame))
                hidden = key_padding_mask if key_padding_mask.dtype == mask.bool().dtype else key_padding_mask < 0
                if hidden.equal(mask.bool()) and _shows_tokens(mask.bool(), [*_iter_values(frame)]):
                    text = f"{judged[0]} gives attention_mask, which is 1 for tokens, to {type(self).__name__} as its"
                    text += " key_padding_mask, whose ones are hidden: it attends to padding only"
                    report(recorder.folder, "documents", violations=[text])
            frame = find_script_frame(frame.f_back)
        return original(self, query, key, value, key_padding_mask, *rest, **named)

    kind.forward = forward


def _shows_tokens(mask: Any, values: Collection[Any]) -> bool:
    """Return whether a mask is True for tokens: of ids of its shape, it shows several and hides one, the padding.

    A script's own mask may be True for padding.
    """
    ids = [own for own in values if getattr(own, "shape", None) == mask.shape and not own.dtype.is_floating_point]
    return any(len(own[mask].unique()) > 1 == len(own[~mask].unique()) for own in ids)


def _iter_values(frame: Any) -> Iterator[Any]:
    """Yield what a script's function and its callers hold, also by name."""
    while frame is not None:
        for value in [*frame.f_locals.values()]:
            yield from value.values() if isinstance(value, Mapping) else (value,)
        frame = find_script_frame(frame.f_back)


class AttentionWatch:
    """Records each attention layer's input shapes and dispatched operators."""

    def __init__(self, model: Any) -> None:
        self.layers: list[dict[str, Any]] = []
        self._modules = [
            (name, module)
            for name, module in model.named_modules()
            if ATTENTION_MODULE.search(name) and hasattr(module, "layer_idx")
        ]
        self._handles: list[Any] = []
        self._listener: Any = None

    def start(self) -> None:
        """Hook the layers for one call of the model."""
        for name, module in self._modules:
            self._handles.append(module.register_forward_pre_hook(self._make_entry(name), with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._leave_layer))

    def stop(self) -> None:
        """Remove the hooks."""
        while self._handles:
            self._handles.pop().remove()
        self._close_listener()

    def _make_entry(self, name: str) -> Any:
        def enter(module: Any, arguments: Any, options: dict[str, Any]) -> None:
            import torch

            if getattr(module, "_is_replica", False):  # in one of DataParallel's threads, which have their own modes
                return
            shapes = {key: list(value.shape) for key, value in options.items() if torch.is_tensor(value)}
            given = {key: value for key, value in options.items() if isinstance(value, (bool, int, float))}
            config = getattr(module, "config", None)
            layer: dict[str, Any] = {
                "name": name,
                "dispatched": str(getattr(config, "_attn_implementation", "") or ""),
                "shapes": shapes,
                "options": given,
                "operators": [],
            }
            self.layers.append(layer)
            self._close_listener()
            self._listener = _make_listener(layer["operators"])
            self._listener.__enter__()

        return enter

    def _leave_layer(self, module: Any, arguments: Any, output: Any) -> None:
        self._close_listener()

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.__exit__(None, None, None)
            self._listener = None


def _make_listener(operators: list[str]) -> Any:
    """Return a dispatch mode that adds the names of attention's operators to a list."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Listener(TorchDispatchMode):
        supports_higher_order_operators = True  # flex_attention is one, and refuses other modes

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = str(func)
            if OPERATOR.search(name) and name not in operators:
                operators.append(name)
            return func(*args, **(kwargs or {}))

    return Listener()
