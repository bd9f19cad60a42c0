"""The probe in one file: the facts of `attncheck probe`, under every Python that it promises, and nothing written."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from attncheck.core import codec, snapshot
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.probes.payload import joining
from tests.adversary.test_security_page import needs_strace, trace
from tests.conftest import Run, find_marked_processes, find_python

SECRET = "hf_" + "QwErTyUiOpAsDfGhJkLzXcVbNmQwErTyUi"  # the shape of a token
VOLATILE = ("selection", "seconds", "taken", "memory_available_bytes")


@pytest.fixture
def probe_file(attncheck: Run, tmp_path: Path) -> Path:
    done = attncheck("probe", "--standalone", "probe.py", "--timeout", "120")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return tmp_path / "probe.py"


def run_file(file: Path, python: str, folder: Path, **environ: str) -> dict[str, Any]:
    done = subprocess.run(
        [python, str(file)], cwd=folder, env={**os.environ, **environ}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def read_facts(document: dict[str, Any]) -> Any:
    """Return what `doctor --facts` reads of a document, less what changes from one look to the next."""
    return without_volatile(codec.to_plain(codec.read(Snapshot, document)))


def without_volatile(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_volatile(item) for key, item in value.items() if key not in VOLATILE}
    return [without_volatile(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14"])
def test_the_facts_are_those_of_the_probe(version: str, probe_file: Path, attncheck: Run, tmp_path: Path) -> None:
    """On a Python without packages; a secret in a variable that may be shown is in neither."""
    python = find_python(version)
    environ = {"LD_LIBRARY_PATH": f"/opt/{SECRET}/lib"}
    facts = run_file(probe_file, python, tmp_path, **environ)
    probed = attncheck("probe", "--python", python, env={**os.environ, **environ})
    assert read_facts(facts) == read_facts(json.loads(probed.stdout))
    assert facts["host"]["selection"] == {"selected_by": "", "passed_over": []}
    assert SECRET not in json.dumps(facts) and "…" in facts["environ"]["LD_LIBRARY_PATH"]
    (tmp_path / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    judged = attncheck("doctor", "--facts", "facts.json", "--format", "json")
    assert judged.returncode == 1 and "ATN100" in {finding["code"] for finding in json.loads(judged.stdout)["findings"]}


@pytest.mark.nightly
def test_the_facts_of_an_environment_that_trains(probe_file: Path, attncheck: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    facts = run_file(probe_file, sys.executable, tmp_path)
    probed = attncheck("probe", "--python", sys.executable, "--timeout", "120", timeout=300)
    assert "known" in facts["imports"] and "known" in facts["torch"]
    assert read_facts(facts) == read_facts(json.loads(probed.stdout))


def test_lanes_and_a_model_are_written_into_the_file(attncheck: Run, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    text = attncheck("probe", "m", "--lane", "static", "--standalone", "-").stdout
    (tmp_path / "probe.py").write_text(text, encoding="utf-8")
    facts = run_file(tmp_path / "probe.py", find_python("3.8"), tmp_path)
    assert facts["imports"] == {"absent": snapshot.NOT_ASKED} == {"absent": joining.NOT_ASKED}
    assert facts["model"]["known"]["model_type"] == "llama", "a relative folder is that of the caller"


@pytest.mark.parametrize("version", ["2.7", "3.6"])
def test_an_older_python_is_one_line(version: str, probe_file: Path) -> None:
    done = subprocess.run([find_python(version), str(probe_file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.strip() == f"attncheck: this is Python {version}; the probe needs Python 3.8 or newer"


@needs_strace
@pytest.mark.parametrize("lane", ["static", pytest.param("static,import,device", marks=pytest.mark.nightly)])
def test_it_leaves_nothing_and_connects_to_nothing(lane: str, attncheck: Run, tmp_path: Path) -> None:
    """Imports may write into the temporary folder, which is removed; the static lane writes nothing at all."""
    attncheck("probe", "--lane", lane, "--standalone", "probe.py")
    outside, connected = trace(tmp_path, "-S", "-E", str(tmp_path / "probe.py"))
    assert outside == [] and connected == []
    assert not list(tmp_path.rglob("__pycache__")) and list((tmp_path / "scratch").iterdir()) == []
    if lane == "static":
        made = [line for line in (tmp_path / "trace").read_text(errors="replace").splitlines() if "O_CREAT" in line]
        assert not [line for line in made if "/dev/" not in line]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process_and_no_folder(
    number: signal.Signals, attncheck: Run, tmp_path: Path, marker: str
) -> None:
    attncheck("probe", "--standalone", "probe.py")
    (tmp_path / "scratch").mkdir()
    (tmp_path / "sitecustomize.py").write_text("import os, time\nif 'DO_NOT_TRACK' in os.environ: time.sleep(99)")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path / "scratch")}
    process = subprocess.Popen([find_python("3.8"), "probe.py"], cwd=tmp_path, env=environ, stdout=subprocess.PIPE)
    while len(find_marked_processes(marker)) < 3:  # the program, and two lanes that hang
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    assert process.communicate(timeout=60)[0] == b"" and process.returncode == 130
    assert list((tmp_path / "scratch").iterdir()) == []


def test_it_imports_nothing_from_its_folder(probe_file: Path, tmp_path: Path) -> None:
    trap = "import sys; sys.stderr.write('trapped'); sys.exit(9)"
    for name in ("json", "subprocess", "attncheck", "torch", "importlib"):
        (tmp_path / f"{name}.py").write_text(trap, encoding="utf-8")
    facts = run_file(probe_file, find_python("3.8"), tmp_path)
    assert not facts["shadows"]


def test_a_lane_that_hangs_or_dies_is_lost_and_named(attncheck: Run, tmp_path: Path) -> None:
    """A package whose import ends its interpreter's own start, and an interpreter that never answers."""
    text = attncheck("probe", "--standalone", "-", "--timeout", "2").stdout
    python = find_python("3.8")
    for site, reason in (
        ("import os\nif os.environ.get('DO_NOT_TRACK'): os._exit(7)", "it ended with exit status 7: no message"),
        ("import os, time\nif os.environ.get('DO_NOT_TRACK'): time.sleep(99)", "it did not answer before its deadline"),
    ):
        (tmp_path / "site").mkdir(exist_ok=True)
        (tmp_path / "site" / "sitecustomize.py").write_text(site, encoding="utf-8")
        (tmp_path / "probe.py").write_text(text.replace("GRACE_SECONDS = 15.0", "GRACE_SECONDS = 0.5"))
        facts = run_file(tmp_path / "probe.py", python, tmp_path, PYTHONPATH="site")
        lost = [line for line in facts["lost"] if line.startswith(("import lane: ", "device lane: "))]
        assert len(lost) == 2 and all(reason in line for line in lost), facts["lost"]
        assert facts["devices"] == {"unreadable": "the device lane did not answer"}


def test_options_that_do_not_go_together(attncheck: Run) -> None:
    refused = attncheck("probe", "--standalone", "x.py", "--python", sys.executable)
    assert refused.returncode == 2 and "remove --python" in refused.stderr
    refused = attncheck("probe", "--standalone", "no/such/folder/x.py")
    assert refused.returncode == 3 and "cannot write no/such/folder/x.py" in refused.stderr


def test_the_sources_can_be_read_in_the_file(probe_file: Path) -> None:
    """They are those of the repository, line by line, not an archive."""
    text = probe_file.read_text(encoding="utf-8")
    assert "def collect_static_facts(request: dict[str, Any]) -> dict[str, object]:\n" in text
    assert max(map(len, text.splitlines())) < 4000
    ast.parse(text, feature_version=(3, 8))
