"""TRL's own `trl sft`, rehearsed as it was released: what is right gives no finding, what mixes documents is fixed.

ATTNCHECK_REHEARSAL_PYTHONS names a folder of virtual environments, each with torch, transformers, accelerate and
datasets: "trl" with TRL 1.16.0, "trl022" with TRL 0.22.2 and transformers 4.56.2. Those that are missing are skipped.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from tests.rehearsal import own_models
from tests.rehearsal.own_models import describe_files

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

ENVIRONMENTS = os.environ.get("ATTNCHECK_REHEARSAL_PYTHONS", "")
LAUNCH = (
    "trl sft --model_name_or_path Qwen/Qwen2.5-7B --dataset_name own/data --output_dir out --max_length 4096 "
    "--per_device_train_batch_size 4 --gradient_accumulation_steps 8 --learning_rate 2e-5"
)


@dataclass(frozen=True)
class Case:
    """Options next to the launch's own, the codes of the findings that are true of it, and what fixes it."""

    options: str
    codes: tuple[str, ...] = ()
    pattern: str = ""
    fix: str = ""


CASES = {
    "padded": Case(""),
    "packed": Case("--packing --attn_implementation sdpa"),
    "wrapped": Case(
        "--packing --packing_strategy wrapped --attn_implementation sdpa",
        ("ATN432",),
        "attend to earlier documents in the row",
        "--packing_strategy bfd",
    ),
    "answers": Case("--assistant_only_loss"),
    "completions": Case("--completion_only_loss true"),
    "two ranks": Case("--packing --attn_implementation sdpa"),
}


def find_environment(name: str) -> Path:
    """Return an environment's interpreter, or skip."""
    python = Path(ENVIRONMENTS) / name / "bin" / "python"
    if not ENVIRONMENTS or not python.exists():
        pytest.skip(f"ATTNCHECK_REHEARSAL_PYTHONS names no folder with {name}/bin/python")
    return python


def rehearse(attncheck: Run, python: Path, launch: str) -> dict[str, Any]:
    options = ("--python", str(python), "--device", "cpu", "--timeout", "120", "--format", "json")
    process = attncheck("smoke", *options, "--", *launch.split(), timeout=900)
    assert process.stdout, process.stderr
    report: dict[str, Any] = json.loads(process.stdout)
    assert report["rehearsal"]["launches"][0]["steps"] == 30, report["rehearsal"]
    return report


@pytest.mark.parametrize("name", CASES)
def test_a_launch_of_trl(name: str, attncheck: Run, marker: str) -> None:
    case = CASES[name]
    launch = f"{LAUNCH} {case.options}"
    if name == "two ranks":
        launch = launch.replace("trl sft", "accelerate launch --num_processes 2 --multi_gpu --module trl.scripts.sft")
    report = rehearse(attncheck, find_environment("trl"), launch)
    assert report["rehearsal"]["launches"][0]["ranks"] == 1 + (name == "two ranks")
    assert tuple(finding["code"] for finding in report["findings"]) == case.codes, report["findings"]
    for finding in report["findings"]:
        assert re.search(case.pattern, finding["message"])
        assert finding["fixes"][0]["title"] == case.fix and finding["fixes"][0]["proven"]
    outcomes = {(result["check"], result["outcome"]) for result in report["rehearsal"]["launches"][-1]["results"]}
    assert {outcome for _, outcome in outcomes} == {"ok"}, outcomes


CPO = """
import trl
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

model, tokenizer = (kind.from_pretrained("a/Qwen2.5-0.5B") for kind in (AutoModelForCausalLM, AutoTokenizer))
args = trl.CPOConfig(output_dir="out", ARGUMENTS, gradient_accumulation_steps=4, max_seq_length=1024, fp16=True)
trl.CPOTrainer(model, args=args, tokenizer=tokenizer, train_dataset=load_dataset("a/b", split="train")).train()
"""


@pytest.mark.parametrize("arguments", ["cpo_alpha=0.5", "loss_type='simpo', beta=2.0, simpo_gamma=1.0, cpo_alpha=0.0"])
def test_a_script_for_another_release_of_trl(arguments: str, attncheck: Run, tmp_path: Path) -> None:
    """What 1.16 has moved is taken by attribute, and its loss without a reference is judged."""
    script = tmp_path / "train_cpo.py"
    script.write_text(CPO.replace("ARGUMENTS", arguments))
    report = rehearse(attncheck, find_environment("trl"), f"python {script}")
    assert report["findings"] == []
    outcomes = {result["check"]: result["outcome"] for result in report["rehearsal"]["launches"][0]["results"]}
    assert all(outcomes[check] == "ok" for check in ("run", "batch", "update", "loss", "gradients")), outcomes


