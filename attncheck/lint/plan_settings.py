"""Formats a plan as settings to paste, in the option names of each framework. No torch here."""

from attncheck.core.io.errors import BadUsage
from attncheck.core.plan import Plan
from attncheck.lint import frameworks
from attncheck.lint.fields.plan_writing import make_version_check


def format_plan_settings(plan: Plan, framework: str, version: str = "") -> str:
    """Return the settings of `plan` in the option names of a framework's version ("": the newest known one).

    Raises `BadUsage` for an unknown framework.
    """
    framework_by_name = {known.name: known for known in frameworks.load()}
    if framework not in framework_by_name:
        raise BadUsage(f"settings are known for {', '.join(framework_by_name)}; not for {framework}")
    return "\n".join(framework_by_name[framework].plan(plan, make_version_check(version)))
