"""Finds settings without an effect: an adapter's that changes nothing, and a learning rate that no parameter has."""

import ast
import contextlib
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

# Settings that show in every step, and words of a help that limit a setting to some rows, values or other settings.
SHOWING = re.compile(
    r"loss|diverg|smooth|coefficient|weight|decay|noise|dropout|learning rate|scheduler|optimi[sz]er|beta|adam|mask|"
    r"module|layer|rank|alpha|scal|token_indices",
    re.IGNORECASE,
)
LIMITED = re.compile(
    r"\b(when|unless|must|requires?|ignored|during|clip\w*|threshold|max\w*|min\w*|bound|cap|top|exceeds?|valid for|"
    r"(only|if|used) (if|with|for|when|effective|appl(ies|ied)|relevant|you))\b|\bif `(?!None|True|False)|generat|"
    r"rewards?|memory|\bevery\b|\bafter\b",
    re.IGNORECASE,
)
SAME = "the model, rows, loss, gradients and weights are the same without it"


def list_effects(effects: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each setting that changes nothing although its kind must, or acts on other layers than named."""
    for own in effects:
        for setting in own["idle"]:
            if _must_show(setting):
                place = f"{setting['kind']}(" if setting["kind"] else "the trainer's "
                written = f"{place}{setting['name']}={setting['value']}{')' * bool(setting['kind'])}"
                company = f" together with {setting['company']}" if setting["company"] else ""
                yield f"{written} has no effect{company}: {SAME}"
        if own.get("astray"):
            trained = f"{len(own['astray'])} parameters of layers that it does not name, such as {own['astray'][0]}"
            yield f"{own['kind']}(layers_to_transform={own['layers']}) trains {trained}"


def list_unshown(effects: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line on settings that need not show in a few steps, and on those that were not tried."""
    for own in effects:
        unshown = [setting["name"] for setting in own["idle"] if not _must_show(setting)]
        if unshown:
            yield f"settings without an effect on the observed steps, which need not have one: {', '.join(unshown)}"
        if own["left"] or own["error"]:
            yield f"settings whose effect was not tried: {', '.join(own['left']) or own['error'][:200]}"


def _must_show(setting: Mapping[str, str]) -> bool:
    """Return whether a setting acts on every row: its help limits it to no case."""
    if not setting["kind"]:  # a function of the script
        return True
    return bool(SHOWING.search(f"{setting['name']} {setting['help']}")) and not LIMITED.search(setting["help"])


def list_stated(read: ReadLaunch) -> list[str]:
    """Return the names of the settings that a launch states, and of the arguments that its script gives."""
    names = [setting.name for setting in read.job.settings]
    names += [str(keyword.arg) for call in _iter_calls(read) for keyword in call.keywords if keyword.arg]
    return [*dict.fromkeys(names)]


def list_idle_rates(read: ReadLaunch, rates: Sequence[float]) -> Iterator[str]:
    """Yield a line for each rate that a call of the script gives with another one, and no parameter is trained at.

    One of the call's rates must be an optimiser's: otherwise the call is another stage's, or a schedule changes them.
    """
    for call in _iter_calls(read):
        given = dict(_iter_rates(call))
        used = [name for name, value in given.items() if any(math.isclose(value, rate) for rate in rates)]
        for name in itertools.filterfalse(used.__contains__, given if used else ()):
            held = ", ".join(f"{rate:g}" for rate in dict.fromkeys(rates))
            yield f"{name}={given[name]:g} has no effect: the optimiser's groups have the learning rates {held}"


def _iter_calls(read: ReadLaunch) -> Iterator[ast.Call]:
    """Yield the calls in a launch's script."""
    script = find_script(read.recognised.launch)
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        tree = ast.parse(script.read_bytes() if script is not None else "")
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _iter_rates(call: ast.Call) -> Iterator[tuple[str, float]]:
    for keyword in call.keywords:
        value = getattr(keyword.value, "value", None)
        if isinstance(value, float) and value > 0 and RATE.fullmatch(keyword.arg or ""):
            yield str(keyword.arg), value
