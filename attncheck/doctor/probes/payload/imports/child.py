"""Imports one module and records how the import ended; this part of the import lane runs in the child."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import Any

MESSAGE_LENGTH = 2000
MAX_FRAMES = 5
C_STACK = "C stack trace (most recent call first)"  # written by faulthandler after the frames, since Python 3.14
# With this variable set, torch counts GPUs through NVML, so that CUDA stays usable in processes forked later
# (torch/cuda/__init__.py, is_available).
COUNT_BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"


def import_module(module: str, extra_module: str = "") -> dict[str, Any]:
    """Import `module`, and `extra_module` if given; return the ImportOutcome as a plain dictionary."""
    started_at = time.perf_counter()
    try:
        __import__(module)
        if extra_module:
            __import__(extra_module)
    except BaseException as error:
        return make_outcome(module, "raised", time.perf_counter() - started_at, **_describe_exception(error))
    seconds = time.perf_counter() - started_at
    return make_outcome(module, "ok", seconds, version=_module_version(module))


def make_outcome(module: str, outcome: str, seconds: float, **fields: object) -> dict[str, Any]:
    """Return an ImportOutcome as a plain dictionary."""
    record: dict[str, Any] = {"module": module, "outcome": outcome, "seconds": round(seconds, 3)}
    record.update(exception="", message="", frames=[], signal="", version="")
    record.update(fields)
    return record


def _describe_exception(error: BaseException) -> dict[str, Any]:
    message = _exception_text(error)
    cause = _root_cause(error)
    if cause is not error and _exception_text(cause) not in message:
        chained = " (caused by " + type(cause).__name__ + ": " + _exception_text(cause) + ")"
        message = message[: MESSAGE_LENGTH // 2] + chained
    return {
        "exception": type(error).__name__,
        "message": message[:MESSAGE_LENGTH],
        "frames": format_frames(cause.__traceback__ or error.__traceback__),
    }


def _root_cause(error: BaseException) -> BaseException:
    for _ in range(20):
        if error.__cause__ is None or error.__cause__ is error:
            break
        error = error.__cause__
    return error


def _exception_text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as str_error:  # an exception whose __str__ raises
        return "(its text cannot be read: " + type(str_error).__name__ + ")"


def format_frames(traceback: TracebackType | None) -> list[str]:
    """Return the last frames of `traceback`, without those of the import machinery and attncheck."""
    frames: list[str] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith("<") and traceback.tb_frame.f_globals is not globals():
            frames.append("%s:%d in %s" % (shorten_path(code.co_filename), traceback.tb_lineno, code.co_name))
        del frames[:-MAX_FRAMES]
        traceback = traceback.tb_next
    return frames


def shorten_path(path: str) -> str:
    """Return `path` relative to the directory of sys.path that contains it."""
    longest = ""
    for entry in sys.path:
        folder = entry.rstrip(os.sep) + os.sep
        if entry and path.startswith(folder) and len(folder) > len(longest):
            longest = folder
    return path[len(longest) :]


def parse_crash_frames(stderr: str) -> list[str]:
    """Return the frames that faulthandler wrote to `stderr`, oldest first."""
    frames: list[str] = []
    own_folder = os.path.dirname(import_module.__code__.co_filename)
    dump = stderr.replace(C_STACK, "")
    for line in dump[dump.rfind("most recent call first") :].splitlines()[1:]:
        if not line.startswith('  File "'):
            break
        path, _, rest = line[8:].partition('", line ')
        number, _, function = rest.partition(" in ")
        if not path.startswith("<") and os.path.dirname(path) != own_folder:
            frames.append("%s:%s in %s" % (shorten_path(path), number, function))
    return frames[:MAX_FRAMES][::-1]


def last_stderr_lines(stderr: str) -> str:
    """Return the last three lines that a dead program wrote to `stderr`, without faulthandler's dump."""
    lines = stderr.split("Fatal Python error", 1)[0].strip().splitlines()
    return "\n".join(lines[-3:])[-MESSAGE_LENGTH:]


def _module_version(module: str) -> str:
    for name in (module, module.partition(".")[0]):
        try:
            version = getattr(sys.modules.get(name), "__version__", None)
            if version is not None:
                return str(version)[:100]
        except BaseException:  # a module's __getattr__ may run any code
            continue
    return ""


def count_gpus_by_nvml() -> None:
    """Prevent torch from starting CUDA in a process from which others are forked."""
    os.environ[COUNT_BY_NVML] = "1"


def restore_gpu_counting(value: str | None) -> None:
    """Restore COUNT_BY_NVML to `value`, the user's own setting (None: not set)."""
    if value is None:
        os.environ.pop(COUNT_BY_NVML, None)
    else:
        os.environ[COUNT_BY_NVML] = value


def unfit_reason() -> str:
    """Return why no process should be forked from this one (torch has started CUDA in it); "" if it can be forked."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        return "CUDA was started on import" if cuda is not None and cuda.is_initialized() else ""
    except Exception:
        return ""


def cuda_unusable_reason() -> str:
    """Return why CUDA cannot be used here (the parent of this forked process had started it); "" if it can.

    torch tracks this in torch._C._cuda_isInBadFork; a mere torch.cuda.is_available() before the fork already counts.
    """
    native = getattr(sys.modules.get("torch"), "_C", None)
    try:
        return "CUDA cannot be used in this forked process" if native is not None and native._cuda_isInBadFork() else ""
    except Exception:  # a build without CUDA lacks this function
        return ""
