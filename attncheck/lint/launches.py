"""Finds the launches of jobs in the user's input: a command, a launch script or a configuration file."""

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import PurePosixPath

from attncheck.core import registry
from attncheck.core.facts import Absent, Fact, Known, Unreadable
from attncheck.core.io.errors import AttncheckError, BadUsage
from attncheck.core.launch import Launch, Setting, Source, SourceLocation, Word
from attncheck.core.records import replace
from attncheck.lint import (
    arguments,
    called_scripts,
    config_parents,
    deepspeed_config,
    launchers,
    open_ends,
    python_scripts,
    training_scripts,
)
from attncheck.lint.embedded import EmbeddedScript
from attncheck.lint.files import configuration
from attncheck.lint.launchers import Launcher, ParsedLauncher, accelerate, options
from attncheck.lint.launchers.options import program_name
from attncheck.lint.lost_words import is_escaped_blank
from attncheck.lint.programs.places import describe_moved, find_working_folder, list_config_folders
from attncheck.lint.programs.trainers import attach_trainers
from attncheck.lint.shell import commands
from attncheck.lint.shell.quoting import quote_on_one_line
from attncheck.lint.shell.text import ScriptText
from attncheck.lint.sources import read_source, source_from_argv
from attncheck.lint.variables import locate_words
from attncheck.lint.written_files import WrittenFiles

__all__ = ["find_launches", "read_source", "source_from_argv"]

CONFIG_SUFFIXES = (".yaml", ".yml", ".json", ".toml")
CONFIG_OPTIONS = options.split_names(
    "--config --config_file --config-file --cfg --training_config -c --recipe --job.config_file --job.config-file"
)
NON_JOB_COMMANDS = options.split_names(
    "[ [[ test cd pushd popd echo printf mkdir rm rmdir cp mv ln ls cat touch chmod chown set shopt trap wait sleep "
    "true false : exit return shift break continue ulimit umask alias type which hash pip pip3 apt apt-get yum git "
    "curl wget tar unzip rsync scp date hostname nvidia-smi module tee grep sed awk head tail sort wc kill pkill "
    "killall export conda mamba deactivate huggingface-cli hf wandb let local jobs disown scontrol ulimit dirname "
    "basename"
)
COPYING_PROGRAMS = options.split_names("kubectl oc docker podman gsutil gcloud aws azcopy rclone")
COPYING_VERBS = options.split_names("cp sync rsync copy mv")
OVERRIDE_LINE = re.compile(r"\s+[A-Za-z_]\w*=\S*\s.*(?:\\|[|>])", re.DOTALL)  # continues or is redirected
# --option, or a dotted Hydra override; -- before a launcher's program
CONTINUED = re.compile(r"--?[A-Za-z]|--$|(\+\+|\+|~)?[A-Za-z_]\w*(\.\w+)+=")
STARTS = re.compile(r"\bsubprocess\b|\bos\.(system|exec|popen)|\bexecute_train")
UNKNOWN_START = re.compile(r"^\$.*[)}\w]/(?=[\w.-]+/[\w.-]+$)")  # "scripts/boot.py" of "$(cd … && pwd)/scripts/boot.py"
RUNS_ARGUMENT = re.compile(r"\bsys\.argv\b(?s:.*)\brunpy\.run_path\(")
EXPANSION = re.compile(r"\$[A-Za-z_{(@*0-9]|`")
SHELL_BUILTINS = frozenset({"source", ".", "cd", "export", "set", "eval"})
MAX_CALLED_SCRIPTS = 20  # run by one source, directly or indirectly
MAX_CALL_DEPTH = 4
MAX_EMBEDDED_SCRIPTS = 200  # in one job file
SAVED_ARGUMENTS = ("args.json", "sft_args.json")  # of a run that was started: written by ms-swift 4.6.0, and 2.x
MAX_LAUNCHERS = 12  # nested in one command


