"""`attncheck lint FOLDER`: every launch below it once, what is left out said, findings grouped, exact positions."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.io.errors import BadUsage, Unanswered
from attncheck.core.launch import Launch, ReadFile, Source
from attncheck.core.report import Report
from attncheck.core.results.lint import LintSection, launches_of
from attncheck.lint import folders, inputs, run
from attncheck.lint.context import Request
from attncheck.lint.files import configuration
from attncheck.lint.time_limit import TimeLimit, time_limit
from attncheck.report.formats import github, sarif, text
from tests.lint import launches

SCRIPT = """\
#!/bin/bash
export CUDA_LAUNCH_BLOCKING=1
cd "$(dirname "$0")/.."
torchrun --nproc_per_node 1 -m openrlhf.cli.train_sft \\
  --model.model_name_or_path Qwen/Qwen2.5-7B \\
  --ds.packing_samples \\
  --ds.attn_implementation sdpa
"""
AXOLOTL = "base_model: Qwen/Qwen2.5-7B\ndatasets:\n  - path: a\nsequence_len: 1024\nsample_packing: true\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of two scripts, a configuration that one of them names, another, and what is none."""
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "repo"
    (root / "scripts").mkdir(parents=True)
    (root / "configs").mkdir()
    (root / ".git").mkdir()
    (root / "env" / "lib" / "site-packages" / "x").mkdir(parents=True)
    (root / "scripts" / "a.sh").write_text(SCRIPT)
    (root / "scripts" / "b.slurm").write_text(SCRIPT)
    (root / "scripts" / "c.sh").write_text("cd ..\naxolotl train configs/named.yaml\n")
    (root / "configs" / "named.yaml").write_text(AXOLOTL)
    (root / "configs" / "alone.yaml").write_text(AXOLOTL)
    (root / "configs" / "broken.yaml").write_text("a: [1\nb: {")
    (root / "configs" / "other.json").write_text('{"scripts": {}}')
    (root / "configs" / "data.json").write_text(json.dumps(["x" * 1000] * 400))
    (root / "configs" / "binary.sh").write_bytes(b"\0\1")
    for ignored in (".git/hook.sh", "env/lib/site-packages/x/run.sh", "notes.txt"):
        (root / ignored).write_text(SCRIPT)
    return root


def lint_paths(*names: str) -> Report:
    given = inputs.read_inputs(names, None)
    request = Request(given.sources, below_folders=given.below_folders, left_out=given.left_out)
    read_file = inputs.make_file_reader(given.sources)
    snapshot = launches.make_environments()["h200"]
    return run.run(snapshot, request, launches.read_model, read_file, inputs.make_readers(given))


def find_section(report: Report) -> LintSection:
    section = report.section(LintSection)
    assert section is not None
    return section


def test_every_launch_of_a_folder_is_read_once(folder: Path) -> None:
    section = find_section(lint_paths("repo"))
    places = [str(launch.job.location) for launch in section.launches]
    assert places == [
        "repo/scripts/a.sh:4:32", "repo/scripts/b.slurm:4:32", "repo/scripts/c.sh:2:1", "repo/configs/alone.yaml:1:1"
    ]  # fmt: skip
    assert section.without_launch == 1  # other.json
    assert [text.replace("cannot read ", "").partition(":")[0] for text in section.not_read] == [
        "repo/configs/data.json", "repo/configs/binary.sh", "repo/configs/broken.yaml"
    ]  # fmt: skip
    assert find_section(lint_paths("repo", "repo/scripts", "repo/scripts/a.sh")).without_launch == 1
    assert len(find_section(lint_paths("repo", "repo/scripts", "repo/scripts/a.sh")).launches) == 4


def test_links_are_not_followed(folder: Path) -> None:
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "x.sh").write_text(SCRIPT)
    (folder / "link").symlink_to(outside)
    (folder / "up").symlink_to(folder)
    (folder / "x.sh").symlink_to(outside / "x.sh")
    assert len(find_section(lint_paths("repo")).launches) == 4


