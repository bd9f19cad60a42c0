"""Remembers which cases failed parity, so that `parity --last-failed` runs only those, as pytest does.

The memory is next to a gate's kept answers in the user's cache folder, never in the examined environment. It is one
small file for each interpreter, device, suite or model, and ring. Nothing is written until something fails. A case that
passes is forgotten; one that was not run is kept (pytest 8.4, src/_pytest/cacheprovider.py, `LFPlugin`,
https://github.com/pytest-dev/pytest).
"""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from attncheck.core.io.private_folder import cache_folder, cache_path, forget_oldest, replace_private_file

if TYPE_CHECKING:
    from attncheck.core.report import Report

Pair = tuple[str, str]  # a backend and the name of a case

PREFIX = "last-failed-"
MAX_FILES = 64
MAX_BYTES = 4 << 20
FAILED_ANSWERS = ("fail", "warn", "lost")


class FailureMemory:
    """The cases that failed when they were last run with the same settings."""

    def __init__(self, *settings: object) -> None:
        key = hashlib.blake2b(json.dumps(settings, default=str).encode(), digest_size=12).hexdigest()
        folder = cache_path(os.environ)
        self.path: Path | None = None if folder is None else folder / f"{PREFIX}{key}.json"

    def read(self) -> tuple[Pair, ...]:
        """Return the cases that failed; empty if nothing is remembered or readable."""
        if self.path is None:
            return ()
        with suppress(OSError, ValueError, TypeError, RecursionError):
            if self.path.stat().st_size <= MAX_BYTES:
                pairs = json.loads(self.path.read_text("utf-8"))
                return tuple((str(backend), str(case)) for backend, case in pairs)
        return ()

    def update(self, report: "Report") -> None:
        """Remember which cases of a report failed parity, and forget those that passed; a full disk is not an error."""
        from attncheck.core.results.parity import ParitySection

        section = report.section(ParitySection)
        if self.path is None or section is None:
            return
        before = self.read()
        measured = {(verdict.backend, verdict.case) for verdict in section.verdicts}
        failed = [(v.backend, v.case) for v in section.verdicts if v.answer in FAILED_ANSWERS]
        after = tuple(dict.fromkeys((*(pair for pair in before if pair not in measured), *failed)))
        with suppress(OSError):
            if after and after != before and cache_folder(os.environ) is not None:
                replace_private_file(self.path, json.dumps(after))
                forget_oldest(self.path.parent, f"{PREFIX}*.json", MAX_FILES)
            elif before and not after:
                self.path.unlink()
