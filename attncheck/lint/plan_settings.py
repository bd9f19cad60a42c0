"""A plan as the user pastes it: for plain transformers, and for the frameworks known so far. No torch here.

One file each. What a framework cannot express is said in a comment line, never invented. Names were read in released
wheels; each file says in which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attncheck.core.errors import BadUsage
from attncheck.core.plan import Plan
from attncheck.lint.fields.plan_writing import Since, since
from attncheck.lint.frameworks.axolotl import plan as axolotl
from attncheck.lint.frameworks.llamafactory import plan as llamafactory
from attncheck.lint.frameworks.ms_swift import plan as ms_swift
from attncheck.lint.frameworks.openrlhf import plan as openrlhf
from attncheck.lint.frameworks.transformers import plan as plain
from attncheck.lint.frameworks.trl import plan as trl
from attncheck.lint.frameworks.verl import plan as verl

WRITERS: Mapping[str, Callable[[Plan, Since], list[str]]] = {
    "transformers": plain.lines,
    "openrlhf": openrlhf.lines,
    "verl": verl.lines,
    "trl": trl.lines,
    "llamafactory": llamafactory.lines,
    "axolotl": axolotl.lines,
    "ms-swift": ms_swift.lines,
}


def settings(plan: Plan, framework: str, version: str = "") -> str:
    """Return the settings of `plan` in the words of a framework, ready to paste; "" is its newest known version.

    Raises `BadUsage` for a framework that is not known.
    """
    if framework not in WRITERS:
        raise BadUsage(f"settings are known for {', '.join(WRITERS)}; not for {framework}")
    return "\n".join(WRITERS[framework](plan, since(version)))
