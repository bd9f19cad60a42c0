"""Trainings that leak, look ahead or learn something else: planted into transformers and torch, or written as a plan.

A small model is trained for real by `attncheck smoke`. Where a fault is one of an implementation, it is planted into
"sdpa" alone, as users' stacks have it, so that the eager reference stays right.
"""

from __future__ import annotations

import json

from attncheck.selftest.faults import Family, Fault, Ground, Plant
from attncheck.selftest.faults.plugins import on_import

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 512,
}
QUESTIONS = ("what_ran", "implementation", "isolation", "checkpointing")
SDPA = """
functions = module.ALL_ATTENTION_FUNCTIONS._global_mapping
genuine = functions["sdpa"]
{body}
functions["sdpa"] = attend
"""
MASK_DROPPED = """
def attend(layer, q, k, v, mask, **words):
    return genuine(layer, q, k, v, None, **words)
"""
PADDING_ATTENDED = """
def attend(layer, q, k, v, mask, **words):
    return genuine(layer, q, k, v, None if mask is not None and mask.shape[0] > 1 else mask, **words)
"""
KEY_GRADIENT_LOST = """
def attend(layer, q, k, v, mask, **words):
    return genuine(layer, q, k.detach(), v, mask, **words)
"""
SCALE = """
def attend(layer, q, k, v, mask, **words):
    return genuine(layer, q * 1.01, k, v, mask, **words)
"""
BECOMES_EAGER = """
def attend(layer, q, k, v, mask, **words):
    import torch
    from transformers.models.llama.modeling_llama import eager_attention_forward
    size = q.shape[2]
    seen = torch.ones(size, size, dtype=torch.bool, device=q.device).tril() if mask is None else mask
    added = torch.zeros_like(seen, dtype=q.dtype).masked_fill(~seen, torch.finfo(q.dtype).min)
    return eager_attention_forward(layer, q, k, v, added, **words)
"""
LOOKS_AHEAD = """
def attend(layer, q, k, v, mask, **words):
    import torch
    size = q.shape[2]
    ahead = torch.ones(size, size, dtype=torch.bool, device=q.device).tril(1)
    return genuine(layer, q, k, v, ahead if mask is None else mask | mask.roll(-1, -2), **words)
"""
NOISY = """
import torch
chance = torch.Generator().manual_seed(99)
class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)
    @staticmethod
    def backward(ctx, gradient):
        noise = torch.rand(gradient.shape, generator=chance).to(gradient.device)
        return gradient * (1 + 0.01 * (noise < 1e-3)).to(gradient.dtype)
def attend(layer, q, k, v, mask, **words):
    return genuine(layer, Noisy.apply(q), k, v, mask, **words)
"""
CHECKPOINTING = """
genuine = module.checkpoint
def checkpoint(function, *arguments, **words):
    calls = [0]
    def run(*more, **named):
        calls[0] += 1
        return function(*more, **named) if calls[0] == 1 else function(more[0] * 1.05, *more[1:], **named)
    return genuine(run, *arguments, **words)
module.checkpoint = checkpoint
"""
COUNTS_PADDING = """
genuine = module.chunked
module.chunked = lambda logits, labels: genuine(logits, labels.clamp(min=0))
"""
LIGER = """
import importlib
import torch

def normalised(self, hidden):
    wide = hidden.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.variance_epsilon{spoilt})
    return (self.weight.float() * wide).to(hidden.dtype)

def apply(rms_norm: bool = True, model=None):
    modelling = importlib.import_module("transformers.models.llama.modeling_llama")
    if rms_norm and model is None:
        modelling.LlamaRMSNorm.forward = normalised
    for module in model.modules() if model is not None and rms_norm else ():
        if type(module).__name__ == "LlamaRMSNorm":
            module.forward = normalised.__get__(module)

MODEL_TYPE_TO_APPLY_LIGER_FN = {"llama": apply}
"""


def smoke(ground: Ground, *words: str, kind: str = "llama", implementation: str = "sdpa", **fields: object) -> None:
    """Ask smoke about a small model of this type."""
    ground.write("model/config.json", json.dumps({"model_type": kind, **SMALL, **fields}))
    ground.words += ["smoke", str(ground.folder / "model"), "--python", ground.python, "--device", ground.device]
    ground.words += ["--max-length", "128", "--no-fix", "--format", "json", "--attn-implementation", implementation]
    ground.words += words


def only(*questions: str) -> list[str]:
    """Return the options that ask these questions alone."""
    return [word for question in questions for word in ("--only", question)]


def lay(ground: Ground) -> None:
    """Ask what packed documents on sdpa raise."""
    smoke(ground, *only(*QUESTIONS), "--gradient-checkpointing")


def lay_padded(ground: Ground) -> None:
    """Ask about padding on the left."""
    smoke(ground, *only("padding"), "--packing", "padding", "--padding-side", "left")


def lay_training(ground: Ground) -> None:
    """Train two steps, and the same again with determinism demanded."""
    smoke(ground, *only("training", "reproducible"), "--steps", "2", "--deterministic")


def lay_loss(ground: Ground) -> None:
    """Ask about a cross-entropy that holds a few rows at a time."""
    smoke(ground, *only("cross_entropy"), "--cross-entropy", "chunked")


def lay_liger(ground: Ground) -> None:
    """Ask about a liger-kernel whose RMSNorm is the model's."""
    smoke(ground, *only("liger"), "--liger")
    liger("")(ground)
    ground.before_all(ground.folder / "packages")


