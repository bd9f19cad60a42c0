"""Shell scripts and argument lists embedded in other files, with each character's place in the file."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from attncheck.core.launch import Source
from attncheck.lint.shell.text import Segment, Segments

SIMPLE_EXPANSION = re.compile(r"[^\s'\"\\`]*\$[A-Za-z_{(][^\s'\"\\`]*")  # words of a list: known only at run time
BLANKS = re.compile(r"\s*")
BLANK = Segment(" ", -1)


@dataclass(frozen=True)
class EmbeddedScript:
    """A shell script inside a file; `origin` is the offset used for text that cannot be traced to the file."""

    segments: Segments
    origin: int
    environ: Mapping[str, str] = field(default_factory=dict)
    editable: bool = False  # the file contains the script verbatim: text written there needs only the shell's quotes

    def make_source(self, file: Source) -> Source:
        """Return the file as the source of this script."""
        return Source(file.name, file.text, "shell", editable=self.editable, host=file.host)


def quote_arguments(arguments: Iterable[Segments]) -> Segments:
    """Return an argument list as the text of a command, with one word per argument."""
    quoted: list[Segment] = []
    for segments in arguments:
        quoted += [*([BLANK] if quoted else []), *_quote_argument(segments)]
    return tuple(quoted)


def _quote_argument(segments: Segments) -> Segments:
    text = "".join(segment.text for segment in segments)
    if SIMPLE_EXPANSION.fullmatch(text) or re.fullmatch(r"[\w./:=,@%+-]+", text):
        return segments
    parts: list[Segment] = [Segment("'", -1)]
    for segment in segments:
        offset = 0
        for quote in re.finditer("'", segment.text):
            parts += [segment.substring(offset, quote.start()), Segment("'\\''", -1)]
            offset = quote.end()
        parts.append(segment.substring(offset, len(segment.text)))
    return (*(part for part in parts if part.text), Segment("'", -1))


def align_text(value: str, raw: str, raw_start: int) -> Segments | None:
    """Return `value` with the positions of its characters in `raw`, which is at `raw_start` in the file.

    Only whitespace may differ: the indentation of a block, the line ends of a folded text. None if anything else
    differs.
    """
    segments: list[Segment] = []
    offset = 0
    for piece in re.findall(r"\s+|\S+", value):
        if not piece.isspace() and (blanks := BLANKS.match(raw, offset)):
            offset = blanks.end()
        if raw.startswith(piece, offset):
            _append_piece(segments, piece, raw_start + offset)
            offset += len(piece)
        elif piece.isspace():
            segments.append(Segment(piece, -1))
        else:
            return None
    return tuple(segments)


def _append_piece(segments: list[Segment], piece: str, start: int) -> None:
    last = segments[-1] if segments else None
    if last is not None and last.start >= 0 and last.start + len(last.text) == start:
        segments[-1] = Segment(last.text + piece, last.start)
    else:
        segments.append(Segment(piece, start))


def join_lines(lines: Sequence[Segments]) -> Segments:
    """Return scripts one after the other, each on its own lines."""
    return tuple(segment for line in lines for segment in (*line, Segment("\n", -1)))
