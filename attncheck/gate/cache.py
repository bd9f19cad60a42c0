"""Keeps a gate's answers for the next start in our own folder: one small file each, with the report next to it.

Many starts may happen at once, on one machine or over a shared home, so files are put in place by renaming. A file that
cannot be read, is damaged or is too old is treated as missing.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from attncheck.core import codec
from attncheck.core.io.private_folder import replace_private_file

MAX_AGE_SECONDS = 24 * 3600.0  # a machine changes in ways that no file shows
MAX_ANSWERS = 64
MAX_REPORT_BYTES = 16 << 20


@dataclass(frozen=True)
class Answer:
    """How a gate ended, the digests of the user's files and models that it read, and when (seconds since 1970).

    `summary` is its result in a few words: "12 passed, 0 errors".
    """

    code: int
    written: float
    files: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    summary: str = ""


def read_answer(folder: Path, key: str, is_current: Callable[[Answer], bool]) -> Answer | None:
    """Return the answer for this key if it exists, is fresh, and the files that it read are unchanged."""
    try:
        answer = codec.loads(Answer, (folder / f"answer-{key}.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):  # BadDocument is a ValueError
        return None
    age = time.time() - answer.written
    return answer if 0 <= age <= MAX_AGE_SECONDS and is_current(answer) else None


def read_report(folder: Path, key: str) -> str:
    """Return the report of an answer as JSON; "" if it was too large to keep or no longer exists."""
    with suppress(OSError, ValueError):
        return (folder / f"report-{key}.json").read_text("utf-8")
    return ""


def write_answer(folder: Path, key: str, answer: Answer, report: str) -> None:
    """Keep an answer and its report, and as many others as there is room for. A full disk is not an error."""
    with suppress(OSError):
        if len(report) <= MAX_REPORT_BYTES:
            replace_private_file(folder / f"report-{key}.json", report)
        replace_private_file(folder / f"answer-{key}.json", codec.dumps(answer))
        _remove_old(folder)


def _remove_old(folder: Path) -> None:
    """Remove the oldest answers beyond `MAX_ANSWERS`, and files that starts of earlier days left behind."""
    now = time.time()
    answers: list[tuple[float, Path]] = []
    for path in folder.iterdir():
        with suppress(OSError):
            age = now - path.stat().st_mtime
            if path.name.startswith("answer-"):
                answers.append((age, path))
            elif path.name.startswith(("launch-", ".attncheck-", "report-")) and age > 2 * MAX_AGE_SECONDS:
                path.unlink()
    for _, path in sorted(answers)[MAX_ANSWERS:]:
        with suppress(OSError):
            path.unlink()
            (folder / path.name.replace("answer-", "report-")).unlink()
