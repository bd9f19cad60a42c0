"""Helpers of the frameworks' tests: a launch out of text, its job, its objections, the text after the edits."""

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
from attncheck.lint.launches import launches
from tests import snapshots

CORPUS = Path(__file__).parents[1] / "data" / "launch"


def launch(text: str, kind: Kind, files: Mapping[str, str] | None = None) -> Launch:
    """Return the first start of a job in a text; `files` are the configuration files that it may name."""
    found = {name: Source(name, content, "yaml") for name, content in (files or {}).items()}
    name = {"yaml": "config.yaml", "shell": "run.sh"}.get(kind, "command line")
    return launches(Source(name, text, kind), found.get)[0]


def of_file(path: Path) -> Launch:
    """Return the launch in a file of the corpus."""
    kind: Kind = "shell" if path.suffix == ".sh" else "yaml"
    return launches(Source(path.name, path.read_text(encoding="utf-8"), kind), lambda name: None)[0]


def told(path: Path) -> tuple[str, str]:
    """Return the framework and the version that the first line of a corpus file names."""
    words = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ").split()
    return words[0], words[1]


def with_model(snapshot: Snapshot, model: Model | None) -> Snapshot:
    """Return the snapshot of the same machine with another model."""
    return snapshot if model is None else replace(snapshot, model=Known(model))


def read(
    framework: Framework, started: Launch, version: str, model: Model | None = None, snapshot: Snapshot | None = None
) -> Job:
    """Return a launch's job on a healthy machine."""
    return framework.read(started, version, with_model(snapshot or snapshots.h200(), model))


def said(job: Job, consequence: str, word: str = "") -> SettingProblem | None:
    """Return the objection of a kind that has `word` in its message."""
    return next((each for each in job.problems if each.consequence == consequence and word in each.message), None)


def corrected(started: Launch, edits: tuple[Edit, ...]) -> dict[str, str]:
    """Return name -> text of each source of a launch after the edits."""
    sources = {source.name: source for source in (started.source, started.file) if source is not None}
    return {
        name: editing.applied(source, [edit for edit in edits if edit.source == name])
        for name, source in sources.items()
    }
