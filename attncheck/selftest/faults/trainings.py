"""Trainings that leak, look ahead or learn wrongly: injected into transformers and torch, or set in the plan.

`attncheck smoke` really trains a small model. A fault in an implementation is injected only into "sdpa", as in users'
environments, so that the eager reference stays correct.
"""

import json

from attncheck.selftest.faults import Family, Fault, Sandbox, SandboxAction
from attncheck.selftest.faults.plugins import add_import_hook

SMALL_CONFIG = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 512,
}
CHECKS = ("what_ran", "implementation", "isolation", "checkpointing")
SDPA_TEMPLATE = """
functions = module.ALL_ATTENTION_FUNCTIONS._global_mapping
genuine = functions["sdpa"]
{body}
functions["sdpa"] = attend
"""
MASK_DROPPED = """
def attend(layer, q, k, v, mask, **kwargs):
    return genuine(layer, q, k, v, None, **kwargs)
"""
PADDING_ATTENDED = """
def attend(layer, q, k, v, mask, **kwargs):
    return genuine(layer, q, k, v, None if mask is not None and mask.shape[0] > 1 else mask, **kwargs)
"""
KEY_GRADIENT_LOST = """
def attend(layer, q, k, v, mask, **kwargs):
    return genuine(layer, q, k.detach(), v, mask, **kwargs)
"""
SCALE = """
def attend(layer, q, k, v, mask, **kwargs):
    return genuine(layer, q * 1.01, k, v, mask, **kwargs)
"""
BECOMES_EAGER = """
def attend(layer, q, k, v, mask, **kwargs):
    import torch
    from transformers.models.llama.modeling_llama import eager_attention_forward
    size = q.shape[2]
    visible = torch.ones(size, size, dtype=torch.bool, device=q.device).tril() if mask is None else mask
    bias = torch.zeros_like(visible, dtype=q.dtype).masked_fill(~visible, torch.finfo(q.dtype).min)
    return eager_attention_forward(layer, q, k, v, bias, **kwargs)
"""
LOOKS_AHEAD = """
def attend(layer, q, k, v, mask, **kwargs):
    import torch
    size = q.shape[2]
    ahead = torch.ones(size, size, dtype=torch.bool, device=q.device).tril(1)
    return genuine(layer, q, k, v, ahead if mask is None else mask | mask.roll(-1, -2), **kwargs)
"""
NOISY_GRADIENT = """
import torch
generator = torch.Generator().manual_seed(99)
class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)
    @staticmethod
    def backward(ctx, gradient):
        noise = torch.rand(gradient.shape, generator=generator).to(gradient.device)
        return gradient * (1 + 0.01 * (noise < 1e-3)).to(gradient.dtype)
def attend(layer, q, k, v, mask, **kwargs):
    return genuine(layer, Noisy.apply(q), k, v, mask, **kwargs)
"""
CHECKPOINTING = """
genuine = module.checkpoint
def checkpoint(function, *args, **kwargs):
    calls = [0]
    def run(*run_args, **run_kwargs):
        calls[0] += 1
        if calls[0] > 1:
            run_args = (run_args[0] * 1.05, *run_args[1:])
        return function(*run_args, **run_kwargs)
    return genuine(run, *args, **kwargs)
module.checkpoint = checkpoint
"""
COUNTS_PADDING = """
genuine = module.chunked_cross_entropy
module.chunked_cross_entropy = lambda logits, labels: genuine(logits, labels.clamp(min=0))
"""
LIGER_TEMPLATE = """
import importlib
import torch

def forward_rms_norm(self, hidden):
    wide = hidden.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.variance_epsilon{epsilon_change})
    return (self.weight.float() * wide).to(hidden.dtype)

def apply(rms_norm: bool = True, model=None):
    modelling = importlib.import_module("transformers.models.llama.modeling_llama")
    if rms_norm and model is None:
        modelling.LlamaRMSNorm.forward = forward_rms_norm
    for module in model.modules() if model is not None and rms_norm else ():
        if type(module).__name__ == "LlamaRMSNorm":
            module.forward = forward_rms_norm.__get__(module)

MODEL_TYPE_TO_APPLY_LIGER_FN = {"llama": apply}
"""


