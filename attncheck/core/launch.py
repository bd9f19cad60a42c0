"""What the user wrote: sources, their words and settings, the location of each, and edits; plain data."""

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from attncheck.core.facts import Absent, Fact
from attncheck.core.program import Program

Kind = Literal["command", "shell", "yaml", "json", "toml", "python"]
COMMAND = "command line"  # the name of a source that is not a file


@dataclass(frozen=True)
class SourceLocation:
    """A place in a source: `source` is a path as it was written, "-" or `COMMAND`; line and column begin at 1."""

    source: str = ""
    line: int = 1
    column: int = 1
    end_line: int = field(default=0, compare=False)  # position after its last character; 0 if it is not known
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
    # False for a text inside another one, or in a file that was not given: attncheck does not edit it
    editable: bool = True
    host: str = ""  # the source that contains this one's text, line by line
    is_nearby: bool = False  # whether no file has its name, and that of another folder was read instead
    has_carriage_returns: bool = False  # whether its lines end with "\r\n", which the text has as "\n"

    def location(self, offset: int) -> SourceLocation:
        """Return the location of the character `offset` of the text."""
        offset = min(max(offset, 0), len(self.text))
        line = bisect_right(self._line_starts, offset)
        return SourceLocation(self.name, line, offset - self._line_starts[line - 1] + 1)

    @cached_property
    def lines(self) -> list[str]:
        """Return the lines of the text without their ends."""
        return self.text.split("\n")

    @cached_property
    def _line_starts(self) -> list[int]:
        """Return the offset of each line's first character."""
        return [0, *(match.end() for match in re.finditer("\n", self.text))]


ReadFile = Callable[[str], "Source | None"]  # reads the file at a path; None if it cannot be read
Span = tuple[int, int]  # offsets in a source's text; the second is exclusive
NOWHERE: Span = (-1, -1)  # assembled from several places, so it cannot be edited in place


@dataclass(frozen=True)
class Word:
    """One word of a command, without quotes and with the script's own variables expanded.

    A value that is known only at run time is in `text` as written ("$(nproc)", "$HOME/data"), and `known` is False.
    `span` is the word's origin: the place where it is used, or the array or heredoc that several words came from.
    """

    text: str
    span: Span
    location: SourceLocation = field(hash=False)
    known: bool = True
    shell: str = ""  # shell spelling, if quoting `text` is not enough: "$HOME", *, ~
    choices: tuple[tuple[str, ...], ...] = ()  # the words that a variable is in each branch which sets it


class Assignment(NamedTuple):
    """A variable set before a command; `shell` is its value in shell syntax."""

    name: str
    shell: str
    certain: bool = True  # whether it is certainly set: False under a condition


@dataclass(frozen=True)
class Setting:
    """One setting as it was written: an option of a command, an override, a key of a file (nested keys dotted).

    `value` is "" for a switch without a value. In a file it is the scalar as written, or a list or table as JSON.
    """

    name: str
    value: str
    location: SourceLocation = field(hash=False)
    span: Span  # covers the whole setting, with its name and values
    value_span: Span = NOWHERE  # covers only the value
    known: bool = True


@dataclass(frozen=True)
class FixedSetting(Setting):
    """A setting that a program's source passes to its trainer, configuration or model as a literal."""

    is_read: bool = False  # whether the program also reads a setting of this name


class MadeTrainer(NamedTuple):
    """The trainer that a program certainly makes: its own `compute_loss`, and its model's place."""

    loss: str = ""  # "Mine.compute_loss"; "": the library's
    location: SourceLocation = SourceLocation()  # of that method
    takes_count: bool = True  # whether the method takes num_items_in_batch
    is_mean: bool = False  # whether it returns a mean that nothing divides by the accumulation steps
    spread: SourceLocation | None = None  # where its model is loaded with device_map="auto"
    forwards: tuple[SourceLocation, ...] = ()  # of the program's own models that it loads, if they take no **kwargs
    is_plain: bool = False  # whether every model that it loads has one of these
    head: str = ""  # of every model that it loads: "ForTokenClassification"
    pads_with_end: SourceLocation | None = None  # where pad_token becomes eos_token, if it has no own collator
    has_equal_rows: bool = False  # whether all its rows have the same number of labels: blocks of one length
    unfused: SourceLocation | None = None  # where the program switches off SDPA's flash and memory-efficient kernels


