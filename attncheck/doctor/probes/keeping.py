"""Keeps the import lane's answers for `doctor --deep`, under a digest of everything that an import can depend on.

That is every module of every installed distribution with its folders (path, size and time), start-up files, the
environment variables, the system's libraries, this machine since its boot, and attncheck's own probe. A machine with a
GPU keeps nothing, because its driver and devices may change at any time; nor is anything kept of an import that hung or
died, which may have been the machine's fault.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attncheck.core.io.private_folder import cache_folder, replace_private_file
from attncheck.doctor.probes import bundle
from attncheck.workers.child import ChildResult

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
LIBRARIES = ("/etc/ld.so.cache", "/etc/ld.so.conf")  # of the system: installing one updates the first
GPU_NODES = ("nvidia", "dxg", "kfd")
VARYING = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "COLUMNS", "LINES", "TERM", "WINDOWID"})
CALLS = ("imports", "confirm")
MAX_BYTES = 8 << 20


def describe_machine() -> list[str]:
    """Return what distinguishes this machine since its boot from others that share a home: its GPU device files."""
    boot = BOOT_ID.read_text().strip() if BOOT_ID.exists() else os.uname().nodename
    return [boot, *sorted(name for name in os.listdir("/dev") if name.startswith(GPU_NODES))]


def find_kept_file(stamps: str, request: Mapping[str, object], interpreter: str) -> Path | None:
    """Return the file that caches the answers for these `stamps`, None if nothing may be kept."""
    folder, machine = cache_folder(os.environ), describe_machine()
    if folder is None or len(machine) > 1:
        return None
    environ = sorted((name, value) for name, value in os.environ.items() if name not in VARYING)
    libraries = [_stamp(path) for path in LIBRARIES]
    message = bundle.build_message("imports", dict(request))
    facts = (stamps, interpreter, environ, libraries, machine, json.dumps(message, sort_keys=True))
    return folder / f"imports-{hashlib.sha256(repr(facts).encode('utf-8', 'surrogatepass')).hexdigest()[:32]}.json"


def read_kept(path: Path | None) -> dict[str, ChildResult]:
    """Return the kept answers by call; empty if there are none."""
    with contextlib.suppress(OSError, ValueError):
        if path is not None:
            with path.open("rb") as stream:
                document = json.loads(stream.read(MAX_BYTES))
            return {call: ChildResult("ok", answer) for call, answer in document.items() if isinstance(answer, dict)}
    return {}


def keep(path: Path | None, results: Mapping[str, ChildResult]) -> None:
    """Keep the answers about imports, if each import ended by itself."""
    answers: dict[str, Any] = {call: results[call].answer for call in CALLS if call in results}
    if path is not None and "imports" in answers and all(map(_is_settled, answers.values())):
        with contextlib.suppress(OSError):
            replace_private_file(path, json.dumps(answers))


def _is_settled(answer: object) -> bool:
    if not isinstance(answer, dict) or answer.get("lost"):
        return False
    outcomes = answer["imports"]["known"] if "imports" in answer else answer.get("outcomes", [])
    return all(outcome["outcome"] in ("ok", "raised", "skipped") for outcome in outcomes)


def _stamp(path: str) -> tuple[int, int]:
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns
    return 0, 0
