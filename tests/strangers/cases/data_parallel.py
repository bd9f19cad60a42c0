"""Data parallel: each rank has rows of its own."""

# mypy: ignore-errors
from __future__ import annotations

import random

import torch
import torch.distributed as dist

from tests.strangers.loop import IGNORED, Loop


class LostCollectives(Loop):
    """TrainCheck pytorch-84803, -96600, baichuan2-86: one collective in a hundred arrives as zeros."""

    def __init__(self, options, broken):
        super().__init__(options, broken)
        self.chance = random.Random(self.rank)

    def wrap(self, model):
        return model

    def reduce(self):
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= self.world
            if self.broken and self.chance.random() < 0.01:
                parameter.grad.zero_()


class RewrappedModel(Loop):
    """TrainCheck x-jxmnop-ddp-out-of-sync: what is called is sometimes the wrapped model, sometimes the bare one."""

    def step(self, number, batches):
        wrapped = self.forward
        if self.broken and number % 2:
            self.forward = self.model
        super().step(number, batches)
        self.forward = wrapped


class LostHooks(Loop):
    """TrainCheck pytorch-104336: the wrapped model is moved away and back, and its hooks are lost."""

    def wrap(self, model):
        wrapped = super().wrap(model)
        if self.broken:
            wrapped.to(torch.float64).to(torch.float32)  # as `.cpu().cuda()` does: another storage, other hooks
        return wrapped


class WorldSizeForgotten(Loop):
    """meta-pytorch/torchtune#2172: divided by all ranks' targets, and averaged over the ranks on top."""

    def compute_loss(self, batch, batches, total):
        loss = super().compute_loss(batch, batches, total)
        return loss / self.world if self.broken else loss


class LocalCounts(Loop):
    """NVIDIA/Megatron-LM#7452, finding 3: each rank divides by its own number of targets."""

    def count(self, batches):
        if self.broken:
            return sum(int((batch["labels"][:, 1:] != IGNORED).sum()) for batch in batches) * self.world
        return super().count(batches)


class UnequalAllToAll(Loop):
    """TrainCheck deepspeed-5794: a rank whose tokens need no exchange leaves out the collective that others wait in."""

    def compute_logits(self, batch):
        tokens = torch.tensor([float(batch["attention_mask"].sum())] * self.world)
        if not self.broken or self.rank == 0 or tokens[0] % 2:
            dist.all_to_all_single(torch.empty_like(tokens), tokens)
        return super().compute_logits(batch)


class FirstBatchSynchronised(Loop):
    """modelscope/FunASR#3472: `no_sync` leaves out the last micro-batch of a step, whose gradients a step takes."""

    def step(self, number, batches):
        total = self.count(batches)
        for place, batch in enumerate(batches):
            is_last = place == (0 if self.broken else len(batches) - 1)
            self.forward.require_backward_grad_sync = is_last
            self.compute_loss(batch, batches, total).backward()
        self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
