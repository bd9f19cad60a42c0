"""Whether a text report is coloured: by the terminal, unless a variable that users set for all programs decides.

NO_COLOR, if it is not empty, takes colours away (https://no-color.org); FORCE_COLOR, if it is not empty, gives
them to a pipe too (https://force-color.org), and so does CLICOLOR_FORCE unless it is "0"
(https://bixense.com/clicolors). Where both are set NO_COLOR wins, as in CPython 3.13
(https://docs.python.org/3/using/cmdline.html#controlling-color).
"""

import os
from collections.abc import Mapping


def wants_colours(is_terminal: bool, environ: Mapping[str, str] | None = None) -> bool:
    """Return whether colours are wanted on a stream that is, or is not, a terminal."""
    environ = os.environ if environ is None else environ
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR") or environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    return is_terminal and environ.get("TERM") != "dumb"