def find_launches(
    source: Source,
    read_file: Callable[[str], Source | None],
    starts_training: Callable[[Launch], bool] = lambda _: False,
) -> list[Launch]:
    """Return every job launch in `source`; each framework decides whether a launch is its own.

    `read_file` returns a file that a command names, None if it cannot be read. A command that does not start training
    itself may contain one that `starts_training` recognises: after `--`, in a script that it runs, or in a job file.
    Raises `BadUsage` for a configuration file that is not YAML, JSON or TOML.
    """
    finder = _LaunchFinder(read_file, starts_training)
    if source.kind == "python":
        own = training_scripts.read_launch(source)
        if own is not None:
            return [deepspeed_config.attach_config(attach_trainers(own), read_file)]
        return finder.find_embedded(source, python_scripts.find_scripts(source))
    if source.kind not in ("yaml", "json", "toml"):
        return list(finder.find_in_script(source, commands.ScriptStart()))
    if PurePosixPath(source.name).name in SAVED_ARGUMENTS:
        return []
    parsed_file = configuration.parse_configuration(source)
    launch = Launch(source, entries=parsed_file.entries, file=source, notes=parsed_file.notes)
    launch = config_parents.attach_parents(launch, read_file)
    launch = deepspeed_config.attach_config(launch, read_file)
    if source.kind != "yaml" or starts_training(launch):
        return [launch]
    from attncheck.lint import job_files  # ruamel.yaml is imported only if there is YAML to read

    return [launch, *finder.find_embedded(source, job_files.find_scripts(source))]


@dataclass
class _LaunchFinder:
    """Finds the launches of one source, and of the scripts that it runs."""

    read_file: Callable[[str], Source | None]
    starts_training: Callable[[Launch], bool]
    remaining_scripts: int = MAX_CALLED_SCRIPTS
    open_scripts: list[str] = field(default_factory=list)

    def find_embedded(self, file: Source, scripts: Iterable[EmbeddedScript]) -> list[Launch]:
        """Return the launches that start training in the scripts embedded in a file."""
        launches: list[Launch] = []
        for script in itertools.islice(scripts, MAX_EMBEDDED_SCRIPTS):
            source = script.make_source(file)
            text = ScriptText.from_segments(source, script.segments)
            launches += self._read_inner(source, commands.ScriptStart(text, script.origin, script.environ))
        return [launch for launch in launches if self.starts_training(launch)]

    def _read_inner(self, source: Source, start: commands.ScriptStart, folder: str = "") -> list[Launch]:
        """Return the launches of a script that another source runs or contains; empty if the script cannot be read."""
        self.open_scripts.append(source.name)
        try:
            return list(self.find_in_script(source, start, folder))
        except AttncheckError:
            return []
        finally:
            self.open_scripts.pop()

    def find_in_script(self, source: Source, start: commands.ScriptStart, folder: str = "") -> Iterator[Launch]:
        """Yield the launches of a script that starts in `folder`."""
        folders: dict[tuple[int, ...], PurePosixPath] = {(): PurePosixPath(folder)}
        directories: dict[tuple[int, ...], tuple[str, ...]] = {}
        files = WrittenFiles(source, self.read_file)
        start = replace(start, read_script=lambda name: called_scripts.read_script(name, source, folder, files.read))
        parsed = commands.parse_commands(source, start)
        for command, lost in _iter_with_lost(source, parsed):
            here = folders.get(command.shell)
            if here is None:
                here = _enclosing_folder(folders, command.shell)
            here = folders[command.shell] = _change_folder(here, command.words[command.prefix_length :], source)
            here_text = "" if here == PurePosixPath() else str(here)
            entered = directories.get(command.shell) or directories.get(command.shell[:-1], ())
            directories[command.shell] = _enter_directory(entered, command.words[command.prefix_length :])
            files.follow_command(command, here_text)
            launch = _make_launch(source, command, files, here_text)
            if launch is not None:
                launch = replace(
                    launch,
                    directories=directories[command.shell],
                    lost=lost,
                    refused=command.refused,
                    last_line=_find_last_line(source, command),
                    is_nested=bool(command.shell),
                    is_remote=any(number < 0 for number in command.shell),
                )
                launch = _complete(launch, files)
                script, starts = called_scripts.find_called_script(launch.words), self.starts_training(launch)
                carried = list(self._find_carried(launch, command, files)) if script or not starts else []
                if script and starts:  # its arguments look like a launch, but the script may set anything
                    end = f"{open_ends.SCRIPT}{script[0].text} ({script[0].location})"
                    launch = replace(launch, open_ends=(*launch.open_ends, end))
                if not starts or not carried:
                    yield launch
                yield from carried

    def _find_carried(self, launch: Launch, command: commands.Command, files: WrittenFiles) -> Iterator[Launch]:
        """Yield the launch after a wrapper's `--`, or else those of the script that a command runs."""
        separator = next((index for index, word in enumerate(launch.words) if word.text == "--"), len(launch.words))
        if separator + 1 < len(launch.words):
            prefix_length = launch.whole.index(launch.words[separator]) + 1
            joins = (i for i, word in enumerate(launch.whole) if word.text in ("&&", ";") and i > prefix_length)
            for length in (prefix_length, *(place + 1 for place in joins)):  # -- source setup.sh \&\& python train.py
                wrapped = _make_launch(launch.source, command, files, launch.folder, length)
                if wrapped is None or wrapped.words[0].text in SHELL_BUILTINS:
                    continue
                wrapped = replace(
                    wrapped,
                    directories=launch.directories,
                    is_nested=launch.is_nested,
                    is_remote=launch.is_remote,
                )
                wrapped = _complete(wrapped, files)
                if self.starts_training(wrapped):
                    yield wrapped
                    return
        if len(self.open_scripts) >= MAX_CALL_DEPTH or self.remaining_scripts <= 0:
            return
        called = called_scripts.find_called_script(launch.words)
        if called is None:
            yield from self._find_started(launch, files)
            return
        script, arguments = called
        file = called_scripts.read_script(script.text, launch.source, launch.folder, files.read)
        if file is None or file.name in (*self.open_scripts, launch.source.name):
            return
        self.remaining_scripts -= 1
        prefix = launch.launcher_words
        start = commands.ScriptStart(environ=launch.environ, arguments=arguments, prefix=prefix)
        location = launch.words[0].location
        note = f"it is started by {location}; lint {file.name} itself to correct it"
        for inner in self._read_inner(called_scripts.mark_uneditable(file), start, launch.folder):
            if self.starts_training(inner):
                yield replace(inner, notes=(*inner.notes, note))

    def _find_started(self, launch: Launch, files: WrittenFiles) -> Iterator[Launch]:
        """Yield the launches that the user's own Python program starts."""
        name = launch.words[0].text if launch.words else ""
        file = files.read(str(PurePosixPath(launch.folder) / name)) if name.endswith(".py") else None
        if file is None or file.kind != "python" or not STARTS.search(file.text) or file.name in self.open_scripts:
            return
        self.remaining_scripts -= 1
        for inner in self.find_embedded(called_scripts.mark_uneditable(file), python_scripts.find_scripts(file)):
            yield replace(inner, notes=(*inner.notes, f"it is started by {launch.words[0].location}"))


