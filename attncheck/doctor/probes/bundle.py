"""Joins the payload's modules into the one message that is sent to the examined interpreter."""

from __future__ import annotations

from functools import cache
from pathlib import Path

PACKAGE = "attncheck_payload"


@cache
def sources() -> dict[str, str]:
    """Return the source text of every payload module by the name it goes by over there."""
    folder = Path(__file__).with_name("payload")
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = (PACKAGE, *path.relative_to(folder).with_suffix("").parts)
        if path.stem == "__init__":  # its docstring is for readers here
            found[".".join(parts[:-1])] = ""
        else:
            found[".".join(parts)] = path.read_text(encoding="utf-8")
    return found


def message(call: str, request: dict[str, object]) -> dict[str, object]:
    """Return what `attncheck.workers.child.BOOTSTRAP` reads on its standard input."""
    return {"package": PACKAGE, "sources": sources(), "call": call, "request": request}
