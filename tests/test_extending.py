"""The examples of docs/extending.md are installed as plugins and run; the imports it promises are there."""

from __future__ import annotations

import importlib
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.plugins import write_plugin
from tests.snapshots import FOLDER

PAGE = (Path(__file__).parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"<!-- example: ([\w.]+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))
FACTS = str(FOLDER / "h200.json")


@pytest.fixture
def environ(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """Return the environment in which the example of a group is installed as the plugin "lab"."""
    return write_plugin(tmp_path / "site", "lab", EXAMPLES[request.param], request.param)


@pytest.mark.parametrize("line", re.findall(r"`from (attncheck[\w.]+ import [\w, ]+)`", PAGE))
def test_the_promised_imports_are_there(line: str) -> None:
    module, names = line.split(" import ")
    package = importlib.import_module(module)
    assert {name.strip() for name in names.split(",")} <= set(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)


def test_every_group_has_its_example_and_each_uses_the_promised_imports_alone() -> None:
    groups = re.findall(r"^\| \[`[A-Z]+`\]\(#[\w-]+\) \| `([\w.]+)`", PAGE, re.MULTILINE)
    assert groups == list(EXAMPLES)
    promised = dict(re.findall(r"`(attncheck\.[a-z]+)` \| `from (attncheck[\w.]+) import", PAGE))
    for group, source in EXAMPLES.items():
        assert set(re.findall(r"^ *(?:from|import) (attncheck[\w.]+)", source, re.MULTILINE)) == {promised[group]}


@pytest.mark.parametrize("environ", ["attncheck.rules"], indirect=True)
def test_a_rule(attncheck: Run, environ: dict[str, str]) -> None:
    done = attncheck("doctor", "--facts", FACTS, "--select", "LAB", env=environ)
    assert "LAB101 warning torch 2.11.0+cu130 is older than our images' 99.0" in done.stdout
    assert "uv pip install torch==99.0" in done.stdout
    assert "Source: the Dockerfile of our training image." in attncheck("explain", "LAB101", env=environ).stdout


@pytest.mark.parametrize("environ", ["attncheck.backends"], indirect=True)
def test_a_backend(attncheck: Run, environ: dict[str, str]) -> None:
    pytest.importorskip("torch")
    words = ("parity", "--suite", "quick", "--device", "cpu", "--backend", "written_out", "--case", "dense*")
    done = attncheck(*words, "--format", "json", env=environ)
    answers = Counter(verdict["answer"] for verdict in json.loads(done.stdout)["parity"]["verdicts"])
    assert done.returncode == 0
    assert answers["pass"] >= 5 and answers.keys() == {"pass", "refused"}


@pytest.mark.parametrize("environ", ["attncheck.proving"], indirect=True)
def test_a_check_of_smoke(attncheck: Run, environ: dict[str, str]) -> None:
    pytest.importorskip("transformers")
    done = attncheck("smoke", "llama", "--only", "alive", "--device", "cpu", "--format", "json", env=environ)
    (result,) = json.loads(done.stdout)["smoke"]["plan_runs"][0]["results"]
    assert (done.returncode, result["check"], result["outcome"], result["violations"]) == (0, "alive", "ok", [])
    assert re.fullmatch(r"\d+ alive", result["notes"][0])


@pytest.mark.parametrize("environ", ["attncheck.frameworks"], indirect=True)
def test_a_framework(attncheck: Run, environ: dict[str, str]) -> None:
    words = ("lint", "--target", "h100x8", "--format", "json", "--", "labtrain", "--attn", "eager", "--model", "x")
    (launch,) = json.loads(attncheck(*words, env=environ).stdout)["lint"]["launches"]
    assert launch["job"]["framework"] == "labtrain"
    assert launch["command"] == "labtrain --attn sdpa --model x"


@pytest.mark.parametrize("environ", ["attncheck.launchers"], indirect=True)
def test_a_launcher(attncheck: Run, environ: dict[str, str]) -> None:
    command = ("labrun", "--gpus", "4", "train.py", "--per_device_train_batch_size", "1", "--output_dir", "x")
    done = attncheck("lint", "--target", "h100x8", "--format", "json", "--", *command, env=environ)
    (launch,) = json.loads(done.stdout)["lint"]["launches"]
    assert (launch["job"]["framework"], launch["job"]["world_size"]) == ("transformers", {"known": 4})


@pytest.mark.parametrize("environ", ["attncheck.formats"], indirect=True)
def test_a_format(attncheck: Run, environ: dict[str, str], tmp_path: Path) -> None:
    done = attncheck("doctor", "--facts", FACTS, "--format", "lab", "--output", "lab=lines.txt", env=environ)
    assert done.stdout.startswith("error ATN140 ring-flash-attn 0.1.8 imports ")
    assert (tmp_path / "lines.txt").read_text() == done.stdout
    refused = attncheck("doctor", "--facts", FACTS, "--format", "x", env=environ)
    assert "is not one of github, html, json, junit, lab, markdown" in refused.stderr


@pytest.mark.parametrize("environ", ["attncheck.faults"], indirect=True)
def test_a_fault(attncheck: Run, environ: dict[str, str]) -> None:
    assert "lab-shadow" in attncheck("selftest", "--list", env=environ).stdout
    done = attncheck("selftest", "--inject", "ATN118", "--format", "json", env=environ)
    statuses = {result["fault"]: result["status"] for result in json.loads(done.stdout)["results"]}
    assert statuses["lab-shadow"] == "caught"