@pytest.mark.parametrize(
    "options",
    [
        "--neftune_noise_alpha 5",
        "--label_smoothing_factor 0.1",
        "--loss_type dft",
        "--use_peft --lora_r 8 --lora_dropout 0.1",
        "--optim adafactor --max_grad_norm 0.3 --weight_decay 0.1",
        "--use_peft --lora_target_modules all-linear --bf16 --gradient_checkpointing",
    ],
)
def test_documented_settings_are_no_errors(options: str, attncheck: Run, marker: str) -> None:
    report = rehearse(attncheck, find_environment("trl"), f"{LAUNCH} {options}")
    assert not [finding for finding in report["findings"] if finding["severity"] == "error"], report["findings"]


POLICY = """
import trl
from datasets import load_dataset


class Trainer(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        inputs["advantages"] = SIGN * inputs["advantages"]
        return FACTOR * super()._compute_loss(model, inputs)

    def _get_per_token_logps_and_entropies(self, *arguments, **options):
        logps, *others = super()._get_per_token_logps_and_entropies(*arguments, **options)
        return (logps.roll(SHIFT, dims=1), *others)


args = trl.GRPOConfig(output_dir="out", per_device_train_batch_size=4, num_generations=4, gradient_accumulation_steps=2)
Trainer("a/Qwen2.5-0.5B", reward_funcs=len, args=args, train_dataset=load_dataset("a/b", split="train")).train()
"""


# By the values in the subclass: the warning, the finding. The launch's own rewards may be costs, so a sign is no proof.
SUBCLASSES = {
    "unchanged": ({}, "", ""),
    "advantages reversed": ({"SIGN": "-1"}, "unless your reward functions return a cost", ""),
    "loss negated": ({"FACTOR": "-1"}, "unless your reward functions return a cost", ""),
    "log-probabilities shifted": ({"SHIFT": "-1"}, "", "each token has the value of the token after it"),
}


@pytest.mark.parametrize("name", SUBCLASSES)
def test_a_policy_trainers_subclass(name: str, attncheck: Run, tmp_path: Path) -> None:
    values, warning, finding = SUBCLASSES[name]
    script = tmp_path / "train_policy.py"
    text = POLICY
    for word, value in {"SIGN": "1", "FACTOR": "1", "SHIFT": "0", **values}.items():
        text = text.replace(word, value)
    script.write_text(text)
    report = rehearse(attncheck, find_environment("trl"), f"python {script}")
    (loss,) = (result for result in report["rehearsal"]["launches"][0]["results"] if result["check"] == "loss")
    assert any(warning in text for text in loss["warnings"]) if warning else not loss["warnings"], loss
    assert [entry["code"] for entry in report["findings"]] == ["ATN433"] * bool(finding), report["findings"]
    assert all(finding in entry["message"] for entry in report["findings"])


OWN_CASES = {
    "whole": ("--full-model", "--packing --attn_implementation sdpa", ()),
    "own data": ("--real-data", "--packing --attn_implementation sdpa", ()),
    "own data, padded": ("--real-data", "", ()),
    "own data, wrapped": (
        "--real-data",
        "--packing --packing_strategy wrapped --attn_implementation sdpa",
        ("ATN432",),
    ),
    "both": ("--full-model --real-data", "--packing --attn_implementation sdpa", ()),
}


@pytest.mark.parametrize("name", OWN_CASES)
def test_a_launch_of_trl_with_what_is_its_own(name: str, attncheck: Run, tmp_path: Path) -> None:
    switches, options, codes = OWN_CASES[name]
    model = own_models.save_model(tmp_path / "Qwen2.5-7B", own_models.TEMPLATE)
    (tmp_path / "data").mkdir()
    own_models.write_data(tmp_path / "data" / "train.jsonl")
    before = describe_files(tmp_path)
    launch = LAUNCH.replace("Qwen/Qwen2.5-7B", str(model)).replace("own/data", "data")
    python = find_environment("trl")
    argv = ("--python", str(python), "--device", "cpu", "--timeout", "120", "--format", "json", "--no-fix")
    process = attncheck("smoke", *argv, *switches.split(), "--", *launch.split(), *options.split(), timeout=900)
    report = json.loads(process.stdout)
    assert tuple(finding["code"] for finding in report["findings"]) == codes, report["findings"]
    [rehearsed] = report["rehearsal"]["launches"]
    outcomes = {(result["check"], result["outcome"]) for result in rehearsed["results"]}
    assert codes or {outcome for _, outcome in outcomes} == {"ok"}, outcomes
    assert describe_files(tmp_path) == before


@pytest.mark.parametrize(
    ("options", "codes"),
    [
        ("", ()),
        # TRL 0.22.2 trainer/sft_trainer.py: `return_position_ids=use_flash_attention`, and a mask of ones without them.
        ("--packing --attn_implementation sdpa", ("ATN432",)),
    ],
)
def test_an_older_trl(options: str, codes: tuple[str, ...], attncheck: Run, marker: str) -> None:
    report = rehearse(attncheck, find_environment("trl022"), f"{LAUNCH} {options}")
    assert tuple(finding["code"] for finding in report["findings"]) == codes, report["findings"]
