"""What runs when an interpreter starts, and archives on its sys.path: seen, and part of the key of kept answers."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from attncheck.core.facts import Absent, Unreadable
from attncheck.doctor.probes.collect import collect_snapshot, collect_with_stamps
from tests.conftest import Run

METADATA = "Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0\n"


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """Return the site-packages of an empty environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    return site


def find_python(site: Path) -> str:
    return str(site.parents[2] / "bin" / "python")


def digest(site: Path) -> str:
    return collect_with_stamps(find_python(site), 60.0)[1]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# The files before the change, and the change: mostly to a text of the same length.
CHANGES: dict[str, tuple[dict[str, str], Callable[[Path], None]]] = {
    "sitecustomize comes": ({}, lambda site: write(site / "sitecustomize.py", "")),
    "sitecustomize changes": (
        {"sitecustomize.py": "import os; x = 1"},
        lambda site: write(site / "sitecustomize.py", "import os; x = 2"),
    ),
    "sitecustomize as a package": (
        {"sitecustomize/__init__.py": "x = 1"},
        lambda site: write(site / "sitecustomize" / "__init__.py", "x = 2"),
    ),
    "usercustomize changes": ({"usercustomize.py": "x = 1"}, lambda site: write(site / "usercustomize.py", "x = 2")),
    "a module that sitecustomize imports": (
        {
            "sitecustomize.py": "def f(): pass\nfrom patches.all import f",
            "patches/__init__.py": "",
            "patches/all.py": "f = 1",
        },
        lambda site: write(site / "patches" / "all.py", "f = 2"),
    ),
    "a module behind that one": (
        {"sitecustomize.py": "import first", "first.py": "try:\n  import second\nexcept: pass", "second.py": "x = 1"},
        lambda site: write(site / "second.py", "x = 2"),
    ),
    "a module that a .pth file imports": (
        {"x.pth": "import os; import finder; finder.install()", "finder.py": "MAPPING = 1"},
        lambda site: write(site / "finder.py", "MAPPING = 2"),
    ),
    "a line of a .pth file": ({"x.pth": "# 1"}, lambda site: write(site / "x.pth", "# 2")),
    "a folder of a .pth file": (
        {"x.pth": "../one\n", "../one/x": "", "../two/x": ""},
        lambda site: write(site / "x.pth", "../two\n"),
    ),
    "sitecustomize in a folder of a .pth file": (
        {"x.pth": "../one\n", "../one/sitecustomize.py": "x = 1"},
        lambda site: write(site / "../one/sitecustomize.py", "x = 2"),
    ),
    "pyvenv.cfg": (
        {},
        lambda site: write(site.parents[2] / "pyvenv.cfg", (site.parents[2] / "pyvenv.cfg").read_text() + "\n"),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_runs_at_the_start_decides_the_key(environment: Path, change: str) -> None:
    before, make_change = CHANGES[change]
    for name, text in before.items():
        write(environment / name, text)
    first = digest(environment)
    assert digest(environment) == first
    make_change(environment)
    assert digest(environment) != first


def test_what_does_not_run_does_not_decide_it(environment: Path) -> None:
    write(environment / "sitecustomize.py", "import os")
    first = digest(environment)
    write(environment / "other.py", "x = 1")
    assert digest(environment) == first


def test_sitecustomize_of_pythonpath_decides_it(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "path" / "sitecustomize.py", "x = 1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    first = digest(environment)
    write(tmp_path / "path" / "sitecustomize.py", "x = 2")
    assert digest(environment) != first


def test_a_kept_answer_ends_with_a_changed_sitecustomize(
    environment: Path, attncheck: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    argv = ("run", "--python", find_python(environment), "--checks", "doctor", "--target", "cpu", "--select", "ATN101")

    def is_kept() -> bool:
        result = attncheck(*argv, "--", "true")
        assert result.returncode == 0, result.stderr
        return "kept answer" in result.stderr

    assert [is_kept(), is_kept()] == [False, True]
    write(environment / "sitecustomize.py", "x = 1")
    assert [is_kept(), is_kept()] == [False, True]
    write(environment / "sitecustomize.py", "x = 2")
    assert [is_kept(), is_kept()] == [False, True]


def make_archive(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, METADATA if name.endswith("METADATA") else "")
    return path


@pytest.mark.parametrize("by", ["a .pth file", "PYTHONPATH", "a folder inside, by PYTHONPATH"])
def test_torch_in_an_archive_is_not_missing(
    environment: Path, tmp_path: Path, attncheck: Run, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    prefix = "lib/" if "inside" in by else ""
    names = ("torch/__init__.py", "torch-2.9.0.dist-info/METADATA", "flash_attn-2.8.3.dist-info/METADATA")
    archive = make_archive(tmp_path / "packages.zip", "lib/x", *(prefix + name for name in names))
    entry = str(archive / "lib") if prefix else str(archive)
    if by == "a .pth file":
        write(environment / "x.pth", f"{entry}\n")
    else:
        monkeypatch.setenv("PYTHONPATH", entry)
    snapshot = collect_snapshot(find_python(environment), ("static",))
    assert isinstance(snapshot.torch, Unreadable) and entry in snapshot.torch.reason
    assert snapshot.problems == tuple(
        f"{name} is in the archive {entry}, which is not examined" for name in ("flash-attn", "torch")
    )
    result = attncheck("doctor", "--lane", "static", "--python", find_python(environment))
    assert "ATN100" not in result.stdout and "ATN101" not in result.stdout and "ATN903" in result.stdout
    assert f"torch is in the archive {entry}" in result.stdout


@pytest.mark.parametrize("kind", ["of other packages", "damaged", "empty", "of another folder"])
def test_other_archives_are_passed_over(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    name = "torch/__init__.py" if kind == "of another folder" else "six.py"
    archive = make_archive(tmp_path / "packages.zip", name)
    if kind in ("damaged", "empty"):
        archive.write_bytes(b"PK\3\4" if kind == "damaged" else b"")
    monkeypatch.setenv("PYTHONPATH", str(archive / "lib") if kind == "of another folder" else str(archive))
    snapshot = collect_snapshot(find_python(environment), ("static",))
    assert isinstance(snapshot.torch, Absent) and snapshot.problems == ()
