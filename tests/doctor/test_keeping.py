"""`doctor --deep` imports an environment again as soon as anything changes that an import can depend on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attncheck.core.facts import Known
from attncheck.doctor.probes import collect, keeping
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


def with_kernels(*ends: str) -> dict[str, ChildResult]:
    """Return the answers of a lane that ran a kernel on GPUs, one of them with each of these ends."""
    kernels = {f"gpu {n}": {"known": {"devices": {str(n): {"known": end}}, "free": {}}} for n, end in enumerate(ends)}
    answer = {"imports": {"known": [{"outcome": "ok"}]}, "lost": [], "answers": {**kernels, "peers": {"known": {}}}}
    return {"imports": ChildResult("ok", answer)}


def test_a_kernel_that_failed_is_not_kept(tmp_path: Path) -> None:
    keeping.keep(tmp_path / "failed", with_kernels("ok", "CUDA error: an illegal memory access"))
    assert not keeping.read_kept(tmp_path / "failed")
    answer = with_kernels("ok")["imports"].answer
    assert isinstance(answer, dict)
    silent = {**answer, "answers": {"gpu 0": {"unreadable": "it hung"}}}
    keeping.keep(tmp_path / "silent", {"imports": ChildResult("ok", silent)})
    assert not keeping.read_kept(tmp_path / "silent")
    keeping.keep(tmp_path / "good", with_kernels("ok", "ok"))
    assert keeping.count_gpus(keeping.read_kept(tmp_path / "good")) == 2 and keeping.count_gpus({}) == 0


@pytest.mark.parametrize(("kernels", "is_kept"), [(1, True), (0, False), (None, False)])
def test_a_gpus_host_keeps_imports_while_the_driver_runs_its_kernel(
    site: Path, monkeypatch: pytest.MonkeyPatch, kernels: int | None, is_kept: bool
) -> None:
    """A kept answer of torch's kernel is not used if a GPU is missing, or fails, now."""
    first = look(site)
    monkeypatch.setattr(keeping, "count_gpus", lambda kept: 1 if kept else 0)
    monkeypatch.setattr(collect, "_run_driver_kernels", lambda *_: kernels)
    assert (look(site) == first) == is_kept


def test_another_driver_or_gpu_is_another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    information = tmp_path / "gpus" / "0000:00:06.0" / "information"
    information.parent.mkdir(parents=True)
    information.write_text("GPU UUID: GPU-1")
    (tmp_path / "version").write_text("580.159.04")
    monkeypatch.setattr(keeping, "NVIDIA", tmp_path)
    monkeypatch.setattr(os, "listdir", lambda path: ["nvidia0", "nvidiactl", "tty"])
    machines = [keeping.describe_machine()]
    (tmp_path / "version").write_text("590.1")
    machines.append(keeping.describe_machine())
    information.write_text("GPU UUID: GPU-2")
    machines.append(keeping.describe_machine())
    (tmp_path / "capabilities").mkdir()
    machines.append(keeping.describe_machine())
    assert len({tuple(machine) for machine in machines}) == 4
    monkeypatch.setattr(keeping, "NVIDIA", tmp_path / "absent")
    assert keeping.describe_machine() == [], "a driver that is not described"
    monkeypatch.setattr(os, "listdir", lambda path: ["kfd"])
    assert keeping.describe_machine() == []


@pytest.mark.parametrize(("outcome", "is_kept"), [("ok", True), ("raised", True), ("hung", False), ("died", False)])
def test_an_import_that_the_machine_may_have_stopped_is_not_kept(tmp_path: Path, outcome: str, is_kept: bool) -> None:
    answer = {"imports": {"known": [{"outcome": outcome}]}, "lost": []}
    keeping.keep(tmp_path / "kept", {"imports": ChildResult("ok", answer)})
    assert bool(keeping.read_kept(tmp_path / "kept")) == is_kept
    assert not keeping.read_kept(tmp_path / "other") and not keeping.read_kept(None)
