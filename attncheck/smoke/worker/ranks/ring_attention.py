"""Runs a model's attention across ranks: with ring-flash-attn's Hugging Face adapter, or an all-to-all around SDPA.

The adapter is substituted as in OpenRLHF (0.11.2, openrlhf/utils/deepspeed/deepspeed.py, `setup_ring_attn`). Ulysses is
attncheck's own function, registered with transformers. transformers 5.17 offers it only through DeepSpeed (trainer.py,
`deepspeed_ulysses_dl_adapter`), whose version is not run here.
"""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from attncheck.attention.calls import ring_package, ulysses
from attncheck.attention.device import describe_exception
from attncheck.core.plan import RING_NAMES, Plan
from attncheck.core.results.hf_adapter import HOOKED_IMPLEMENTATION
from attncheck.core.results.smoke import Layer
from attncheck.smoke.worker.attention_trace import find_attention_layers
from attncheck.smoke.worker.testbed import Testbed

ULYSSES_NAME = "attncheck_ulysses"  # its name in transformers' registry


class Refused(Exception):
    """A plan or a model that cannot run across ranks; the message gives the reason."""


class RankAttention:
    """Attention across ranks in this process: builds models that use it, and records the layers that enter it."""

    title = ""

    def __init__(self, group: Any, ranks: int, emulated: bool) -> None:
        self.group, self.ranks, self.emulated = group, ranks, emulated
        self.current_layer, self.entered_layers = "", set[str]()

    def prepare(self, plan: Plan) -> None:
        """Install the attention. Raises the installation's own error, or `Refused` if it is not available."""

    def build_model(self, testbed: Testbed) -> nn.Module:
        """Return the plan's model. Raises transformers' own error, or `Refused` if the model's shape does not fit."""
        model: Any = self._build_model(testbed)
        if testbed.plan.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        self._track_layers(model)
        self.kv_heads = int(getattr(model.config, "num_key_value_heads", None) or 0)
        return model  # type: ignore[no-any-return]

    def _build_model(self, testbed: Testbed) -> nn.Module:
        raise NotImplementedError

    def autocast_context(self, testbed: Testbed) -> Any:
        """Return the context in which the plan computes: autocast if its precision requires it."""
        return testbed.autocast_context()

    def set_cu_seqlens(self, cu_seqlens: Tensor) -> None:
        """Set the boundaries of the next row's documents."""

    def list_notes(self) -> Iterator[str]:
        """Yield notes on how the attention was installed."""
        yield from ()

    def _track_layers(self, model: nn.Module) -> None:
        """Set `current_layer` to the attention layer that the model is in."""
        for name, module in find_attention_layers(model).items():
            module.register_forward_pre_hook(self._entry_hook(name))

    def _entry_hook(self, name: str) -> Callable[[Any, Any], None]:
        def hook(module: Any, arguments: Any) -> None:
            self.current_layer = name

        return hook

    def collect_layers(self, model: nn.Module, requested: str) -> tuple[Layer, ...]:
        """Return each attention layer, with this attention as the one that ran if it was entered."""
        config: Any = getattr(model, "config", None)
        layer_types = list(getattr(config, "layer_types", None) or [])
        layers = []
        for index, (name, module) in enumerate(find_attention_layers(model).items()):
            dispatched = str(getattr(getattr(module, "config", None), "_attn_implementation", "") or "")
            layer_type = str(layer_types[index]) if index < len(layer_types) else ""
            layers.append(
                Layer(name, layer_type, requested, dispatched, (self.title,) if name in self.entered_layers else ())
            )
        return tuple(layers)


class RingAttention(RankAttention):
    """ring-flash-attn's adapter, which replaces `attn_implementation="flash_attention_2"` in this process."""

    title = "ring-flash-attn llama3"
    _original_attention: Any = None  # transformers' own function, before the first substitution

    def prepare(self, plan: Plan) -> None:
        """Replace transformers' flash attention by the adapter's with the plan's stride; may be called repeatedly."""
        missing = ring_package.installed().missing
        if missing:
            raise Refused(missing)
        package = ring_package.load() if RING_NAMES in plan.shims else _import_unshimmed()
        utilities: Any = sys.modules[ring_package.UTILITIES_MODULE]
        if RingAttention._original_attention is None:
            RingAttention._original_attention = utilities._flash_attention_forward
        utilities._flash_attention_forward = RingAttention._original_attention
        package.substitute_hf_flash_attn(self.group, plan.heads_k_stride)
        self.package = package
        self._record_entries(sys.modules["ring_flash_attn.adapters.hf_adapter"])

    def _record_entries(self, module: Any) -> None:
        inner = getattr(module.llama3_flash_attn_varlen_func, "inner", module.llama3_flash_attn_varlen_func)

        def wrapper(*arguments: Any, **kwargs: Any) -> Any:
            self.entered_layers.add(self.current_layer)
            return inner(*arguments, **kwargs)

        wrapper.inner = inner  # type: ignore[attr-defined]
        module.llama3_flash_attn_varlen_func = wrapper

    def _build_model(self, testbed: Testbed) -> nn.Module:
        """Return the plan's model; transformers does not know an emulated flash-attn, which is set afterwards."""
        if not (self.emulated and testbed.plan.attn_implementation == HOOKED_IMPLEMENTATION):
            return testbed.build_model()
        model: Any = testbed.build_model(implementation="eager")
        model.config._attn_implementation = HOOKED_IMPLEMENTATION
        return model  # type: ignore[no-any-return]

    @contextmanager
    def autocast_context(self, testbed: Testbed) -> Iterator[None]:
        """Compute as the plan says; the adapter requires CUDA's autocast, which emulated kernels replace as well."""
        with testbed.autocast_context():
            emulated = self.emulated and testbed.plan.precision == "autocast"
            if emulated:
                torch.set_autocast_dtype("cuda", torch.bfloat16)
                torch.set_autocast_enabled("cuda", True)
            try:
                yield
            finally:
                if emulated:
                    torch.set_autocast_enabled("cuda", False)

    def list_notes(self) -> Iterator[str]:
        """Yield notes on names that were restored in transformers, and on emulated kernels."""
        names = ring_package.shimmed_names()
        if names:
            yield f"restored in transformers for this run, as OpenRLHF does: {', '.join(names)}"
        if self.emulated:
            yield "flash-attn's kernels were emulated in plain torch"

    def set_cu_seqlens(self, cu_seqlens: Tensor) -> None:
        """Pass `cu_seqlens` to the adapter."""
        self.package.update_ring_flash_attn_params(cu_seqlens, self.group)


