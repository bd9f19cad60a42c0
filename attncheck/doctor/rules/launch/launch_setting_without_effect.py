"""A setting of the launch does nothing in this version of the framework.

What it checks: settings that the framework's release accepts and never reads, or reads where they no longer matter:
determinism switches of functions that have gone, liger on a model that it has no kernels for.

Why it matters: the launch looks reproducible, or fast, and is not.

What to do: take the setting out, or use the one that works.

Source: named in each finding, file and line of the framework's release.
"""

from attncheck.doctor.fixes.launch import setting_problems
from attncheck.doctor.rules import Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    """Yield a problem for each setting that does nothing."""
    yield from setting_problems(snapshot, "ignores")


RULE = Rule("ATN443", "warning", check, needs=frozenset({"job"}))
