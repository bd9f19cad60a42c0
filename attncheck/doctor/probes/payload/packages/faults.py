"""Looks for faults of known releases in the installed files: a file repaired by hand no longer has the fault."""

from __future__ import annotations

import re
from typing import Pattern

from .. import files

_LIMIT = 1 << 20
# Distribution -> code of the rule about the fault, file, and the lines that together make up the fault.
_FAULTS: dict[str, tuple[str, str, tuple[Pattern[str], ...]]] = {
    "transformers": (
        "ATN457",
        "transformers/trainer.py",
        (
            re.compile(r'^ *grad_acc_kwargs\["num_steps"\] = self\.args\.gradient_accumulation_steps\b', re.M),
            re.compile(r"^ *loss = loss / self\.(args|current)[._]gradient_accumulation_steps\b", re.M),
        ),
    ),
}


def find_faults(distribution: str, site: str) -> dict[str, bool]:
    """Return, by rule code, whether a fault is in the files of a distribution; empty if none was read."""
    if distribution not in _FAULTS:
        return {}
    code, path, lines = _FAULTS[distribution]
    text = files.read_text(site + "/" + path, _LIMIT)
    return {code: all(line.search(text) for line in lines)} if text else {}
