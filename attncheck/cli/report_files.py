"""Reads reports that attncheck wrote with `--format json` or `--output json=FILE`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.core.codec import BadDocument
from attncheck.core.errors import BadUsage
from attncheck.core.files import read_bounded

if TYPE_CHECKING:
    from attncheck.core.report import Report

MAX_BYTES = 256 << 20  # parity's full suite over all backends takes some tens of MB


def read_report(path: str) -> Report:
    """Return the report in a file. Raises `BadUsage` where it is none."""
    from attncheck.report import document

    data = read_bounded(path, MAX_BYTES, pipes=True)
    try:
        return document.loads(data.decode("utf-8"))
    except (BadDocument, UnicodeDecodeError) as error:
        raise BadUsage(f"{path} is not a report that attncheck wrote (--output json=FILE): {error}") from None
