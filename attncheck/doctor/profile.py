"""Determines what the user's job needs, so that only relevant rules run."""

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
# Distributions that indicate this need if installed, in addition to the frameworks that have it.
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
    """Return the needs of one launch: only what it will use."""
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
