"""The current date in UTC, the same on all machines."""

import datetime


def today() -> str:
    """Return the current date in UTC, by which allowances expire: "2026-11-21"."""
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()
