"""Runs the experiments, or returns the cached results of an earlier run with the same packages."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
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
    "saving",
    "scoring",
    "twins",
    "twin_makers",
)
EXPERIMENTS = {
    "trainers": ("dividing a batch, the keys of a batch, resuming, saving, evaluating, neutral changes", ""),
    "deepspeed": ("accumulating under ZeRO", "deepspeed"),
}  # name: title, the additional package that it needs
NEEDED = ("torch", "transformers", "accelerate")
SECONDS = 480.0  # for all experiments: the first import of torch can take a minute on a cold disk
NO_ANSWER = "no answer in time"  # of ranks that were stopped; not cached
MAX_BYTES = 1 << 20


def add_experiments(
    snapshot: Snapshot, python: str | None, report_progress: Callable[[str], None] = lambda text: None
) -> Snapshot:
    """Return the snapshot with the experiments' results; an experiment without a result is listed as lost."""
    missing = [name for name in NEEDED if not snapshot.lists(name)]
    if missing:
        return replace(snapshot, experiments=Absent(f"{', '.join(missing)} not installed: no Trainer can run"))
    path = _kept_path(snapshot)
    kept = _read_kept(path)
    if kept is None or kept.lost:
        report_progress(f"running micro-experiments: {', '.join(title for title, _ in EXPERIMENTS.values())}")
        kept = _run(python or sys.executable, snapshot)
        if kept.gradients:  # if others are lost, lint takes these, and the next `doctor --deep` measures again
            _keep(path, kept)
    lost = tuple(f"experiment: {reason}" for reason in (*kept.lost, *kept.unmeasured))
    return replace(snapshot, experiments=Known(kept), lost=(*snapshot.lost, *lost))


def find_kept_experiments(snapshot: Snapshot) -> Fact[Experiments]:
    """Return the cached results of an earlier `doctor --deep` with these packages."""
    kept = _read_kept(_kept_path(snapshot))
    return Known(kept) if kept is not None else Absent("nothing was measured: attncheck doctor --deep does")


def _run(python: str, snapshot: Snapshot) -> Experiments:
    deadline, sources = time.monotonic() + SECONDS, read_sources()
    measured: dict[str, object] = {}
    lost = []
    for name, (title, package) in EXPERIMENTS.items():  # one after another, because each imports torch
        if package and not snapshot.lists(package):
            continue
        message = {"package": PACKAGE, "sources": sources, "call": name, "request": {}}
        result = wait_for_children([Child(python, name, message)], deadline)[name]
        if isinstance(result.answer, dict) and "too_old" not in result.answer:
            measured.update(result.answer)
        else:
            lost.append(f"{title}: {result.describe_failure()}")
    experiments = codec.read(Experiments, {**measured, "lost": lost})
    late = [item.division for item in experiments.gradients if item.error == NO_ANSWER]
    late += [f"neutral changes of {item.trainer}" for item in experiments.twins if item.error == NO_ANSWER]
    return replace(experiments, lost=(*lost, *(f"{name}: {NO_ANSWER}" for name in late)))


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


def _read_kept(path: Path | None) -> Experiments | None:
    with contextlib.suppress(ValueError):  # a BadDocument is one
        return codec.loads(Experiments, read_kept(path, MAX_BYTES).decode())
    return None


def _keep(path: Path | None, experiments: Experiments) -> None:
    if path is not None:
        with contextlib.suppress(OSError):
            replace_private_file(path, codec.dumps(experiments))
