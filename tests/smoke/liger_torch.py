"""A stand-in for liger-kernel: its patches in plain torch, for any device, with faults by name.

It patches as liger_kernel 0.8.5 does: names in the modelling file, and `forward` of the modules of a model that exists.
"""

from __future__ import annotations

import importlib
import sys
from types import MethodType, ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

KINDS = ("llama", "qwen2", "gemma2")
FAULTS = (
    "rope_misses",
    "norms_of_the_model_left",
    "norms_of_the_classes_left",
    "epsilon",
    "offset",
    "ignored_labels_counted",
    "upstream_forgotten",
    "softcap_forgotten",
    "logits_made",
    "raises",
)


def install_liger(monkeypatch: pytest.MonkeyPatch, fault: str = "") -> None:
    """Make `import liger_kernel` find the stand-in."""
    assert fault in ("", *FAULTS)
    patches = ModuleType("liger_kernel.transformers.monkey_patch")
    patches.MODEL_TYPE_TO_APPLY_LIGER_FN = {kind: make_patch_function(kind, fault) for kind in KINDS}  # type: ignore[attr-defined]
    for name in ("liger_kernel", "liger_kernel.transformers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, patches.__name__, patches)


def make_patch_function(kind: str, fault: str) -> Any:
    """Return `apply_liger_kernel_to_<kind>`."""

    def apply(
        rope: bool = True,
        cross_entropy: bool = False,
        fused_linear_cross_entropy: bool = True,
        rms_norm: bool = True,
        swiglu: bool = True,
        model: Any = None,
    ) -> None:
        modelling = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
        title, offset = kind.capitalize(), 1.0 if kind == "gemma2" else 0.0
        if fault == "raises":
            raise AttributeError("'LlamaDecoderLayer' object has no attribute 'mlp'")
        if rope:
            attribute = "apply_rotary_pos_embedding" if fault == "rope_misses" else "apply_rotary_pos_emb"
            setattr(modelling, attribute, apply_rotary)
        norm = make_rms_norm_forward(offset + (fault == "offset"), 100.0 if fault == "epsilon" else 1.0)
        if rms_norm and model is None and fault != "norms_of_the_classes_left":
            getattr(modelling, f"{title}RMSNorm").forward = norm
        if swiglu and model is None:
            getattr(modelling, f"{title}MLP").forward = gated_mlp_forward
        if fused_linear_cross_entropy and model is None:
            getattr(modelling, f"{title}ForCausalLM").forward = make_fused_forward(fault)
        for module in model.modules() if model is not None else ():
            if rms_norm and type(module).__name__ == f"{title}RMSNorm" and fault != "norms_of_the_model_left":
                module.forward = MethodType(norm, module)
            if swiglu and type(module).__name__ == f"{title}MLP":
                module.forward = MethodType(gated_mlp_forward, module)
        if fused_linear_cross_entropy and model is not None:
            model.forward = MethodType(make_fused_forward(fault), model)

    return apply


def apply_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    halves = [x.chunk(2, -1) for x in (q, k)]
    rotated = [torch.cat((-second, first), -1) for first, second in halves]
    return q * cos + rotated[0] * sin, k * cos + rotated[1] * sin


def make_rms_norm_forward(offset: float, factor: float) -> Any:
    """Return RMSNorm's forward, as gemma2 multiplies it: before it rounds."""

    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        epsilon = getattr(self, "variance_epsilon", None) or self.eps
        hidden = hidden_states.float()
        hidden = hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + factor * epsilon)
        scaled: Tensor = hidden * (offset + self.weight.float())
        return scaled.to(hidden_states.dtype)

    return forward


def gated_mlp_forward(self: Any, x: Tensor) -> Tensor:
    """Return the output of the gated MLP."""
    output: Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
    return output


class FixedGradient(torch.autograd.Function):
    """A loss whose gradient is fixed in forward: the upstream gradient is ignored."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor) -> Tensor:
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Tensor:
        return torch.ones_like(upstream[0])


def make_fused_forward(fault: str) -> Any:
    """Return a causal language model's forward that makes no logits in training with labels."""

    def forward(self: Any, input_ids: Tensor, labels: Tensor | None = None, **kwargs: Any) -> Any:
        hidden = self.model(input_ids=input_ids, **kwargs)[0]
        logits = self.lm_head(hidden)
        cap = getattr(self.config, "final_logit_softcapping", None)
        if cap and not (fault == "softcap_forgotten" and labels is not None):
            logits = torch.tanh(logits / cap) * cap
        if labels is None or not self.training:
            return SimpleNamespace(logits=logits, loss=None)
        targets = pad(labels, (0, 1), value=-100)[..., 1:].reshape(-1)
        count = targets.numel() if fault == "ignored_labels_counted" else (targets != -100).sum()
        loss = cross_entropy(logits.float().flatten(0, 1), targets, reduction="sum") / count
        loss = FixedGradient.apply(loss) if fault == "upstream_forgotten" else loss
        return SimpleNamespace(logits=logits if fault == "logits_made" else None, loss=loss)

    return forward


def forward_functions(model: nn.Module) -> set[Any]:
    """Return the functions that the modules of a model run."""
    return {getattr(module.forward, "__func__", module.forward) for module in model.modules()}
