"""The norm that a launch's own clipping uses, if ranks hold parts of weights: the right one, or which wrong one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch

from attncheck.rehearsal.worker.norms import ClippedStep, _is_split, find_wrong_norm

Norm = Callable[[dict[str, tuple[float, ...]]], float]
LIMIT = 0.5


def clip(norm: Norm, limit: float = LIMIT) -> list[ClippedStep]:
    """Return three steps on two ranks: a head and norms on both, parts of an MLP and of the sinks on each."""
    steps = []
    for step in range(3):
        squares: dict[str, tuple[float, ...]] = {
            "lm_head.weight": (4.0 + step,),
            "model.layers.0.norm.weight": (0.3 + 0.1 * step**2,),
            "model.layers.0.mlp.up_proj.weight": (1.0 + 0.4 * step, 2.0 - 0.3 * step),
            "model.layers.0.self_attn.sinks": (0.5 + 0.05 * step, 0.2 + 0.3 * step**2),
        }
        steps.append(ClippedStep(min(1.0, limit / norm(squares)), squares))
    return steps


def total(squares: dict[str, tuple[float, ...]], weigh: Callable[[str, Sequence[float]], float]) -> float:
    return math.sqrt(sum(weigh(name, parts) for name, parts in squares.items()))


@pytest.mark.parametrize(
    ("weigh", "text"),
    [
        (lambda name, parts: sum(parts) * (2 if len(parts) == 1 else 1), "every rank has whole 2 times"),
        (lambda name, parts: parts[0], "of which ranks hold parts of rank 0 only"),
        (lambda name, parts: 0 if "sinks" in name else sum(parts), "leaves out model.layers.self_attn.sinks"),
        (lambda name, parts: parts[0] if "sinks" in name else sum(parts), "self_attn.sinks of rank 0 only"),
    ],
)
def test_a_wrong_norm_is_named(weigh: Callable[[str, Sequence[float]], float], text: str) -> None:
    (line,) = find_wrong_norm(clip(lambda squares: total(squares, weigh)))
    assert text in line and f"{LIMIT:g} that" in line


@pytest.mark.parametrize("limit", [LIMIT, 100.0])
def test_the_norm_of_all_gradients_is_right(limit: float) -> None:
    assert not list(find_wrong_norm(clip(lambda squares: total(squares, lambda name, parts: sum(parts)), limit)))


def test_a_clipping_by_no_norm_is_left_alone() -> None:
    assert not list(find_wrong_norm(clip(lambda squares: 3.0)))


@pytest.mark.parametrize(
    ("parts", "is_split"),
    [
        ([(80, 8), (80, 8)], True),
        ([(160, 8), (160, 8)], False),
        ([(192, 8), (192, 8)], False),  # a vocabulary that a script made larger, or smaller
        ([(110, 8), (110, 8)], False),
        ([(80, 8), (80, 8), (80, 8), (80, 8)], True),  # two copies of two parts
    ],
)
def test_a_weight_with_other_rows_is_not_split(parts: list[tuple[int, int]], is_split: bool) -> None:
    assert _is_split([torch.empty(part) for part in parts], torch.empty(160, 8)) == is_split
