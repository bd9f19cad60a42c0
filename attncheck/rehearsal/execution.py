"""Runs a scaled-down launch with the watcher in its processes, in a sandbox that leaves nothing running."""

import contextlib
import json
import os
import re
import shlex
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attncheck.core.io import interrupts
from attncheck.core.io.files import CannotRead, read_bounded
from attncheck.core.rehearsal import JOB_FOLDER, Isolation
from attncheck.core.results.rehearsal import DIVISOR, Difference
from attncheck.rehearsal import guards
from attncheck.rehearsal.extensions import FOLDER
from attncheck.workers.pool import PACKAGE_FOLDER
from attncheck.workers.process import closing_stream
from attncheck.workers.sandboxed import Sandbox, SandboxedProcess, read_isolation
from attncheck.workers.scratch import remove_folder

WATCHER = Path(__file__).parent / "watcher"
QUESTIONS = "questions.json"  # the judge's message, for a job whose process has its own class of models
DRIVERS = Path(__file__).parent / "drivers"
EMULATED = Path(__file__).parent / "emulated"
EMULATION = Path(__file__).parent.parent / "attention" / "emulated_flash_attn"
# The distributions of the emulated packages: name, release, top level; flash-attn 2 is installed next to the others.
FLASH_ATTN = {
    "flash_attention_2": ("flash-attn", "2.8.3", "flash_attn"),
    "flash_attention_3": ("flash-attn-3", "3.0.0", "flash_attn_interface"),
    "flash_attention_4": ("flash-attn-4", "4.0.0", "flash_attn"),
}
ABSENT: Mapping[str, str] = {
    "idle": "{} is not installed, so the script ends at its import: rehearsed with calls that do nothing",
    "broken": "{1} is not installed, so the script ends where it imports {0}: rehearsed with calls that do nothing",
    "twin": "{} is not installed, so the script ends at its import: rehearsed with {}",
    "unused": "{} is not installed, so the script ends at its import: rehearsed up to its first use",
    "removed": "{} is not in the installed release, so the script ends at its import: rehearsed up to its first use",
    "setting": (
        "{} is not an argument in the installed release, so the script ends there: rehearsed with its new name or "
        "without it"
    ),
    "refused": "the script's parser does not take {}, so the script ends there: rehearsed without it",
    "lacking": "{} of the script lacks {}, which the installed release reads: rehearsed with its default",
    "argument": "{} is called with {} by the installed release, so the script ends there: rehearsed without it",
    "twice": "{} is an argument of the installed release too, so the script's parser ends there: rehearsed with one",
    "former": "{} is not in the installed release, so the script ends at its import: rehearsed with attncheck's own",
    "moved": "{} is not in the installed release, so the script ends at its import: rehearsed with the one in {}",
}
REPLACED: Mapping[str, str] = {
    "cuda": "what the script places on {} stays on the CPU, because this machine has no GPU",
    "rows": "{} was not found: the script reads the rehearsal's rows instead",
    "taken": "the script reads the rehearsal's rows instead of {}",
    "reader": "{} ends with {} on synthetic rows: the trainer gets the rows without it",
    "fewer": "{} takes more rows than the rehearsal has: the script gets those that there are",
    "picture": "{} were not found: the script opens small ones instead",
    "data": "{} is not among the files of the launch's verl: the one of the installed release is read",
    "nearby": "{} was not found where the script looks for it: the one in the launch's folder is read",
    "template": "the installed release has no template {}: its default replaces it",
    "chosen": "the model's folder may name another template than {}, the first that fits the small model",
    "key": "the script requires {}, which is not set: it gets a placeholder",
    "cache": "{} keeps the rehearsal's value, because the script sets a folder that does not exist",
    "network": "{} is left out, because a rehearsal has no network",
    "tower": "{} is not available locally: using a small {}",
    "head": "{} loads the small model with its head, because the launch ended without one",
    "sizes": "{} has the script's own sizes, of which these are cut: {}",
    "padding": "{} returns four values, as the script takes and flash-attn before 2.7 returns: later ones return five",
    "class": "the job's process computes the reference of {} itself, on each document in isolation",
    "checkpoint": "{} of {} tensors of the script's checkpoint fit the small model: the others are left out",
    "adapter": "the adapter {} is not available locally: a new one replaces it",
    "shrunk": "the adapter {} is of a model of another size: a new one with its settings replaces it",
    "program": "{} of the environment starts another environment's Python: started with the environment's own",
    "optimizer": "{} is compiled code of DeepSpeed: torch's AdamW replaces it, because this machine has no GPU",
    "gpu": "{} needs a GPU, and this machine has none: left out",
    "float32": "{} are held in float32, as FSDP and DeepSpeed hold them, which are left out",
}
SET_PYTHONPATH = re.compile(r"(?<!\S)PYTHONPATH=")
PROGRAM_NAME = re.compile(r"[\w-]+")
FIRST_LINE = re.compile(rb"#!(/\S*/)python[\d.]*\s")
LAST_LINES = 200  # kept lines of the launch's output: torchrun prints tens of lines after a rank's own error
MAX_LINE_BYTES = 64 << 10
POLL_SECONDS = 0.2
HASTENED = "hastened"  # the watcher's file as it takes a launch to its end
END_SHARE = 0.5  # of the time before, in which it must end
MAX_STEP_BYTES = 64 << 20  # for a rank's losses and rows
MAX_NOTE_BYTES = 64 << 10
SHELL_ERRORS = (126, 127)  # bash's own: a program that cannot be run, or does not exist
MAX_DENIED = 100  # the most paths, and bytes of each, that are read from the watcher's notes
MAX_PATH_BYTES = 4096


