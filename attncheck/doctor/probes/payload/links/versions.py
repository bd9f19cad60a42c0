"""Compares versions as far as a guard in somebody's source needs it; `packaging` is not there to be asked."""

from __future__ import annotations

import operator
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, Optional, Tuple

_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)\s*(?:[-_.]?(dev|a|b|c|rc|alpha|beta|pre)[-_.]?(\d*))?")
_STAGES = {"dev": 0, "a": 1, "alpha": 1, "b": 2, "beta": 2, "pre": 3, "c": 3, "rc": 3}
OPERATORS: Dict[str, Callable[..., bool]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}


def parse_version(text: str) -> Optional[Tuple[Tuple[int, ...], int, int]]:
    """Return a version as something that compares: release, stage, number; None where it is none."""
    match = _VERSION.match(text.strip())
    if match is None:
        return None
    release = tuple(int(part) for part in match.group(1).split("."))
    while release and release[-1] == 0:
        release = release[:-1]
    stage = _STAGES[match.group(2)] if match.group(2) else 4
    return release, stage, int(match.group(3) or 0)


def compare_versions(left: str, symbol: str, right: str) -> Optional[bool]:
    """Return whether `left` `symbol` `right` holds; None where one of them is no version."""
    first, second = parse_version(left), parse_version(right)
    if first is None or second is None or symbol not in OPERATORS:
        return None
    return OPERATORS[symbol](first, second)
