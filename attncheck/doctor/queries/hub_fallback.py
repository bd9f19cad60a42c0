"""What transformers takes from the Hub where flash_attention_2 is requested and flash-attn is not installed."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version

from attncheck.core.facts import Known, need, value_or
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.knowledge import transformers
from attncheck.doctor.queries import requirements
from attncheck.doctor.queries.covering import sees_gpu


@dataclass(frozen=True)
class HubKernel:
    """A kernel repository of the Hub, and the version that transformers requests ("" where it names none)."""

    repository: str
    version: str

    def __str__(self) -> str:
        return f"{self.repository}@v{self.version}" if self.version else self.repository

    def call_of_get_kernel(self, kernels: Version) -> str:
        """Return the call that loads what transformers loads: `kernels` from 0.15 on wants a version or revision."""
        argument = f", version={self.version}" if self.version else ', revision="main"'
        return f'get_kernel("{self.repository}"{argument if self.version or kernels >= Version("0.12") else ""})'


def find_hub_fallback(snapshot: Snapshot) -> HubKernel | None:
    """Return the Hub kernel that would replace flash_attention_2; None where none would."""
    if snapshot.has("flash-attn") or not snapshot.has("transformers") or not snapshot.has("kernels"):
        return None
    version = need(snapshot.version("transformers"), "transformers' version")
    kernels = need(snapshot.version("kernels"), "the version of kernels")
    if _is_flash_attn_available(snapshot) or version < Version("4.56") or not sees_gpu(snapshot):
        return None
    required = transformers.entry_for_version(transformers.COMPATIBLE_KERNELS, version)
    unguarded = requirements.is_version_allowed(transformers.KERNELS_UNGUARDED, version)
    if unguarded and kernels >= Version(transformers.FIRST_KERNELS_NOT_USED):
        return None  # transformers fails to import what it needs of kernels; ATN149
    if required and version >= Version("5.13") and not requirements.is_version_allowed(required, kernels):
        return None  # transformers then treats kernels as missing; ATN149
    default = "kernels-community/flash-attn2" if version >= Version("5") else "kernels-community/flash-attn"
    fallbacks = (
        value_or(snapshot.interfaces.value.kernel_fallbacks, {}) if isinstance(snapshot.interfaces, Known) else {}
    )
    return HubKernel(fallbacks.get("flash_attention_2", default), _kernel_version(snapshot, version))


def _is_flash_attn_available(snapshot: Snapshot) -> bool:
    answers = snapshot.interfaces.value.availability if isinstance(snapshot.interfaces, Known) else {}
    return answers.get("is_flash_attn_2_available", False)


def _kernel_version(snapshot: Snapshot, version: Version) -> str:
    """Return the version of flash-attn2 that transformers requests, which it does from 5.13 on.

    5.14.1: integrations/hub_kernels.py, load_and_register_attn_kernel (version=1);
    5.16 and 5.17: integrations/hub_kernels.py, _FLASH_ATTN_KERNEL_VERSION_MAPPING; then FLASH_ATTN_KERNEL_VERSIONS.
    """
    if version < Version("5.13"):
        return ""
    if version < Version("5.16"):
        return "1"
    torch = snapshot.version("torch")
    newer = isinstance(torch, Known) and torch.value.release >= (2, 10)
    return "4" if version >= Version("5.22") and newer else "3"
