"""A fault of a release that the framework excludes is no error: such a job does not start, or nobody has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Run

CONFIG = "stage: sft\nmodel_name_or_path: Qwen/Qwen2.5-7B\ndataset: d\noutput_dir: o\ndo_train: true\ntemplate: qwen\n"


@pytest.mark.parametrize(("release", "severity"), [("0.9.4", "warning"), ("0.9.5", "error")])
def test_the_framework_decides_whether_a_release_is_the_jobs(
    release: str, severity: str, attncheck: Run, tmp_path: Path
) -> None:
    """LLaMA-Factory 0.9.4 ends with transformers above 4.57.1 (hparams/parser.py:46), 0.9.5 takes 5.4.0."""
    (tmp_path / "sft.yaml").write_text(f"{CONFIG}gradient_accumulation_steps: 4\nbf16: true\n")
    target = f"h100x1,transformers=5.4.0,llamafactory={release}"
    ended = attncheck("lint", str(tmp_path / "sft.yaml"), "--target", target, "--format", "json")
    findings = {finding["code"]: finding["severity"] for finding in json.loads(ended.stdout)["findings"]}
    assert findings.get("ATN457") == severity and ("ATN453" in findings) == (severity == "warning")
