"""Finds settings without an effect: an adapter's that changes nothing, and a learning rate that no parameter has."""

import ast
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attncheck.lint.rewriting import ReadLaunch
from attncheck.rehearsal.columns import find_script

# Names of learning rates, but not of factors, ends and schedules of them.
RATE = re.compile(
    r"(?!.*(?:ratio|min|end|decay|sched|warm|power|mult|scale|factor))(?:\w+_)?(?:lr|learning_rate)(?:_\w+)?"
)


def list_effects(effects: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each setting of an adapter that changes nothing, or acts on other layers than it names."""
    for own in effects:
        for name, value in own["idle"].items():
            yield f"{own['kind']}({name}={value}) has no effect: the same adapters are made without it"
        if own["astray"]:
            trained = f"{len(own['astray'])} parameters of layers that it does not name, such as {own['astray'][0]}"
            yield f"{own['kind']}(layers_to_transform={own['layers']}) trains {trained}"


def list_idle_rates(read: ReadLaunch, rates: Sequence[float]) -> Iterator[str]:
    """Yield a line for each rate that a call of the script gives with another one, and no parameter is trained at.

    One of the call's rates must be an optimiser's: otherwise the call is another stage's, or a schedule changes them.
    """
    script = find_script(read.recognised.launch)
    try:
        tree = ast.parse(script.read_bytes() if script is not None else "")
    except (OSError, SyntaxError, ValueError):
        return
    for call in ast.walk(tree):
        given = dict(_iter_rates(call)) if isinstance(call, ast.Call) else {}
        used = [name for name, value in given.items() if any(math.isclose(value, rate) for rate in rates)]
        for name in itertools.filterfalse(used.__contains__, given if used else ()):
            held = ", ".join(f"{rate:g}" for rate in dict.fromkeys(rates))
            yield f"{name}={given[name]:g} has no effect: the optimiser's groups have the learning rates {held}"


def _iter_rates(call: ast.Call) -> Iterator[tuple[str, float]]:
    for keyword in call.keywords:
        value = getattr(keyword.value, "value", None)
        if isinstance(value, float) and value > 0 and RATE.fullmatch(keyword.arg or ""):
            yield str(keyword.arg), value
