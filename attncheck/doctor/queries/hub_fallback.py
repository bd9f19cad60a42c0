"""Kernels that transformers loads from the Hub: requested ones, and replacements for a missing flash attention."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import Version

from attncheck.core.model import Model
from attncheck.core.snapshot import Known, MissingFact, Snapshot, need, value_or
from attncheck.doctor.knowledge import transformers
from attncheck.doctor.knowledge.hub_kernels import FLASH_REDIRECTS, KERNEL_TARGETS, SINK_TARGETS
from attncheck.doctor.queries import requirements
from attncheck.doctor.queries.covering import sees_gpu
from attncheck.doctor.queries.models import refusal_reason, transformers_answer

# transformers 5.17.0, integrations/hub_kernels.py `is_kernel`: owner/name, then a revision, then a function in it
KERNEL_NAME = re.compile(r"([^/:@|]+/[^/:@|]+)(?:@([^/:]+))?(?::[^/:]+)?")

# attn_implementation -> the kernel that replaces it if it is missing: transformers 5.17.0,
# modeling_flash_attention_utils.py `FLASH_ATTN_KERNEL_FALLBACK`
FALLBACKS = {
    "flash_attention_2": "kernels-community/flash-attn2",
    "flash_attention_3": "kernels-community/vllm-flash-attn3",
    "flash_attention_4": "kernels-community/flash-attn4",
}
# Wheels of transformers 4.57.6, 5.0.0, 5.3.0, 5.4.0 and 5.7.0, modeling_utils.py: "If FA not installed, do not fail"
FALLBACK_SINCE = {
    "flash_attention_2": Version("4.56"),
    "flash_attention_3": Version("5.0"),
    "flash_attention_4": Version("5.4"),
}
SECOND_VERSIONS = ("kernels-community/aiter-flash-attn", "kernels-community/metal-flash-sdpa")
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@dataclass(frozen=True)
class HubKernel:
    """A kernel repository of the Hub, with the version or revision that transformers requests ("" for neither)."""

    repository: str
    version: str = ""
    revision: str = ""

    def __str__(self) -> str:
        ref = f"v{self.version}" if self.version else self.revision
        return f"{self.repository}@{ref}" if ref else self.repository

    def format_download(self, snapshot: Snapshot) -> str:
        """Return the command that loads the same kernel; `kernels` since 0.15 requires a version or revision."""
        kernels = need(snapshot.version("kernels"), "the version of kernels")
        argument = f", version={self.version}" if self.version else f', revision="{self.revision or "main"}"'
        is_said = self.version or self.revision or kernels >= Version("0.12")
        call = f'get_kernel("{self.repository}"{argument if is_said else ""})'
        return f"{snapshot.host.executable} -c 'from kernels import get_kernel; {call}'"

    def is_cached(self, snapshot: Snapshot) -> bool:
        """Return whether the requested version is in the Hub's cache; for a commit that is unknown."""
        is_commit = re.fullmatch(r"[0-9a-f]{7,40}", self.revision)
        return (self.repository if is_commit else str(self)) in snapshot.hub.kernels


def find_hub_fallback(snapshot: Snapshot) -> HubKernel | None:
    """Return the Hub kernel that would replace flash_attention_2; None if none would, or if no job sees a GPU."""
    kernel = _find_fallback(snapshot, "flash_attention_2")
    return kernel if kernel is not None and sees_gpu(snapshot) else None


def find_redirect(snapshot: Snapshot, model: Model, implementation: str) -> str:
    """Return the kernel that replaces a flash attention which the model's class does not list; "" if none does.

    The installed class decides if it was queried, otherwise the table of releases.
    """
    answer = transformers_answer(model, implementation)
    if answer is not None:
        named = re.search(r"needs the Hub kernel (\S+?)(?:,|$)", answer)
        turned = re.search(r"turns it into (\S+)", refusal_reason(model, implementation))
        return named[1] if named else turned[1] if turned else ""
    since, until, kernels = FLASH_REDIRECTS.get(model.model_type, ("", "", ()))
    version = snapshot.version("transformers")
    if not kernels or implementation in kernels or not isinstance(version, Known):
        return ""
    is_listed = version.value >= Version(since) and not (until and version.value >= Version(until))
    return kernels[0] if is_listed else ""


def find_kernel_targets(repository: str, model: Model | None) -> tuple[str, ...]:
    """Return the GPU targets a Hub kernel has code for; () if it was not read or compiles at run time."""
    targets = SINK_TARGETS if model is not None and model.sinks else KERNEL_TARGETS
    return targets.get(repository, KERNEL_TARGETS.get(repository, ()))


