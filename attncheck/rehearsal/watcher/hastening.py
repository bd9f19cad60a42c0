"""Takes a launch to its end in seconds after the last recorded step: what follows its training runs as it is.

In training mode a model returns again what it returned for a batch of the same sizes, nothing is differentiated, and
loaders have few batches left. So a script saves the weights of the last step, and reaches its next training.

Sources: torch 2.13 nn/modules/module.py (`Module.__call__`), utils/data/dataloader.py (`_BaseDataLoaderIter.__next__`);
transformers 5.17.0 trainer.py (`train` counts the steps of the checkpoint that it resumes as taken; 4.57.3 too).
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import functools
import linecache
import os
import re
import sys
import traceback
from typing import Any

from .absent import is_script, note, read_scripts
from .continuing import FORKED, can_fork
from .relations import read_given, report
from .script_code import find_script_frame, name_line

BATCHES = 2  # of each loader
LOOPS = (ast.For, ast.While)
FOLLOWS = re.compile(r"\bsave\w*\(|\.train\((?s:.*)\.train\(")  # what a script may do after a training
# Errors of code, but not of what a training without gradients does not have; a rehearsal has no network, nor all files.
OF_CODE, OF_TRAINING = (AttributeError, NameError, RuntimeError, TypeError), re.compile(r"NoneType|\bgrad")


def hasten(recorder: Any) -> None:
    """Let a launch go on without training if its script has something to do after it."""
    is_own = "ATTNCHECK_ROWS" in os.environ  # other programs are frameworks', which save
    if not can_fork() or (is_own and not FOLLOWS.search(read_scripts())):
        return
    import torch
    from torch.utils.data import dataloader

    open(os.path.join(recorder.folder, "hastened"), "w").close()
    os.environ["ATTNCHECK_WATCH"] = os.path.join(recorder.folder, "after")  # the records of processes that it starts
    os.makedirs(os.environ["ATTNCHECK_WATCH"], exist_ok=True)
    recorder.is_paused = True
    atexit.register(_end, recorder.folder)  # first: taking torch apart is slow
    loader: Any = dataloader._BaseDataLoaderIter
    base: Any = torch.nn.Module
    call, follow, kept, running = base.__call__, loader.__next__, dict[Any, Any](), list[Any]()

    def repeat(module: Any, *arguments: Any, **options: Any) -> Any:
        if running or not module.training or not hasattr(module, "save_pretrained"):
            return call(module, *arguments, **options)
        tensors = (value for value in (*arguments, *options.values()) if torch.is_tensor(value))
        key = id(module), tuple(value.shape for value in tensors)
        if key not in kept:
            running.append(module)
            with torch.no_grad(), contextlib.ExitStack() as stack:
                stack.callback(running.clear)
                kept[key] = call(module, *arguments, **options)
        return kept[key]

    def take(iterator: Any) -> Any:
        iterator.taken = getattr(iterator, "taken", 0) + 1
        if iterator.taken > BATCHES:
            raise StopIteration
        return follow(iterator)

    torch.Tensor.backward = lambda *arguments, **options: None  # type: ignore[method-assign]
    base.__call__, loader.__next__ = repeat, take


def _end(folder: str) -> None:
    """Report an error of a script's code behind its training, and leave the process."""
    error: Any = getattr(sys, "last_value", None)
    if isinstance(error, OF_CODE) and not OF_TRAINING.search(str(error)):
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        own = [frame for frame in frames if _is_script(frame)]
        if own and not any(map(_trains, frames)):
            text = f"after the recorded steps {name_line(own[-1])} ends the launch with {type(error).__name__}"
            report(folder, "run", warnings=[f"{text}: {str(error)[:300]}"])
    os._exit(0)


def _is_script(frame: Any) -> bool:
    """Return whether a frame is a script's; Python has deleted `__file__` from the main module's variables."""
    return is_script({"__file__": frame.f_code.co_filename})


def _trains(frame: Any) -> bool:
    """Return whether a frame is a trainer's training, or a line of a script's own loop."""
    name, line = frame.f_code.co_filename, frame.f_lineno
    if not _is_script(frame):
        return bool(frame.f_code.co_name == "train")
    loops = (own for own in ast.walk(ast.parse("".join(linecache.getlines(name)))) if isinstance(own, LOOPS))
    return any(own.lineno <= line <= (own.end_lineno or line) and ".backward(" in ast.unparse(own) for own in loops)


def watch_trainings(recorder: Any, trainer: Any) -> None:
    """Compare each training of a script with the one before, which it may resume although that one has ended."""
    original, trainings = trainer.Trainer.train, list[tuple[str, str, float]]()

    @functools.wraps(original)
    def train(self: Any, *arguments: Any, **options: Any) -> Any:
        frame = find_script_frame(sys._getframe(1))
        if frame is not None and not FORKED:
            resumed = [*arguments, options.get("resume_from_checkpoint")][0]
            own = (str(read_given(self.args, "output_dir")), name_line(frame), _read_length(self.args))
            for folder, line, length in trainings[-1:]:
                is_same = own[0] == folder if resumed is True else str(resumed).startswith(folder)
                if resumed and is_same and 0 < own[2] <= length:
                    text = f"{own[1]} resumes the training that ended in {line}, for {own[2]:g} of {length:g} epochs"
                    report(recorder.folder, "update", violations=[f"{text}: its steps count as taken, so few are left"])
                else:
                    note(recorder.folder, "second", own[1])
            trainings.append(own)
        return original(self, *arguments, **options)

    trainer.Trainer.train = train


def _read_length(args: Any) -> float:
    """Return the epochs that a script gives a training, 0.0 if it gives a number of steps."""
    return 0.0 if read_given(args, "max_steps") != args.max_steps else float(read_given(args, "num_train_epochs"))
