"""Tensor parallel: every rank takes the same rows, and has a part of the heads or of the vocabulary."""

# mypy: ignore-errors
from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tests.strangers.loop import IGNORED, Loop


class Copy(torch.autograd.Function):
    """The input of a layer whose weights are sharded: its gradient is the sum over ranks."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient


class Reduce(torch.autograd.Function):
    """The sum over ranks of a layer's outputs."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def get_shard(tensor, rank, world):
    """Return a rank's own, trained part of a tensor's first dimension."""
    return nn.Parameter(tensor.detach().chunk(world)[rank].clone())


class Sharded(Loop):
    """The MLPs are sharded: rows of gate and up, columns of down."""

    shares_rows = True

    def wrap(self, model):
        return model

    def load(self):
        model = super().load()
        self.parts = set()
        for layer in model.model.layers:
            mlp = layer.mlp
            for name, dim in (("gate_proj", 0), ("up_proj", 0), ("down_proj", 1)):
                linear = getattr(mlp, name)
                linear.weight = nn.Parameter(linear.weight.chunk(self.world, dim)[self.rank].clone())
                self.parts.add(linear.weight)
            mlp.register_forward_pre_hook(lambda module, arguments: (Copy.apply(arguments[0]), *arguments[1:]))
            mlp.register_forward_hook(lambda module, arguments, output: Reduce.apply(output))
        return model

    def measure_norm(self, is_whole=True, repeated=1):
        """Return the norm of all gradients; those of replicated weights are counted `repeated` times."""
        own = sum(float(p.grad.square().sum()) for p in self.model.parameters() if p in self.parts)
        other = sum(float(p.grad.square().sum()) for p in self.model.parameters() if p not in self.parts)
        squares = torch.tensor(own)
        if is_whole:
            dist.all_reduce(squares)
        return float((squares + repeated * other).sqrt())

    def clip_to(self, norm):
        for parameter in self.model.parameters():
            parameter.grad.mul_(min(1.0, 0.1 / norm))

    def clip(self):
        self.clip_to(self.measure_norm())


class ClipByOwnNorm(Sharded):
    """TrainCheck deepspeed-1801: each tensor parallel rank clips by the norm of what it holds."""

    def clip(self):
        self.clip_to(self.measure_norm(is_whole=not self.broken))


class ReplicatedCountedTwice(Sharded):
    """ROCm/TransformerEngine#715: replicated weights count once per rank in the norm."""

    def clip(self):
        self.clip_to(self.measure_norm(repeated=self.world if self.broken else 1))


class PartLeftOutOfNorm(Sharded):
    """NVIDIA/Megatron-LM#5916: sharded parameters that are not marked count on one rank alone."""

    def clip(self):
        own = sum(float(p.grad.square().sum()) for p in self.model.parameters() if p in self.parts)
        squares = torch.tensor(own if self.rank == 0 or not self.broken else 0.0)
        dist.all_reduce(squares)
        other = sum(float(p.grad.square().sum()) for p in self.model.parameters() if p not in self.parts)
        self.clip_to(float((squares + other).sqrt()))


class VocabularyCrossEntropy(torch.autograd.Function):
    """The loss of each token; logits (tokens, vocabulary of this rank), labels of the whole vocabulary."""

    @staticmethod
    def forward(ctx, logits, labels, rank):
        first, size = rank * logits.shape[-1], logits.shape[-1]
        top = logits.max(-1).values
        dist.all_reduce(top, dist.ReduceOp.MAX)
        exponentials = (logits - top[:, None]).exp()
        total = exponentials.sum(-1)
        dist.all_reduce(total)
        is_own = (labels >= first) & (labels < first + size)
        place = (labels - first).clamp(0, size - 1)
        target = logits.gather(-1, place[:, None])[:, 0] - top
        target = torch.where(is_own, target, 0.0)
        dist.all_reduce(target)
        ctx.save_for_backward(exponentials / total[:, None], place, is_own)
        return total.log() - target

    @staticmethod
    def backward(ctx, gradient):
        shares, place, is_own = ctx.saved_tensors
        out = shares.clone()
        out[torch.arange(len(place)), place] -= is_own.float()
        return out * gradient[:, None], None, None


class ShardedHead(Loop):
    """Each rank has a part of the head, and takes the same rows."""

    shares_rows = True

    def wrap(self, model):
        return model

    def load(self):
        model = super().load()
        model.lm_head.weight = get_shard(model.lm_head.weight, self.rank, self.world)
        return model

    def compute_hidden(self, batch):
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        out = self.model(**inputs, use_cache=False, output_hidden_states=True, logits_to_keep=1)
        return out.hidden_states[-1][:, :-1].flatten(0, 1)

    def clip(self):
        """Leave gradients as they are."""


class Gathered(torch.autograd.Function):
    """The logits of all ranks, one part of the vocabulary after another."""

    @staticmethod
    def forward(ctx, logits):
        parts = [torch.empty_like(logits) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, logits.contiguous())
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.chunk(dist.get_world_size(), -1)[dist.get_rank()].contiguous()


