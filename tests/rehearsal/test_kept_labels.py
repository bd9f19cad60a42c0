"""`lint --labels` keeps the labels of a launch until anything that they may depend on changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from attncheck.core.facts import Absent
from attncheck.core.launch import Source
from attncheck.core.results.labels import LabelledLaunch
from attncheck.lint.rewriting import read_launches
from attncheck.rehearsal import kept_labels
from tests.snapshots import laptop, with_package

LAUNCH = "trl sft --model_name_or_path ./own --dataset_name ./rows --chat_template_path {0}/t.jinja --output_dir out"


class Job:
    """A launch in a folder with its model, rows and a chat template elsewhere."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Write the files, and change to the folder."""
        self.folder, self.monkeypatch, self.snapshot = folder / "job", monkeypatch, laptop()
        self.text, self.template, self.options = LAUNCH.format(folder), str(folder / "other"), ("",)
        names = ("job/own/tokenizer.json", "job/rows/train.jsonl", "job/own/tokenizer.model", "t.jinja")
        for name in (*names, "other/tokenizer.json", "source/swift/loss.py"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("{}")
        source = f"file://{folder}/source"
        self.snapshot = with_package(self.snapshot, "ms-swift", "4.6.0", editable=True, direct_url=source)
        monkeypatch.chdir(self.folder)
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))

    def find(self) -> Path:
        """Return the file that keeps the launch's labels."""
        source = Source("run.sh", self.text, "shell")
        (read,) = read_launches(self.snapshot, source, lambda name: Absent("no"), lambda path: None)
        path = kept_labels.find_path(self.snapshot, read, self.template, self.options)
        assert path is not None
        return path


CHANGES: dict[str, Callable[[Job], object]] = {
    "an option": lambda job: setattr(job, "text", f"{job.text} --packing"),
    "the tokenizer": lambda job: (job.folder / "own" / "tokenizer.json").write_text("{} "),
    "the rows": lambda job: (job.folder / "rows" / "train.jsonl").write_text("{} "),
    "a template elsewhere": lambda job: (job.folder.parent / "t.jinja").write_text("{} "),
    "the tokenizer of --template": lambda job: (job.folder.parent / "other" / "tokenizer.json").write_text("{} "),
    "another template": lambda job: setattr(job, "template", ""),
    "the source of an editable package": lambda job: (job.folder.parent / "source" / "swift" / "loss.py").write_text(
        "a = 1"
    ),
    "a module next to it": lambda job: (job.folder / "own" / "code.py").write_text(""),
    "a package": lambda job: setattr(job, "snapshot", with_package(job.snapshot, "trl", "0.1.0")),
    "a variable": lambda job: job.monkeypatch.setenv("OWN", "1"),
    "an option of attncheck": lambda job: setattr(job, "options", ("other",)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_another_answer(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, monkeypatch)
    before = job.find()
    CHANGES[name](job)
    assert job.find() != before


def test_the_same_launch_has_the_kept_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, monkeypatch)
    path, launch = job.find(), LabelledLaunch("run.sh:1:1", "trl", "1.16.0", "sft", "the answers alone", "")
    kept_labels.keep(path, LabelledLaunch("run.sh:1:1", "trl", "", "sft", "", "", reason="it ended with status 1"))
    assert kept_labels.read_labels(path) is None  # a failure may be the machine's
    kept_labels.keep(path, launch)
    (job.folder / "trainer.log").write_text("step 1")
    assert job.find() == path and kept_labels.read_labels(job.find()) == launch


def test_a_folder_with_many_files_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, monkeypatch)
    monkeypatch.setattr(kept_labels, "MAX_ENTRIES", 5)
    source = Source("run.sh", job.text, "shell")
    (read,) = read_launches(job.snapshot, source, lambda name: Absent("no"), lambda path: None)
    assert kept_labels.find_path(job.snapshot, read, "", ()) is None


def test_a_broken_file_keeps_nothing(tmp_path: Path) -> None:
    path = tmp_path / "labels-0.json"
    for content in (b'{"location": "\xff"}', b"{", b"[]"):
        path.write_bytes(content)
        assert kept_labels.read_labels(path) is None
