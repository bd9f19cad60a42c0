"""What puts a model's attention over ranks: ring-flash-attn's Hugging Face adapter, or an all-to-all around SDPA.

The adapter is substituted as OpenRLHF does (0.11.2, openrlhf/utils/deepspeed/deepspeed.py, `setup_ring_attn`). Ulysses
is attncheck's own function, registered with transformers: of the installed packages transformers 5.17 offers it
through DeepSpeed alone (trainer.py, `deepspeed_ulysses_dl_adapter`), whose own is not run here.
"""

from __future__ import annotations

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
from attncheck.attention.device import message
from attncheck.core.plan import RING_NAMES, Plan
from attncheck.core.results.hf_adapter import HOOKED
from attncheck.core.results.smoke import Layer
from attncheck.smoke.worker.attention_trace import attention_layers
from attncheck.smoke.worker.testbed import Bed

ULYSSES = "attncheck_ulysses"  # its name in transformers' registry


class Refused(Exception):
    """What cannot run over ranks; the message says why."""


class Attention:
    """Attention over ranks in this process: makes models that use it, and counts where it is entered."""

    title = ""

    def __init__(self, group: Any, ranks: int, emulated: bool) -> None:
        self.group, self.ranks, self.emulated = group, ranks, emulated
        self.at, self.entered = "", set[str]()

    def prepare(self, plan: Plan) -> None:
        """Put the attention in place. Raises what that raises, `Refused` where it is not to be had."""

    def model(self, bed: Bed) -> nn.Module:
        """Return the plan's model, watched. Raises what transformers raises, `Refused` where its shape does not fit."""
        model: Any = self._model(bed)
        if bed.plan.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        self._watch(model)
        self.kv_heads = int(getattr(model.config, "num_key_value_heads", None) or 0)
        return model  # type: ignore[no-any-return]

    def _model(self, bed: Bed) -> nn.Module:
        raise NotImplementedError

    def arithmetic(self, bed: Bed) -> Any:
        """Return the context in which the plan computes."""
        return bed.arithmetic()

    def tell(self, edges: Tensor) -> None:
        """Take note of where the documents of the next row begin and end."""

    def notes(self) -> Iterator[str]:
        """Yield what is to be known of how it was put in place."""
        yield from ()

    def _watch(self, model: nn.Module) -> None:
        """Keep in mind in which layer the model is, from now on."""
        for name, module in attention_layers(model).items():
            module.register_forward_pre_hook(self._at(name))

    def _at(self, name: str) -> Callable[[Any, Any], None]:
        def hook(module: Any, arguments: Any) -> None:
            self.at = name

        return hook

    def layers(self, model: nn.Module, requested: str) -> tuple[Layer, ...]:
        """Return each attention layer with what was seen to run in it, as far as it went over the ranks."""
        config: Any = getattr(model, "config", None)
        kinds = list(getattr(config, "layer_types", None) or [])
        found = []
        for index, (name, module) in enumerate(attention_layers(model).items()):
            asked = str(getattr(getattr(module, "config", None), "_attn_implementation", "") or "")
            kind = str(kinds[index]) if index < len(kinds) else ""
            found.append(Layer(name, kind, requested, asked, (self.title,) if name in self.entered else ()))
        return tuple(found)


class RingAttention(Attention):
    """ring-flash-attn's adapter: what `attn_implementation="flash_attention_2"` means from now on."""

    title = "ring-flash-attn llama3"
    _genuine: Any = None  # transformers' own function and registered attention, before the first substitution

    def prepare(self, plan: Plan) -> None:
        """Substitute transformers' flash attention with the plan's stride, also where that was done before."""
        missing = ring_package.find().missing
        if missing:
            raise Refused(missing)
        package = ring_package.load() if RING_NAMES in plan.shims else _plainly()
        utilities: Any = sys.modules[ring_package.UTILITIES]
        if RingAttention._genuine is None:
            RingAttention._genuine = utilities._flash_attention_forward
        utilities._flash_attention_forward = RingAttention._genuine
        package.substitute_hf_flash_attn(self.group, plan.heads_k_stride)
        self.package = package
        self._count(sys.modules["ring_flash_attn.adapters.hf_adapter"])

    def _count(self, module: Any) -> None:
        inner = getattr(module.llama3_flash_attn_varlen_func, "inner", module.llama3_flash_attn_varlen_func)

        def counted(*arguments: Any, **words: Any) -> Any:
            self.entered.add(self.at)
            return inner(*arguments, **words)

        counted.inner = inner  # type: ignore[attr-defined]
        module.llama3_flash_attn_varlen_func = counted

    def _model(self, bed: Bed) -> nn.Module:
        """Return the plan's model; where flash-attn is emulated, transformers does not see that it is there."""
        if not (self.emulated and bed.plan.attn_implementation == HOOKED):
            return bed.model()
        model: Any = bed.model(implementation="eager")
        model.config._attn_implementation = HOOKED
        return model  # type: ignore[no-any-return]

    @contextmanager
    def arithmetic(self, bed: Bed) -> Iterator[None]:
        """Compute as the plan says; the adapter asks for CUDA's autocast, which emulated kernels stand in for too."""
        with bed.arithmetic():
            emulated = self.emulated and bed.plan.precision == "autocast"
            if emulated:
                torch.set_autocast_dtype("cuda", torch.bfloat16)
                torch.set_autocast_enabled("cuda", True)
            try:
                yield
            finally:
                if emulated:
                    torch.set_autocast_enabled("cuda", False)

    def notes(self) -> Iterator[str]:
        """Yield what was put back into transformers, and that kernels were emulated."""
        if ring_package.put_back():
            yield f"put back into transformers for this run, as OpenRLHF does: {', '.join(ring_package.put_back())}"
        if self.emulated:
            yield "flash-attn's kernels were emulated in plain torch"

    def tell(self, edges: Tensor) -> None:
        """Give the adapter its `cu_seqlens`."""
        self.package.update_ring_flash_attn_params(edges, self.group)