@dataclass(frozen=True)
class Edit:
    """A replacement of a span of one source by `text`; (n, n) inserts before the character n."""

    source: str
    span: Span
    text: str


@dataclass(frozen=True)
class Launch:
    """One start of a training job: the program's words after its launchers were parsed and removed, or a file.

    `words` begins with the program: a module ("openrlhf.cli.train_sft"), a script ("train.py") or a command
    ("llamafactory-cli", "trl"). `entries` come from the configuration file that is the source, or that the command
    names (`file`). World size is `nodes` × `processes`; Absent if no launcher gives it.
    """

    source: Source
    words: tuple[Word, ...] = ()
    entries: tuple[Setting, ...] = ()
    file: Source | None = None  # the file that `entries` were read from; the source itself if that is a file
    launchers: tuple[str, ...] = ()  # outermost first: "srun", "torchrun"
    whole: tuple[Word, ...] = ()  # the command with its launchers
    # variables exported earlier, or set in front of the command
    environ: Mapping[str, str] = field(default_factory=dict)
    nodes: Fact[int] = Absent("no launcher sets the number of nodes")
    processes: Fact[int] = Absent("no launcher sets the number of processes per node")
    notes: tuple[str, ...] = ()  # parts that could not be read, with the reason
    # places that may set more than was read: '"$@" (run.sh:3:8)', a file that was not read
    open_ends: tuple[str, ...] = ()
    program: Program | None = None  # the names that the started program accepts, if its source was found
    deepspeed: tuple[Setting, ...] = ()  # keys of the DeepSpeed configuration file that it names, if that was read
    launcher_entries: tuple[Setting, ...] = ()  # entries of accelerate's configuration file
    folder: str = ""  # the folder that the script changes to first; "" if none, or if known only at run time
    is_nested: bool = False  # whether it is inside a string that another shell reads: quotes would end that string
    # whether it runs on another machine or in a container, not in the shell that it is pasted into
    is_remote: bool = False
    exports: tuple[Assignment, ...] = ()  # those of `environ` that are set earlier; `whole` holds the others
    directories: tuple[str, ...] = ()  # folders that the script enters before it, one after the other, in shell syntax
    refused: str = ""  # the syntax error of its script because of which bash does not start it
    last_line: int = 0  # where it, or the outermost compound command around it, ends in its script
    lost: tuple[Word, ...] = ()  # words after a broken line continuation: the shell treats them as another command
    # trainers that its program uses: "trl.SFTTrainer"; None: its source does not say
    trainers: tuple[str, ...] | None = None
    places_itself: bool = False  # whether its program chooses its devices in its source
    file_options: frozenset[str] = frozenset()  # options that name the file from which its program parses its arguments
    fixed: tuple[FixedSetting, ...] = ()  # settings that its program's source fixes; they override all others
    # keywords that its program certainly passes to the constructor of a library's class: "trl.SFTTrainer.tokenizer"
    arguments: tuple[Setting, ...] = ()
    made: MadeTrainer = MadeTrainer()  # the trainer that its program certainly makes
    written: Source | None = None  # its program, if the script that starts it has written it
    # `environ` with locations; a variable that may not reach the job counts as unknown
    variables: tuple[Setting, ...] = ()

    @property
    def sources(self) -> dict[str, Source]:
        """Return the files that it was read from, by name: its own source, and the configuration file it names."""
        return {source.name: source for source in (self.source, self.file) if source is not None}

    @property
    def starts_written_script(self) -> bool:
        """Return whether the settings are in the script that it starts, and no option of the command sets one."""
        return self.file is not None and self.file.kind == "python"

    @property
    def launcher_words(self) -> tuple[Word, ...]:
        """Return the words before the program: its launchers with their options."""
        first = self.whole.index(self.words[0]) if self.words and self.words[0] in self.whole else 0
        return self.whole[:first]
