"""Everything that a gate's answer depends on, read in well under a second and without importing what is examined."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attncheck import __version__
from attncheck.doctor.probes.payload import environ as allowed
from attncheck.doctor.probes.payload.binaries.extension_files import TORCH_LIBRARIES, WATCHED
from attncheck.doctor.probes.payload.main import site_directories
from attncheck.gate.cache import Answer, Hashes
from attncheck.gate.inputs import content, digest, model_digest
from attncheck.gate.policy import Config
from attncheck.workers.execution import ExecutionTarget

PACKAGE = Path(__file__).resolve().parents[1]
DRIVER = Path("/proc/driver/nvidia")
BOOT = Path("/proc/sys/kernel/random/boot_id")
ASK_SECONDS = 20.0
_LIBRARY = re.compile(rb'^"?([^"\n,]+\.so[^"\n,/]*)', re.MULTILINE)
_METADATA = (".dist-info", ".egg-info", ".egg-link", ".pth")
# One rank differs from the next in these, and no answer of ours in them.
OF_A_RANK = ("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "MASTER_PORT", "SLURM_PROCID", "SLURM_LOCALID", "TMPDIR")


def circumstances(
    asked: Config, bench: ExecutionTarget, words: Sequence[str], date: str, hashes: Hashes, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Return what an answer to `asked` about the command `words` depends on, but for the files that it will read."""
    folders = sites(bench.python)
    found = {
        "attncheck": (__version__, _own_files()),
        "policy": asdict(asked),
        "ended": [one.code for one in asked.allowances if one.until < date],
        "baseline": digest(content(asked.baseline)) if asked.baseline else "",
        "bench": asdict(bench),
        "words": list(words),
        "named": dict(_named(words)),
        "folder": os.getcwd(),
        "python": (os.path.realpath(bench.python), *_mark(bench.python)),
        "sites": [(path, _installed(path)) for path in folders],
        "binaries": [(path, hashes.of(path)) for path in binaries(folders)],
        "machine": (*os.uname(), _text(BOOT)),
        "gpus": gpus(),
        "environment": {name: text for name, text in _allowed(environ).items() if name not in OF_A_RANK},
    }
    hashes.save()
    return found


def current(answer: Answer) -> bool:
    """Say whether the files and models that an answer read are still what they were."""
    return all(digest(content(path)) == mark for path, mark in answer.files.items()) and all(
        model_digest(name) == mark for name, mark in answer.models.items()
    )


def sites(python: str) -> list[str]:
    """Return the folders in which an interpreter looks for packages; none where it does not say."""
    if python == sys.executable:
        return site_directories()
    command = [python, "-B", "-c", "import json, sys; print(json.dumps([p for p in sys.path[1:] if p]))"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_SECONDS, check=True, text=True
        )
        return [path for path in json.loads(done.stdout) if os.path.isdir(path)]
    except (OSError, ValueError, TypeError, subprocess.SubprocessError):
        return []


def binaries(folders: Iterable[str]) -> Iterator[str]:
    """Yield the extensions of the attention stack and torch's own libraries, by RECORD, else by their names."""
    for folder in folders:
        with suppress(OSError):
            names = os.listdir(folder)
            for name in sorted(names):
                distribution = re.sub(r"[-_.]+", "-", name.split("-")[0]).lower()
                if name.endswith(".dist-info") and distribution in WATCHED:
                    record = _bytes(os.path.join(folder, name, "RECORD"))
                    for match in _LIBRARY.finditer(record):
                        yield os.path.join(folder, os.fsdecode(match[1]))
                elif name.endswith(".so"):
                    yield os.path.join(folder, name)
            if "torch" in names:
                for library in TORCH_LIBRARIES:
                    path = os.path.join(folder, "torch", "lib", library)
                    if os.path.exists(path):
                        yield path


def gpus() -> Any:
    """Return the driver and the GPUs: from /proc, else of nvidia-smi where there is a device file."""
    devices = sorted(name for name in _names("/dev") if re.fullmatch(r"nvidia\d+|dxg", name))
    if not devices:
        return []
    cards = [_text(DRIVER / "gpus" / name / "information") for name in sorted(_names(str(DRIVER / "gpus")))]
    if cards:
        return [devices, _text(DRIVER / "version"), cards]
    command = ["nvidia-smi", "--query-gpu=driver_version,name,uuid,mig.mode.current", "--format=csv"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_SECONDS, text=True)
        return [devices, done.returncode, done.stdout]
    return [devices]


def _named(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the files that a command names, also as the value of an option."""
    for word in words:
        for path in dict.fromkeys((word, word.partition("=")[2])):
            data = content(path) if path else None
            if data is not None:
                yield path, digest(data)


def _own_files() -> str:
    """Return a mark of attncheck's own code: a checkout changes without its version."""
    return digest(json.dumps([(str(path), *_mark(str(path))) for path in sorted(PACKAGE.rglob("*.py"))]).encode())


def _installed(folder: str) -> list[tuple[str, int, int]]:
    """Return the distributions of a folder: names with versions, and when each was last installed."""
    found = []
    for name in sorted(_names(folder)):
        if name.endswith(_METADATA) or name.startswith("__editable__"):
            path = os.path.join(folder, name)
            record = os.path.join(path, "RECORD") if name.endswith(".dist-info") else path
            found.append((name, *_mark(record)))
    return found


def _allowed(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in allowed.ALLOWED if name in environ}


def _mark(path: str) -> tuple[int, int]:
    with suppress(OSError):
        found = os.stat(path)
        return found.st_size, found.st_mtime_ns
    return -1, -1


def _names(folder: str) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)
    return []


def _bytes(path: str) -> bytes:
    with suppress(OSError):
        return Path(path).read_bytes()
    return b""


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text("utf-8", "replace").strip()
    return ""