def _complete(launch: Launch, files: WrittenFiles) -> Launch:
    """Return a launch with the files that it names, and with what its program sets."""
    launch = replace(launch, written=files.find_program(launch.words))
    launch = training_scripts.attach_script(config_parents.attach_parents(launch, files.read), files.read)
    launch = attach_trainers(launch)  # settings of trainers that are not in the script itself
    return deepspeed_config.attach_config(_attach_parsed_file(launch, files), files.read)


def _iter_with_lost(
    source: Source, parsed: Sequence[commands.Command]
) -> Iterator[tuple[commands.Command, tuple[Word, ...]]]:
    """Yield each command with the words that a broken line continuation takes from it: bash runs them as commands.

    They are not commands here. A launcher that thus has no program gets the program, because that is what was meant.
    """
    following = list(parsed)
    while following:
        command = following.pop(0)
        lost, last = _find_lost_assignments(source, command), command
        while following and _is_lost(source, last, following[0], bool(lost)):
            last = following.pop(0)
            lost += last.words
        if len(command.words) > 1 and command.words[-1].text.isspace():  # "\\ " is a word, and continues no line
            command = command._replace(words=command.words[:-1])
        if lost and _lacks_program(command):
            command = command._replace(words=(*command.words, *lost))
        yield command, lost


def _find_last_line(source: Source, command: commands.Command) -> int:
    """Return the line at which a command, or the outermost compound command around it, ends."""
    end = command.outermost.end if command.outermost is not None else -1
    own = [word.location.line for word in command.words if word.location.source == source.name]
    return max(own + [source.location(end).line] * (end >= 0), default=0)


