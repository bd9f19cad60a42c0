"""Runs liger-kernel's loss on a CPU: its own patches and forward passes, with torch in place of its triton kernel.

It runs in a child of the examined interpreter and knows nothing of attncheck.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

OTHER_PATCHES = ("rope", "rms_norm", "swiglu", "geglu", "cross_entropy")  # they need triton, and divide nothing
SETTINGS: dict[str, Any] = {
    "use_liger_kernel": True,
    "liger_kernel_config": {**dict.fromkeys(OTHER_PATCHES, False), "fused_linear_cross_entropy": True},
}
# of trainers that call one of liger's losses themselves
OWN_LOSS = {**SETTINGS, "liger_kernel_config": {**SETTINGS["liger_kernel_config"], "fused_linear_cross_entropy": False}}


def imitate_liger() -> None:
    """Replace liger's fused linear cross-entropy by torch's, with the installed release's arguments and results.

    Its other losses are torch's already; they are not compiled.
    """
    import torch

    torch.compile = lambda function=None, **_: function or (lambda own: own)  # type: ignore[assignment]
    function = importlib.import_module(
        "liger_kernel.ops.fused_linear_cross_entropy"
    ).LigerFusedLinearCrossEntropyFunction
    names = list(inspect.signature(function.forward).parameters)[1:]
    results = len(inspect.signature(function.backward).parameters) - 1  # one gradient for each result

    def apply(*arguments: Any) -> Any:
        given = dict(zip(names, arguments))
        logits = torch.nn.functional.linear(arguments[0], arguments[1], given.get("bias")).float()
        options = {name: given[name] for name in ("ignore_index", "label_smoothing", "reduction") if name in given}
        if given.get("use_token_scaling"):  # each token's loss is weighted by its probability
            options["reduction"] = "none"
        loss = torch.nn.functional.cross_entropy(logits, arguments[2], given.get("ce_weight"), **options)
        if given.get("use_token_scaling"):
            loss = loss * (-loss.detach()).exp()
            count = (arguments[2] != given["ignore_index"]).sum() if given["reduction"] == "mean" else 1
            loss = loss if given["reduction"] == "none" else loss.sum() / count
        return (loss, *[torch.zeros(())] * (results - 1)) if results > 1 else loss

    function.apply = apply