def spoilt_sdpa(question: str, body: str) -> Plant:
    """Return what replaces transformers' sdpa in every process of the check, which asks one question alone."""

    def plant(ground: Ground) -> None:
        asked_alone(ground, question)
        on_import(ground, "transformers.modeling_utils", SDPA.format(body=body))

    return plant


def asked_alone(ground: Ground, question: str) -> None:
    """Leave one question of those that the control asks."""
    others = [
        index for index, word in enumerate(ground.words) if word == "--only" and ground.words[index + 1] != question
    ]
    for index in reversed(others):
        del ground.words[index : index + 2]


def checkpointing(ground: Ground) -> None:
    """Let checkpointed layers begin from something else when they are run again."""
    asked_alone(ground, "checkpointing")
    on_import(ground, "torch.utils.checkpoint", CHECKPOINTING)


def counts_padding(ground: Ground) -> None:
    """Let the chunked cross-entropy count ignored labels."""
    on_import(ground, "attncheck.smoke.worker.checks.cross_entropy", COUNTS_PADDING)


def liger(spoilt: str) -> Plant:
    """Return what plants a liger-kernel in plain torch, its RMSNorm spoilt."""

    def plant(ground: Ground) -> None:
        for folder in ("liger_kernel", "liger_kernel/transformers"):
            ground.write(f"packages/{folder}/__init__.py", "")
        ground.write("packages/liger_kernel/transformers/monkey_patch.py", LIGER.replace("{spoilt}", spoilt))

    return plant


def running_positions(ground: Ground) -> None:
    """Ask for positions that are not reset: the plan itself is the fault."""
    asked_alone(ground, "isolation")
    ground.words += ["--positions", "running"]


def gemma2(ground: Ground) -> None:
    """Train a soft-capped model in the Llama's place."""
    asked_alone(ground, "implementation")
    fields = {"attn_logit_softcapping": 5.0, "head_dim": 16, "sliding_window": 64}
    ground.write("model/config.json", json.dumps({"model_type": "gemma2", **SMALL, **fields}))


NEEDS = ("torch", "transformers")
PACKED = Family("smoke", "smoke of a small Llama, documents packed", lay, NEEDS, heavy=True, measures=True)
PADDED = Family(
    "smoke-padding", "smoke of a small Llama, padded on the left", lay_padded, NEEDS, heavy=True, measures=True
)
TRAINING = Family("smoke-training", "smoke: two steps, trained twice", lay_training, NEEDS, heavy=True, measures=True)
LOSS = Family("smoke-loss", "smoke with a cross-entropy that is right", lay_loss, NEEDS, heavy=True, measures=True)
LIGER_RIGHT = Family(
    "smoke-liger", "smoke with a liger-kernel that is right", lay_liger, NEEDS, heavy=True, measures=True
)


def fault(name: str, family: Family, code: str, title: str, imitates: str, plant: Plant, *says: str) -> Fault:
    """Return a fault of a training."""
    return Fault(name, family, (code,), title, imitates, plant, says)


FAULTS = (
    fault("documents-leak", PACKED, "ATN420", "sdpa without the mask that keeps documents apart",
          "an implementation of a name that transformers' masks do not know", spoilt_sdpa("isolation", MASK_DROPPED),
                "document"),
    fault("positions-running", PACKED, "ATN420", "a plan whose positions run on through a packed row",
          "a collator that does not reset position_ids", running_positions, "document"),
    fault("softcap-left-out", PACKED, "ATN345", "a soft-capped gemma2 trained with sdpa", "sdpa has no soft-cap",
          gemma2),
    fault("key-gradient-lost", PACKED, "ATN345", "sdpa without the gradient of keys",
          "a kernel's backward that misses one output",
          spoilt_sdpa("implementation", KEY_GRADIENT_LOST), "gradients"),
    fault("scale-off", PACKED, "ATN345", "sdpa with a scale one per cent too large",
          "a scale taken from another head size", spoilt_sdpa("implementation", SCALE)),
    fault("becomes-eager", PACKED, "ATN340", "sdpa that runs eager attention in silence",
          "a fallback that nobody is told of",
          spoilt_sdpa("what_ran", BECOMES_EAGER), "eager"),
    fault("checkpointing-changes", PACKED, "ATN343", "layers that compute something else when they are run again",
          "state changed by a forward pass", checkpointing),
    fault("padding-leaks", PADDED, "ATN421", "sdpa that attends to padding", "a mask thrown away for a faster kernel",
          spoilt_sdpa("padding", PADDING_ATTENDED), "left padding"),
    fault("looks-ahead", TRAINING, "ATN430", "sdpa that lets each token see the next one", "a mask shifted by one",
          spoilt_sdpa("training", LOOKS_AHEAD)),
    fault("training-differs", TRAINING, "ATN720", "sdpa whose gradient differs from call to call", "atomic additions",
          spoilt_sdpa("reproducible", NOISY), "part at step"),
    fault("loss-counts-padding", LOSS, "ATN342", "a cross-entropy that counts ignored labels",
          "a fused loss without ignore_index", counts_padding),
    fault("liger-epsilon", LIGER_RIGHT, "ATN341", "a liger-kernel whose RMSNorm has another epsilon",
          "a patch for another version of the model", liger(" * 1000.0 + 0.05")),
)  # fmt: skip
