"""One process."""

# mypy: ignore-errors
from __future__ import annotations

from importlib import import_module

import numpy
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import AutoModelForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tests.strangers.loop import IGNORED, Loop


class NoZeroGrad(Loop):
    """TrainCheck stackoverflow-60335387: `optimizer.zero_grad()` is missing."""

    def make_optimizer(self, model):
        optimizer = super().make_optimizer(model)
        if self.broken:
            optimizer.zero_grad = lambda: None
        return optimizer


class AllFrozenButNorms(Loop):
    """TrainCheck pytorch-forum-84911: everything but the normalisation layers is frozen."""

    def load(self):
        model = super().load()
        if self.broken:
            for name, parameter in model.named_parameters():
                parameter.requires_grad = "norm" in name
        return model


class FrozenStep(Loop):
    """TrainCheck pytorch-115607: a compiled step that met gradients that are None updates nothing from then on."""

    def make_optimizer(self, model):
        adam = import_module("torch.optim.adam")  # `torch.optim.adam` is a function too
        whole, seen = adam.adam, []

        def traced(parameters, *arguments, **options):
            seen.append(bool(parameters))
            if all(seen) or not self.broken:
                whole(parameters, *arguments, **options)

        adam.adam = traced
        return super().make_optimizer(model)

    def step(self, number, batches):
        if number == 1:  # a batch that is skipped
            self.optimizer.step()
        super().step(number, batches)


class Draws(IterableDataset):
    """Documents in an order that each worker draws for itself."""

    def __init__(self, documents, broken: bool) -> None:
        self.documents, self.broken, self.generator = documents, broken, numpy.random.default_rng(0)

    def __iter__(self):
        worker = get_worker_info()
        order = self.generator.permutation(len(self.documents))  # the same state in each worker: it was forked
        for place in order if self.broken else order[worker.id :: worker.num_workers]:
            yield self.documents[place]


class WorkersDrawAlike(Loop):
    """TrainCheck stackoverflow-67180955: the workers of a loader draw the same random numbers."""

    def iterate(self, documents):
        size, accumulation = self.options.per_device_train_batch_size, self.options.gradient_accumulation_steps
        loader = DataLoader(Draws(documents, self.broken), batch_size=size, num_workers=2, collate_fn=self.collate)
        batches = iter(loader)
        for _ in range(self.options.max_steps):
            yield [next(batches) for _ in range(accumulation)]