def _is_lost(source: Source, command: commands.Command, following: commands.Command, continues: bool) -> bool:
    """Return whether a command's words belong to the one before it: its backslash is missing or has spaces after it.

    They begin on the next line that is not a comment, with an option or an override that is not an assignment, before
    which the script's arguments may be. After "\\ " they may begin with another word that starts nothing, and after a
    launcher without a program with a program.
    """
    if following.shell != command.shell or not command.words:
        return False
    first, last = following.words[0], command.words[-1]
    lines = source.lines[last.location.line : first.location.line - 1]
    is_next = last.location.line < first.location.line and all(
        not line.strip() or line.strip()[0] == "#" for line in lines
    )
    is_here = last.location.source == first.location.source == source.name and (continues or len(command.words) > 1)
    if not is_here or not is_next:
        return False
    options = [word for word in following.words if not open_ends.is_script_arguments(word)]
    if options and CONTINUED.match(options[0].text):
        return True
    if first.text.endswith(".py"):
        return _lacks_program(command)
    is_program = first.text in NON_JOB_COMMANDS or (first.known and bool(_parse_launchers(following.words)[0]))
    return last.text.isspace() and all(map(str.strip, lines)) and not is_program


def _lacks_program(command: commands.Command) -> bool:
    """Return whether a command is a launcher that starts nothing: `accelerate launch --num_processes 8`."""
    parsed = _parse_launchers(command.words)[1]
    return bool(parsed) and not parsed[-1].words


def _find_lost_assignments(source: Source, command: commands.Command) -> tuple[Word, ...]:
    """Return the overrides after a comment that ends a continued command; there `max_turns=10` is an assignment."""
    last = command.words[-1].location if command.words else None
    if last is None or last.source != source.name or len(command.words) < 2:
        return ()
    lines = source.lines
    number = last.line  # the index of the following line
    if number >= len(lines) or not lines[number - 1].endswith("\\") or not lines[number].lstrip().startswith("#"):
        return ()
    while number < len(lines) and lines[number].lstrip().startswith("#"):
        number += 1
    line = lines[number] if number < len(lines) else ""
    if not OVERRIDE_LINE.match(line) or line[:1] not in " \t":
        return ()
    column = len(line) - len(line.lstrip())
    start = sum(len(text) + 1 for text in lines[:number]) + column
    text = line.split()[0]
    return (Word(text, (start, start + len(text)), SourceLocation(source.name, number + 1, column + 1)),)


def _enclosing_folder(folders: Mapping[tuple[int, ...], PurePosixPath], shell: tuple[int, ...]) -> PurePosixPath:
    """Return the folder in which a shell starts: its parent's, unless it is on another machine or in a container."""
    for length in range(len(shell) - 1, -1, -1):
        if shell[length] < 0:  # on another machine, or in a container
            return PurePosixPath()
        if shell[:length] in folders:
            return folders[shell[:length]]
    return PurePosixPath()


def _enter_directory(directories: tuple[str, ...], words: Sequence[Word]) -> tuple[str, ...]:
    """Return the directories that lead to a script: `cd` and `pushd` enter one, `popd` leaves it."""
    name = words[0].text if words else ""
    if name == "popd":
        return directories[:-1]
    if len(words) != 2 or name not in ("cd", "pushd"):
        return directories
    is_absolute = words[1].known and words[1].text.startswith("/")
    return (*(() if is_absolute else directories), words[1].shell or quote_on_one_line(words[1].text))


def _change_folder(folder: PurePosixPath, words: Sequence[Word], source: Source) -> PurePosixPath:
    """Return the folder after a command: `cd path` changes it, if the path is known or relative to the script's own."""
    if len(words) != 2 or words[0].text not in ("cd", "pushd"):
        return folder
    target = words[1]
    if target.known:
        return folder / target.text if target.text.strip() else folder
    resolved = called_scripts.resolve_word(target, source)
    return PurePosixPath(resolved.text) if resolved.known else folder


