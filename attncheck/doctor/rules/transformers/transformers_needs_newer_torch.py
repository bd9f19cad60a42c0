"""torch is older than this transformers accepts.

What it checks: torch's version against the minimum of the installed transformers: 2.1 from 4.52, 2.2 from 5.0, 2.4
from 5.1, 2.5 from 5.15, 2.6 from 5.20.

Why it matters: `import transformers` goes through with one warning, "Disabling PyTorch because PyTorch >= X is
required", and then no model can be loaded ("requires the PyTorch library but it was not found").

What to do: install the newest transformers that takes this torch; a newer torch would need every compiled extension
(flash-attn, vllm …) anew.

Source: wheels of transformers 4.51.0-5.23.0, `utils/import_utils.py` (is_torch_available).
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from attncheck.core.facts import need
from attncheck.core.findings import Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge import ring_flash_attn as ring
from attncheck.doctor.knowledge import transformers as knowledge
from attncheck.doctor.queries import requirements
from attncheck.doctor.rules import Rule


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where torch is below transformers' minimum."""
    if not snapshot.has("transformers") or not snapshot.has("torch"):
        return
    transformers = need(snapshot.version("transformers"), "transformers' version")
    torch = need(snapshot.version("torch"), "torch's version")
    minimum = knowledge.row(knowledge.MINIMUM_TORCH, transformers)
    if minimum is None or torch >= Version(minimum):
        return
    wanted = ring.WORKS[ring.LAST] if snapshot.has("ring-flash-attn") else f">=4.43,<{transformers.base_version}"
    older = requirements.transformers_in(snapshot, wanted)
    fixes = (install.install(snapshot, *older),) if older else ()
    yield Problem(
        message=f"transformers {transformers} switches torch off: it needs {minimum} or newer, {torch} is installed",
        subject=f"torch {torch}",
        evidence=(f"static lane: transformers {transformers} asks for torch {minimum}",),
        fixes=(
            *fixes,
            install.install(snapshot, f"torch>={minimum}", title="or a newer torch, and rebuild extensions"),
        ),
    )


RULE = Rule("ATN155", "error", check)