class DropoutInEvaluation(Loop):
    """TrainCheck transformers-33844: an attention layer drops in `eval()` too."""

    attention = "own"

    def load(self):
        def attend(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **options):
            rate = module.attention_dropout if self.broken else dropout  # `dropout` is 0 in `eval()`
            groups = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
            out = functional.scaled_dot_product_attention(
                query, key, value, attention_mask, rate, attention_mask is None, scale=scaling
            )
            return out.transpose(1, 2).contiguous(), None

        ALL_ATTENTION_FUNCTIONS.register("own", attend)
        ALL_MASK_ATTENTION_FUNCTIONS.register("own", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
        return AutoModelForCausalLM.from_pretrained(
            self.options.model_name_or_path, attn_implementation="own", attention_dropout=0.1
        ).train()

    def step(self, number, batches):
        super().step(number, batches)
        self.model.eval()
        with torch.no_grad():
            self.compute_nll(batches[0])
        self.model.train()


class BatchCollapses(Loop):
    """TrainCheck transformers-34204: a processor takes a list of lists for one row, and drops all but its first."""

    def collate(self, documents):
        return super().collate(documents[:1] if self.broken else documents)


class WeighedByFirst(torch.autograd.Function):
    """A fused cross-entropy without reduction, logits (tokens, vocabulary)."""

    @staticmethod
    def forward(ctx, logits, labels, broken):
        ctx.broken, valid = broken, labels != IGNORED
        ctx.save_for_backward(logits, labels)
        nll = functional.cross_entropy(logits, labels.clamp_min(0), reduction="none")
        return nll * valid

    @staticmethod
    def backward(ctx, gradient):
        logits, labels = ctx.saved_tensors
        out = logits.softmax(-1)
        out[torch.arange(len(labels)), labels.clamp_min(0)] -= 1
        out[labels == IGNORED] = 0
        scale = gradient.flatten()[:1].expand_as(gradient) if ctx.broken else gradient
        return out * scale[:, None], None, None


class GradientOfFirstToken(Loop):
    """NVIDIA-NeMo/Automodel#3853: a parallel cross-entropy scales each token's gradient by the first token's."""

    def compute_loss(self, batch, batches, total):
        logits = self.compute_logits(batch)[:, :-1].flatten(0, 1)
        labels = batch["labels"][:, 1:]
        nll = WeighedByFirst.apply(logits, labels.flatten(), self.broken).view(labels.shape)
        counts = (labels != IGNORED).sum(1, keepdim=True)
        rows = sum(len(other["labels"]) for other in batches)
        return (nll / counts).sum() / rows  # the mean over each row's tokens


class MaskOneTokenOff(Loop):
    """OpenRLHF/OpenRLHF#973, Goekdeniz-Guelmez/mlx-lm-lora#80: the mask of answers is cut at its end, not its front."""

    def read(self):
        self.prompts: dict[tuple[int, ...], int] = {}
        return super().read()

    def label(self, tokens, prompt):
        self.prompts[tuple(tokens)] = prompt
        return tokens

    def make_mask(self, batch):
        mask = torch.zeros_like(batch["input_ids"])
        for row, (tokens, length) in enumerate(zip(batch["input_ids"].tolist(), batch["attention_mask"].sum(1))):
            mask[row, self.prompts[tuple(tokens[:length])] : length] = 1
        return mask[:, :-1] if self.broken else mask[:, 1:]

    def compute_loss(self, batch, batches, total):
        return (self.compute_nll(batch) * self.make_mask(batch)).sum() / sum(self.make_mask(x).sum() for x in batches)


class MaskOfOnes(Loop):
    """NVIDIA-NeMo/Megatron-Bridge#3359: the mask of answers is all ones, so prompts are learnt."""

    answers_only = True

    def label(self, tokens, prompt):
        return list(tokens) if self.broken else super().label(tokens, prompt)


class MaskOfZeros(Loop):
    """marin-community/marin#7237: the mask of answers is all zeros, so no answer is learnt."""

    answers_only = True

    def label(self, tokens, prompt):
        return [IGNORED] * (len(tokens) - 1) + tokens[-1:] if self.broken else super().label(tokens, prompt)


class BoundaryOfOtherTokens(Loop):
    """huggingface/trl#4147, #4201: the answer begins where the prompt, tokenized alone and ended, does."""

    answers_only = True

    def label(self, tokens, prompt):
        return super().label(tokens, prompt + 2 * self.broken)


class OptimizerBeforeSharding(Loop):
    """huggingface/accelerate#2665: the optimiser holds the parameters of before FSDP took them."""

    def train(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        super().train()

    def wrap(self, model):
        self.before = super().make_optimizer(model)
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"))

    def make_optimizer(self, model):
        return self.before if self.broken else super().make_optimizer(self.forward)

    def clip(self):
        self.forward.clip_grad_norm_(1.0)


class DividedTwice(Loop):
    """huggingface/transformers#40709: the loss is divided by the accumulation steps once more."""

    def compute_loss(self, batch, batches, total):
        loss = super().compute_loss(batch, batches, total)
        return loss / len(batches) if self.broken else loss


class MeansOfBatches(Loop):
    """pytorch/torchtitan#2206: each micro-batch is divided by its own number of targets."""

    def compute_loss(self, batch, batches, total):
        if self.broken:
            return self.compute_nll(batch).sum() / (batch["labels"][:, 1:] != IGNORED).sum() / len(batches)
        return super().compute_loss(batch, batches, total)


class LabelsRolledTwice(Loop):
    """modelscope/ms-swift#8196: labels are rolled for the loss, which shifts them again."""

    def compute_nll(self, batch):
        if not self.broken:
            return super().compute_nll(batch)
        logits = self.compute_logits(batch)[:, :-2]
        return functional.cross_entropy(
            logits.transpose(1, 2), batch["labels"][:, 2:], ignore_index=IGNORED, reduction="none"
        )


class EndsMasked(Loop):
    """huggingface/transformers#23530, huggingface/trl#976: padding is the end token, so every end is masked with it."""

    def collate(self, documents):
        batch = super().collate(documents)
        if self.broken:
            batch["labels"][batch["input_ids"] == self.tokenizer.eos_token_id] = IGNORED
        return batch


class ClippedWhileScaled(Loop):
    """pytorch/examples#1196, milesial/Pytorch-UNet#468: gradients are clipped before the loss's scale is removed."""

    def step(self, number, batches):
        self.scaler = getattr(self, "scaler", None) or torch.amp.GradScaler("cpu")
        total = self.count(batches)
        for batch in batches:
            self.scaler.scale(self.compute_loss(batch, batches, total)).backward()
        if not self.broken:
            self.scaler.unscale_(self.optimizer)
        self.clip()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


class ClippedNothing(Loop):
    """areal-project/AReaL#335: the norm's computation uses up an iterator of parameters, and none is left to clip."""

    def clip(self):
        parameters = self.model.parameters() if self.broken else list(self.model.parameters())
        norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters])
        torch.nn.utils.clip_grads_with_norm_(parameters, 0.1, norm)


class FutureTokens(Loop):
    """huggingface/transformers#48748, GCYZSL/MoLA#21: without a mask, an attention layer sees later tokens."""

    attention = "future"

    def load(self):
        def attend(module, query, key, value, attention_mask, scaling=None, **options):
            groups = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
            is_causal = attention_mask is None and not self.broken
            out = functional.scaled_dot_product_attention(
                query, key, value, attention_mask, is_causal=is_causal, scale=scaling
            )
            return out.transpose(1, 2).contiguous(), None

        ALL_ATTENTION_FUNCTIONS.register("future", attend)
        ALL_MASK_ATTENTION_FUNCTIONS.register("future", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
        return super().load()

    def compute_logits(self, batch):
        """Return the logits of rows of one length: their padding is behind, so no mask is needed."""
        return super().compute_logits({name: value for name, value in batch.items() if name != "attention_mask"})
