"""The experts that layers route tokens to: recorded while a model computes, compared, or replaced.

Source: transformers 5.17.0 models/mixtral/modeling_mixtral.py (`MixtralTopKRouter` returns logits, scores and indices;
`MixtralExperts` takes the indices); qwen3_moe, gpt_oss and others have the same two classes under other names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class RouteWatch:
    """Records each layer's routes, (tokens, experts per token) for each call, except layers that use every expert."""

    def __init__(self, model: Any) -> None:
        """Find the expert modules of the model; they are watched while in the context."""
        self.experts = [module for module in model.modules() if type(module).__name__.endswith("Experts")]
        self.calls: list[list[Tensor]] = [[] for _ in self.experts]
        self._handles: list[Any] = []

    def __enter__(self) -> RouteWatch:
        for module, calls in zip(self.experts, self.calls, strict=True):
            self._handles.append(module.register_forward_pre_hook(_make_hook(calls), with_kwargs=True))
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()

    def read(self, call: int, rows: int) -> Tensor | None:
        """Return the routes of one forward of `rows` rows, sorted: (layers, rows, tokens, experts per token)."""
        layers = [calls[call].reshape(rows, -1, calls[call].shape[-1]) for calls in self.calls if calls]
        return torch.stack(layers).sort(-1).values.cpu() if layers else None


def _make_hook(calls: list[Tensor]) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], None]:
    def keep(module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        values = (*arguments, *options.values())
        indices = next((own for own in values if torch.is_tensor(own) and not own.is_floating_point()), None)
        if indices is not None and indices.shape[-1] < getattr(module, "num_experts", 0):
            calls.append(indices)

    return keep


def count_differing(first: Sequence[Tensor], second: Sequence[Tensor]) -> tuple[float, int, int]:
    """Return the share of tokens with different experts, the number of layers with any, and that of all layers.

    Each sample's routes are (layers, tokens, experts per token).
    """
    differs = torch.cat([(own != other).any(-1) for own, other in zip(first, second, strict=True)], dim=1)
    return float(differs.any(0).float().mean()), int(differs.any(1).sum()), len(differs)


def score_shifted(model: Any, score: Callable[[], Any], shift: int) -> Any:
    """Return a row's result if each token uses the experts of the token `shift` positions later.

    Raises `KeyError` for a model whose routers return no indices, or whose layers use every expert.
    """
    with RouteWatch(model) as watch:
        score()
    routes = [calls[0] for calls in watch.calls if calls]
    routers = [module for module in model.modules() if type(module).__name__.endswith("Router")]
    if not routes or len(routes) != len(routers):
        raise KeyError("routes")
    places = (torch.arange(len(routes[0])) + shift).clamp(0, len(routes[0]) - 1)

    def replay(indices: Tensor) -> Callable[[Any, Any, Any], Any]:
        def hook(module: Any, arguments: Any, output: Any) -> Any:
            logits, scores, _ = output
            own = logits.softmax(-1).gather(-1, indices)
            is_normalised = bool((scores.sum(-1) - 1).abs().max() < 1e-3)
            return logits, (own / own.sum(-1, keepdim=True) if is_normalised else own).to(scores.dtype), indices

        return hook

    handles = [router.register_forward_hook(replay(own[places])) for router, own in zip(routers, routes, strict=True)]
    try:
        return score()
    finally:
        for handle in handles:
            handle.remove()
