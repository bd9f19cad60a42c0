"""The gradients of adapters (LoRA), derived from those of the weights that they modify.

A layer computes W x + s B A x. The gradients by B and A are s G Aᵀ and s Bᵀ G, where G is the gradient by W. Source:
peft 0.21.2 `tuners/lora/layer.py` (`Linear.forward`; `scaling`, also for rank-stabilised LoRA).
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from attncheck.rehearsal.worker.records import Adapter


def add_adapter_gradients(
    gradients: Mapping[str, Tensor], adapters: Sequence[Adapter], weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return gradients by a model's own parameters and by its adapters'.

    `weights` are the adapters' initial weights in training; an adapter without kept weights has no gradient here.
    """
    total = dict(gradients)
    for adapter in adapters:
        gradient = gradients.get(f"{adapter.layer}.weight")
        a, b = (weights.get(adapter.name_weight(matrix)) for matrix in "AB")
        if gradient is None or a is None or b is None or (b.shape[0], a.shape[-1]) != gradient.shape:
            continue
        total[adapter.name_weight("B")] = adapter.scaling * gradient @ a.float().T
        total[adapter.name_weight("A")] = adapter.scaling * b.float().T @ gradient
    return total


def merge_adapters(weights: Mapping[str, Tensor], adapters: Sequence[Adapter]) -> dict[str, Tensor]:
    """Return weights by the names of the model alone, with each adapter's change added to its layer's."""
    merged = {name.replace(".base_layer.", "."): weight for name, weight in weights.items()}
    for adapter in adapters:
        a, b = (weights.get(adapter.name_weight(matrix)) for matrix in "AB")
        name = f"{adapter.layer}.weight"
        if a is not None and b is not None and name in merged:
            merged[name] = merged[name].float() + adapter.scaling * b.float() @ a.float()
    return merged
