"""The commands that a policy's launches run, and digests of the files that decide them, without running any.

The files are the launches, the configurations and scripts that they name, the programs, and the Python files next to
those. Files that a program imports from other folders are not included.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from attncheck.core.launch import Source
from attncheck.core.snapshot import Snapshot
from attncheck.gate.inputs import Inputs, digest_file
from attncheck.gate.trust import digest_text
from attncheck.lint.pasting import format_command
from attncheck.lint.rewriting import ReadLaunch, read_launches
from attncheck.rehearsal import reading


@dataclass(frozen=True)
class LaunchCode:
    """The commands of a policy's launches, and the digests by path of the files that decide them."""

    commands: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


class CodeReader:
    """Reads each file that launches name once, so that the trusted text is the text that runs."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self.files: dict[str, Source | None] = {}

    def read_file(self, name: str) -> Source | None:
        """Return a file that a launch names; None if it cannot be read."""
        if name not in self.files:
            self.files[name] = self._inputs.read_file(name)
        return self.files[name]

    def make_request(self, sources: tuple[Source, ...], own_loops: bool) -> reading.Request:
        """Return the request to rehearse `sources`."""
        return reading.Request(sources, self._inputs.read_model, lambda source: self.read_file, own_loops=own_loops)

    def read_code(self, snapshot: Snapshot, sources: tuple[Source, ...], own_loops: bool) -> LaunchCode:
        """Return what the launches in `sources` run; no commands if a rehearsal recognises no launch in them."""
        request = self.make_request(sources, own_loops)
        commands: list[str] = []
        scripts: list[str] = []
        for source in sources:
            launches = read_launches(snapshot, source, request.read_model, self.read_file, own_loops)
            commands += [format_command(read.recognised.launch).text or source.name for read in launches]
            scripts += [*reading.list_scripts(snapshot, request, source), *_iter_modules(launches)]
        digests = digest_sources((*sources, *filter(None, self.files.values())))
        return LaunchCode(
            tuple(commands), {**digests, **{os.path.abspath(path): digest_file(path) for path in scripts}}
        )


def digest_sources(sources: Iterable[Source]) -> dict[str, str]:
    """Return the digests of the sources' texts by absolute path."""
    return {os.path.abspath(source.name): digest_text(source.text) for source in sources}


def _iter_modules(launches: Iterable[ReadLaunch]) -> Iterator[str]:
    """Yield the files of programs that are started as local modules (`python -m train`), and the files next to them."""
    for read in launches:
        program = read.recognised.launch.program
        folder = Path(os.path.abspath(program.path)).parent if program is not None else None
        if folder is not None and folder.is_relative_to(os.getcwd()):
            yield from map(str, sorted(folder.glob("*.py")))