@dataclass(frozen=True)
class Execution:
    """How a launch ended: its exit status (None: it was stopped at the deadline), the steps taken, its last lines."""

    returncode: int | None
    steps: int
    lines: tuple[str, ...]
    seconds: float
    isolation: Isolation = Isolation()
    waits: tuple[str, ...] = ()  # the collective that each rank waited in, if all did


@dataclass(frozen=True)
class RunRequest:
    """The command to run, and its environment.

    `environ` is the launch's own. `needs_files`: it starts only if the user's files are protected.
    `emulates_flash_attn`: its processes import flash-attn in plain torch. It is stopped after `seconds`.
    """

    command: str
    environ: Mapping[str, str]
    emulates_flash_attn: bool
    steps: int
    seconds: float
    needs_files: bool = False
    trusts_remote_code: bool = False
    folders: tuple[str, ...] = ()  # inside its own folder, which it may read


def run_launch(request: RunRequest, folder: str, python: str, report_progress: Callable[[str], None]) -> Execution:
    """Run a shell command in the user's working folder, with the interpreter's programs first on PATH."""
    job = _lay_folders(folder)
    for path in request.folders:
        os.makedirs(path, exist_ok=True)
    watch = os.path.join(job, "watch")
    environment = {**request.environ, **guards.make_environment(job, os.environ, request.trusts_remote_code)}
    environment |= {"ATTNCHECK_WATCH": watch, "ATTNCHECK_FOLDER": job}
    if "ATTNCHECK_CONTINUES" in request.environ:
        environment["ATTNCHECK_LAST"] = str(request.steps)
    environment["ATTNCHECK_JUDGING"] = os.path.join(folder, QUESTIONS)
    environment["TORCH_EXTENSIONS_DIR"] = os.path.join(job, FOLDER)  # a killed build leaves a lock forever
    if request.emulates_flash_attn:
        name = environment.setdefault("ATTNCHECK_EMULATED", "flash_attention_2")
        lay_flash_attn(Path(folder) / "entry", name)
    others = (environ.get("PYTHONPATH", "") for environ in (request.environ, os.environ))
    environment["PYTHONPATH"] = _join_paths(os.path.join(folder, "entry"), *others)
    programs = os.path.dirname(os.path.abspath(python))
    own_programs = lay_programs(request.command, python, os.path.join(folder, "entry", "programs"), watch)
    environment["PATH"] = _join_paths(own_programs, programs, os.environ.get("PATH", os.defpath))
    overlaid = {os.getcwd(), os.path.expanduser("~"), os.path.realpath(tempfile.gettempdir()), "/tmp", "/var/tmp"}
    sandbox = Sandbox(
        os.path.join(folder, "sandbox"), [job], [path for path in overlaid if os.path.isdir(path)], request.needs_files
    )
    command = keep_watcher(request.command, os.path.join(folder, "entry"))
    began = time.monotonic()
    report_progress("starting the launch")
    process = LaunchProcess(command, environment, os.getcwd(), sandbox)
    try:
        ended = _follow(process, request, watch, began, report_progress)
    finally:
        process.kill()
        _keep_records(folder)
    isolation = replace(read_isolation(sandbox), denied=_read_denied(os.path.join(folder, "watch")))
    return replace(ended, lines=process.last_lines(), isolation=isolation)


