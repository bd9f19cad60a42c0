"""Decides whether a text report is coloured: by the terminal, unless a common variable decides.

A non-empty NO_COLOR removes colours (https://no-color.org). A non-empty FORCE_COLOR keeps them on a pipe
(https://force-color.org), and so does CLICOLOR_FORCE unless it is "0" (https://bixense.com/clicolors). If both are set,
NO_COLOR takes precedence, as in CPython 3.13 (https://docs.python.org/3/using/cmdline.html#controlling-color).
"""

import os
from collections.abc import Mapping


def wants_colours(is_terminal: bool, environ: Mapping[str, str] | None = None) -> bool:
    """Return whether to use colours on a stream that is, or is not, a terminal."""
    environ = os.environ if environ is None else environ
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR") or environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    return is_terminal and environ.get("TERM") != "dumb"