def test_findings_are_grouped_with_their_places(folder: Path) -> None:
    for number in range(6):
        (folder / "scripts" / f"d{number}.sh").write_text(SCRIPT)
    report = lint_paths("repo")
    rendered = text.render_plain(report, False)
    finding = next(finding for finding in report.findings if finding.code == "ATN561")
    assert len(finding.locations) == 8 and rendered.count("ATN561 ") == 1
    line = next(line for line in rendered.splitlines() if "scripts/a.sh:2:8, " in line)
    assert line.startswith("       at      repo/scripts/a.sh:2:8") and line.endswith(" and 3 more")
    assert "\ncorrected repo" not in rendered
    assert re.search(r"^\d+ corrected: `attncheck lint FILE", rendered, re.MULTILINE)
    assert "1 other file of the folders: no known trainer was recognised" in rendered
    assert re.search(r"^- +not read +repo/configs/data.json: larger than 256 KiB", rendered, re.MULTILINE)


def test_a_named_file_that_does_not_parse_stops_no_other(folder: Path) -> None:
    report = lint_paths("repo/configs/broken.yaml", "repo/scripts/a.sh")
    section = find_section(report)
    assert len(section.launches) == 1 and [text.partition(":")[0] for text in section.lost] == [
        "repo/configs/broken.yaml"
    ]
    assert [question.outcome for question in report.unanswered] == ["unanswered"]
    assert not lint_paths("repo/scripts/a.sh").unanswered
    with pytest.raises(BadUsage):
        lint_paths("repo/configs/broken.yaml")


def test_a_file_that_takes_too_long_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "FILE_SECONDS", 0.05)
    original = run.Linter.lint

    def lint(self: run.Linter, source: Source, launches: Sequence[Launch], read_file: ReadFile) -> list[Report]:
        while source.name.endswith("a.sh"):
            pass
        return original(self, source, launches, read_file)

    monkeypatch.setattr(run.Linter, "lint", lint)
    section = find_section(lint_paths("repo/scripts"))
    assert any("a.sh: not read within 0.05 s" in text for text in section.not_read)


def test_a_file_that_ends_lint_itself_stops_no_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = run.Linter.lint

    def lint(self: run.Linter, source: Source, launches: Sequence[Launch], read_file: ReadFile) -> list[Report]:
        if source.name.endswith("a.sh"):
            raise IndexError("tuple index out of range")
        return original(self, source, launches, read_file)

    monkeypatch.setattr(run.Linter, "lint", lint)
    report = lint_paths("repo/scripts")
    assert any("a.sh: a bug in attncheck" in text for text in find_section(report).not_read)
    assert launches_of(report)


def test_a_time_limit_ends_what_it_bounds_and_nothing_else() -> None:
    def run_for_ever() -> None:
        with time_limit(0.01):
            while True:
                pass

    with pytest.raises(TimeLimit):
        run_for_ever()
    with time_limit(5):
        assert signal.getitimer(signal.ITIMER_PROF)[0] > 0
    assert signal.getitimer(signal.ITIMER_PROF)[0] == 0


def test_a_time_limit_counts_cpu_time_and_not_that_of_a_busy_machine() -> None:
    with time_limit(0.05):
        time.sleep(0.2)


def test_json_data_is_not_read_for_places(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "data.json").write_text('{"log": {"lines": [1, 2]}, "id": 3}')
    (folder / "sft.json").write_text('{"stage": "sft", "model_name_or_path": "m", "template": "qwen", "packing": true}')
    parsed: list[str] = []
    original = configuration.parse_configuration

    def parse(file: Source) -> configuration.Configuration:
        parsed.append(file.name)
        return original(file)

    monkeypatch.setattr(configuration, "parse_configuration", parse)
    report = lint_paths("repo")
    names = {Path(name).name for name in parsed}
    assert "data.json" not in names and "sft.json" in names
    assert any(launch.job.location.source.endswith("sft.json") for launch in launches_of(report))


