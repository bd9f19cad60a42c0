"""A plan as the user pastes it, in the words of each framework. No torch here."""

from __future__ import annotations

from attncheck.core.errors import BadUsage
from attncheck.core.plan import Plan
from attncheck.lint import frameworks
from attncheck.lint.fields.plan_writing import make_version_check


def settings(plan: Plan, framework: str, version: str = "") -> str:
    """Return the settings of `plan` in the words of a framework, ready to paste; "" is its newest known version.

    Raises `BadUsage` for a framework that is not known.
    """
    known = {each.name: each for each in frameworks.load()}
    if framework not in known:
        raise BadUsage(f"settings are known for {', '.join(known)}; not for {framework}")
    return "\n".join(known[framework].plan(plan, make_version_check(version)))
