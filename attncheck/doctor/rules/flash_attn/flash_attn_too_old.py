"""This flash-attn is older than transformers accepts.

What it checks: flash-attn's version against the minimum of the installed transformers: 2.1.0 in 4.x, 2.3.3 from 5.0 on.

Why it matters: transformers holds it to be missing; `attn_implementation="flash_attention_2"` raises ImportError, or is
replaced by a kernel from the Hub.

What to do: install a flash-attn that fits this torch.

Source: `is_flash_attn_2_available` in `utils/import_utils.py` of the transformers 4.57.6 and 5.17.0 wheels. Keywords:
`window_size` came with flash-attn 2.3.0, `deterministic` with 2.4.1 (ATN701), `softcap` with 2.6.0 (ATN311)
(flash_attn_interface.py at the tags).
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from attncheck.core.facts import need
from attncheck.core.findings import Problem
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.fixes.flash_attn import install_flash_attn
from attncheck.doctor.knowledge import transformers as knowledge
from attncheck.doctor.knowledge.flash_attn_build import MINIMUM_FOR_TRANSFORMERS
from attncheck.doctor.rules import Rule


def check(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where transformers would call the installed flash-attn missing."""
    if not snapshot.has("flash-attn") or not snapshot.has("transformers"):
        return
    found = need(snapshot.version("flash-attn"), "flash-attn's version")
    transformers = need(snapshot.version("transformers"), "transformers' version")
    minimum = knowledge.row(MINIMUM_FOR_TRANSFORMERS, transformers)
    if minimum is None or found >= Version(minimum):
        return
    yield Problem(
        message=f"flash-attn {found} is too old: transformers {transformers} wants {minimum} or newer",
        subject=f"flash-attn {found}",
        evidence=(f"static lane: flash-attn {found}, transformers {transformers}",),
        fixes=install_flash_attn(snapshot),
    )


RULE = Rule("ATN119", "error", check, needs=frozenset({"flash"}))