def _follow(
    process: "LaunchProcess", request: RunRequest, watch: str, began: float, report_progress: Callable[[str], None]
) -> Execution:
    """Return how a launch ended; it is stopped after the requested steps or at the deadline.

    At half of its time a launch without half of its steps will not take them all: it is stopped if it has taken the
    recorded ones, of which all but the learning is judged.
    """
    taken = 0
    while not process.wait_for_exit(POLL_SECONDS):
        interrupts.raise_if_interrupted()
        if count_steps(watch) != taken:
            taken = count_steps(watch)
            report_progress(f"step {taken} of {request.steps}")
        if taken >= request.steps:  # a script without a setting for the number of steps
            if os.path.exists(os.path.join(watch, HASTENED)):
                process.wait_for_exit(END_SHARE * (time.monotonic() - began))
            return Execution(0, taken, (), time.monotonic() - began)
        if waits := list_waits(watch):
            return Execution(None, taken, (), time.monotonic() - began, waits=waits)
        # the watcher keeps the tensors of three steps
        if time.monotonic() - began > request.seconds / (2 if 3 < taken < request.steps / 2 else 1):
            return Execution(None, count_steps(watch), (), time.monotonic() - began)
    has_ended = os.path.exists(os.path.join(watch, HASTENED))  # its training: what follows had no training
    return Execution(0 if has_ended else process.returncode, count_steps(watch), (), time.monotonic() - began)


def keep_watcher(command: str, entry: str) -> str:
    """Return a launch's command with the watcher's folder first in any PYTHONPATH that it sets."""
    return SET_PYTHONPATH.sub(lambda match: f"{match[0]}{shlex.quote(entry)}:", command)


