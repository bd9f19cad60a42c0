"""Where findings are located: which files are read, what comes first, what is never read."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.core.findings import Finding, Fix
from attncheck.core.launch import COMMAND, SourceLocation
from attncheck.report.locations import (
    add_locations,
    is_requirements_file,
    locate_packages,
    packages_of_finding,
    path_in_checkout,
)
from attncheck.report.requirement_files import read_pyproject, read_requirements
from tests import snapshots as s
from tests.report import reports

FLASH = frozenset({"flash-attn"})
READERS = (read_pyproject, read_requirements)
FILES = {
    "requirements.txt": (
        "--index-url https://x/flash-attn\n# flash-attn\ntorch==2.9\n  Flash_Attn[x]>=2.8 # why\n",
        4,
        3,
    ),
    "requirements-gpu.txt": ("https://host/v2.8.3/flash_attn-2.8.3+cu12torch2.9-cp312-linux_x86_64.whl\n", 1, 21),
    "constraints.in": ("git+https://host/x.git@v2#egg=flash-attn\n", 1, 31),
    "requirements/train.txt": ("flash-attn @ https://host/flash_attn-2.8.3-cp312-x.whl ; python_version > '3'\n", 1, 1),
    "pyproject.toml": (
        '[project]\nname = "flash-attn"\nkeywords = ["flash-attn"]\ndependencies = [\n  "torch[x]",  # flash-attn\n'
        "  'flash.attn ~= 2.8',\n]\n",
        6,
        4,
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_each_kind_of_file_is_read_to_the_line_and_column(tmp_path: Path, name: str) -> None:
    text, line, column = FILES[name]
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    assert locate_packages(tmp_path, FLASH) == {"flash-attn": SourceLocation(name, line, column)}
    assert is_requirements_file(name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", '[project]\nname = "flash-attn"\nkeywords = ["flash-attn"]\n[tool.x]\nflash-attn = 1\n'),
        ("requirements.txt", "# flash-attn\nflash-attn-3\n-r flash-attn.txt\n"),
        ("Dockerfile", "RUN pip install flash-attn\n"),
        ("sub/requirements.txt", "flash-attn\n"),
        ("notes.txt", "flash-attn\n"),
        ("requirements.txt", ""),
    ],
)
def test_what_only_looks_like_a_requirement_is_none(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert locate_packages(tmp_path, FLASH) == {}


def test_a_list_of_requirements_in_any_table_of_pyproject(tmp_path: Path) -> None:
    for text, position in (
        ('[dependency-groups]\nx = ["torch", {include-group = "y"}, "flash-attn"]\n', (2, 39)),
        ('[tool.poetry.dependencies]\n"flash-attn" = "*"\n', (2, 2)),
    ):
        (tmp_path / "pyproject.toml").write_text(text)
        assert locate_packages(tmp_path, FLASH) == {"flash-attn": SourceLocation("pyproject.toml", *position)}


def test_pyproject_comes_first(tmp_path: Path) -> None:
    (tmp_path / "requirements").mkdir()
    order = ["pyproject.toml", "requirements.in", "requirements.txt", "requirements/a.txt"]
    for name in order:
        (tmp_path / name).write_text("flash-attn\n")
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["flash-attn"]\n')
    for name in order:
        assert locate_packages(tmp_path, FLASH)["flash-attn"].source == name
        (tmp_path / name).unlink()


def test_only_what_is_near_and_small_is_read(tmp_path: Path) -> None:
    for folder in ("a/b", ".venv", "venv", "node_modules"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "requirements.txt").write_text("flash-attn\n")
    (tmp_path / "requirements.txt").write_bytes(b"flash-attn\n" + b"#" * (4 << 20))
    os.mkfifo(tmp_path / "constraints.txt")
    (tmp_path / "requirements-x.txt").symlink_to("/dev/zero")
    assert locate_packages(tmp_path, FLASH) == {}
    assert locate_packages(tmp_path / "gone", FLASH) == {}


def test_damaged_files_give_places_or_nothing(tmp_path: Path) -> None:
    rng = random.Random(7)
    texts = [text for text, _, _ in FILES.values()]
    for round_ in range(300):
        text = bytearray(rng.choice(texts).encode())
        for _ in range(rng.randrange(1, 12)):
            text[rng.randrange(len(text))] = rng.choice(b"\x00\xff[]{}\"'\n\\#=-:")
        for name, line, column in READERS[round_ % 2](bytes(text).decode("utf-8", "replace")):
            assert name and line >= 1 and column >= 1


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "piece", ["a", "-", "- ", '"', "[", "=a", "a-1", "//-1.", "#egg=", "pip install ", "a::", "=a-1", "\n", "name\n"]
)
def test_no_line_makes_a_pattern_backtrack_for_ever(reader: Callable[[str], Iterator[object]], piece: str) -> None:
    """One that does would hang this test."""
    for lines in (1, 50):
        list(reader("\n".join([f"https://{piece * (50_000 // len(piece) // lines)}"] * lines)))


def make_finding_about(subject: str, *commands: str) -> Finding:
    return reports.make_finding(subject=subject, fixes=tuple(Fix("x", "command", text) for text in commands))


def test_what_a_finding_is_about() -> None:
    report = reports.make_doctor_report(snapshot=s.with_model(s.h200(), model_type="falcon"))
    assert packages_of_finding(make_finding_about("Flash_Attn 2.8.3"), report) == ["flash-attn"]
    assert packages_of_finding(make_finding_about("falcon"), report) == [], "the model, not the web framework"
    assert packages_of_finding(make_finding_about("GPU 0"), report) == ["gpu"]
    assert packages_of_finding(make_finding_about("no version here"), report) == []
    command = "uv pip install --python /x/bin/python 'flash-attn>=2.8,<3' https://h/x.whl torch[y]==2.9"
    assert packages_of_finding(make_finding_about("", command), report) == ["flash-attn", "torch"]
    assert packages_of_finding(make_finding_about("", "pip uninstall flash-attn", "nvidia-smi"), report) == []


def test_findings_that_have_places_keep_them_and_others_get_one(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("flash-attn\n")
    finding = make_finding_about("flash-attn 2.8.3")
    located_finding = replace(finding, locations=(SourceLocation("run.sh", 3, 1),))
    report = reports.make_doctor_report(
        findings=(finding, located_finding, make_finding_about("driver 550")), baselined=(finding,), allowed=(finding,)
    )
    located = add_locations(report, tmp_path)
    locations = (SourceLocation("requirements.txt", 1, 1),)
    assert [finding.locations for finding in located.findings] == [locations, located_finding.locations, ()]
    assert located.baselined[0].locations == located.allowed[0].locations == locations
    assert add_locations(located, tmp_path) == located


def test_a_source_is_located_from_the_top_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "work" / "sub"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert path_in_checkout("x.sh", {}) == "x.sh"
    assert path_in_checkout("x.sh", {"GITHUB_WORKSPACE": str(tmp_path / "work")}) == "sub/x.sh"
    assert path_in_checkout("../x.sh", {"GITHUB_WORKSPACE": str(tmp_path / "work")}) == "x.sh"
    assert path_in_checkout("../../x.sh", {"GITHUB_WORKSPACE": str(tmp_path / "work")}) == ""
    assert path_in_checkout("x.sh", {"GITHUB_WORKSPACE": "/another"}) == "x.sh"
    (tmp_path / ".git").mkdir()
    assert path_in_checkout("x.sh", {}) == "work/sub/x.sh"
    assert path_in_checkout("-", {}) == path_in_checkout(COMMAND, {}) == path_in_checkout("", {}) == ""
