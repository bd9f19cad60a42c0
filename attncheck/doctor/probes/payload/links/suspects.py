"""The modules that the linker considers broken: which of them are actually imported, and the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .packages import IMPORTED

MAX_SUSPECTS = 12


def find_suspects(static: Mapping[str, Any]) -> list[str]:
    """Return the modules to import: for each break, the most public module that imports without side effects."""
    links = static.get("links", {}).get("known", ())
    return list(filter(None, dict.fromkeys(map(_choose_suspect, links))))[:MAX_SUSPECTS]


def _choose_suspect(link: Mapping[str, Any]) -> str:
    """Return the module whose import decides about a break; "" if there is none that may be imported."""
    return next((name for name in link["breaks"] if name.partition(".")[0] in IMPORTED), "")


def confirm_links(document: dict[str, Any], answer: object) -> None:
    """Write the result of importing its module into each break."""
    outcomes = answer.get("outcomes", ()) if isinstance(answer, dict) else ()
    outcome_by_module = {outcome["module"]: outcome for outcome in outcomes}
    for link in document.get("links", {}).get("known", ()):
        outcome = outcome_by_module.get(_choose_suspect(link))
        if outcome is not None:
            link["outcome"] = outcome["outcome"]
            link["error"] = f"{outcome['exception']}: {outcome['message']}" if outcome["exception"] else ""
