"""What the user's job needs, so that only rules that matter to it are run."""

from __future__ import annotations

from typing import Literal, get_args

from attncheck.core.job import Job
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.knowledge.frameworks import FRAMEWORKS
from attncheck.doctor.needs import Need

Profile = Literal["auto", "flash", "ring", "rl", "all"]
PROFILES: tuple[Profile, ...] = get_args(Profile)

_NEEDS_BY_PROFILE: dict[str, frozenset[Need]] = {
    "flash": frozenset({"flash"}),
    "ring": frozenset({"flash", "ring", "ulysses", "context_parallel"}),
    "rl": frozenset({"flash", "rl"}),
    "all": frozenset({"flash", "ring", "ulysses", "context_parallel", "rl", "liger"}),
}
# Distributions whose presence shows this need, beside the frameworks that have it.
_PACKAGES_BY_NEED: dict[Need, tuple[str, ...]] = {
    "flash": ("flash-attn", "flash-attn-3", "flash-attn-4", "ring-flash-attn"),
    "ring": ("ring-flash-attn", "yunchang"),
    "ulysses": ("ring-flash-attn", "yunchang"),
    "context_parallel": ("ring-flash-attn", "yunchang"),
    "liger": ("liger-kernel",),
}


def needs_of_profile(profile: Profile, snapshot: Snapshot) -> frozenset[Need]:
    """Return the needs of `profile`; "auto" infers them from the installed packages."""
    if profile != "auto":
        return _NEEDS_BY_PROFILE[profile]
    needed = {need for need, packages in _PACKAGES_BY_NEED.items() if snapshot.lists(*packages)}
    return frozenset(
        needed.union(*(framework.needs for framework in FRAMEWORKS if snapshot.lists(framework.distribution)))
    )


_NEED_BY_SCHEME: dict[str, Need] = {"llama3": "ring", "ulysses": "ulysses", "torch": "context_parallel"}


def needs_of_job(job: Job) -> frozenset[Need]:
    """Return the needs of one launch: no more than what it will use."""
    needed: set[Need] = {"job"}
    if "flash" in job.plan.attn_implementation or "flash_attn" in job.imports:
        needed.add("flash")
    if job.plan.ring_size > 1 and job.scheme in _NEED_BY_SCHEME:
        needed.add(_NEED_BY_SCHEME[job.scheme])
    if "ring_flash_attn" in job.imports:
        needed.add("ring")
    if job.plan.liger:
        needed.add("liger")
    if job.reinforcement:
        needed.add("rl")
    return frozenset(needed)


# What a job of these imports of the others: wheels of llamafactory 0.9.3, ms_swift 3.12.0 and axolotl 0.19.0.
_TRAINERS: dict[str, tuple[str, ...]] = {
    "trl": (),
    "verl": (),
    "openrlhf": (),
    "llamafactory": ("trl",),
    "ms-swift": ("trl",),
    "axolotl": ("trl",),
}
_NEEDS_BY_PACKAGE: dict[str, frozenset[Need]] = {
    "ring-flash-attn": frozenset({"ring"}),
    "yunchang": frozenset({"ring", "ulysses"}),
    "liger-kernel": frozenset({"liger"}),
}


def uses_package(job: Job, distribution: str) -> bool:
    """Return whether a launch may import an installed package: what is broken in one that it leaves alone harms no one.

    A launch of a framework uses no other framework, and no package for what it does not do. Of a script of one's own
    that is not known.
    """
    if job.framework not in _TRAINERS:
        return True
    if distribution in _TRAINERS:
        return distribution in (job.framework, *_TRAINERS[job.framework])
    if distribution in ("flash-attn-3", "flash-attn-4"):
        return job.plan.attn_implementation.endswith(f"_{distribution[-1]}")
    needs = _NEEDS_BY_PACKAGE.get(distribution)
    return needs is None or bool(needs & needs_of_job(job))
