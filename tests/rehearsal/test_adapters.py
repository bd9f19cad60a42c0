"""The gradients of adapters against autograd."""

from __future__ import annotations

import torch

from attncheck.rehearsal.worker.adapters import add_adapter_gradients
from attncheck.rehearsal.worker.records import Adapter


def test_gradients_of_a_lora_are_those_of_autograd() -> None:
    """Those of W + s B A by A and B, from that by W; what was not kept, or is of another shape, is left out."""
    generator = torch.Generator().manual_seed(0)
    weight, a, b = (torch.randn(shape, generator=generator, requires_grad=True) for shape in ((5, 7), (2, 7), (5, 2)))
    inputs = torch.randn(3, 7, generator=generator)
    (inputs @ (weight + 1.5 * b @ a).T).square().sum().backward()
    assert weight.grad is not None
    weights = {"q.lora_A.default.weight": a.detach(), "q.lora_B.default.weight": b.detach()}
    adapters = (Adapter("q", "default", 1.5), Adapter("k", "default", 1.5))
    gradients = add_adapter_gradients({"q.weight": weight.grad}, adapters, weights)
    assert set(gradients) == {"q.weight", *weights}
    torch.testing.assert_close(gradients["q.lora_A.default.weight"], a.grad)
    torch.testing.assert_close(gradients["q.lora_B.default.weight"], b.grad)
    assert set(add_adapter_gradients({"q.weight": weight.grad[:, :3]}, adapters, weights)) == {"q.weight"}
