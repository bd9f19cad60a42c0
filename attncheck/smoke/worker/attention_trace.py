"""Records the attention in each layer: the operators dispatched during the layer's forward.

SDPA's choice shows as the operator that it dispatches; flash-attn's functions are operators since 2.7. flex_attention
is traced at the one function of transformers that calls it, because its compiled kernel is not an operator. On a GPU
the profiler's kernel names of one forward pass are kept as evidence.
"""

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from attncheck.attention.kernel_trace import trace_kernels
from attncheck.core.results.smoke import Layer

ATTENTION_MODULE = re.compile(r"(self_attn|attn|attention|linear_attn|mixer)$")
# (name in a report, pattern of operator names)
OPERATOR_PATTERNS: tuple[tuple[str, str], ...] = (
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
EXPECTED_OPERATORS = {  # attn_implementation -> pattern of the names in OPERATOR_PATTERNS that may run for it
    "eager": r"^eager$",
    "sdpa": r"^sdpa ",
    "flash_attention_2": r"^flash_attention_2",
    "flash_attention_3": r"^flash_attention_3",
    "flash_attention_4": r"^flash_attention_4",
    "flex_attention": r"^flex_attention$",
}
TRACED_FUNCTIONS = (  # functions, not operators: (module, function, name in a report)
    ("transformers.integrations.flex_attention", "compile_friendly_flex_attention", "flex_attention"),
    ("flash_attn.cute.interface", "flash_attn_func", "flash_attention_4"),
    ("flash_attn.cute.interface", "flash_attn_varlen_func", "flash_attention_4 packed"),
)


def find_attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the attention modules of a decoder, by their path."""
    return {
        name: module
        for name, module in model.named_modules()
        if ATTENTION_MODULE.search(name) and hasattr(module, "layer_idx") and not _is_nested_attention(model, name)
    }


def _is_nested_attention(model: nn.Module, name: str) -> bool:
    """Return whether this module is inside another attention module, as BERT's attention.self is."""
    outer = name.rpartition(".")[0]
    return bool(ATTENTION_MODULE.search(outer)) and hasattr(model.get_submodule(outer), "layer_idx")


class _OperatorListener(TorchDispatchMode):
    supports_higher_order_operators = True  # flex_attention is one, and refuses other modes

    def __init__(self, on_operator: Callable[[str], None]) -> None:
        super().__init__()
        self._on_operator = on_operator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._on_operator(str(func))
        return func(*args, **(kwargs or {}))


class AttentionTrace:
    """Records, for each layer, the operators that ran and the implementation that the layer's configuration named."""

    def __init__(self, model: nn.Module, requested: str) -> None:
        self.model, self.requested, self._current_layer = model, requested, ""
        self.layers = find_attention_layers(model)
        self.operators: dict[str, list[str]] = {name: [] for name in self.layers}
        self.dispatched = dict.fromkeys(self.layers, "")
        self.entered_layers: set[str] = set()  # without those of a vision tower, which text does not enter

    def record(self, forward: Callable[[], Any]) -> None:
        """Call `forward`, a forward pass of the model, and record the operators."""
        handles = []
        for name, module in self.layers.items():
            handles.append(module.register_forward_pre_hook(self._entry_hook(name)))
            handles.append(module.register_forward_hook(self._clear_current_layer))
        compiles = any(_configured_implementation(module) == "flex_attention" for module in self.layers.values())
        compiles = compiles or getattr(self.model, "_compiled_call_impl", None) is not None  # torch.compile's
        try:
            with ExitStack() as stack:
                stack.enter_context(_trace_functions(self._record_operator))
                if not compiles:  # a compiler and a dispatch mode exclude each other
                    stack.enter_context(_OperatorListener(self._record_operator))
                forward()
        finally:
            for handle in handles:
                handle.remove()

    def _entry_hook(self, name: str) -> Callable[[nn.Module, Any], None]:
        def hook(module: nn.Module, arguments: Any) -> None:
            self._current_layer = name
            self.entered_layers.add(name)
            self.dispatched[name] = _configured_implementation(module)

        return hook

    def _clear_current_layer(self, module: nn.Module, arguments: Any, output: Any) -> None:
        self._current_layer = ""

    def _record_operator(self, operator: str) -> None:
        if self._current_layer and operator not in self.operators[self._current_layer]:
            self.operators[self._current_layer].append(operator)

    def collect_layers(self) -> tuple[Layer, ...]:
        """Return the operators of each layer that was entered."""
        layer_types = list(getattr(getattr(self.model, "config", None), "layer_types", None) or [])
        layers = []
        entered = {name: operators for name, operators in self.operators.items() if name in self.entered_layers}
        for index, (name, operators) in enumerate(entered.items()):
            matching = [operator for operator in operators if any(re.search(p, operator) for _, p in OPERATOR_PATTERNS)]
            ran = name_operators(matching)
            layer_type = layer_types[index] if index < len(layer_types) else ""
            layers.append(Layer(name, layer_type, self.requested, self.dispatched[name], ran, tuple(matching[:4])))
        return tuple(layers)


def name_operators(operators: Sequence[str]) -> tuple[str, ...]:
    """Return the report's name for the attention that dispatched these operators."""
    ran = [title for title, pattern in OPERATOR_PATTERNS if any(re.search(pattern, operator) for operator in operators)]
    if any(title.startswith("sdpa") for title in ran):  # MATH also dispatches a softmax
        ran = [title for title in ran if title != "eager"]
    return tuple(ran)


def _configured_implementation(module: nn.Module) -> str:
    return str(getattr(getattr(module, "config", None), "_attn_implementation", "") or "")


@contextmanager
def _trace_functions(on_operator: Callable[[str], None]) -> Iterator[None]:
    """Report calls of TRACED_FUNCTIONS, which are not operators, while the context is open."""
    originals: list[tuple[Any, str, Any]] = []
    for module_name, name, title in TRACED_FUNCTIONS:
        module = sys.modules.get(module_name)
        if module is None and module_name.startswith("transformers"):
            try:
                module = importlib.import_module(module_name)
            except Exception:  # an old transformers, or none
                continue
        function = getattr(module, name, None)
        if module is not None and function is not None:
            originals.append((module, name, function))
            setattr(module, name, _wrap_function(function, title, on_operator))
    try:
        yield
    finally:
        for module, name, function in originals:
            setattr(module, name, function)


def _wrap_function(function: Any, title: str, on_operator: Callable[[str], None]) -> Any:
    def wrapper(*arguments: Any, **kwargs: Any) -> Any:
        on_operator(title)
        return function(*arguments, **kwargs)

    return wrapper


def collect_attention_kernels(call: Callable[[], Any], device: torch.device) -> tuple[str, ...]:
    """Return up to six names of attention kernels that a GPU ran during `call`; none on a CPU."""
    if device.type != "cuda":
        return ()
    names = trace_kernels(call, "cuda")[1]
    attention_kernels = [name for name in names if re.search(r"flash|fmha|sdpa|attention|mha", name, re.IGNORECASE)]
    return tuple(dict.fromkeys(name.removeprefix("void ").split("<")[0][:120] for name in attention_kernels))[:6]
