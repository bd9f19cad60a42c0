"""The installed liger-kernel has no kernels for this model.

What it checks: the model's type against MODEL_TYPE_TO_APPLY_LIGER_FN of the installed liger-kernel, as its import in a
child process showed it.

Why it matters: liger-kernel 0.8.2 and older raise KeyError from AutoLigerKernelForCausalLM; newer ones log one line at
INFO and patch nothing: memory stays what it was.

What to do: switch liger off for this model, or use a liger-kernel that knows it.

Source: liger_kernel 0.5.10 to 0.8.5, transformers/monkey_patch.py; linkedin/Liger-Kernel#313, #968.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.facts import need
from attncheck.findings import Fix, Problem
from attncheck.knowledge.models import named
from attncheck.rules import Rule
from attncheck.snapshot import Snapshot


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where liger-kernel does not list the model's type."""
    model = named(snapshot)
    if model is None or not snapshot.has("liger-kernel"):
        return
    known = need(
        need(snapshot.interfaces, "what liger-kernel offers").liger_model_types, "liger-kernel's list of models"
    )
    if model.model_type in known:
        return
    version = need(snapshot.package("liger-kernel"), "liger-kernel").version
    yield Problem(
        message=f"liger-kernel {version} has no kernels for {model.model_type}",
        evidence=(f"import lane: it lists {len(known)} model types",),
        fixes=(Fix("train without it", "setting", "use_liger_kernel: false"),),
        subject=model.model_type,
    )


RULE = Rule("ATN322", "warning", check, needs=frozenset({"liger"}))
