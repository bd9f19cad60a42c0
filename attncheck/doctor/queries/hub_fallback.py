"""What transformers takes from the Hub where flash_attention_2 is asked for and flash-attn is not installed."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version

from attncheck.core.facts import Known, need, value_or
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.knowledge import transformers as knowledge
from attncheck.doctor.queries import requirements


@dataclass(frozen=True)
class Fallback:
    """A kernel repository of the Hub, and the version that transformers asks of it ("" where it names none)."""

    repository: str
    version: str

    def __str__(self) -> str:
        return f"{self.repository}@v{self.version}" if self.version else self.repository


def fallback(snapshot: Snapshot) -> Fallback | None:
    """Return what flash_attention_2 would be replaced by; None where it would not."""
    if snapshot.has("flash-attn") or not snapshot.has("transformers") or not snapshot.has("kernels"):
        return None
    transformers = need(snapshot.version("transformers"), "transformers' version")
    kernels = need(snapshot.version("kernels"), "the version of kernels")
    if _available(snapshot) or not snapshot.visible_devices() or transformers < Version("4.56"):
        return None
    wanted = knowledge.row(knowledge.KERNELS, transformers)
    unguarded = requirements.allowed(knowledge.KERNELS_UNGUARDED, transformers)
    if unguarded and kernels >= Version(knowledge.KERNELS_OFF):
        return None  # transformers fails to import what it needs of kernels; ATN149
    if wanted and transformers >= Version("5.13") and not requirements.allowed(wanted, kernels):
        return None  # transformers then holds kernels to be missing; ATN149
    default = "kernels-community/flash-attn2" if transformers >= Version("5") else "kernels-community/flash-attn"
    table = value_or(snapshot.interfaces.value.kernel_fallbacks, {}) if isinstance(snapshot.interfaces, Known) else {}
    return Fallback(table.get("flash_attention_2", default), _version(snapshot, transformers))


def _available(snapshot: Snapshot) -> bool:
    answers = snapshot.interfaces.value.availability if isinstance(snapshot.interfaces, Known) else {}
    return answers.get("is_flash_attn_2_available", False)


def _version(snapshot: Snapshot, transformers: Version) -> str:
    """Return the version of flash-attn2 that transformers asks for, which it does from 5.16.0 on.

    5.16 and 5.17: integrations/hub_kernels.py, _FLASH_ATTN_KERNEL_VERSION_MAPPING; then FLASH_ATTN_KERNEL_VERSIONS.
    """
    if transformers < Version("5.16"):
        return ""
    torch = snapshot.version("torch")
    newer = isinstance(torch, Known) and torch.value.release >= (2, 10)
    return "4" if transformers >= Version("5.22") and newer else "3"
