"""Reads TOML with the standard library's parser, or with its predecessor `tomli`."""

from __future__ import annotations

import sys
from typing import Any

from attncheck.core.io.errors import BadUsage

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """Return the table in a TOML document. Raises `BadUsage` naming the file."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadUsage(f"cannot read {name}: {reason}") from None
