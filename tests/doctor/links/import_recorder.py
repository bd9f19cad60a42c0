"""Imports every module of a package, each in a forked child, and records what became of it.

Run as a script by the interpreter that sees the packages: `python import_recorder.py PACKAGE OUTPUT [OPTIONS]`. It
needs nothing but the standard library. A module is imported in a fork of a process that holds its parent package
already, which is what an import of it alone would find, at a fraction of the time. With --cuda, torch answers that a
GPU is there, as on the machines that train: transformers defines some names only then. With --bare, nothing is imported
beforehand.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

DEADLINE = 30  # seconds for one module's own import
# Heavy packages that consumers import first: held by every child if they can be imported at all.
LIGHT = "torch transformers transformers.modeling_utils transformers.trainer numpy triton accelerate"
PRELOADED = """
    pandas datasets peft torch.distributed.fsdp torch.distributed.tensor ray tensordict modelscope rich.console
    transformers.models.auto.modeling_auto transformers.models.auto.processing_auto transformers.generation
    transformers.pipelines transformers.integrations.integration_utils diffusers.loaders wandb bitsandbytes
    trl.trainer.dpo_trainer trl.trainer.grpo_trainer liger_kernel.transformers.monkey_patch
"""
LIGHT_CONSUMERS = ("ring_flash_attn", "liger_kernel", "peft", "accelerate", "yunchang", "remote_models")
# Modules that are programs, tests or user interfaces: importing them may start something.
SKIPPED = re.compile(r"(^|\.)(__main__|tests?|test_\w+|conftest|examples?|ui|webui|benchmarks?)(\.|$)")
MISSING_NAME = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
MISSING_ATTRIBUTE = re.compile(r"module '?([\w.]+)'? has no attribute '?(\w+)")
Record = dict[str, object]


def list_submodules(folders: list[str]) -> Iterator[str]:
    """Yield the names of the modules and packages in these folders of a package."""
    for folder in map(Path, folders):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            is_module = path.suffix == ".py" and path.stem != "__init__"
            if path.stem.isidentifier() and (is_module or (path.is_dir() and any(path.glob("**/*.py")))):
                yield path.stem


def list_modules(name: str, folders: list[str]) -> Iterator[str]:
    """Yield the full names of all modules below a package, without importing anything."""
    for stem in dict.fromkeys(list_submodules(folders)):
        qualified_name = f"{name}.{stem}"
        if not SKIPPED.search(qualified_name):
            yield qualified_name
            yield from list_modules(qualified_name, [os.path.join(folder, stem) for folder in folders])


def shorten_path(path: str) -> str:
    """Return a file's path relative to the entry of sys.path that holds it."""
    entries = [entry for entry in sys.path if entry and path.startswith(entry + os.sep)]
    return os.path.relpath(path, max(entries, key=len)) if entries else path


def shorten_paths(text: str) -> str:
    """Return a message with the folders of sys.path taken out."""
    for entry in sorted(filter(None, sys.path), key=len, reverse=True):
        text = text.replace(entry + os.sep, "")
    return text


def find_root(error: BaseException) -> BaseException:
    """Return what an exception was raised from, down to the first."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def classify_error(error: BaseException) -> tuple[str, str, str]:
    """Return what kind of failure this is, the module that lacks something, and what it lacks."""
    message = str(error)
    match = MISSING_NAME.search(message)
    if isinstance(error, ImportError) and match:
        return "missing name", match[2], match[1]
    if isinstance(error, ModuleNotFoundError) and error.name:
        top = error.name.partition(".")[0]
        known = top in sys.modules or importlib.util.find_spec(top) is not None
        return ("missing submodule" if known and "." in error.name else "missing package"), error.name, ""
    match = MISSING_ATTRIBUTE.search(message)
    if isinstance(error, AttributeError) and match:
        return "missing attribute", match[1], match[2]
    return "other", "", ""


def describe_error(error: BaseException) -> Record:
    """Return the record of a failed import: its first cause, and if that was raised."""
    root = find_root(error)
    own = ("importlib", __file__)
    frames = [frame for frame in traceback.extract_tb(root.__traceback__) if not any(x in frame.filename for x in own)]
    kind, provider, name = classify_error(root)
    record: Record = {"kind": kind, "error": type(root).__name__, "provider": provider, "name": name}
    record["message"] = shorten_paths((str(root).splitlines() or [""])[0])[:300]
    record["frames"] = [f"{shorten_path(frame.filename)}:{frame.lineno}" for frame in frames][-8:]
    record["statement"] = (frames[-1].line or "") if frames else ""
    return record


def import_module(name: str) -> tuple[ModuleType | None, Record]:
    """Return the imported module, or None, and the record of it."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(DEADLINE)
    try:
        return importlib.import_module(name), {"kind": "ok"}
    except BaseException as error:  # SystemExit is a failed import too
        return None, describe_error(error)
    finally:
        signal.alarm(0)


class Recorder:
    """Writes one line of JSON for each module."""

    def __init__(self, output: str) -> None:
        self.output = output

    def write(self, module: str, record: Record) -> None:
        """Append the record of one module."""
        with open(self.output, "a", encoding="utf-8") as stream:
            stream.write(json.dumps({"module": module, **record}) + "\n")

    def holds(self, module: str) -> bool:
        """Return whether a record of this module was written."""
        with open(self.output, encoding="utf-8") as stream:
            return any(json.loads(line)["module"] == module for line in stream)

    def record_in_child(self, name: str) -> None:
        """Import a module and those below it in a child."""
        child = os.fork()
        if child == 0:
            try:
                self.record_tree(name)
            finally:
                os._exit(0)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status) and not self.holds(name):
            signal_name = signal.Signals(os.WTERMSIG(status)).name
            kind = "deadline" if signal_name == "SIGALRM" else "died"
            self.write(name, {"kind": kind, "error": signal_name})

    def record_tree(self, name: str) -> None:
        """Import a module, record it, and do so with each module below it."""
        spec = importlib.util.find_spec(name)
        folders = list((spec.submodule_search_locations if spec else None) or ())
        module, record = import_module(name)
        self.write(name, record)
        below = list(list_modules(name, folders))
        if module is None:
            for qualified_name in below:
                self.write(qualified_name, {**record, "parent": name})
            return
        for qualified_name in below:
            if qualified_name.count(".") == name.count(".") + 1:
                self.record_in_child(qualified_name)


def preload(package: str) -> None:
    """Import what is heavy, and forget what began and failed: every child inherits it."""
    names = LIGHT if package in LIGHT_CONSUMERS else LIGHT + PRELOADED
    for name in names.split():
        before = set(sys.modules)
        if name.partition(".")[0] != package and import_module(name)[0] is None:
            for began in set(sys.modules) - before:
                del sys.modules[began]


def main() -> None:
    """Record a package's modules."""
    package, output = sys.argv[1:3]
    sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(os.path.abspath(__file__))]
    Path(output).write_text("")
    if "--cuda" in sys.argv:
        torch = importlib.import_module("torch")
        torch.cuda.is_available, torch.version.cuda = (lambda: True), torch.version.cuda or "13.0"
    if "--bare" not in sys.argv:
        preload(package)
    Recorder(output).record_in_child(package)


if __name__ == "__main__":
    main()