def explain_uncached_kernel(snapshot: Snapshot, implementation: str) -> str:
    """Return why a model with this attn_implementation cannot be run here; "" if no such reason is known.

    A job would download the kernel, but attncheck downloads nothing, so a missing kernel is not the job's fault. If the
    job is offline too, it fails just as it does here.
    """
    kernel = None if is_hub_offline(snapshot) else find_requested_kernel(snapshot, implementation)
    if kernel is None or kernel.is_cached(snapshot):
        return ""
    is_fallback = implementation in FALLBACKS
    why = f"{implementation} is not installed, so transformers uses the Hub's kernel: " if is_fallback else ""
    return (
        f"{why}{kernel} is not in the local Hub cache; attncheck downloads nothing, so fetch it first: "
        f"{kernel.format_download(snapshot)}"
    )


def is_hub_offline(snapshot: Snapshot) -> bool:
    """Return whether huggingface_hub would not use the network; the launch's variables take precedence."""
    texts = [snapshot.environ[name] for name in OFFLINE_VARIABLES if snapshot.environ.get(name)]
    return texts[0].upper() in transformers.TRUE_VALUES if texts else snapshot.hub.offline


def find_requested_kernel(snapshot: Snapshot, implementation: str) -> HubKernel | None:
    """Return the Hub kernel that transformers loads for an attn_implementation; None if it loads none."""
    named = KERNEL_NAME.fullmatch(implementation)
    try:
        if named is None:
            return _find_fallback(snapshot, implementation) if implementation in FALLBACKS else None
        version = _version_that_loads_kernels(snapshot)
    except MissingFact:
        return None
    if version is None:
        return None
    repository, revision = named[1], named[2] or ""
    return HubKernel(repository, "" if revision else _kernel_version(snapshot, repository, version), revision)


def _find_fallback(snapshot: Snapshot, implementation: str) -> HubKernel | None:
    """Return the Hub kernel that would replace a flash attention that is not installed, on any device."""
    version = _version_that_loads_kernels(snapshot)
    if version is None or version < FALLBACK_SINCE[implementation]:
        return None
    # Before 5.4.0, only if neither flash-attn 2 nor 3 is installed.
    missing = (implementation,) if version >= Version("5.4") else ("flash_attention_2", "flash_attention_3")
    if any(snapshot.has(transformers.FLASH_DISTRIBUTIONS[name]) or _is_available(snapshot, name) for name in missing):
        return None
    fallbacks: Mapping[str, str] = {}
    if isinstance(snapshot.interfaces, Known):
        fallbacks = value_or(snapshot.interfaces.value.kernel_fallbacks, {})
    default = FALLBACKS[implementation] if version >= Version("5") else "kernels-community/flash-attn"
    repository = fallbacks.get(implementation, default)
    return HubKernel(repository, _kernel_version(snapshot, repository, version))


def _version_that_loads_kernels(snapshot: Snapshot) -> Version | None:
    """Return the version of transformers; None if it treats the installed `kernels` as missing."""
    if not snapshot.has("transformers") or not snapshot.has("kernels"):
        return None
    version = need(snapshot.version("transformers"), "transformers' version")
    kernels = need(snapshot.version("kernels"), "the version of kernels")
    required = transformers.entry_for_version(transformers.COMPATIBLE_KERNELS, version)
    unguarded = requirements.is_version_allowed(transformers.KERNELS_UNGUARDED, version)
    if unguarded and kernels >= Version(transformers.FIRST_KERNELS_NOT_USED):
        return None  # transformers fails to import what it needs from kernels: ATN149
    if required and version >= Version("5.13") and not requirements.is_version_allowed(required, kernels):
        return None  # transformers then treats kernels as missing: ATN149
    return version


def _is_available(snapshot: Snapshot, implementation: str) -> bool:
    answers = snapshot.interfaces.value.availability if isinstance(snapshot.interfaces, Known) else {}
    return answers.get(f"is_flash_attn_{implementation[-1]}_available", False)


def _kernel_version(snapshot: Snapshot, repository: str, version: Version) -> str:
    """Return the version of a kernel that transformers (since 5.13) requests if no revision is named.

    Wheels of 5.13.1, 5.14.1, 5.16.0 and 5.17.0, integrations/hub_kernels.py (`get_attn_kernel_version`), 5.20.2 and
    5.24.0, modeling_flash_attention_utils.py (`FLASH_ATTN_KERNEL_VERSIONS`).
    """
    if version < Version("5.13"):
        return ""
    if re.search("flash.*4", repository):
        return "0"
    if version >= Version("5.20") and repository in SECOND_VERSIONS:
        return "2"
    is_second = bool(re.search("flash.*2", repository)) and version >= Version("5.16")
    if not is_second or (version >= Version("5.20") and repository != FALLBACKS["flash_attention_2"]):
        return "1"
    torch = snapshot.version("torch")
    is_newer = isinstance(torch, Known) and torch.value.release >= (2, 10)
    return "4" if version >= Version("5.22") and is_newer else "3"
