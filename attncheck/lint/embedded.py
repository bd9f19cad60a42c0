"""Shell scripts that are inside other files: their text with its place there, and argument lists as such text."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from attncheck.core.launch import Source
from attncheck.lint.shell.commands import ScriptStart
from attncheck.lint.shell.text import ScriptText, Segment, Segments

SIMPLE_EXPANSION = re.compile(r"[^\s'\"\\`]*\$[A-Za-z_{(][^\s'\"\\`]*")  # of the words of a list: known at run time
BLANKS = re.compile(r"\s*")
BLANK = Segment(" ", -1)


@dataclass(frozen=True)
class EmbeddedScript:
    """A shell script inside a file; `origin` is the offset that represents what cannot be traced to the file."""

    segments: Segments
    origin: int
    environ: Mapping[str, str] = field(default_factory=dict)
    editable: bool = False  # the file holds it as it is: what is written there needs no quotes but the shell's own

    def make_source(self, file: Source) -> Source:
        """Return the file as the source of this script."""
        return Source(file.name, file.text, "shell", editable=self.editable, host=file.host)

    def make_start(self, source: Source) -> ScriptStart:
        """Return how the script is started."""
        return ScriptStart(ScriptText.from_segments(source, self.segments), self.origin, self.environ)


def quote_arguments(arguments: Iterable[Segments]) -> Segments:
    """Return an argument list as the text of a command: each argument is one word of it."""
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
    """Return `value` with the places of its characters in `raw`, which is at `raw_start` of the file.

    Only blanks may differ: the indentation of a block, the line ends of a folded text. None if more does.
    """
    segments: list[Segment] = []
    offset = 0
    for piece in re.findall(r"\s+|\S+", value):
        if not piece.isspace():
            offset += _count_blanks(raw, offset)
        if raw.startswith(piece, offset):
            _append_piece(segments, piece, raw_start + offset)
            offset += len(piece)
        elif piece.isspace():
            segments.append(Segment(piece, -1))
        else:
            return None
    return tuple(segments)


def _count_blanks(raw: str, offset: int) -> int:
    match = BLANKS.match(raw, offset)
    return len(match[0]) if match else 0


def _append_piece(segments: list[Segment], piece: str, start: int) -> None:
    last = segments[-1] if segments else None
    if last is not None and last.start >= 0 and last.start + len(last.text) == start:
        segments[-1] = Segment(last.text + piece, last.start)
    else:
        segments.append(Segment(piece, start))


def join_lines(lines: Sequence[Segments]) -> Segments:
    """Return scripts one after the other, each on lines of its own."""
    return tuple(segment for line in lines for segment in (*line, Segment("\n", -1)))
