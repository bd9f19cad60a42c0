"""Keeps the import lane's answers for `doctor --deep`, under a digest of everything that an import can depend on.

That is every module of every installed distribution with its folders (path, size and time), start-up files, the
environment variables, the system's libraries, this machine since its boot with NVIDIA's driver and GPUs, and
attncheck's own probe. Nothing is kept of an import that hung or died, or of a kernel that failed, because that may have
been the machine's fault. A GPU may fail at any time: before kept answers are used, the driver runs a kernel on each.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attncheck.core.io.private_folder import cache_folder, digest_facts, list_variables, replace_private_file
from attncheck.core.io.private_folder import read_kept as read_kept_file
from attncheck.doctor.probes import bundle
from attncheck.workers.child import ChildResult

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
LIBRARIES = ("/etc/ld.so.cache", "/etc/ld.so.conf")  # of the system: installing one updates the first
OTHER_GPU_NODES = ("dxg", "kfd")  # of WSL and AMD: their drivers are not described
NVIDIA = Path("/proc/driver/nvidia")
OF_TERMINALS = ("COLUMNS", "LINES", "TERM")
CALLS = ("imports", "confirm")
MAX_BYTES = 8 << 20


def identify_boot() -> str:
    """Return what distinguishes this machine since its boot from others that share a home."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else os.uname().nodename


def identify_machine() -> list[str]:
    """Return this machine's boot and its GPU device files, whether or not their driver is known."""
    return [
        identify_boot(),
        *sorted(name for name in os.listdir("/dev") if name.startswith(("nvidia", *OTHER_GPU_NODES))),
    ]


def describe_machine() -> list[str]:
    """Return what distinguishes this machine, its driver and its GPUs since its boot; nothing if that is unknown."""
    boot, *nodes = identify_machine()
    has_nvidia = any(name.startswith("nvidia") for name in nodes)
    if any(name.startswith(OTHER_GPU_NODES) for name in nodes) or (has_nvidia and not NVIDIA.is_dir()):
        return []
    paths = sorted(NVIDIA.rglob("*")) if has_nvidia else []  # MIG instances are folders there
    texts = (path.read_text(errors="replace") for path in paths if path.name in ("version", "information"))
    return [boot, *nodes, *map(str, paths), *texts]


def find_kept_file(stamps: str, request: Mapping[str, object], interpreter: str) -> Path | None:
    """Return the file that caches the answers for these `stamps`, None if nothing may be kept."""
    folder, machine = cache_folder(os.environ), describe_machine()
    if folder is None or not machine:
        return None
    environ = list_variables(os.environ, OF_TERMINALS)
    libraries = [_stamp(path) for path in LIBRARIES]
    message = bundle.build_message("imports", dict(request))
    facts = (stamps, interpreter, environ, libraries, machine, json.dumps(message, sort_keys=True))
    return folder / f"imports-{digest_facts(facts)}.json"


def read_kept(path: Path | None) -> dict[str, ChildResult]:
    """Return the kept answers by call; empty if there are none."""
    with contextlib.suppress(ValueError):
        document = json.loads(read_kept_file(path, MAX_BYTES))
        return {call: ChildResult("ok", answer) for call, answer in document.items() if isinstance(answer, dict)}
    return {}


def keep(path: Path | None, results: Mapping[str, ChildResult]) -> None:
    """Keep the answers about imports, if each import ended by itself."""
    answers: dict[str, Any] = {call: results[call].answer for call in CALLS if call in results}
    if path is not None and "imports" in answers and all(map(_is_settled, answers.values())):
        with contextlib.suppress(OSError):
            replace_private_file(path, json.dumps(answers))


def count_gpus(results: Mapping[str, ChildResult]) -> int:
    """Return on how many GPUs torch ran a kernel, according to the answers about imports."""
    answer = results["imports"].answer if "imports" in results else {}
    return len(_list_kernels(answer)) if isinstance(answer, dict) else 0


def _list_kernels(answer: Mapping[str, Any]) -> list[object]:
    """Return how the kernel on each GPU ended."""
    answers = (item for name, item in answer.get("answers", {}).items() if name.startswith("gpu "))
    return [end for item in answers for end in item.get("known", {"devices": {0: item}})["devices"].values()]


def _is_settled(answer: object) -> bool:
    if not isinstance(answer, dict) or answer.get("lost"):
        return False
    if any(end != {"known": "ok"} for end in _list_kernels(answer)):
        return False
    outcomes = answer["imports"]["known"] if "imports" in answer else answer.get("outcomes", [])
    return all(outcome["outcome"] in ("ok", "raised", "skipped") for outcome in outcomes)


def _stamp(path: str) -> tuple[int, int]:
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns
    return 0, 0