def _plainly() -> Any:
    """Return the package as a script imports it. Raises what that raises."""
    if ring_package.put_back():
        raise Refused("names were put back into transformers in this process before: the plain import cannot be tried")
    return importlib.import_module("ring_flash_attn")


class Ulysses(Attention):
    """All tokens of some heads on each rank: an all-to-all, SDPA under a mask of the documents, an all-to-all back."""

    title = "ulysses sdpa"

    def prepare(self, plan: Plan) -> None:
        """Register the attention with transformers. Raises `Refused` where that has no registry."""
        import transformers.modeling_utils as modeling

        registry = getattr(modeling, "ALL_ATTENTION_FUNCTIONS", None)
        if registry is None:
            raise Refused("this transformers chooses the attention's class at construction; none can be registered")
        registry[ULYSSES] = self._attend

    def _model(self, bed: Bed) -> nn.Module:
        """Return the plan's model with the registered attention. Raises `Refused` where its heads do not divide."""
        model: Any = bed.model(implementation="eager")
        config, n = model.config, self.ranks
        heads = int(config.num_attention_heads)
        kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        if heads % n:
            raise Refused(f"Ulysses spreads heads over ranks: {heads} heads do not divide by {n} ranks")
        if kv_heads % n and n % kv_heads:
            raise Refused(f"{kv_heads} kv heads neither divide by {n} ranks nor {n} ranks by them")
        config._attn_implementation = ULYSSES
        return model  # type: ignore[no-any-return]

    def tell(self, edges: Tensor) -> None:
        """Keep the edges, for the mask."""
        lengths = (edges[1:] - edges[:-1]).long()
        self.own = torch.arange(len(lengths), device=edges.device).repeat_interleave(lengths)

    def _attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **words: Any
    ) -> tuple[Tensor, None]:
        """Attend as transformers' attention functions do: (1, heads, tokens, d) in, (1, tokens, heads, d) out."""
        for name in ("softcap", "s_aux"):
            if words.get(name) is not None:
                raise Refused(f"SDPA has no {name}")
        self.entered.add(self.at)
        times = max(1, self.ranks // key.shape[1])
        repeated = [query, *(x.repeat_interleave(times, 1) for x in (key, value))]
        spread = [ulysses.to_heads(x.transpose(1, 2), self.group).transpose(1, 2) for x in repeated]
        group = spread[0].shape[1] // spread[1].shape[1]
        q, k, v = spread[0], *(x.repeat_interleave(group, 1) for x in spread[1:])
        mask = self._mask(words.get("sliding_window"))
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=words.get("scaling"))
        return ulysses.to_tokens(out.transpose(1, 2).contiguous(), self.group), None

    def _mask(self, window: int | None) -> Tensor:
        """Return which key each query of the whole row sees."""
        places = torch.arange(len(self.own), device=self.own.device)
        distance = places[:, None] - places[None]
        seen = (self.own[:, None] == self.own[None]) & (distance >= 0)
        return seen & (distance < window) if window else seen


SCHEMES: dict[str, type[Attention]] = {"llama3": RingAttention, "ulysses": Ulysses}


def told(error: BaseException, plan: Plan, kv_heads: int = 0) -> str:
    """Return an error in words: without machine paths, with what it hides and what explains it."""
    words = re.sub(r" \((?:/|[A-Z]:).*?\)$", "", message(error))
    if isinstance(error, ValueError) and error.__context__ is not None:  # the adapter's bare except
        words += f"; it hides {message(error.__context__)}"
    if plan.scheme == "llama3" and kv_heads % plan.heads_k_stride:
        words += f"; heads_k_stride {plan.heads_k_stride} does not divide {kv_heads} kv heads"
    return words
