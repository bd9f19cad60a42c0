"""Joins the payload's modules into the one message that is sent to the examined interpreter."""

from functools import cache
from pathlib import Path

PACKAGE = "attncheck_payload"


@cache
def payload_sources() -> dict[str, str]:
    """Return the source text of every payload module by its module name in the examined interpreter."""
    folder = Path(__file__).with_name("payload")
    sources = {}
    for path in sorted(folder.rglob("*.py")):
        parts = (PACKAGE, *path.relative_to(folder).with_suffix("").parts)
        if path.stem == "__init__":  # sent empty, because its docstring is for readers of the source
            sources[".".join(parts[:-1])] = ""
        else:
            sources[".".join(parts)] = path.read_text(encoding="utf-8")
    return sources


def build_message(call: str, request: dict[str, object]) -> dict[str, object]:
    """Return the message that `attncheck.workers.child.BOOTSTRAP` reads on its standard input."""
    return {"package": PACKAGE, "sources": payload_sources(), "call": call, "request": request}
