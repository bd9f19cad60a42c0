"""Shares of the possible maximum, as percentages."""

BEYOND_POSSIBLE = ">100 %"  # noise, or overlap between what was timed apart: no number is given


def is_beyond_possible(share: float) -> bool:
    """Return whether a share exceeds the maximum, at one decimal of a percentage."""
    return round(100 * share, 1) > 100


def format_share(share: float) -> str:
    """Return a share as a percentage: "-" if it is not known, no number if it is above all that is possible."""
    if not share:
        return "-"
    return BEYOND_POSSIBLE if is_beyond_possible(share) else f"{100 * share:.1f} %"
