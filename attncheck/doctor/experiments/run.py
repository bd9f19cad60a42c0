"""Runs the experiments, or returns the cached results of an earlier run with the same packages."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import attncheck
from attncheck.core import codec
from attncheck.core.experiments import Experiments
from attncheck.core.facts import Absent, Fact, Known
from attncheck.core.io.private_folder import cache_folder, digest_facts, read_kept, replace_private_file
from attncheck.core.snapshot import Snapshot
from attncheck.workers.child import Child, wait_for_children

PACKAGE = "attncheck_experiments"
PROGRAMS = (
    "main",
    "zero",
    "frameworks",
    "keeping",
    "liger",
    "ranks",
    "resume",
    "routers",
    "saving",
    "scoring",
    "twins",
    "twin_makers",
)
NEEDED = ("torch", "transformers", "accelerate")
SECONDS = 480.0  # for all experiments: the first import of torch can take a minute on a cold disk
GRACE = 30.0  # in which a child that stopped its parts answers
MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class Part:
    """What one part of the experiments measured in a run that had so many seconds."""

    name: str
    measured: Experiments
    seconds: float
    reason: str = ""  # why it did not end


@dataclass(frozen=True)
class Kept:
    """The parts that were run with the same packages."""

    parts: tuple[Part, ...] = ()


def add_experiments(
    snapshot: Snapshot,
    python: str | None,
    seconds: float = SECONDS,
    report_progress: Callable[[str], None] = lambda text: None,
) -> Snapshot:
    """Return the snapshot with the experiments' results; a part that did not end is listed as lost.

    Such a part is run again only with more seconds than it had.
    """
    missing = [name for name in NEEDED if not snapshot.lists(name)]
    if missing:
        return replace(snapshot, experiments=Absent(f"{', '.join(missing)} not installed: no Trainer can run"))
    path, seconds = _kept_path(snapshot), max(seconds, SECONDS)
    parts = _read_kept(path)
    settled = tuple(part for part in parts if not part.reason or part.seconds >= seconds)
    lost: tuple[str, ...] = ()
    if not parts or settled != parts:
        report_progress("running micro-experiments with the installed trainers")
        measured, lost = _run(python or sys.executable, seconds, [part.name for part in settled])
        parts = (*settled, *measured)
        if measured:
            _keep(path, Kept(parts))
    measurements = _join(parts)
    again = f" (`--timeout {2 * seconds:g}` runs it again)"
    lost_parts = (*(f"{reason}{again}" for reason in measurements.lost), *lost, *measurements.unmeasured)
    return replace(
        snapshot,
        experiments=Known(measurements),
        lost=(*snapshot.lost, *(f"experiment: {reason}" for reason in lost_parts)),
    )


def find_kept_experiments(snapshot: Snapshot) -> Fact[Experiments]:
    """Return the cached results of an earlier `doctor --deep` with these packages."""
    kept = _join(_read_kept(_kept_path(snapshot)))
    return Known(kept) if kept.gradients else Absent("nothing was measured: attncheck doctor --deep does")


def _join(parts: Sequence[Part]) -> Experiments:
    """Return the measurements of all parts, and those that did not end."""
    names = [field.name for field in fields(Experiments) if field.name != "lost"]
    return Experiments(
        **{name: tuple(item for part in parts for item in getattr(part.measured, name)) for name in names},
        lost=tuple(f"{part.name}: not measured in {part.seconds:g} s: {part.reason}" for part in parts if part.reason),
    )


def _run(python: str, seconds: float, settled: Sequence[str]) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """Return the parts that were run, and why none was."""
    request = {"seconds": seconds, "settled": settled}
    message = {"package": PACKAGE, "sources": read_sources(), "call": "experiments", "request": request}
    child = Child(python, "experiments", message)
    result = wait_for_children([child], time.monotonic() + seconds + GRACE)["experiments"]
    if not isinstance(result.answer, dict) or "too_old" in result.answer:
        return (), (result.describe_failure(),)
    answers = ({"name": name, "seconds": seconds, **answer} for name, answer in result.answer.items())
    return tuple(codec.read(Part, answer) for answer in answers), ()


def read_sources() -> dict[str, str]:
    """Return the modules that run in the examined interpreter, by name."""
    folder = Path(__file__).parent / "worker"
    return {PACKAGE: "", **{f"{PACKAGE}.{name}": (folder / f"{name}.py").read_text("utf-8") for name in PROGRAMS}}


def _kept_path(snapshot: Snapshot) -> Path | None:
    """Return the file that caches the results for these packages; None if nothing may be cached."""
    folder = cache_folder(os.environ)
    if folder is None:
        return None
    installed = sorted(
        (item.name, item.version, item.location, item.record_sha256, item.files_altered)
        for item in snapshot.distributions
    )
    facts = (attncheck.__version__, read_sources(), snapshot.host.python_version, installed)
    return folder / f"experiments-{digest_facts(facts)}.json"


def _read_kept(path: Path | None) -> tuple[Part, ...]:
    with contextlib.suppress(ValueError):  # a BadDocument is one
        return codec.loads(Kept, read_kept(path, MAX_BYTES).decode()).parts
    return ()


def _keep(path: Path | None, kept: Kept) -> None:
    if path is not None:
        with contextlib.suppress(OSError):
            replace_private_file(path, codec.dumps(kept, None))
