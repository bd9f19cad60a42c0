"""The files that a script writes from here-documents before it uses them: `cat > config.yaml <<EOF`."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from attncheck.core.launch import Source, Word
from attncheck.lint.shell.commands import WrittenFile
from attncheck.lint.sources import detect_kind

ReadFile = Callable[[str], "Source | None"]


@dataclass
class WrittenFiles:
    """What a script has written so far; any other file is read by `read_file`."""

    host: Source
    read_file: ReadFile
    sources: dict[str, Source] = field(default_factory=dict)

    def add(self, written: WrittenFile, folder: str) -> None:
        """Add a file that a command in `folder` writes; its lines have the numbers that they have in the script."""
        for path in {posixpath.normpath(written.path), posixpath.normpath(posixpath.join(folder, written.path))}:
            previous = self.sources.get(path) if written.appends else None
            text = previous.text + written.text if previous else "\n" * (written.line - 1) + written.text
            kind = detect_kind(written.path, written.text)
            self.sources[path] = Source(written.path, text, kind, editable=False, host=self.host.name)

    def read(self, path: str) -> Source | None:
        """Return a file that the script has written, else the one on disk."""
        return self.sources.get(posixpath.normpath(path)) or self.read_file(path)

    def mark_known(self, words: Iterable[Word]) -> tuple[Word, ...]:
        """Return the words; the path of a written file counts as known, whatever its variables hold."""
        return tuple(
            replace(word, known=True)
            if not word.known and posixpath.normpath(word.text.partition("=")[2] or word.text) in self.sources
            else word
            for word in words
        )
