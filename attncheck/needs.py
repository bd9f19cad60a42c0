"""What the user's job needs, so that nothing is red that does not matter to it."""

from __future__ import annotations

from typing import Literal, get_args

from attncheck.snapshot import Snapshot

Profile = Literal["auto", "flash", "ring", "rl", "all"]
Need = Literal["flash", "ring", "rl", "liger", "job"]  # "job": a launch was given to be judged
PROFILES: tuple[Profile, ...] = get_args(Profile)

_NAMED: dict[str, frozenset[Need]] = {
    "flash": frozenset({"flash"}),
    "ring": frozenset({"flash", "ring"}),
    "rl": frozenset({"flash", "rl"}),
    "all": frozenset({"flash", "ring", "rl", "liger"}),
}
# A distribution whose presence shows that the user means to use the thing.
_SIGNS: dict[Need, tuple[str, ...]] = {
    "flash": ("flash-attn", "flash-attn-3", "flash-attn-4", "ring-flash-attn", "openrlhf", "verl"),
    "ring": ("ring-flash-attn", "yunchang"),
    "rl": ("openrlhf", "verl", "vllm", "sglang"),
    "liger": ("liger-kernel",),
}


def needs(profile: Profile, snapshot: Snapshot) -> frozenset[Need]:
    """Return what matters under `profile`; "auto" reads it off what is installed."""
    if profile != "auto":
        return _NAMED[profile]
    return frozenset(need for need, signs in _SIGNS.items() if snapshot.has(*signs))
