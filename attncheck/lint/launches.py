"""Finds the starts of jobs in what a user wrote: a command, a launch script or a configuration file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import PurePosixPath

from attncheck.core import registry
from attncheck.core.facts import Absent, Fact, Known, Unreadable
from attncheck.core.launch import Launch, Source, Word
from attncheck.lint import launchers
from attncheck.lint.files import configuration
from attncheck.lint.launchers import Launcher, Taken, accelerate, options
from attncheck.lint.shell import commands
from attncheck.lint.sources import source_of, source_of_words

__all__ = ["launches", "source_of", "source_of_words"]

FILES = (".yaml", ".yml", ".json", ".toml")
CONFIGURED = options.names("--config --config_file --config-file --cfg --training_config -c --recipe")
STARTS_NOTHING = options.names(
    "[ [[ test cd pushd popd echo printf mkdir rm rmdir cp mv ln ls cat touch chmod chown set shopt trap wait sleep "
    "true false : exit return shift break continue ulimit umask alias type which hash pip pip3 apt apt-get yum git "
    "curl wget tar unzip rsync scp date hostname nvidia-smi module tee grep sed awk head tail sort wc kill pkill "
    "killall export conda mamba deactivate huggingface-cli hf wandb let local jobs disown scontrol ulimit dirname "
    "basename"
)
DEEPEST = 12  # launchers around one another


def launches(source: Source, read_file: Callable[[str], Source | None]) -> list[Launch]:
    """Return every start of a job that may be in `source`; frameworks decide which are theirs.

    `read_file` returns a configuration file that a command names, None where there is none to be had.
    Raises `BadUsage` for a configuration file that is not YAML, JSON or TOML.
    """
    if source.kind in ("yaml", "json", "toml"):
        found = configuration.read(source)
        return [Launch(source, entries=found.entries, file=source, notes=found.notes)]
    starts = (_launch(source, command, read_file) for command in commands.commands(source))
    return [launch for launch in starts if launch is not None]


def _launch(source: Source, command: commands.Command, read_file: Callable[[str], Source | None]) -> Launch | None:
    names, taken = _peeled(command.words)
    words = taken[-1].words if taken else command.words
    if not words or not words[0].text or _starts_nothing(words):
        return None
    befores = (command.words, *(one.words for one in taken))
    taken = [_from_file(one, before, read_file) if one.file else one for one, before in zip(taken, befores)]
    environ = dict(command.environ)
    for one in taken:
        environ |= one.environ
    nodes, processes = _counts(names, taken, environ)
    launch = Launch(
        source, words, (), None, names, command.words, environ, nodes, processes,
        (*command.notes, *(note for one in taken for note in one.notes)),
    )  # fmt: skip
    return _configured(launch, read_file)


def _starts_nothing(words: Sequence[Word]) -> bool:
    first = words[0].text.rsplit("/", 1)[-1]
    second = words[1].text if len(words) > 1 else ""
    return first in STARTS_NOTHING or (first == "ray" and second in ("start", "stop", "status"))


@cache
def _launchers() -> tuple[Launcher, ...]:
    extensions, _ = registry.load(launchers, "attncheck.launchers")
    found = (getattr(extension.module, "LAUNCHER", None) for extension in extensions)
    return tuple(one for one in found if isinstance(one, Launcher))


def _peeled(words: tuple[Word, ...]) -> tuple[tuple[str, ...], list[Taken]]:
    """Return the launchers in front of a command, outermost first, and what each told."""
    names: list[str] = []
    taken: list[Taken] = []
    while len(taken) < DEEPEST:
        for launcher in _launchers():
            found = launcher.take(words)
            if found is not None:
                names.append(launcher.name)
                taken.append(found)
                words = found.words
                break
        else:
            break
    return tuple(names), taken


def _counts(names: Sequence[str], taken: Sequence[Taken], environ: Mapping[str, str]) -> tuple[Fact[int], Fact[int]]:
    """Return nodes and processes: the innermost launcher that says anything is the one that starts them."""
    nodes = _innermost([one.nodes for one in taken], "no launcher says how many nodes")
    processes = _innermost([one.processes for one in taken], "no launcher says how many processes a node")
    tasks = "srun" in names and "ray" not in names
    if tasks and not isinstance(nodes, Known):
        nodes = _from_environ(environ, "SLURM_NNODES", nodes)
    if tasks and processes == Absent("no launcher says how many processes a node"):
        processes = _from_environ(environ, "SLURM_NTASKS_PER_NODE", processes)
    visible = environ.get("CUDA_VISIBLE_DEVICES", "")
    if (
        isinstance(processes, Absent)
        and options.EVERY_GPU in processes.reason
        and re.fullmatch(r"[\w/-]+(,[\w/-]+)*", visible)
    ):
        processes = Known(visible.count(",") + 1)
    return nodes, processes


def _innermost(facts: Sequence[Fact[int]], otherwise: str) -> Fact[int]:
    """Return the innermost fact that says something; what only running tells gives way to a number around it."""
    unread: Fact[int] | None = None
    for fact in reversed(facts):
        if isinstance(fact, Unreadable):
            unread = unread or fact
        elif isinstance(fact, Known) or fact.reason:
            return unread if unread is not None and not isinstance(fact, Known) else fact
    return unread or Absent(otherwise)


def _from_environ(environ: Mapping[str, str], name: str, otherwise: Fact[int]) -> Fact[int]:
    text = environ.get(name, "")
    return Known(int(text)) if text.isascii() and text.isdigit() and 0 < len(text) < 7 and int(text) else otherwise


def _from_file(taken: Taken, words: Sequence[Word], read_file: Callable[[str], Source | None]) -> Taken:
    """Return what accelerate was told, with what its own configuration file says of nodes, processes and parallelism.

    It hands the table `parallelism_config` on as variables (accelerate 1.15.0 commands/launch.py:1248,
    utils/launch.py); options that stand in the command win.
    """
    file = read_file(taken.file)
    if file is None or file.kind not in ("yaml", "json"):
        return taken
    values = {one.name: one.value for one in configuration.entries(file)}
    nodes, processes = accelerate.configured(words, values)
    parallel = {
        name.removeprefix("parallelism_config.").upper(): value
        for name, value in values.items()
        if name.startswith("parallelism_config.parallelism_config_")
    }
    return replace(taken, nodes=nodes, processes=processes, environ={**parallel, **taken.environ})


def _configured(launch: Launch, read_file: Callable[[str], Source | None]) -> Launch:
    """Return the launch with the configuration file that its command names."""
    path = _named(launch.words)
    if not path:
        return launch
    file = read_file(path)
    if file is None or file.kind not in ("yaml", "json", "toml"):
        return replace(launch, notes=(*launch.notes, f"the configuration file {path} could not be read"))
    found = configuration.read(file)
    return replace(launch, entries=found.entries, file=file, notes=(*launch.notes, *found.notes))


def _named(words: Sequence[Word]) -> str:
    """Return the path of the program's configuration file, "" where it is given none."""
    given = dict(_valued(words))
    for name in CONFIGURED:
        word = given.get(name)
        if word is not None and word.known and word.text.endswith(FILES):
            return word.text
    hydra = given.get("--config-name") or given.get("-cn")
    if hydra is not None and hydra.known:
        folder = given.get("--config-path") or given.get("-cp") or given.get("--config-dir")
        file = hydra.text if hydra.text.endswith(FILES) else f"{hydra.text}.yaml"
        return str(PurePosixPath(folder.text) / file) if folder is not None and folder.known else file
    return _bare(words)


def _valued(words: Sequence[Word]) -> Iterator[tuple[str, Word]]:
    """Yield what may be options with their values, the first of a name last."""
    for at in range(len(words) - 1, 0, -1):
        name, equals, text = words[at].text.partition("=")
        if name.startswith("-") and equals:
            yield name, replace(words[at], text=text)
        elif name.startswith("-") and at + 1 < len(words):
            yield name, words[at + 1]


def _bare(words: Sequence[Word]) -> str:
    """Return a file given as an argument of its own: `llamafactory-cli train x.yaml`, `train.py x.yaml`."""
    for at in range(1, min(len(words), 6)):
        word = words[at]
        behind_option = words[at - 1].text.startswith("-") and "=" not in words[at - 1].text
        if word.known and word.text.endswith(FILES) and "=" not in word.text and not behind_option:
            return word.text
    return ""
