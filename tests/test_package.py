"""The wheel: the same bytes whenever and wherever it is built, and what an index and a type checker read of it."""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", ".gitignore", "attncheck")


def copy_sources(folder: Path, mode: int, modified: float) -> Path:
    """Return a copy of what the wheel is built from, its files of one mode and time."""
    for name in BUILT_FROM:
        source, copy = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            folder.mkdir(exist_ok=True)
            shutil.copyfile(source, copy)
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)
        os.utime(path, (modified, modified))
    return folder


def build_wheel(folder: Path, timezone: str) -> Path:
    """Return the wheel that hatchling builds of a folder."""
    environ = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "TZ": timezone, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(copy_sources(tmp_path_factory.mktemp("first") / "a", 0o644, 1.6e9), "UTC")


def test_the_wheel_built_twice_has_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    """Another folder, other modes and times of the files, another time zone; a changed byte changes it."""
    again = copy_sources(tmp_path / "elsewhere", 0o600, 1.65e9)
    second = build_wheel(again, "Asia/Tokyo")
    assert second.name == wheel.name and second.read_bytes() == wheel.read_bytes()
    second.unlink()
    with open(again / "attncheck" / "py.typed", "a", encoding="utf-8") as stream:
        stream.write("partial\n")
    assert build_wheel(again, "Asia/Tokyo").read_bytes() != wheel.read_bytes()


def read_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_says_what_an_index_shows(wheel: Path) -> None:
    metadata = read_metadata(wheel)
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL") or ())
    assert urls.keys() >= {"Documentation", "Repository", "Changelog", "Issues", "Security"}
    for url in urls.values():  # what a page names is in the repository
        file = url.partition("/main/")[2]
        assert (ROOT / file).exists(), url
    classifiers = metadata.get_all("Classifier") or []
    minors = [f"3.{minor}" for minor in range(10, 15)]
    assert {f"Programming Language :: Python :: {minor}" for minor in minors} <= set(classifiers)
    assert "Typing :: Typed" in classifiers and metadata["Requires-Python"] == ">=3.10"


def test_the_wheel_holds_the_package_and_nothing_of_the_repository(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "attncheck/py.typed" in names and "attncheck/lint/names/verl.json" in names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"attncheck"}
    assert not [name for name in names if name.endswith((".pyc", ".so"))]


def test_what_a_release_is_built_with_is_pinned() -> None:
    tools = (ROOT / ".github" / "requirements-release.txt").read_text(encoding="utf-8").splitlines()
    pinned = [line for line in tools if line and not line.startswith("#")]
    assert pinned and all(line.count("==") == 1 for line in pinned)


def test_the_image_is_built_from_what_the_wheel_is_and_runs_without_root() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    instructions = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    copied = [
        word for name, rest in instructions if name == "COPY" and "--from" not in rest for word in rest.split()[:-1]
    ]
    context = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert set(copied) == {line[1:] for line in context if line.startswith("!")} == set(BUILT_FROM) - {".gitignore"}
    assert context[0] == "*"
    last_stage = instructions[max(number for number, (name, _) in enumerate(instructions) if name == "FROM") :]
    users = [rest for name, rest in last_stage if name == "USER"]
    assert users == ["1000"] and dict(last_stage)["ENTRYPOINT"] == '["attncheck"]'


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    paths = [path for path in (ROOT / "attncheck").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    with zipfile.ZipFile(wheel) as archive:
        assert {str(path.relative_to(ROOT)) for path in paths} <= set(archive.namelist())