def _make_launch(
    source: Source, command: commands.Command, files: WrittenFiles, folder: str, wrapper_length: int = 0
) -> Launch | None:
    """Return the launch of a command without its first `wrapper_length` words; None if it does not start a job."""
    whole = tuple(called_scripts.resolve_word(word, source) for word in command.words)
    known_words = tuple(
        word
        for word in whole[wrapper_length:]
        if not open_ends.is_script_arguments(word) and not is_escaped_blank(word, source)
    )
    names, parsed = _parse_launchers(known_words)
    words = parsed[-1].words if parsed else known_words
    words = _skip_runner(words, files.read)
    if not words or not words[0].text or _starts_no_job(words) or CONTINUED.match(known_words[0].text):
        return None
    argvs = (known_words, *(launcher.words for launcher in parsed))
    entered = next((launcher.folder for launcher in reversed(parsed) if launcher.folder), "")
    folder = str(PurePosixPath(folder) / entered) if entered else folder
    working_folder = find_working_folder(Launch(source, words, folder=folder))
    read_file = partial(files.read_in, working_folder)
    parsed = [
        _apply_launcher_config(launcher, argv, read_file) if launcher.config_file else launcher
        for launcher, argv in zip(parsed, argvs)
    ]
    variables = {variable.name: variable for variable in command.variables}
    if "ray" in names:  # the job gets the environment of Ray's processes, which other shells may have started
        variables = {name: replace(variable, known=False) for name, variable in variables.items()}
    for launcher, argv in zip(parsed, argvs):
        is_inside = len(known_words) - len(argv) < command.prefix_length  # the shell in it has set the variables
        if launcher.isolates and not is_inside:
            variables = {name: variables[name] for name in launcher.passes if name in variables}
        variables |= {**locate_words(source, launcher.environ, argv), **launcher.file_variables}
    environ = {name: variable.value for name, variable in variables.items()}
    nodes, processes = _combine_counts(names, parsed, environ)
    launch = Launch(
        source, words, (), None, names, whole, environ, nodes, processes,
        (*command.notes, *(note for launcher in parsed for note in launcher.notes)),
        launcher_entries=tuple(entry for launcher in parsed for entry in launcher.entries),
        folder=folder, exports=command.exports, variables=tuple(variables.values()),
    )  # fmt: skip
    known = (_leave_start_out(word, read_file) for word in files.mark_known(launch.words))
    launch = _attach_configuration(launch, files, working_folder, _find_config_path(tuple(known)))
    return replace(launch, open_ends=open_ends.find_open_ends(launch))


def _leave_start_out(word: Word, read_file: Callable[[str], Source | None]) -> Word:
    """Return a configuration file under a folder that is known only at run time as the tree's that has its end."""
    path = UNKNOWN_START.sub("", word.text)
    is_open = not word.known and path != word.text and path.endswith(CONFIG_SUFFIXES)
    return replace(word, text=path, known=True) if is_open and read_file(path) is not None else word


def _skip_runner(words: tuple[Word, ...], read_file: Callable[[str], Source | None]) -> tuple[Word, ...]:
    """Return a command without its program if that runs its first argument: `boot.py train.py …` with runpy."""
    if len(words) < 2 or not words[0].text.endswith(".py") or not words[1].text.endswith(".py"):
        return words
    file = read_file(UNKNOWN_START.sub("", words[0].text))
    return words[1:] if file is not None and RUNS_ARGUMENT.search(file.text) else words


def _starts_no_job(words: Sequence[Word]) -> bool:
    first = words[0].text.rsplit("/", 1)[-1]
    second = words[1].text if len(words) > 1 else ""
    if first in COPYING_PROGRAMS and any(word.text in COPYING_VERBS for word in words[1:4]):
        return True
    is_help = any(word.text in ("-h", "--help") for word in words[1:])
    return is_help or first in NON_JOB_COMMANDS or (first == "ray" and second in ("start", "stop", "status"))


@cache
def _load_launchers() -> tuple[Launcher, ...]:
    extensions, _ = registry.load(launchers, "attncheck.launchers")
    candidates = (getattr(extension.module, "LAUNCHER", None) for extension in extensions)
    return tuple(launcher for launcher in candidates if isinstance(launcher, Launcher))


