"""Shows the line of a launch that a finding is about, with a caret under its column, as compilers do.

Only a file below the working directory from which the report's launches were read is opened, because a saved report
could name any file. The line is cleaned like the rest of the report.
"""

from pathlib import Path

from attncheck.core.io.files import CannotRead, read_bounded
from attncheck.core.io.outgoing import clean_text
from attncheck.core.io.visible import show_line_ends
from attncheck.core.launch import SourceLocation
from attncheck.core.report import Report
from attncheck.core.results.lint import LintSection
from attncheck.report.locations import path_in_checkout

MAX_BYTES = 1 << 20
MAX_LINE = 100  # maximum characters of an excerpt


def excerpt(report: Report, location: SourceLocation) -> tuple[str, str] | None:
    """Return a location's line, cut around its column, and the carets below it; None if no launch was read from it."""
    section = report.section(LintSection)
    is_read = section is not None and location in section.locations
    if not is_read or not path_in_checkout(location.source) or Path(location.source).is_absolute():
        return None
    try:
        lines = read_bounded(location.source, MAX_BYTES).decode("utf-8").split("\n")
    except (CannotRead, UnicodeDecodeError):
        return None
    line = lines[location.line - 1] if location.line <= len(lines) else ""
    start = location.column - 1
    if not line[start:].strip() or clean_text(line) != line or show_line_ends(line) != line.rstrip("\r"):
        return None
    rest = line[start:].rstrip().removesuffix("\\").rstrip()
    on_line = location.end_line == location.line and location.end_column > location.column
    length = location.end_column - location.column if on_line else len(rest.split("  ")[0].split(" --")[0])
    first = max(0, start - MAX_LINE // 2)
    shown = line[first : first + MAX_LINE].rstrip()
    indent = len(shown) - len(shown.lstrip())
    return shown[indent:], " " * (start - first - indent) + "^" * max(1, min(length, MAX_LINE - start + first))
