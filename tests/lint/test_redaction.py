"""Reports of launches hold no key: neither variables that decide nothing nor values of secrets."""

from __future__ import annotations

import json

import pytest

from attncheck.lint.redaction import HIDDEN
from tests.conftest import Run

SCRIPT = """\
export WANDB_API_KEY=k1k1k1k1
export HF_TOKEN=hf_k2k2k2
export FLASH_ATTENTION_DETERMINISTIC=1
deepspeed --num_gpus 1 --module openrlhf.cli.train_sft --ds.packing_samples {more} --data.dataset d
"""


@pytest.mark.parametrize("more", ["--logger.wandb.key k3k3k3k3", "--logger.wandb.key=k3k3k3k3"])
def test_secrets_stay_out_of_the_document(attncheck: Run, more: str) -> None:
    result = attncheck("lint", "-", "--target", "h100", "--format", "json", input=SCRIPT.format(more=more))
    report = json.loads(result.stdout)
    job = report["lint"]["launches"][0]["job"]
    assert dict(job["plan"]["environ"]) == {"FLASH_ATTENTION_DETERMINISTIC": "1"}
    assert {s["name"]: s["value"] for s in job["settings"]}["--logger.wandb.key"] == HIDDEN
    for secret in ("k1k1k1k1", "hf_k2k2k2"):
        assert secret not in result.stdout
    launch = report["lint"]["launches"][0]
    assert "k3k3k3k3" not in json.dumps({**report, "lint": [{**launch, "diff": "", "command": "", "edits": []}]})
