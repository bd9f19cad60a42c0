"""What the user wrote: sources, their words and settings, the place of each, and edits; plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from attncheck.core.facts import Absent, Fact
from attncheck.core.program import Program

Kind = Literal["command", "shell", "yaml", "json", "toml", "python"]
COMMAND = "command line"  # the name of the source that is not a file


@dataclass(frozen=True)
class SourceLocation:
    """A place in a source: `source` is a path as it was written, "-" or `COMMAND`; line and column begin at 1."""

    source: str = ""
    line: int = 1
    column: int = 1
    end_line: int = field(default=0, compare=False)  # of the character past its end; 0 if that is not known
    end_column: int = field(default=0, compare=False)

    def __str__(self) -> str:
        """Return the location as compilers write it: "run.sh:12:5"."""
        return self.source if self.source == COMMAND else f"{self.source}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Source:
    """One text that starts or configures a job: a command, a launch script, a configuration file."""

    name: str
    text: str
    kind: Kind = "command"
    editable: bool = True  # False: a text inside another one, or in a file that was not given: nothing is written there
    host: str = ""  # the source that writes this one and holds its text, line by line

    def location(self, offset: int) -> SourceLocation:
        """Return the location of the character `offset` of the text."""
        before = self.text[: max(offset, 0)]
        return SourceLocation(self.name, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)


Span = tuple[int, int]  # offsets in a source's text, the second one past the end
NOWHERE: Span = (-1, -1)  # assembled from several places, so it cannot be edited in place


@dataclass(frozen=True)
class Word:
    """One word of a command, without quotes and with the script's own variables expanded.

    A value that is known only at run time is in `text` as written ("$(nproc)", "$HOME/data"), and `known` is False.
    `span` is the word's origin: its use, or the array or heredoc that several words came from.
    """

    text: str
    span: Span
    location: SourceLocation
    known: bool = True
    shell: str = ""  # as a shell must read it again, where quoting `text` is not enough: "$HOME", *, ~


@dataclass(frozen=True)
class Assignment:
    """A variable set before a command: `shell` is its value in shell syntax."""

    name: str
    shell: str
    certain: bool = True  # whether it is set at all; unknown if it is set under a condition


@dataclass(frozen=True)
class Setting:
    """One setting as it was written: an option of a command, an override, a key of a file (nested keys dotted).

    `value` is "" for a switch that takes none; of a file it is the scalar as written, a list or table as JSON.
    """

    name: str
    value: str
    location: SourceLocation
    span: Span  # of the whole setting, its name and its values
    value_span: Span = NOWHERE  # of the value alone
    known: bool = True


@dataclass(frozen=True)
class Edit:
    """A replacement of a span of one source by `text`; (n, n) inserts before the character n."""

    source: str
    span: Span
    text: str


@dataclass(frozen=True)
class Launch:
    """One start of a training job: the program's words, with the launchers before it parsed and removed, or a file.

    `words` begins with the program: a module ("openrlhf.cli.train_sft"), a script ("train.py") or a command
    ("llamafactory-cli", "trl"). `entries` are those of the configuration file that is the source, or that the command
    names (`file`). World size is `nodes` × `processes`; Absent if no launcher gives it.
    """

    source: Source
    words: tuple[Word, ...] = ()
    entries: tuple[Setting, ...] = ()
    file: Source | None = None  # what `entries` were read from; the source itself if that is a file
    launchers: tuple[str, ...] = ()  # outermost first: "srun", "torchrun"
    whole: tuple[Word, ...] = ()  # the command with its launchers
    environ: Mapping[str, str] = field(default_factory=dict)  # exported before it, or set in front of it
    nodes: Fact[int] = Absent("no launcher sets the number of nodes")
    processes: Fact[int] = Absent("no launcher sets the number of processes per node")
    notes: tuple[str, ...] = ()  # what could not be read, and why
    open_ends: tuple[str, ...] = ()  # what may set more than was read: '"$@" (run.sh:3:8)', a file that was not read
    program: Program | None = None  # the names that what it starts takes, where its source was found
    deepspeed: tuple[Setting, ...] = ()  # the keys of the DeepSpeed configuration that it names, where that was read
    launcher_entries: tuple[Setting, ...] = ()  # those of accelerate's own configuration file
    folder: str = ""  # into which the script changes before it, "" if it does not or only running tells
    is_nested: bool = False  # it is in a string that another shell reads: quotes would end that string
    is_remote: bool = False  # on another machine or in a container, whose shell is not the one that is pasted into
    exports: tuple[Assignment, ...] = ()  # of those, what comes before the command: `whole` holds the others
    directories: tuple[str, ...] = ()  # that the script enters before it, one from the other, as a shell reads them
    lost: tuple[Word, ...] = ()  # behind a broken continuation of the line: the shell takes them for another command
    trainers: tuple[str, ...] | None = None  # that its program uses: "trl.SFTTrainer"; None: its source does not say
    places_itself: bool = False  # its program's text names the devices that it uses
    variables: tuple[Setting, ...] = ()  # `environ` with where each is; what may not reach the job is not known

    @property
    def starts_written_script(self) -> bool:
        """Return whether its settings are written out in the script that it starts: options of the command set none."""
        return self.file is not None and self.file.kind == "python"

    @property
    def launcher_words(self) -> tuple[Word, ...]:
        """Return the words before the program's: its launchers with their options."""
        first = self.whole.index(self.words[0]) if self.words and self.words[0] in self.whole else 0
        return self.whole[:first]
