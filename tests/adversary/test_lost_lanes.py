"""What a lane could not do is said, and ends with 3 if nothing was found: never with 0."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from attncheck.cli.output import exit_code
from attncheck.core.results.doctor import DoctorSection
from attncheck.doctor import engine
from attncheck.gate.policy import Policy
from tests.conftest import Run
from tests.snapshots import laptop

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are distinguished by /proc")
HEALTHY = "__version__ = '2.9.0'\n"
# Each takes away a process that answers for the whole lane: the keeper of the imports, the lane itself, its group.
KILLERS = {
    "its parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n",
    "its parent's group": "import os, signal\nos.killpg(os.getpgid(os.getppid()), signal.SIGKILL)\n",
    "its grandparent": (
        "import os, signal\nstat = open(f'/proc/{os.getppid()}/stat').read()\n"
        "os.kill(int(stat.rpartition(')')[2].split()[1]), signal.SIGKILL)\n"
    ),
    "all of its kind": (
        "import os, signal\n"
        "for pid in filter(str.isdecimal, os.listdir('/proc')):\n"
        "    try:\n"
        "        if int(pid) != os.getpid() and os.path.samefile('/proc/' + pid + '/exe', MARK):\n"
        "            os.kill(int(pid), signal.SIGKILL)\n"
        "    except OSError:\n"
        "        continue\n"
    ),
}
LIMITS = {
    "descriptors": "ulimit -n 48",
    "very few descriptors": "ulimit -n 16",
    "memory": "ulimit -v 150000",
    "file size": "ulimit -f 0",
}
SEGFAULT = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment that holds nothing but a torch of ours."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=False)
    (site,) = folder.glob("lib/python*/site-packages")
    metadata = site / "torch-2.9.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0\n")
    (site / "torch").mkdir()
    return folder / "bin" / "python"


def plant_torch(python: Path, source: str) -> None:
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    (site / "torch" / "__init__.py").write_text(f"MARK = {str(python)!r}\n{source}")


def test_a_healthy_environment_is_clean(attncheck: Run, python: Path) -> None:
    plant_torch(python, HEALTHY)
    done = attncheck("doctor", "--python", str(python), "--format", "json")
    report = json.loads(done.stdout)
    assert report["snapshot"]["lost"] == [] and report["doctor"]["lost"] == []
    assert "ATN903" not in {finding["code"] for finding in report["findings"]}


@linux
@pytest.mark.parametrize("victim", KILLERS)
def test_a_torch_that_kills(victim: str, attncheck: Run, python: Path, marker: str) -> None:
    plant_torch(python, KILLERS[victim])
    done = attncheck("doctor", "--python", str(python))
    assert done.returncode in (1, 3), done.stdout
    assert "unanswered: doctor" in done.stdout and "the probe could not finish: import lane" in done.stdout


@linux
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("source", [HEALTHY, SEGFAULT], ids=["healthy", "segfault"])
def test_an_exhausted_limit(limit: str, source: str, attncheck: Run, python: Path, tmp_path: Path) -> None:
    plant_torch(python, source)
    command = f'{LIMITS[limit]}; exec "$0" -m attncheck doctor --format json --python {python}'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.returncode in ((0, 1, 3) if source == HEALTHY else (1, 3)), done.stderr
    if done.returncode == 0:  # the limit left room enough
        report = json.loads(done.stdout)
        outcomes = {outcome["module"]: outcome["outcome"] for outcome in report["snapshot"]["imports"]["known"]}
        assert outcomes["torch"] == "ok" and report["snapshot"]["lost"] == []
    elif done.returncode == 3:
        assert "attncheck: " in done.stderr or json.loads(done.stdout)["doctor"]["lost"]


def test_a_rule_that_crashes_is_no_clean_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(snapshot: object) -> None:
        raise ZeroDivisionError

    rules, broken = engine.all_rules()
    crashing = type(rules[0])("ATN101", "error", crash, name="crashing")  # type: ignore[arg-type]
    rest = tuple(rule for rule in rules if rule.by_engine)
    monkeypatch.setattr(engine, "all_rules", lambda: ((crashing, *rest), broken))
    report = engine.run_rules(laptop(), frozenset())
    assert [finding.code for finding in report.findings] == ["ATN901"]
    assert exit_code(report, Policy()) == 3
    section = report.section(DoctorSection)
    assert section is not None and section.lost == (report.findings[0].message,)
