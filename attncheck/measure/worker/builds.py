"""How this process's packages were built, so that backends can refuse features that their build lacks."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from attncheck.attention.backend import Device
from attncheck.attention.backends.flash_attention_3 import HUB, VLLM_HUB
from attncheck.attention.calls import hub_kernels
from attncheck.core import codec
from attncheck.core.environment import ExtensionBuild
from attncheck.doctor.probes.payload.binaries.builds import collect_builds

HUB_REPOSITORIES = (HUB, VLLM_HUB)


def with_builds(device: Device) -> Device:
    """Return `device` with the builds of the packages that this process would import, and of cached Hub kernels."""
    records: list[dict[str, Any]] = [*collect_builds([entry for entry in sys.path if entry])]
    builds = [codec.read(ExtensionBuild, record) for record in records]
    return replace(device, builds=(*builds, *_iter_hub_builds()))


def _iter_hub_builds() -> Iterator[ExtensionBuild]:
    """Yield the build of each Hub repository whose variants, one per torch and CUDA, agree on it."""
    for repository in HUB_REPOSITORIES:
        _, folder = hub_kernels.newest_snapshot(repository)
        variants: list[Path] = []
        with suppress(OSError):
            variants = sorted((folder / "build").iterdir()) if folder is not None else []
        flags: list[Any] = []
        for variant in variants:
            packages = (variant, variant / repository.partition("/")[2].replace("-", "_"))
            flags += [record["flags"] for record in collect_builds(list(map(str, packages)))]
        if flags and all(other == flags[0] for other in flags):
            yield ExtensionBuild(repository, flags=flags[0])