def _import_unshimmed() -> Any:
    """Return ring_flash_attn, imported as in a script, without restored names. Raises the import's own error."""
    if ring_package.shimmed_names():
        raise Refused(
            "names were already restored in transformers in this process, so the plain import cannot be tested"
        )
    return importlib.import_module("ring_flash_attn")


class Ulysses(RankAttention):
    """All tokens of some heads on each rank: an all-to-all, SDPA with a document mask, and the reverse all-to-all."""

    title = "ulysses sdpa"

    def prepare(self, plan: Plan) -> None:
        """Register the attention with transformers. Raises `Refused` if that has no registry."""
        import transformers.modeling_utils as modeling

        registry = getattr(modeling, "ALL_ATTENTION_FUNCTIONS", None)
        if registry is None:
            raise Refused(
                "this transformers chooses the attention class only at construction, so no other can be registered"
            )
        registry[ULYSSES_NAME] = self._attend

    def _build_model(self, testbed: Testbed) -> nn.Module:
        """Return the plan's model with the registered attention. Raises `Refused` if heads cannot be divided."""
        model: Any = testbed.build_model(implementation="eager")
        config, n = model.config, self.ranks
        heads = int(config.num_attention_heads)
        kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        if heads % n:
            raise Refused(f"Ulysses distributes heads across ranks: {heads} heads are not divisible by {n} ranks")
        if kv_heads % n and n % kv_heads:
            raise Refused(f"{kv_heads} kv heads are not divisible by {n} ranks, nor {n} ranks by them")
        config._attn_implementation = ULYSSES_NAME
        return model  # type: ignore[no-any-return]

    def set_cu_seqlens(self, cu_seqlens: Tensor) -> None:
        """Number each token's document, for the mask."""
        lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).long()
        self.document_ids = torch.arange(len(lengths), device=cu_seqlens.device).repeat_interleave(lengths)

    def _attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """Attend, as transformers' attention functions do: (1, heads, tokens, d) in, (1, tokens, heads, d) out."""
        for name in ("softcap", "s_aux"):
            if kwargs.get(name) is not None:
                raise Refused(f"SDPA has no {name}")
        self.entered_layers.add(self.current_layer)
        repeats = max(1, self.ranks // key.shape[1])
        repeated = [query, *(x.repeat_interleave(repeats, 1) for x in (key, value))]
        by_heads = [ulysses.tokens_to_heads(x.transpose(1, 2), self.group).transpose(1, 2) for x in repeated]
        group_size = by_heads[0].shape[1] // by_heads[1].shape[1]
        q, k, v = by_heads[0], *(x.repeat_interleave(group_size, 1) for x in by_heads[1:])
        mask = self._document_mask(kwargs.get("sliding_window"))
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=kwargs.get("scaling"))
        return ulysses.heads_to_tokens(out.transpose(1, 2).contiguous(), self.group), None

    def _document_mask(self, window: int | None) -> Tensor:
        """Return which keys each query of the full row attends to: (tokens, tokens) bool."""
        positions = torch.arange(len(self.document_ids), device=self.document_ids.device)
        distance = positions[:, None] - positions[None]
        visible = (self.document_ids[:, None] == self.document_ids[None]) & (distance >= 0)
        return visible & (distance < window) if window else visible


SCHEMES: dict[str, type[RankAttention]] = {"llama3": RingAttention, "ulysses": Ulysses}


def describe_error(error: BaseException, plan: Plan, kv_heads: int = 0) -> str:
    """Return an error in a line, without machine paths, with the error that it hides and its explanation."""
    text = re.sub(r" \((?:/|[A-Z]:).*?\)$", "", describe_exception(error))
    if isinstance(error, ValueError) and error.__context__ is not None:  # the adapter's bare except
        text += f"; it hides {describe_exception(error.__context__)}"
    if plan.scheme == "llama3" and kv_heads % plan.heads_k_stride:
        text += f"; heads_k_stride {plan.heads_k_stride} does not divide {kv_heads} kv heads"
    return text
