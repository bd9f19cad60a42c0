"""Levels of a gate: how much is checked, within a number of seconds that is known beforehand.

A level is a ready policy if none names checks. Otherwise it restricts the policy's checks, suite and budget. Its
promise is a budget: checks that do not fit are skipped, and the gate reports that and ends with 3.

Source: NVIDIA DCGM user guide, "DCGM Diagnostics"
(https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/dcgm-diagnostics.html): the levels of `dcgmi diag -r`, from a
quick test of readiness to a long one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from attncheck.core.io.errors import BadUsage
from attncheck.core.results.gate import CHECKS, Check
from attncheck.doctor.probes.collect import LANES, Lane
from attncheck.gate.policy import Policy
from attncheck.measure.suites import SUITES, Suite


@dataclass(frozen=True)
class Level:
    """The checks of one level. If it does not `restrict`, a suite and a budget in the policy are kept."""

    seconds: float  # the promised duration
    checks: tuple[Check, ...]
    lanes: tuple[Lane, ...] = LANES  # lanes of doctor
    suite: Suite = "quick"  # suite of parity
    gpu_repeats: int = 32  # repeats of determinism
    cpu_repeats: int = 6  # a CPU needs seconds for a call, and seldom reorders a sum
    restricts: bool = True


LEVELS: Mapping[int, Level] = {
    1: Level(30.0, ("doctor", "lint"), lanes=("static",)),
    2: Level(180.0, ("doctor", "lint", "parity", "determinism"), gpu_repeats=8, cpu_repeats=3),
    3: Level(1800.0, CHECKS, suite="standard", restricts=False),
}
UNRESTRICTED = Level(0.0, ("doctor", "lint", "parity"), restricts=False)  # for a policy without a level


def get_level(policy: Policy) -> Level:
    """Return the level of a policy."""
    return LEVELS[policy.level] if policy.level else UNRESTRICTED


def apply_level(policy: Policy) -> Policy:
    """Return a policy limited to the checks, suite and budget of its level. Raises `BadUsage` if no check remains."""
    level = get_level(policy)
    checks = tuple(check for check in policy.checks if check in level.checks) if policy.level else policy.checks
    if policy.checks and not checks:
        raise BadUsage(
            f"level {policy.level} runs {', '.join(level.checks)}, and the policy requests {', '.join(policy.checks)}: "
            "no check is left to run; use a higher level"
        )
    suite, budget = policy.suite or level.suite, policy.budget or level.seconds
    if level.restricts:
        suite, budget = min(suite, level.suite, key=SUITES.index), min(budget, level.seconds)
    return replace(policy, checks=checks, suite=suite, budget=budget)