def test_too_many_files_are_not_half_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "MAX_FILES", 2)
    for number in range(4):
        (tmp_path / f"{number}.sh").write_text("")
    with pytest.raises(Unanswered, match="more than 2 scripts"):
        folders.find_files(str(tmp_path))


def test_many_json_files_in_one_folder_are_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folders, "MAX_JSON_FILES", 3)
    (tmp_path / "rows").mkdir()
    for number in range(4):
        (tmp_path / "rows" / f"{number}.json").write_text("{}")
    (tmp_path / "rows" / "run.sh").write_text(SCRIPT)
    (tmp_path / "a.json").write_text("{}")
    found = folders.find_files(".")
    assert found.paths == ("a.json", "rows/run.sh") and len(found.left_out) == 1 and "4 JSON files" in found.left_out[0]


def slice_region(source: str, region: dict[str, int]) -> str:
    """Return the characters of a SARIF region: the end is past the last one."""
    starts = [0, *(match.end() for match in re.finditer("\n", source))]
    start = starts[region["startLine"] - 1] + region["startColumn"] - 1
    return source[start : starts[region["endLine"] - 1] + region["endColumn"] - 1]


def list_regions(report: Report) -> list[tuple[str, str, dict[str, int]]]:
    document: dict[str, Any] = json.loads(sarif.render(report, False))
    physical = [
        (result["ruleId"], location["physicalLocation"])
        for result in document["runs"][0]["results"]
        for location in result["locations"]
        if "endLine" in location["physicalLocation"]["region"]
    ]
    return [(code, place["artifactLocation"]["uri"], place["region"]) for code, place in physical]


def test_positions_are_those_of_the_setting(folder: Path) -> None:
    (folder / "scripts" / "a.sh").write_text("# ü 🚀\n" + SCRIPT)
    report = lint_paths("repo/scripts/a.sh")
    source = (folder / "scripts" / "a.sh").read_text()
    tokens = {(code, slice_region(source, region)) for code, _, region in list_regions(report)}
    assert ("ATN561", "CUDA_LAUNCH_BLOCKING=1") in tokens
    assert any(token == "--ds.attn_implementation sdpa" for _, token in tokens)
    assert all(re.match(r"--|CUDA|openrlhf", token) for _, token in tokens), tokens
    annotations = github.render(report, False)
    assert "line=3,col=8,endColumn=30" in annotations


def test_positions_in_the_corpus_slice_to_settings() -> None:
    for path in sorted(launches.iter_corpus())[::6]:
        source = launches.read_launch(path)
        report = launches.lint_file(path, launches.make_environments()["h200"])
        for finding in report.findings:
            for location in finding.locations:
                if location.end_line:
                    region = {
                        "startLine": location.line, "startColumn": location.column,
                        "endLine": location.end_line, "endColumn": location.end_column,
                    }  # fmt: skip
                    token = slice_region(source.text, region)
                    assert token and token == token.strip(), (path, finding.code, token)


PROGRAM = """
from dataclasses import dataclass
from transformers import HfArgumentParser
from trl import DPOConfig, DPOTrainer

@dataclass
class Arguments:
    fp16: bool = True
    bf16: bool = False

args = HfArgumentParser(Arguments).parse_args_into_dataclasses()[0]
{}
config = DPOConfig(output_dir="o", fp16=args.fp16, bf16=args.bf16)
DPOTrainer(model="m", args=config).train()
"""


def test_what_another_program_of_the_folder_assigns_is_not_assigned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, line in {"a": "args.fp16 = False", "b": ""}.items():
        Path(f"{name}.py").write_text(PROGRAM.format(line))
        Path(f"{name}.sh").write_text(f"python {name}.py --bf16 True\n")
    found = [item for item in lint_paths(".").findings if "bf16 and fp16 are both on" in item.message]
    assert [location.source for item in found for location in item.locations] == ["b.py"]
