"""Reports of launches hold no key: neither variables that decide nothing nor values of secrets; other settings stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attncheck.core.io.outgoing import MASKED_LAUNCH
from tests.conftest import Run

SCRIPT = """\
export WANDB_API_KEY=k1k1k1k1
export HF_TOKEN=hf_k2k2k2
export FLASH_ATTENTION_DETERMINISTIC=1
deepspeed --num_gpus 1 --module openrlhf.cli.train_sft --packing_samples {more} --data.dataset d \\
   --data.input_key question --ckpt.max_num 3 --data.apply_chat_template --data.tokenizer_chat_template t
"""


@pytest.mark.parametrize("more", ["--logger.wandb.key k3k3k3k3", "--logger.wandb.key=k3k3k3k3"])
def test_secrets_stay_out_of_the_document(attncheck: Run, more: str) -> None:
    result = attncheck(
        "lint", "-", "--target", "h100,openrlhf=0.11.2", "--format", "json", input=SCRIPT.format(more=more)
    )
    launch = json.loads(result.stdout)["lint"]["launches"][0]
    assert dict(launch["job"]["plan"]["environ"]) == {"FLASH_ATTENTION_DETERMINISTIC": "1"}
    settings = {setting["name"]: setting["value"] for setting in launch["job"]["settings"]}
    assert settings["--logger.wandb.key"] == "…" and settings["--data.input_key"] == "question"
    assert "--ds.packing_samples" in launch["diff"] and MASKED_LAUNCH in launch["job"]["remarks"]
    for secret in ("k1k1k1k1", "hf_k2k2k2", "k3k3k3k3"):
        assert secret not in result.stdout


def test_the_file_that_is_written_keeps_the_users_words(attncheck: Run, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT.format(more="--logger.wandb.key k3k3k3k3"))
    shown = attncheck("lint", "run.sh", "--target", "h100,openrlhf=0.11.2", "--write").stdout
    assert "k3k3k3k3" not in shown and shown.count(MASKED_LAUNCH) == 1
    assert "--ds.packing_samples --logger.wandb.key k3k3k3k3" in (tmp_path / "run.sh").read_text()


def test_a_launch_without_secrets_has_no_word_of_them(attncheck: Run) -> None:
    text = SCRIPT.partition("deepspeed")[2]
    shown = attncheck(
        "lint", "-", "--target", "h100,openrlhf=0.11.2", input="deepspeed" + text.format(more="--ds.zero_stage 3")
    ).stdout
    assert "--ds.packing_samples" in shown and "secret" not in shown and "+deepspeed" in shown
