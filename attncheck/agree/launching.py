"""Lets the launch's own code score an engine's rollouts: runs one step, scaled down, as a rehearsal does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from attncheck.core.rehearsal import JobCut, Materials
from attncheck.lint.rewriting import ReadLaunch, rewrite
from attncheck.rehearsal import cutting, execution
from attncheck.rehearsal.cutting import NothingToRehearse
from attncheck.rehearsal.staging import run_cut
from attncheck.workers.execution import ExecutionTarget

ROWS = {"trl": 8}  # rows of a batch on a device: prompts and responses of many lengths
DEFAULT_ROWS = 3  # for kinds whose step gets six rollouts from a rehearsal: two batches
ENVIRON = {"ATTNCHECK_KEEP_RANDOM": "1"}  # dropout is part of a trainer's scoring


@dataclass(frozen=True)
class CutScoring:
    """A launch that is reduced to the step in which its framework scores rollouts."""

    read: ReadLaunch
    folder: str
    materials: Materials
    cut: JobCut

    def run(self, target: ExecutionTarget, report_progress: Callable[[str], None]) -> str:
        """Run the launch in its folder; return why it scored nothing, "" if it did. Raises `Unanswered`."""
        launch = cutting.cut_launch(self.read, self.cut, {}, self.folder, self.materials)
        ended = run_cut(self.read, launch, self.folder, target, 1, report_progress, ENVIRON, False)
        if list((Path(self.folder) / "watch").glob("rollouts-*.json")):
            return ""
        failure = execution.read_watcher_failures(self.folder, ended.returncode)
        last = next((line for line in reversed(ended.lines) if line.strip()), "")
        return failure or f"it ended with status {ended.returncode} before it scored: {last.strip()}"


def cut_scoring(read: ReadLaunch, folder: str, target: ExecutionTarget) -> CutScoring:
    """Return a launch reduced to its scoring. Raises `Unanswered` or `NothingToRehearse` if it cannot run here."""
    framework = read.recognised.framework
    if not read.snapshot.lists(framework.distribution):
        raise NothingToRehearse(f"{framework.distribution} is not installed")
    materials = replace(
        cutting.make_materials(read, folder, 1, target.uses_gpu, 1), batch=ROWS.get(framework.name, DEFAULT_ROWS)
    )
    cut = cutting.cut_job(read, materials)
    if not cut.driver:
        raise NothingToRehearse(f"{framework.name}'s scoring cannot be called without its rollouts")
    cutting.lay_files(cut, materials)
    return CutScoring(read, folder, materials, cut)


def change(read: ReadLaunch, sets: Mapping[str, str]) -> ReadLaunch:
    """Return the launch with changed settings, read again. Raises `Unanswered` if they cannot be written in it."""
    launch = rewrite(read, sets).launch
    recognised = read.recognised._replace(launch=launch)
    job = recognised.framework.read(launch, read.job.version, read.snapshot)
    return replace(read, recognised=recognised, job=job)
