"""Helpers of the frameworks' tests: a launch from text, its job, its problems, the text after the edits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from attncheck.core.facts import Known
from attncheck.core.job import Job, SettingProblem
from attncheck.core.launch import Edit, Kind, Launch, Source
from attncheck.core.model import Model
from attncheck.core.snapshot import Snapshot
from attncheck.lint.files import editing
from attncheck.lint.frameworks import Framework
from attncheck.lint.launches import find_launches
from tests import snapshots

CORPUS = Path(__file__).parents[1] / "data" / "launch"


def parse_launch(text: str, kind: Kind, files: Mapping[str, str] | None = None) -> Launch:
    """Return the first launch in a text; `files` are the configuration files that it may name."""
    sources = {name: Source(name, content, "yaml") for name, content in (files or {}).items()}
    name = {"yaml": "config.yaml", "shell": "run.sh"}.get(kind, "command line")
    return find_launches(Source(name, text, kind), sources.get)[0]


def load_launch(path: Path) -> Launch:
    """Return the launch in a file of the corpus."""
    kind: Kind = "shell" if path.suffix == ".sh" else "yaml"
    return find_launches(Source(path.name, path.read_text(encoding="utf-8"), kind), lambda name: None)[0]


def read_corpus_header(path: Path) -> tuple[str, str]:
    """Return the framework and the version that the first line of a corpus file names."""
    tokens = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ").split()
    return tokens[0], tokens[1]


def with_model(snapshot: Snapshot, model: Model | None) -> Snapshot:
    """Return the snapshot of the same machine with another model."""
    return snapshot if model is None else replace(snapshot, model=Known(model))


def read_job(
    framework: Framework, launch: Launch, version: str, model: Model | None = None, snapshot: Snapshot | None = None
) -> Job:
    """Return a launch's job on a healthy machine."""
    return framework.read(launch, version, with_model(snapshot or snapshots.h200(), model))


def find_problem(job: Job, consequence: str, word: str = "") -> SettingProblem | None:
    """Return the problem of a consequence that has `word` in its message, None if there is none."""
    return next(
        (problem for problem in job.problems if problem.consequence == consequence and word in problem.message), None
    )


def apply_edits(launch: Launch, edits: tuple[Edit, ...]) -> dict[str, str]:
    """Return name -> text of each source of a launch after the edits."""
    sources = {source.name: source for source in (launch.source, launch.file) if source is not None}
    return {
        name: editing.apply_edits(source, [edit for edit in edits if edit.source == name])
        for name, source in sources.items()
    }
