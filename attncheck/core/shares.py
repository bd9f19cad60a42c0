"""Shares of a possible maximum, as percentages."""

BEYOND_POSSIBLE = ">100 %"  # noise, or overlap between parts that were timed separately: the number would mean nothing


def is_beyond_possible(share: float) -> bool:
    """Return whether a share exceeds the maximum, at one decimal of a percentage."""
    return round(100 * share, 1) > 100


def format_share(share: float) -> str:
    """Return a share as a percentage: "-" if it is not known, `BEYOND_POSSIBLE` if it exceeds the maximum."""
    if not share:
        return "-"
    return BEYOND_POSSIBLE if is_beyond_possible(share) else f"{100 * share:.1f} %"