def setup_smoke(
    sandbox: Sandbox, *options: str, model_type: str = "llama", implementation: str = "sdpa", **fields: object
) -> None:
    """Run smoke on a small model of this type."""
    sandbox.write_file("model/config.json", json.dumps({"model_type": model_type, **SMALL_CONFIG, **fields}))
    sandbox.arguments += ["smoke", str(sandbox.folder / "model"), "--python", sandbox.python]
    sandbox.arguments += ["--device", sandbox.device, "--max-length", "128", "--no-fix", "--format", "json"]
    sandbox.arguments += ["--attn-implementation", implementation, *options]


def only_options(*checks: str) -> list[str]:
    """Return the options that run only these checks."""
    return [word for check in checks for word in ("--only", check)]


def setup_packed(sandbox: Sandbox) -> None:
    """Check packed documents on sdpa."""
    setup_smoke(sandbox, *only_options(*CHECKS), "--gradient-checkpointing")


def setup_padded(sandbox: Sandbox) -> None:
    """Check left padding with eager: cuDNN, which sdpa may choose, computes NaN for such masks (ATN421)."""
    options = ("--packing", "padding", "--padding-side", "left")
    setup_smoke(sandbox, *only_options("padding"), *options, implementation="eager")


def attend_to_padding(sandbox: Sandbox) -> None:
    """Run an sdpa that attends to padding."""
    sandbox.arguments[sandbox.arguments.index("eager")] = "sdpa"
    with_broken_sdpa("padding", PADDING_ATTENDED)(sandbox)


def setup_training(sandbox: Sandbox) -> None:
    """Train two steps, twice, with deterministic algorithms required."""
    setup_smoke(sandbox, *only_options("training", "reproducible"), "--steps", "2", "--deterministic")


def setup_cross_entropy(sandbox: Sandbox) -> None:
    """Check a cross-entropy that processes a few rows at a time."""
    setup_smoke(sandbox, *only_options("cross_entropy"), "--cross-entropy", "chunked")


def setup_liger(sandbox: Sandbox) -> None:
    """Check a liger-kernel whose RMSNorm equals the model's."""
    setup_smoke(sandbox, *only_options("liger"), "--liger")
    with_liger("")(sandbox)
    sandbox.prepend_pythonpath(sandbox.folder / "packages")


def with_broken_sdpa(check: str, body: str) -> SandboxAction:
    """Return the action that replaces transformers' sdpa in every process, and runs only one check."""

    def inject(sandbox: Sandbox) -> None:
        keep_only_check(sandbox, check)
        add_import_hook(sandbox, "transformers.modeling_utils", SDPA_TEMPLATE.format(body=body))

    return inject


def keep_only_check(sandbox: Sandbox, check: str) -> None:
    """Run only one of the control's checks."""
    arguments = sandbox.arguments
    others = [index for index, word in enumerate(arguments) if word == "--only" and arguments[index + 1] != check]
    for index in reversed(others):
        del arguments[index : index + 2]


def break_checkpointing(sandbox: Sandbox) -> None:
    """Make checkpointed layers start from a changed input when they are recomputed."""
    keep_only_check(sandbox, "checkpointing")
    add_import_hook(sandbox, "torch.utils.checkpoint", CHECKPOINTING)


def count_padding(sandbox: Sandbox) -> None:
    """Make the chunked cross-entropy count ignored labels."""
    add_import_hook(sandbox, "attncheck.smoke.worker.losses", COUNTS_PADDING)


def with_liger(epsilon_change: str) -> SandboxAction:
    """Return the action that installs a liger-kernel in plain torch with a changed RMSNorm epsilon."""

    def inject(sandbox: Sandbox) -> None:
        for folder in ("liger_kernel", "liger_kernel/transformers"):
            sandbox.write_file(f"packages/{folder}/__init__.py", "")
        source = LIGER_TEMPLATE.replace("{epsilon_change}", epsilon_change)
        sandbox.write_file("packages/liger_kernel/transformers/monkey_patch.py", source)

    return inject


