"""The JSON shape of facts, in the examined interpreter."""

from __future__ import annotations


def known(value: object) -> dict[str, object]:
    """Return a fact that was observed."""
    return {"known": value}


def absent(reason: str = "") -> dict[str, object]:
    """Return a fact whose subject was searched for and does not exist."""
    return {"absent": reason}


def unreadable(reason: str = "") -> dict[str, object]:
    """Return a fact that could not be observed."""
    return {"unreadable": reason}


def describe_error(error: BaseException) -> str:
    """Return an exception as one short line: its type and its message."""
    text = " ".join(str(error).split())
    if len(text) > 300:
        text = text[:299] + "…"
    return type(error).__name__ + (": " + text if text else "")
