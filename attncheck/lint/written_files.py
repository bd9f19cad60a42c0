"""The files that a script writes before it uses them: `cat > config.yaml <<EOF`, `envsubst < a.yaml > b.yaml`."""

import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from attncheck.core.launch import ReadFile, Source, Word
from attncheck.lint.shell.commands import Command, WrittenFile
from attncheck.lint.sources import detect_kind

EDITORS = {"sed", "perl", "yq"}
KEY_VALUE = re.compile(r"^([A-Za-z_]\w*):.*$", re.MULTILINE)


@dataclass
class WrittenFiles:
    """The files that a script has written so far; `read_file` reads all others."""

    host: Source
    read_file: ReadFile
    sources: dict[str, Source | None] = field(default_factory=dict)  # None: the content is known only at run time

    def follow_command(self, command: Command, folder: str) -> None:
        """Add the file that a command in `folder` writes, and forget a file that it edits with `sed -i`."""
        if command.written is not None:
            self._add(command.written, folder)
        elif command.words[0].text in EDITORS and any(word.text.startswith("-i") for word in command.words):
            for word in command.words[1:]:
                for path in _spell_path(word.text, folder) & self.sources.keys():
                    self.sources[path] = None

    def _add(self, written: WrittenFile, folder: str) -> None:
        """Add a written file; its lines keep their numbers in the script."""
        for path in _spell_path(written.path, folder):
            previous = self.sources.get(path)
            if path not in self.sources and (written.appends or (written.text is None and not written.is_certain)):
                continue  # appends to an existing file, or writes one only if there is none
            is_one_of_two = path in self.sources and not written.is_certain and not written.appends
            if written.text is None or is_one_of_two:
                self.sources[path] = None
            elif written.appends:
                text = written.text if written.is_certain else KEY_VALUE.sub(r"\1: ${\1}", written.text)
                self.sources[path] = replace(previous, text=previous.text + text) if previous else None
            else:
                text = "\n" * (written.line - 1) + written.text
                kind = detect_kind(written.path, written.text)
                self.sources[path] = Source(written.path, text, kind, editable=False, host=self.host.name)

    def read(self, path: str) -> Source | None:
        """Return a file that the script has written, or else the one on disk; None if its content is unknown."""
        path_text = posixpath.normpath(path)
        return self.sources[path_text] if path_text in self.sources else self.read_file(path)

    def read_in(self, folder: str, path: str) -> Source | None:
        """Return the file that a command in `folder` names, or else the one that has this path elsewhere."""
        is_written = posixpath.normpath(path) in self.sources
        return (None if is_written else self.read(posixpath.join(folder, path))) or self.read(path)

    def find_program(self, words: Sequence[Word]) -> Source | None:
        """Return the Python program that a command starts, if the script has written it."""
        program = self.sources.get(posixpath.normpath(words[0].text)) if words else None
        return program if program is not None and program.kind == "python" else None

    def mark_known(self, words: Iterable[Word]) -> tuple[Word, ...]:
        """Return the words, with the path of a written file marked as known regardless of its variables."""
        return tuple(
            replace(word, known=True)
            if not word.known and posixpath.normpath(word.text.partition("=")[2] or word.text) in self.sources
            else word
            for word in words
        )


def _spell_path(path: str, folder: str) -> set[str]:
    """Return the paths by which a command may name a file, from inside and outside `folder`."""
    return {posixpath.normpath(path), posixpath.normpath(posixpath.join(folder, path))}
