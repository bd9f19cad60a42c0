"""What the user's job needs, so that nothing is red that does not matter to it."""

from __future__ import annotations

from typing import Literal, get_args

from attncheck.core.job import Job
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.knowledge.frameworks import FRAMEWORKS
from attncheck.doctor.needs import Need

Profile = Literal["auto", "flash", "ring", "rl", "all"]
PROFILES: tuple[Profile, ...] = get_args(Profile)

_NAMED: dict[str, frozenset[Need]] = {
    "flash": frozenset({"flash"}),
    "ring": frozenset({"flash", "ring", "ulysses", "context_parallel"}),
    "rl": frozenset({"flash", "rl"}),
    "all": frozenset({"flash", "ring", "ulysses", "context_parallel", "rl", "liger"}),
}
# Distributions whose presence shows that the user means to use the thing, beside the frameworks that need it.
_SIGNS: dict[Need, tuple[str, ...]] = {
    "flash": ("flash-attn", "flash-attn-3", "flash-attn-4", "ring-flash-attn"),
    "ring": ("ring-flash-attn", "yunchang"),
    "ulysses": ("ring-flash-attn", "yunchang"),
    "context_parallel": ("ring-flash-attn", "yunchang"),
    "liger": ("liger-kernel",),
}


def needs(profile: Profile, snapshot: Snapshot) -> frozenset[Need]:
    """Return what matters under `profile`; "auto" reads it off what is installed."""
    if profile != "auto":
        return _NAMED[profile]
    found = {need for need, signs in _SIGNS.items() if snapshot.has(*signs)}
    return frozenset(found.union(*(each.needs for each in FRAMEWORKS if snapshot.has(each.distribution))))


_SCHEMES: dict[str, Need] = {"llama3": "ring", "ulysses": "ulysses", "torch": "context_parallel"}


def needs_of(job: Job) -> frozenset[Need]:
    """Return what matters to one launch: no more than what it will use."""
    found: set[Need] = {"job"}
    if "flash" in job.plan.attn_implementation or "flash_attn" in job.imports:
        found.add("flash")
    if job.plan.ring_size > 1 and job.scheme in _SCHEMES:
        found.add(_SCHEMES[job.scheme])
    if "ring_flash_attn" in job.imports:
        found.add("ring")
    if job.plan.liger:
        found.add("liger")
    if job.reinforcement:
        found.add("rl")
    return frozenset(found)
