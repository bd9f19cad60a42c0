"""Imports one module and tells how it ended: the part of the import lane that runs in the child."""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Dict, List, Optional

MESSAGE_LENGTH = 2000
FRAMES = 5
# With this set torch counts GPUs through NVML, which leaves CUDA usable in processes forked later
# (torch/cuda/__init__.py, is_available).
BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"


def bring_in(module: str, also: str = "") -> Dict[str, Any]:
    """Return the ImportOutcome of importing `module`, and `also` where given, here, as a plain dictionary."""
    begin = time.perf_counter()
    try:
        __import__(module)
        if also:
            __import__(also)
    except BaseException as error:
        return outcome(module, "raised", time.perf_counter() - begin, **_told(error))
    seconds = time.perf_counter() - begin
    return outcome(module, "ok", seconds, version=_version(module))


def outcome(module: str, how: str, seconds: float, **more: object) -> Dict[str, Any]:
    """Return an ImportOutcome as a plain dictionary."""
    record: Dict[str, Any] = {"module": module, "outcome": how, "seconds": round(seconds, 3)}
    record.update(exception="", message="", frames=[], signal="", version="")
    record.update(more)
    return record


def _told(error: BaseException) -> Dict[str, Any]:
    message = _text(error)
    root = _root(error)
    if root is not error and _text(root) not in message:
        message = message[: MESSAGE_LENGTH // 2] + " (caused by " + type(root).__name__ + ": " + _text(root) + ")"
    return {
        "exception": type(error).__name__,
        "message": message[:MESSAGE_LENGTH],
        "frames": frames_of(root.__traceback__ or error.__traceback__),
    }


def _root(error: BaseException) -> BaseException:
    for _ in range(20):
        if error.__cause__ is None or error.__cause__ is error:
            break
        error = error.__cause__
    return error


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as second:  # an exception whose __str__ raises
        return "(its text cannot be read: " + type(second).__name__ + ")"


def frames_of(traceback: Optional[TracebackType]) -> List[str]:
    """Return the last frames of `traceback`, the import machinery and attncheck left out."""
    found: List[str] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith("<") and not _is_ours(traceback.tb_frame.f_globals):
            found.append("%s:%d in %s" % (short(code.co_filename), traceback.tb_lineno, code.co_name))
        del found[:-FRAMES]
        traceback = traceback.tb_next
    return found


def _is_ours(names: Dict[str, Any]) -> bool:
    return names is globals()


def short(path: str) -> str:
    """Return `path` relative to the directory of sys.path that holds it."""
    best = ""
    for entry in sys.path:
        folder = entry.rstrip(os.sep) + os.sep
        if entry and path.startswith(folder) and len(folder) > len(best):
            best = folder
    return path[len(best) :]


def crash_frames(errors: str) -> List[str]:
    """Return the frames that faulthandler wrote among `errors`, oldest first."""
    found: List[str] = []
    ours = os.path.dirname(bring_in.__code__.co_filename)
    for line in errors[errors.rfind("most recent call first") :].splitlines()[1:]:
        if not line.startswith('  File "'):
            break
        path, _, rest = line[8:].partition('", line ')
        number, _, function = rest.partition(" in ")
        if not path.startswith("<") and os.path.dirname(path) != ours:
            found.append("%s:%s in %s" % (short(path), number, function))
    return found[:FRAMES][::-1]


def last_words(errors: str) -> str:
    """Return what a program that died wrote last, without faulthandler's dump."""
    said = errors.split("Fatal Python error", 1)[0].strip().splitlines()
    return "\n".join(said[-3:])[-MESSAGE_LENGTH:]


def _version(module: str) -> str:
    for name in (module, module.partition(".")[0]):
        try:
            version = getattr(sys.modules.get(name), "__version__", None)
            if version is not None:
                return str(version)[:100]
        except BaseException:  # a module may answer attributes with code of its own
            continue
    return ""


def count_by_nvml() -> None:
    """Keep torch from starting CUDA in a process that others are forked from."""
    os.environ[BY_NVML] = "1"


def count_as_user(value: Optional[str]) -> None:
    """Give torch's way of counting GPUs back its own setting."""
    if value is None:
        os.environ.pop(BY_NVML, None)
    else:
        os.environ[BY_NVML] = value


def cuda_started() -> str:
    """Return why this process is no good to fork from: torch has started CUDA in it; "" where it has not."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        return "CUDA was started on import" if cuda is not None and cuda.is_initialized() else ""
    except Exception:
        return ""


def cuda_lost() -> str:
    """Return why CUDA cannot be used here: the process this one was forked from had touched it; "" where it can.

    torch knows (torch._C._cuda_isInBadFork): it takes note of a fork after a mere torch.cuda.is_available().
    """
    native = getattr(sys.modules.get("torch"), "_C", None)
    try:
        return "CUDA cannot be used in this forked process" if native is not None and native._cuda_isInBadFork() else ""
    except Exception:  # a build without CUDA has no such function
        return ""
