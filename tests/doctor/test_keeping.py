"""`doctor --deep` imports an environment again as soon as anything changes that an import can depend on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attncheck.core.facts import Known
from attncheck.doctor.probes import keeping
from attncheck.doctor.probes.collect import collect_snapshot
from attncheck.workers.child import ChildResult

FILES = {
    "torch/__init__.py": "import helper, os\nopen(os.environ['IMPORTS'], 'a').write('x')\n",
    "torch-2.9.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0\n",
    "torch-2.9.0.dist-info/RECORD": "torch/__init__.py,,\n",
    "helper/__init__.py": "x = 1\n",
    "helper-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: helper\nVersion: 1.0\n",
    "helper-1.0.dist-info/RECORD": "helper/__init__.py,,\n",
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the site-packages of an environment whose torch counts its imports and needs another package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    for name, text in FILES.items():
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text(text)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("IMPORTS", str(tmp_path / "imports"))
    monkeypatch.setattr(keeping, "describe_machine", lambda: ["boot"])
    return site


def look(site: Path) -> tuple[str, int]:
    """Return how importing torch ended, and how often it was imported by now."""
    python = str(site.parents[2] / "bin" / "python")
    imports = collect_snapshot(python, ("static", "import"), keeps_imports=True).imports
    assert isinstance(imports, Known)
    [outcome] = [item.outcome for item in imports.value if item.module == "torch"]
    log = site.parents[3] / "imports"
    return outcome, len(log.read_text()) if log.exists() else 0


def replace_helper(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / "helper" / "__init__.py").write_text("x = 22\n")


def add_module(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / "torch" / "more.py").write_text("")


def shadow_helper(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / "helper.py").write_text("")


def set_variable(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")


@pytest.mark.parametrize("change", [replace_helper, add_module, shadow_helper, set_variable])
def test_imports_are_kept_until_something_changes(
    site: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path, pytest.MonkeyPatch], None]
) -> None:
    first = look(site)
    assert first[0] == "ok" and first[1] > 0
    assert look(site) == first, "imported again"
    change(site, monkeypatch)
    assert look(site)[1] > first[1], "kept although it changed"


def test_a_failure_is_kept_and_ends_with_its_cause(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / "helper" / "__init__.py").rename(site / "helper" / "away.py")
    (site / "torch" / "__init__.py").write_text("import helper.gone")
    assert look(site) == look(site) == ("raised", 0)
    (site / "torch" / "__init__.py").write_text("import helper")
    assert look(site)[0] == "ok"


def test_nothing_is_kept_where_a_gpu_is(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "describe_machine", lambda: ["boot", "nvidia0"])
    assert look(site)[1] < look(site)[1]


@pytest.mark.parametrize(("outcome", "is_kept"), [("ok", True), ("raised", True), ("hung", False), ("died", False)])
def test_an_import_that_the_machine_may_have_stopped_is_not_kept(tmp_path: Path, outcome: str, is_kept: bool) -> None:
    answer = {"imports": {"known": [{"outcome": outcome}]}, "lost": []}
    keeping.keep(tmp_path / "kept", {"imports": ChildResult("ok", answer)})
    assert bool(keeping.read_kept(tmp_path / "kept")) == is_kept
    assert not keeping.read_kept(tmp_path / "other") and not keeping.read_kept(None)