def count_steps(watch: str) -> int:
    """Return the number of steps that every reporting rank has taken."""
    counts = []
    for path in Path(watch).glob("steps-*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError, CannotRead):
            counts.append(len(json.loads(read_bounded(path, MAX_STEP_BYTES))["steps"]))
    return min(counts, default=0)


def list_waits(watch: str) -> tuple[str, ...]:
    """Return the collective that each rank waits in; () if one does not wait, or if all are in a backward pass."""
    places = {}
    for path in Path(watch).glob("waiting-*[0-9]"):
        with contextlib.suppress(OSError, ValueError, TypeError, CannotRead):
            place, world_size = json.loads(read_bounded(path, MAX_NOTE_BYTES))
            places[int(path.name.partition("-")[2])] = str(place), int(world_size)
    if len(places) < 2 or any(size != len(places) for _, size in places.values()):
        return ()
    waits = tuple(f"rank {rank} in {places[rank][0]}" for rank in sorted(places))
    return waits if any(" in backward" not in text for text in waits) else ()


def read_continued(folder: str) -> dict[str, Any]:
    """Return what the watcher's `continuing.py` compares, {} if it could not, or was not asked to."""
    record: dict[str, Any] = {}
    for name in ("continued", "start", "skipped"):
        with contextlib.suppress(ValueError):
            record[name] = json.loads(_read_note(Path(folder) / "watch" / f"{name}.json"))
    return {**record.pop("continued", {}), **record}


def read_answers(folder: str, kind: str) -> list[dict[str, Any]]:
    """Return what forks of the launch answer: `effects` of adapters' settings, or `relations` of functions."""
    with contextlib.suppress(ValueError):
        return [json.loads(_read_note(path)) for path in sorted((Path(folder) / "watch").glob(f"{kind}-*.json"))]
    return []


def read_rates(folder: str) -> list[float]:
    """Return the learning rates of the groups of the first rank's optimisers, in its first steps."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, CannotRead):
        steps = json.loads(read_bounded(Path(folder) / "watch" / "steps-0.json", MAX_STEP_BYTES))["steps"]
        return [float(rate) for step in steps[:3] for rate in step["rates"]]
    return []


def count_ranks(folder: str, record: str = "rank-*.pt") -> int:
    """Return the number of ranks that wrote the record of a first step."""
    return len(list((Path(folder) / "watch").glob(record)))


def read_watcher_failures(folder: str, status: int | None = 0) -> str:
    """Return why the watcher could not enter a process, "" if it could, or if the launch's exit status explains it."""
    watch = Path(folder) / "watch"
    if not (watch / "entered").exists() and status not in SHELL_ERRORS:
        return (
            "no Python process of the launch could be watched: it sets another PYTHONPATH, or starts python with "
            "-E, -I or -S"
        )
    lines = _read_note(watch / "watcher-failed").strip().splitlines()
    return lines[-1] if lines else ""


def list_absent(folder: str) -> list[str]:
    """Return the lines about packages and names which the launch's script imports and which are not installed."""
    return _format_notes(folder, ABSENT)


def list_replaced(folder: str) -> list[str]:
    """Return a line for each GPU feature that the launch's script uses and this machine lacks."""
    return _format_notes(folder, REPLACED)


def list_left_out(folder: str) -> tuple[str, ...]:
    """Return the settings that the launch's trainer did not get, because they need a GPU: "use_liger_kernel"."""
    notes = _read_notes(folder)
    own = tuple(name for kind, name in notes if kind == "gpu" and not name.startswith("load_in_"))
    return own + tuple(f"the training that {name} starts after another" for kind, name in notes if kind == "second")


def list_watched_differences(folder: str) -> tuple[Difference, ...]:
    """Return models that were loaded without the quantisation that a script requests, and replaced templates."""
    notes = _read_notes(folder)
    models = [name for kind, name in notes if kind == "gpu" and name.startswith("load_in_")]
    templates = [(name, "default") for kind, name in notes if kind == "template"]
    templates += [("not known", name) for kind, name in notes if kind == "chosen"]
    averaged = [name for kind, name in notes if kind == "argument" and "num_items_in_batch" in name]
    return (
        *(Difference(DIVISOR, "another release's", "the number of batches") for _ in averaged[:1]),
        *(
            Difference("function that reads rows", name.partition(" ")[0], "left out")
            for kind, name in notes
            if kind == "reader"
        ),
        *(Difference(name, "not found", "made up") for kind, name in notes if kind == "picture"),
        *(Difference("quantisation", name, "none") for name in models),
        *(Difference("template", *pair) for pair in templates),
    )


def list_noted(folder: str, kind: str) -> list[str]:
    """Return the names in the watcher's notes of a kind.

    "class": that of the job's model if the job's own process computed its reference; "kind": the types of model that a
    script reads from the small one of another type; "untrained": the classes of models that are called in training mode
    and have no trained parameter; "unread": the script's functions that ended on the synthetic rows, with their errors;
    "loss": settings of the loss that a script's trainer had.
    """
    return [name for own, name in _read_notes(folder) if own == kind]


def _format_notes(folder: str, lines: Mapping[str, str]) -> list[str]:
    """Return a line for each note of a kind that has one."""
    notes = _read_notes(folder)
    return [lines[kind].format(*name.split(), "", "") for kind, name in notes if kind in lines and name.strip()]


def _read_notes(folder: str) -> list[list[str]]:
    """Return the kind and name of each of the watcher's notes, which are files `absent-KIND-NAME`."""
    return sorted(path.name.split("-", 2)[1:] for path in (Path(folder) / "watch").glob("absent-*-*"))


def describe_data_parallel(folder: str) -> str:
    """Return a message if the launch copied its model to several GPUs, which is not recorded; otherwise ""."""
    count = _read_note(Path(folder) / "watch" / "data-parallel")
    if not count.isdecimal():
        return ""
    return (
        f"one process trains on {count} GPUs by torch.nn.DataParallel, whose model copies are not watched: start "
        f"one process per GPU (torchrun --nproc-per-node {count}), or show it one GPU (CUDA_VISIBLE_DEVICES=0)"
    )


def _read_note(path: Path) -> str:
    """Return the text of a watcher's note; "" if it cannot be read, because the launch can write there too."""
    with contextlib.suppress(CannotRead):
        return read_bounded(path, MAX_NOTE_BYTES).decode("utf-8", "replace")
    return ""


def _lay_folders(folder: str) -> str:
    """Put the watcher into the launch's processes; return the only folder that they may write to, empty."""
    job, entry = os.path.join(folder, JOB_FOLDER), os.path.join(folder, "entry")
    for path in (job, entry, os.path.join(folder, "sandbox")):
        remove_folder(path)
    for name in ("output", "watch", "tmp", "cache"):
        os.makedirs(os.path.join(job, name))
    extensions = os.path.join(folder, FOLDER)
    if os.path.isdir(extensions):
        shutil.copytree(extensions, os.path.join(job, FOLDER), symlinks=True)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(WATCHER, os.path.join(entry, "attncheck_watcher"), ignore=ignored)
    shutil.copytree(DRIVERS, os.path.join(entry, "attncheck_drivers"), ignore=ignored)
    shutil.copy(WATCHER / "entry.py", os.path.join(entry, "sitecustomize.py"))
    os.symlink(PACKAGE_FOLDER, os.path.join(entry, PACKAGE_FOLDER.name))  # without the packages next to it
    return job


def _keep_records(folder: str) -> None:
    """Move the watcher's files out of the launch's reach; links, pipes and folders are not the watcher's."""
    written, kept = os.path.join(folder, JOB_FOLDER, "watch"), os.path.join(folder, "watch")
    remove_folder(kept)
    if os.path.isdir(written) and not os.path.islink(written):
        os.rename(written, kept)
        os.chmod(kept, 0o700)
        for entry in list(os.scandir(kept)):
            if not entry.is_file(follow_symlinks=False):
                remove_folder(entry.path)
    else:
        os.makedirs(kept)


def _read_denied(watch: str) -> tuple[str, ...]:
    """Return the paths that the launch's Python could not write to."""
    paths: dict[str, None] = {}
    for file in sorted(Path(watch).glob("denied-*")):
        with contextlib.suppress(CannotRead):
            lines = read_bounded(file, MAX_DENIED * MAX_PATH_BYTES).decode("utf-8", "replace").splitlines()
            paths |= dict.fromkeys(lines[:MAX_DENIED])
    return tuple(paths)[:MAX_DENIED]


def lay_flash_attn(entry: Path, implementation: str = "flash_attention_2") -> None:
    """Put an emulated flash-attn where the processes import from first, with the module of an implementation."""
    package = entry / "flash_attn"
    shutil.copytree(EMULATION, package / "emulation", ignore=shutil.ignore_patterns("__pycache__"))
    for path in EMULATED.glob("*.py"):
        if path.name != "__init__.py":
            shutil.copy(path, package / ("__init__.py" if path.stem == "flash_attn" else path.name))
    if implementation == "flash_attention_3":  # transformers 5.9 fails if no distribution has the module
        shutil.copy(package / "flash_attn_3.py", entry / "flash_attn_interface.py")
    for folder, name in (("utils", "distributed.py"), ("layers", "rotary.py"), ("cute", "cute.py")):
        (package / folder).mkdir()
        (package / folder / "__init__.py").touch()
        os.rename(package / name, package / folder / name)
    os.replace(package / "cute" / "cute.py", package / "cute" / "__init__.py")
    for name, release, top_level in dict.fromkeys((FLASH_ATTN["flash_attention_2"], FLASH_ATTN[implementation])):
        distribution = entry / f"{name.replace('-', '_')}-{release}.dist-info"
        distribution.mkdir()
        (distribution / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n")
        (distribution / "top_level.txt").write_text(f"{top_level}\n")


def lay_programs(command: str, python: str, folder: str, watch: str) -> str:
    """Write starters of the programs in a command that start another folder's Python, as in a copied environment.

    Return their folder, to come first on PATH.
    """
    place = os.path.dirname(os.path.abspath(python))
    os.makedirs(folder)
    for name in dict.fromkeys((*PROGRAM_NAME.findall(command), "torchrun")):  # which LLaMA-Factory and ms-swift start
        program = os.path.join(place, name)
        if not os.path.isfile(program):
            continue
        with open(program, "rb") as stream:
            first = FIRST_LINE.match(stream.readline(MAX_PATH_BYTES))
        if first is not None and os.path.realpath(first[1]) != os.fsencode(os.path.realpath(place)):
            starter = Path(folder, name)
            starter.write_text(f'#!/bin/sh\nexec {shlex.quote(os.path.abspath(python))} {shlex.quote(program)} "$@"\n')
            starter.chmod(0o755)
            Path(watch, f"absent-program-{name}").touch()
    return folder


def _join_paths(*paths: str) -> str:
    return os.pathsep.join(path for path in paths if path)


class LaunchProcess(SandboxedProcess):
    """A shell that runs a launch."""

    def __init__(self, command: str, environment: Mapping[str, str], folder: str, sandbox: Sandbox) -> None:
        """Start the command in `folder`."""
        self._lines: deque[bytes] = deque(maxlen=LAST_LINES)
        super().__init__(command, environment, folder, sandbox)

    def _stream_handlers(self) -> list[Callable[[], None]]:
        return [self._read_stdout, *super()._stream_handlers()]

    def _read_stdout(self) -> None:
        with contextlib.suppress(OSError, ValueError), closing_stream(self._process.stdout) as stream:
            self._lines.extend(iter(lambda: stream.readline(MAX_LINE_BYTES), b""))

    def last_lines(self) -> tuple[str, ...]:
        """Return the last lines that the launch printed, standard error after standard output."""
        for thread in self._threads:
            thread.join(1.0)
        text = b"".join(self._lines).decode("utf-8", "replace") + "\n" + self.stderr
        lines = [line.rsplit("\r", 1)[-1].rstrip() for line in text.splitlines()]
        return tuple(line for line in lines if line)[-LAST_LINES:]
