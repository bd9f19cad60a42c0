"""Today's date, the same on all machines: in UTC."""

import datetime


def today() -> str:
    """Return the date by which an ignore expires, in UTC: "2026-11-21"."""
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()
