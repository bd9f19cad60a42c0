"""A rank's side of the folder that it shares with its parent: progress, answers and faults as JSON files."""

import itertools
import json
import os
import threading
import time
from pathlib import Path
from typing import Any


class Mailbox:
    """Writes JSON files that appear only when complete: written under a hidden name, then renamed."""

    def __init__(self, folder: str, rank: int) -> None:
        self.folder, self.rank = Path(folder), rank
        self._numbers = itertools.count()
        # A parent requests our stacks by a signal (SIGUSR1) if we hang, and must know which thread is measuring.
        self._write(f"rank-{rank}", {"rank": rank, "pid": os.getpid(), "thread": threading.main_thread().ident})

    def post(self, document: dict[str, Any]) -> None:
        """Post a document; the parent handles documents in the order of posting; one rank posts for all."""
        self._write(f"said-{next(self._numbers):06d}-{self.rank}", document)

    def post_fault(self, message: str, rank: int | None = None) -> None:
        """Post that this rank, or another, cannot continue."""
        faulty_rank = self.rank if rank is None else rank
        self._write(f"fault-{faulty_rank}", {"rank": faulty_rank, "message": message, "at": time.time()})

    def _write(self, name: str, document: dict[str, Any]) -> None:
        hidden = self.folder / f".{name}"
        hidden.write_text(json.dumps(document))
        hidden.rename(self.folder / f"{name}.json")