def _parse_launchers(words: tuple[Word, ...]) -> tuple[tuple[str, ...], list[ParsedLauncher]]:
    """Return the names of the launchers at the start of a command, outermost first, and each one parsed."""
    names: list[str] = []
    parsed: list[ParsedLauncher] = []
    while len(parsed) < MAX_LAUNCHERS:
        for launcher in _load_launchers():
            parsed_launcher = launcher.parse(words)
            if parsed_launcher is not None:
                names.append(launcher.name)
                parsed.append(parsed_launcher)
                words = parsed_launcher.words
                break
        else:
            break
    return tuple(names), parsed


def _combine_counts(
    names: Sequence[str], parsed: Sequence[ParsedLauncher], environ: Mapping[str, str]
) -> tuple[Fact[int], Fact[int]]:
    """Return nodes and processes per node from the innermost launcher that states them: it starts the processes."""
    nodes = _choose_innermost([launcher.nodes for launcher in parsed], "no launcher sets the number of nodes")
    processes = _choose_innermost(
        [launcher.processes for launcher in parsed], "no launcher sets the number of processes per node"
    )
    starts_tasks = "srun" in names and "ray" not in names
    if starts_tasks and not isinstance(nodes, Known):
        nodes = _read_environ_count(environ, "SLURM_NNODES", nodes)
    if starts_tasks and processes == Absent("no launcher sets the number of processes per node"):
        processes = _read_environ_count(environ, "SLURM_NTASKS_PER_NODE", processes)
    visible = environ.get("CUDA_VISIBLE_DEVICES", "")
    if (
        isinstance(processes, Absent)
        and options.EVERY_GPU in processes.reason
        and re.fullmatch(r"[\w/-]+(,[\w/-]+)*", visible)
    ):
        processes = Known(visible.count(",") + 1)
    return nodes, processes


def _choose_innermost(facts: Sequence[Fact[int]], default_reason: str) -> Fact[int]:
    """Return the innermost fact that is known or has a reason; if it is unreadable, a known outer one replaces it."""
    unreadable: Fact[int] | None = None
    for fact in reversed(facts):
        if isinstance(fact, Unreadable):
            unreadable = unreadable or fact
        elif isinstance(fact, Known) or fact.reason:
            return unreadable if unreadable is not None and not isinstance(fact, Known) else fact
    return unreadable or Absent(default_reason)


def _read_environ_count(environ: Mapping[str, str], name: str, default: Fact[int]) -> Fact[int]:
    text = environ.get(name, "")
    return Known(int(text)) if text.isascii() and text.isdecimal() and 0 < len(text) < 7 and int(text) else default


def _apply_launcher_config(
    parsed: ParsedLauncher, words: Sequence[Word], read_file: Callable[[str], Source | None]
) -> ParsedLauncher:
    """Return a parsed launcher with the settings of its configuration file: `accelerate launch`, `ray job submit`.

    accelerate passes the table `parallelism_config` on as variables (accelerate 1.15.0 commands/launch.py:1248,
    utils/launch.py); options in the command take precedence.
    """
    file = read_file(parsed.config_file)
    if file is None or file.kind not in ("yaml", "json"):
        is_ray = program_name(words[0]) == "ray"
        note = f"the runtime environment {parsed.config_file} {open_ends.COULD_NOT_BE_READ}"
        return replace(parsed, notes=(*parsed.notes, note)) if is_ray else parsed
    entries = configuration.parse_entries(file)
    if program_name(words[0]) == "ray":
        return _apply_runtime_env(parsed, entries)
    values = {entry.name: entry.value for entry in entries}
    nodes, processes = accelerate.parse_counts(words, values)
    parallelism = {
        name.removeprefix("parallelism_config.").upper(): value
        for name, value in values.items()
        if name.startswith("parallelism_config.parallelism_config_")
    }
    environ = {**parallelism, **parsed.environ}
    variables = {
        entry.name.removeprefix("parallelism_config.").upper(): entry
        for entry in entries
        if entry.name.removeprefix("parallelism_config.").upper() in parallelism
    }
    variables = {name: replace(entry, name=name) for name, entry in variables.items()}
    return replace(parsed, nodes=nodes, processes=processes, environ=environ, entries=entries, file_variables=variables)


