"""Programs that define what trains, and call none of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.core.launch import Source
from attncheck.lint import run
from attncheck.lint.context import Request
from attncheck.lint.inputs import make_file_reader
from attncheck.lint.sources import read_source
from tests import snapshots as s
from tests.lint.launches import read_model
from tests.lint.programs.trees import write_tree

HEAD = """
import logging
from typing import TypeVar

from trl import SFTConfig, SFTTrainer

logger = logging.getLogger(__name__)
T = TypeVar("T")

def main():
    SFTTrainer(args=SFTConfig(output_dir="o")).train()
"""
SCRIPT = "python -m pkg.train --model_name_or_path m --dataset_name d --output_dir o\n"


@pytest.mark.parametrize(
    ("end", "script", "count"),
    [
        ("", SCRIPT, 1),
        ("", SCRIPT.replace("-m pkg.train", "pkg/train.py"), 1),
        ("main()\n", SCRIPT, 0),
        ('if __name__ == "__main__":\n    main()\n', SCRIPT, 0),
        ("result = main()\n", SCRIPT, 0),
        ("import pkg.runner\n", SCRIPT, 0),
        ("import pkg.other\n", SCRIPT, 1),
        ("import fire\nfire.Fire(main)\n", SCRIPT, 0),
    ],
)
def test_a_module_that_calls_nothing_trains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, script: str, count: int
) -> None:
    files = {
        "pkg/runner.py": "from pkg.train import main\n\nmain()\n",
        "pkg/other.py": "import json\n\njson.dumps(1)\n",
    }
    write_tree(
        tmp_path, {**files, "pkg/__init__.py": "", "pkg/train.py": HEAD + end, "run.sh": script, ".git/HEAD": ""}
    )
    monkeypatch.chdir(tmp_path)
    source = read_source("run.sh")
    report = run.run(s.h200(), Request((source,)), read_model, make_file_reader((source,)))
    found = [item for item in report.findings if "calls nothing" in item.message]
    assert [item.severity for item in found] == ["error"] * count


def test_nemo_rl_s_algorithms_are_no_programs() -> None:
    text = "uv run python -m nemo_rl.algorithms.grpo --config x.yaml policy.model_name=m\n"
    for script, count in ((text, 1), (text.replace("-m nemo_rl.algorithms.grpo", "examples/run_grpo.py"), 0)):
        source = Source("run.sh", script, "shell")
        report = run.run(s.h200(), Request((source,)), read_model, lambda name: None)
        assert sum("calls nothing" in item.message for item in report.findings) == count