class GatheredLogits(ShardedHead):
    """NVIDIA/Megatron-LM#7452, finding 2: logits of the whole vocabulary enter a vocabulary parallel cross-entropy."""

    def compute_loss(self, batch, batches, total):
        hidden, labels = Copy.apply(self.compute_hidden(batch)), batch["labels"][:, 1:].flatten()
        logits = hidden @ self.model.lm_head.weight.T
        logits = Gathered.apply(logits) if self.broken else logits
        nll = VocabularyCrossEntropy.apply(logits, labels.clamp_min(0), self.rank)
        return (nll * (labels != IGNORED)).sum() / total


class InputNotReduced(ShardedHead):
    """NovaSky-AI/SkyRL#1886: the reduced gradient of a transposed input of the head is thrown away."""

    def compute_loss(self, batch, batches, total):
        hidden, labels = self.compute_hidden(batch), batch["labels"][:, 1:].flatten()
        hidden = hidden if self.broken else Copy.apply(hidden)
        weight = self.model.lm_head.weight
        nll = VocabularyCrossEntropy.apply(hidden @ weight.T, labels.clamp_min(0), self.rank)
        return (nll * (labels != IGNORED)).sum() / total


class LossParallel(ShardedHead):
    """pytorch/pytorch#190746: under `loss_parallel()` a log_softmax has the identity's gradient (torch 2.13.0)."""

    def compute_loss(self, batch, batches, total):
        mesh = init_device_mesh("cpu", (self.world,)) if not hasattr(self, "mesh") else self.mesh
        self.mesh = mesh
        hidden, labels = Copy.apply(self.compute_hidden(batch)), batch["labels"][:, 1:].flatten()
        logits = hidden @ self.model.lm_head.weight.T
        logits = DTensor.from_local(logits, mesh, [Shard(-1)], run_check=False)
        keep = labels != IGNORED
        if self.broken:
            with loss_parallel():
                log_p = functional.log_softmax(logits, -1)
                own = log_p.to_local()
                size = own.shape[-1]
                place = labels.clamp_min(0) - self.rank * size
                is_own = (place >= 0) & (place < size) & keep
                loss = -Reduce.apply((own.gather(-1, place.clamp(0, size - 1)[:, None])[:, 0] * is_own).sum()) / total
                loss.backward()
        else:
            with loss_parallel():
                loss = functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum") / total
                loss.backward()
        return loss

    def step(self, number, batches):
        total = self.count(batches)
        for batch in batches:
            self.compute_loss(batch, batches, total)  # and its backward, below `loss_parallel()`
        self.reduce()
        self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad()


class SinksLeftOutOfNorm(PartLeftOutOfNorm):
    """NVIDIA/Megatron-LM#7452, finding 8 (fixed by #7530): the sinks of other ranks' heads are left out of the norm."""

    attention = "sinks"

    def load(self):
        def attend(module, query, key, value, attention_mask, scaling=None, **options):
            groups = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
            scores = query @ key.transpose(2, 3) * scaling
            scores = scores if attention_mask is None else scores + attention_mask
            sinks = Gathered.apply(module.sinks)[None, :, None, None].expand(*scores.shape[:3], 1)
            weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
            return (weights @ value).transpose(1, 2).contiguous(), None

        ALL_ATTENTION_FUNCTIONS.register("sinks", attend)
        ALL_MASK_ATTENTION_FUNCTIONS.register("sinks", ALL_MASK_ATTENTION_FUNCTIONS["eager"])
        model = Loop.load(self)
        self.parts = set()
        for layer in model.model.layers:
            layer.self_attn.sinks = get_shard(layer.self_attn.sinks, self.rank, self.world)
            self.parts.add(layer.self_attn.sinks)
        return model


class ShardedHeads(Sharded):
    """The heads of attention are sharded, and each rank has the norms of queries and keys whole."""

    def load(self):
        model = Loop.load(self)
        self.parts = set()
        for layer in model.model.layers:
            attention = layer.self_attn
            for name, dim in (("q_proj", 0), ("k_proj", 0), ("v_proj", 0), ("o_proj", 1)):
                linear = getattr(attention, name)
                linear.weight = nn.Parameter(linear.weight.detach().chunk(self.world, dim)[self.rank].clone())
                self.parts.add(linear.weight)
            attention.q_proj.register_forward_pre_hook(lambda module, arguments: (Copy.apply(arguments[0]),))
            attention.k_proj.register_forward_pre_hook(lambda module, arguments: (Copy.apply(arguments[0]),))
            attention.v_proj.register_forward_pre_hook(lambda module, arguments: (Copy.apply(arguments[0]),))
            attention.o_proj.register_forward_hook(lambda module, arguments, output: Reduce.apply(output))
        return model


class PartialNorms(ShardedHeads):
    """NVIDIA/Megatron-LM#7452, finding 11, NVIDIA-NeMo/RL#3716: a norm that each rank applies to its own heads has a
    part of its gradient on each rank, and the parts are not summed."""

    def reduce(self):
        if not self.broken:
            for name, parameter in self.model.named_parameters():
                if name.endswith(("q_norm.weight", "k_norm.weight")):
                    dist.all_reduce(parameter.grad)


class ScaledByAllRanks(Sharded):
    """meta-pytorch/torchtune#2420: gradients are divided by all ranks, though tensor parallel ones share their rows."""

    def reduce(self):
        if self.broken:
            for parameter in self.model.parameters():
                parameter.grad /= self.world

    def clip(self):
        """Leave gradients as they are: clipped ones would be the same."""
