"""What ran in each attention layer: operators dispatched while the layer's forward was running.

SDPA's own choice shows as the operator it dispatches; flash-attn's functions are operators since 2.7; flex_attention
is entered through one function of transformers, because its compiled kernel is no operator. On a GPU the profiler's
kernel names of one forward pass are kept as evidence.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from attncheck.core.results.smoke import Layer

ATTENTION = re.compile(r"(self_attn|attn|attention|linear_attn|mixer)$")
# (what it is called, a pattern of operators' names)
KINDS: tuple[tuple[str, str], ...] = (
    ("sdpa FLASH_ATTENTION", r"_scaled_dot_product_flash_attention"),
    ("sdpa EFFICIENT_ATTENTION", r"_scaled_dot_product_efficient_attention"),
    ("sdpa CUDNN_ATTENTION", r"_scaled_dot_product_cudnn_attention"),
    ("sdpa OVERRIDEABLE", r"_scaled_dot_product_fused_attention_overrideable"),
    ("sdpa MATH", r"_safe_softmax|_scaled_dot_product_attention_math"),
    ("hub kernel packed", r"^_flash_attn\w*_[0-9a-f]{6,}\.\w*varlen|^_vllm_flash\w*\.\w*varlen"),
    ("hub kernel", r"^_flash_attn\w*_[0-9a-f]{6,}\.|^_vllm_flash"),
    ("flash_attention_2 packed", r"^flash_attn\._flash_attn_varlen_forward"),
    ("flash_attention_2", r"^flash_attn\._flash_attn_forward"),
    ("flash_attention_3", r"^flash_attn_3\.|^flash_attn_interface\."),
    ("flex_attention", r"flex_attention"),
    ("linear attention", r"chunk_gated_delta|gated_delta_rule|selective_scan|causal_conv1d"),
    ("eager", r"^aten\._softmax\b"),
)
FAMILIES = {  # what may run where this is asked for
    "eager": r"^eager$",
    "sdpa": r"^sdpa ",
    "flash_attention_2": r"^flash_attention_2",
    "flash_attention_3": r"^flash_attention_3",
    "flash_attention_4": r"^flash_attention_4",
    "flex_attention": r"^flex_attention$",
}
FUNCTIONS = (  # entered, not dispatched: module, name, what is then said to have run
    ("transformers.integrations.flex_attention", "compile_friendly_flex_attention", "flex_attention"),
    ("flash_attn.cute.interface", "flash_attn_func", "flash_attention_4"),
    ("flash_attn.cute.interface", "flash_attn_varlen_func", "flash_attention_4 packed"),
)


def attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the attention layers of a decoder by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if ATTENTION.search(name) and hasattr(module, "layer_idx") and not _inside(model, name)
    }


def _inside(model: nn.Module, name: str) -> bool:
    """Say whether an outer module of the same kind holds this one, as in BERT's attention.self."""
    outer = name.rpartition(".")[0]
    return bool(ATTENTION.search(outer)) and hasattr(model.get_submodule(outer), "layer_idx")


class _Listener(TorchDispatchMode):
    def __init__(self, hear: Callable[[str], None]) -> None:
        super().__init__()
        self._hear = hear

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._hear(str(func))
        return func(*args, **(kwargs or {}))


class Watcher:
    """Writes down, layer by layer, which operators ran and what the layer's configuration asked for."""

    def __init__(self, model: nn.Module, requested: str) -> None:
        self.model, self.requested, self._at = model, requested, ""
        self.layers = attention_layers(model)
        self.operators: dict[str, list[str]] = {name: [] for name in self.layers}
        self.dispatched = dict.fromkeys(self.layers, "")
        self.entered: set[str] = set()  # a tower's layers are not, where there is text alone

    def call(self, run: Callable[[], Any]) -> None:
        """Run a forward pass and listen."""
        handles = []
        for name, module in self.layers.items():
            handles.append(module.register_forward_pre_hook(self._enter(name)))
            handles.append(module.register_forward_hook(self._leave))
        flex = any(_asked(module) == "flex_attention" for module in self.layers.values())
        flex = flex or getattr(self.model, "_compiled_call_impl", None) is not None  # torch.compile's
        try:
            with ExitStack() as stack:
                stack.enter_context(_functions(self._hear))
                if not flex:  # a compiler and a dispatch mode do not go together
                    stack.enter_context(_Listener(self._hear))
                run()
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, name: str) -> Callable[[nn.Module, Any], None]:
        def hook(module: nn.Module, arguments: Any) -> None:
            self._at = name
            self.entered.add(name)
            self.dispatched[name] = _asked(module)

        return hook

    def _leave(self, module: nn.Module, arguments: Any, output: Any) -> None:
        self._at = ""

    def _hear(self, operator: str) -> None:
        if self._at and operator not in self.operators[self._at]:
            self.operators[self._at].append(operator)

    def found(self) -> tuple[Layer, ...]:
        """Return what each layer ran."""
        kinds = list(getattr(getattr(self.model, "config", None), "layer_types", None) or [])
        layers = []
        entered = {name: operators for name, operators in self.operators.items() if name in self.entered}
        for index, (name, operators) in enumerate(entered.items()):
            own = [operator for operator in operators if any(re.search(p, operator) for _, p in KINDS)]
            ran = [title for title, pattern in KINDS if any(re.search(pattern, operator) for operator in own)]
            if any(title.startswith("sdpa") for title in ran):  # MATH is made of softmax too
                ran = [title for title in ran if title != "eager"]
            kind = kinds[index] if index < len(kinds) else ""
            layers.append(Layer(name, kind, self.requested, self.dispatched[name], tuple(ran), tuple(own[:4])))
        return tuple(layers)


def _asked(module: nn.Module) -> str:
    return str(getattr(getattr(module, "config", None), "_attn_implementation", "") or "")


@contextmanager
def _functions(hear: Callable[[str], None]) -> Iterator[None]:
    """Tell of entries into functions that are no operators."""
    kept: list[tuple[Any, str, Any]] = []
    for where, name, title in FUNCTIONS:
        module = sys.modules.get(where)
        if module is None and where.startswith("transformers"):
            try:
                module = importlib.import_module(where)
            except Exception:  # an old transformers, or one without it
                continue
        inner = getattr(module, name, None)
        if module is not None and inner is not None:
            kept.append((module, name, inner))
            setattr(module, name, _telling(inner, title, hear))
    try:
        yield
    finally:
        for module, name, inner in kept:
            setattr(module, name, inner)


def _telling(inner: Any, title: str, hear: Callable[[str], None]) -> Any:
    def entered(*arguments: Any, **words: Any) -> Any:
        hear(title)
        return inner(*arguments, **words)

    return entered


def kernels(call: Callable[[], Any], device: torch.device) -> tuple[str, ...]:
    """Return the names of attention kernels that a GPU ran during `call`; of a CPU none."""
    if device.type != "cuda":
        return ()
    from attncheck.attention.kernel_trace import watch

    names = watch(call, "cuda")[1]
    found = [name for name in names if re.search(r"flash|fmha|sdpa|attention|mha", name, re.IGNORECASE)]
    return tuple(dict.fromkeys(name.removeprefix("void ").split("<")[0][:120] for name in found))[:6]