def use_running_positions(sandbox: Sandbox) -> None:
    """Set positions that are never reset: the plan itself is the fault."""
    keep_only_check(sandbox, "isolation")
    sandbox.arguments += ["--positions", "running"]


def replace_by_gemma2(sandbox: Sandbox) -> None:
    """Train a soft-capped model instead of the Llama."""
    keep_only_check(sandbox, "implementation")
    fields = {"attn_logit_softcapping": 5.0, "head_dim": 16, "sliding_window": 64}
    sandbox.write_file("model/config.json", json.dumps({"model_type": "gemma2", **SMALL_CONFIG, **fields}))


NEEDS = ("torch", "transformers")
PACKED = Family("smoke", "smoke of a small Llama, documents packed", setup_packed, NEEDS, heavy=True, measures=True)
PADDED = Family(
    "smoke-padding", "smoke of a small Llama, padded on the left", setup_padded, NEEDS, heavy=True, measures=True
)
TRAINING = Family("smoke-training", "smoke: two steps, trained twice", setup_training, NEEDS, heavy=True, measures=True)
LOSS = Family("smoke-loss", "smoke with a correct cross-entropy", setup_cross_entropy, NEEDS, heavy=True, measures=True)
LIGER_RIGHT = Family("smoke-liger", "smoke with a correct liger-kernel", setup_liger, NEEDS, heavy=True, measures=True)


def make_fault(
    name: str, family: Family, code: str, title: str, imitates: str, inject: SandboxAction, *mentions: str
) -> Fault:
    """Return a fault in a training."""
    return Fault(name, family, (code,), title, imitates, inject, mentions)


FAULTS = (
    make_fault("documents-leak", PACKED, "ATN420", "sdpa without the mask that separates documents",
          "an implementation with a name that transformers' masks do not know",
          with_broken_sdpa("isolation", MASK_DROPPED), "document"),
    make_fault("positions-running", PACKED, "ATN420", "a plan whose positions continue across a packed row",
          "a collator that does not reset position_ids", use_running_positions, "document"),
    make_fault("softcap-left-out", PACKED, "ATN345", "a soft-capped gemma2 trained with sdpa", "sdpa has no soft-cap",
          replace_by_gemma2),
    make_fault("key-gradient-lost", PACKED, "ATN345", "sdpa without the gradient of keys",
          "a kernel's backward that misses one output",
          with_broken_sdpa("implementation", KEY_GRADIENT_LOST), "gradients"),
    make_fault("scale-off", PACKED, "ATN345", "sdpa with a scale one per cent too large",
          "a scale for a different head size", with_broken_sdpa("implementation", SCALE)),
    make_fault("becomes-eager", PACKED, "ATN340", "sdpa that silently runs eager attention",
          "a silent fallback",
          with_broken_sdpa("what_ran", BECOMES_EAGER), "eager"),
    make_fault("checkpointing-changes", PACKED, "ATN343", "layers that compute something different when they run again",
          "state changed by a forward pass", break_checkpointing),
    make_fault("padding-leaks", PADDED, "ATN421", "sdpa that attends to padding",
          "a mask dropped to use a faster kernel", attend_to_padding, "left padding"),
    make_fault("looks-ahead", TRAINING, "ATN430", "sdpa where each token attends to the next", "a mask shifted by one",
          with_broken_sdpa("training", LOOKS_AHEAD)),
    make_fault("training-differs", TRAINING, "ATN720", "sdpa whose gradient differs between calls",
          "atomic additions", with_broken_sdpa("reproducible", NOISY_GRADIENT), "part at step"),
    make_fault("loss-counts-padding", LOSS, "ATN342", "a cross-entropy that counts ignored labels",
          "a fused loss without ignore_index", count_padding),
    make_fault("liger-epsilon", LIGER_RIGHT, "ATN341", "a liger-kernel whose RMSNorm has a different epsilon",
          "a patch for another version of the model", with_liger(" * 1000.0 + 0.05")),
)  # fmt: skip