def _apply_runtime_env(parsed: ParsedLauncher, entries: Sequence[Setting]) -> ParsedLauncher:
    """Return a parsed `ray job submit` with the `env_vars` of its runtime environment's file; its options win."""
    prefix = "env_vars."
    variables = {
        entry.name[len(prefix) :]: replace(entry, name=entry.name[len(prefix) :])
        for entry in entries
        if entry.name.startswith(prefix)
    }
    environ = {name: entry.value for name, entry in variables.items()} | dict(parsed.environ)
    return replace(parsed, environ=environ, file_variables=variables)


def _attach_configuration(launch: Launch, files: WrittenFiles, folder: str, path: str) -> Launch:
    """Return the launch with the configuration file that its command, started in `folder`, names; "" for none."""
    if not path:
        return launch
    file = files.read_in(folder, path)
    if file is None and any(os.path.isfile(folder / path) for folder in list_config_folders(launch)):
        return launch  # Hydra composes it for the program
    if file is not None and file.kind == "json" and file.text.lstrip().startswith("["):
        return launch  # rows of data
    if file is None or file.kind not in ("yaml", "json", "toml"):
        return replace(launch, notes=(*launch.notes, f"the configuration file {path} {open_ends.COULD_NOT_BE_READ}"))
    try:
        parsed_file = configuration.parse_configuration(file)
    except BadUsage:
        if not file.host:
            raise
        return replace(launch, notes=(*launch.notes, f"the configuration file {path} {open_ends.COULD_NOT_BE_READ}"))
    entries = tuple(  # of a file that the script writes, a variable that the script does not set is unknown
        replace(entry, known=False) if file.host and EXPANSION.search(entry.value) else entry
        for entry in parsed_file.entries
    )
    moved = describe_moved(path, file.name) if not file.host else ()
    return replace(launch, entries=entries, file=file, notes=(*launch.notes, *parsed_file.notes, *moved))


def _attach_parsed_file(launch: Launch, files: WrittenFiles) -> Launch:
    """Return the launch with the file that an option of its program's own names: `--train_args_file x.json`."""
    if launch.file is not None or not launch.file_options:
        return launch
    options = arguments.iter_option_values(files.mark_known(launch.words)[1:])
    named = [word for name, word in options if name.lstrip("-").replace("-", "_") in launch.file_options and word.known]
    path = next((word.text for word in named if word.text.endswith(CONFIG_SUFFIXES)), "")
    launch = _attach_configuration(launch, files, find_working_folder(launch), path)
    return replace(launch, open_ends=open_ends.find_open_ends(launch))


def _find_config_path(words: Sequence[Word]) -> str:
    """Return the path of the program's configuration file; "" if the command names none."""
    values: dict[str, Word] = {}
    for name, word in arguments.iter_option_values(words[1:]):
        values.setdefault(name, word)
    for name in CONFIG_OPTIONS:
        value = values.get(name)
        if value is not None and value.known and value.text.endswith(CONFIG_SUFFIXES):
            return value.text
    config_name = values.get("--config-name") or values.get("-cn")
    if config_name is not None and config_name.known:
        folder = values.get("--config-path") or values.get("-cp") or values.get("--config-dir")
        file = config_name.text if config_name.text.endswith(CONFIG_SUFFIXES) else f"{config_name.text}.yaml"
        return str(PurePosixPath(folder.text) / file) if folder is not None and folder.known else file
    return _find_config_override(words) or _find_config_argument(words)


def _find_config_override(words: Sequence[Word]) -> str:
    """Return the file in `config=x.yaml`, which programs such as EasyR1's merge with OmegaConf."""
    for word in words[1:]:
        name, _, path = word.text.partition("=")
        if name == "config" and word.known and path.endswith(CONFIG_SUFFIXES):
            return path
    return ""


def _find_config_argument(words: Sequence[Word]) -> str:
    """Return a configuration file that is a positional argument: `llamafactory-cli train x.yaml`, `train.py x.yaml`."""
    for index in range(1, min(len(words), 6)):
        word = words[index]
        follows_option = words[index - 1].text.startswith("-") and "=" not in words[index - 1].text
        if word.known and word.text.endswith(CONFIG_SUFFIXES) and "=" not in word.text and not follows_option:
            return word.text
    return ""
