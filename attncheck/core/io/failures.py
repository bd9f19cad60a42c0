"""Describes an unexpected error: in plain words if the cause is outside attncheck, otherwise as a bug."""

import errno
import os

MAX_LENGTH = 300  # maximum characters of a message from another program
TRACEBACK_VARIABLE = "ATTNCHECK_TRACEBACK"
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)
_OUT_OF_RESOURCES = (*_OUT_OF_FILES, errno.ENOMEM, errno.EAGAIN)
# Messages of the shared-object loader, and of a Python that had no memory for a MemoryError.
_SIGNS_OF_NO_MEMORY = (
    *("failed to map segment", "annot allocate memory"),
    *("error return without exception set", "returned NULL without setting an exception"),
)
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def describe_failure(error: BaseException) -> str:
    """Return what happened and what to do about it, in one line."""
    text = _shorten(str(error))
    if isinstance(error, OSError):
        cause = _describe_os_error(error)
    elif isinstance(error, MemoryError) or any(sign in text for sign in _SIGNS_OF_NO_MEMORY):
        cause = "out of memory: raise the limit (ulimit -v, or the container's)"
    elif isinstance(error, RuntimeError) and "start new thread" in text:
        cause = "no more threads can be started: raise the limit (ulimit -u, ulimit -v, or the container's)"
    elif isinstance(error, ImportError):
        cause = f"attncheck's own installation is damaged: {text}; install it again"
    else:
        cause = ""
    return cause or (
        f"this is a bug in attncheck: {type(error).__name__}: {text} "
        f"({TRACEBACK_VARIABLE}=1 shows where; please report it)"
    )


def is_out_of_resources(error: BaseException) -> bool:
    """Return whether memory, files or processes ran out, which is not a fault of the failing code."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _OUT_OF_RESOURCES)


def _describe_os_error(error: OSError) -> str:
    """Return the cause in plain words, or "" if it may be inside attncheck."""
    name = _shorten(os.fsdecode(error.filename)) if isinstance(error.filename, (str, bytes, os.PathLike)) else ""
    if error.errno in _OUT_OF_FILES:
        return "no more files can be opened: raise the limit (ulimit -n)"
    if error.errno == errno.ENOMEM:
        return "out of memory: raise the limit (ulimit -v, or the container's)"
    if error.errno == errno.EAGAIN:
        return "no more processes can be started: raise the limit (ulimit -u, or the container's)"
    if isinstance(error, FileNotFoundError) and "temporary directory" in str(error):
        return "no temporary folder can be written to: set TMPDIR to one that can"
    if isinstance(error, FileNotFoundError) and not _has_working_folder():
        return "the working directory no longer exists: cd to a folder that exists"
    if error.errno in _CANNOT_WRITE:
        return f"cannot write{' ' + name if name else ''}: {error.strerror}"
    return f"{name}: {error.strerror}" if name and error.strerror else ""


def _has_working_folder() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def _shorten(text: str) -> str:
    return " ".join(text.split())[:MAX_LENGTH]
