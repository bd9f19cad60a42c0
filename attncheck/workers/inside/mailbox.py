"""A rank's side of the folder through which it talks to attncheck: what it is at, what it answers, what went wrong."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from pathlib import Path
from typing import Any


class Board:
    """Writes documents that appear whole: under another name first, then renamed."""

    def __init__(self, folder: str, rank: int) -> None:
        self.folder, self.rank = Path(folder), rank
        self._numbers = itertools.count()
        # Whoever finds us hanging asks for our stack (SIGUSR1), and must know which thread is the one that measures.
        self._put(f"rank-{rank}", {"rank": rank, "pid": os.getpid(), "thread": threading.main_thread().ident})

    def say(self, document: dict[str, Any]) -> None:
        """Say something that attncheck takes up in this order; one rank speaks for all."""
        self._put(f"said-{next(self._numbers):06d}-{self.rank}", document)

    def fault(self, message: str, rank: int | None = None) -> None:
        """Say that this rank, or another, cannot go on."""
        who = self.rank if rank is None else rank
        self._put(f"fault-{who}", {"rank": who, "message": message, "at": time.time()})

    def _put(self, name: str, document: dict[str, Any]) -> None:
        hidden = self.folder / f".{name}"
        hidden.write_text(json.dumps(document))
        hidden.rename(self.folder / f"{name}.json")
