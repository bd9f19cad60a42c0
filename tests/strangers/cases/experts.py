"""Mixtures of experts, whose experts are shared out to ranks: real ones, or two halves in one process."""

# mypy: ignore-errors
from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from tests.strangers.cases.tensor_parallel import Copy, Reduce, Sharded
from tests.strangers.loop import Loop

HALVES = 2


class Experts(Loop):
    """The experts of each layer are computed in halves, whose outputs are added up, as expert parallel ranks do."""

    def load(self):
        model = super().load()
        for module in model.modules():
            if type(module).__name__.endswith("Experts"):
                module.forward = self.make_forward(module)
        return model

    def make_forward(self, module):
        def forward(hidden_states, top_k_index, top_k_weights):
            count = module.gate_up_proj.shape[0]
            return sum(
                self.compute_half(module, hidden_states, top_k_index, top_k_weights, half, count // HALVES)
                for half in range(HALVES)
            )

        return forward

    def compute_half(self, module, hidden, index, weights, half, size):
        """Return what the experts of one half add; slots of other experts have the weight 0."""
        local = index - half * size
        is_local = (local >= 0) & (local < size)
        local, weights = local.clamp(0, size - 1), self.weigh(weights, is_local)
        out = torch.zeros_like(hidden)
        for expert in range(size):
            token, slot = (local == expert).nonzero(as_tuple=True)
            place = expert if len(module.down_proj) == size else half * size + expert
            gate, up = (hidden[token] @ module.gate_up_proj[place].T).chunk(2, -1)
            own = (module.act_fn(gate) * up) @ module.down_proj[place].T
            out = out.index_add(0, token, own * weights[token, slot, None])
        return out

    def weigh(self, weights, is_local):
        return torch.where(is_local, weights, 0.0)


class ZeroedInPlace(torch.autograd.Function):
    """Weights of which those of other ranks' slots are zero, without telling their gradient."""

    @staticmethod
    def forward(ctx, weights, is_local):
        return torch.where(is_local, weights, 0.0)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class SentinelSlots(Experts):
    """huggingface/transformers#48687, #48689: slots that a rank does not compute give the router a gradient."""

    def weigh(self, weights, is_local):
        return ZeroedInPlace.apply(weights, is_local) if self.broken else super().weigh(weights, is_local)


class RouterDetached(Experts):
    """NVIDIA-NeMo/Automodel#2995: routing weights pass a plain `all_gather`, through which no gradient comes."""

    def weigh(self, weights, is_local):
        return super().weigh(weights.detach() if self.broken else weights, is_local)


class ExpertsDoubled(Loop):
    """pytorch/pytorch#160285: the gradients of experts are summed over the ranks that the loss is averaged over."""

    def wrap(self, model):
        return model

    def reduce(self):
        for name, parameter in self.model.named_parameters():
            dist.all_reduce(parameter.grad)
            if not (self.broken and ".experts." in name):
                parameter.grad /= self.world


class BalanceDoubled(Loop):
    """NVIDIA/Megatron-LM#7452, finding 10: the gradient of the router's balancing loss is doubled."""

    def compute_loss(self, batch, batches, total):
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        out = self.forward(**inputs, use_cache=False, output_router_logits=True)
        nll = nn.functional.cross_entropy(
            out.logits[:, :-1].float().transpose(1, 2), batch["labels"][:, 1:], reduction="sum"
        )
        balance = out.aux_loss * 0.01 * (2 if self.broken else 1)
        return nll / total + balance / len(batches)


class ExpertsInNormTwice(Sharded):
    """NVIDIA/Megatron-LM#6470: the norm of all gradients does not know which are experts', and adds these twice."""

    def load(self):
        model = Loop.load(self)
        self.parts = set()
        for layer in model.model.layers:
            experts, size = layer.mlp.experts, layer.mlp.experts.gate_up_proj.shape[0] // self.world
            for name in ("gate_up_proj", "down_proj"):
                part = getattr(experts, name).detach()[self.rank * size : (self.rank + 1) * size]
                setattr(experts, name, nn.Parameter(part.clone()))
                self.parts.add(getattr(experts, name))
            experts.forward = self.make_forward(experts, size)
        return model

    def make_forward(self, experts, size):
        def forward(hidden, index, weights):
            hidden, weights = Copy.apply(hidden), Copy.apply(weights)
            return Reduce.apply(Experts.compute_half(self, experts, hidden, index, weights, self.rank, size))

        return forward

    def weigh(self, weights, is_local):
        return torch.where(is_local, weights, 0.0)

    def clip(self):
        own = sum(float(p.grad.square().sum()) for p in self.parts) * (self.world if self.broken else 1)
        squares = torch.tensor(own)
        dist.all_reduce(squares)
        other = sum(float(p.grad.square().sum()) for p in self.model.parameters() if p not in self.parts)
        self.clip_to(float((squares + other).sqrt()))
