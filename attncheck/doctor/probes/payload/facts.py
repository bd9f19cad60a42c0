"""The JSON shape of facts, on the examined side."""

from __future__ import annotations


def known(value: object) -> dict[str, object]:
    """Return a fact that was observed."""
    return {"known": value}


def absent(reason: str = "") -> dict[str, object]:
    """Return a fact that was looked for and is not there."""
    return {"absent": reason}


def unreadable(reason: str = "") -> dict[str, object]:
    """Return a fact that could not be looked at."""
    return {"unreadable": reason}


def failure(error: BaseException) -> str:
    """Return an exception as one short line."""
    text = " ".join(str(error).split())
    if len(text) > 300:
        text = text[:299] + "…"
    return type(error).__name__ + (": " + text if text else "")
