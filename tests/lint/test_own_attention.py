"""A script that registers its own attention is read: without a mask function the launch computes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.core.findings import Finding
from attncheck.core.launch import Source
from attncheck.lint import run
from attncheck.lint.context import Request
from attncheck.lint.sources import read_source
from tests import snapshots as s
from tests.lint import launches

LAUNCH = (
    "torchrun train.py --model_name_or_path m --output_dir o --per_device_train_batch_size 1 --attn_implementation "
)
REGISTERS = 'from own import forward\nALL_ATTENTION_FUNCTIONS.register("own", forward)\n'


def lint(name: str, script: str) -> list[Finding]:
    request = Request((Source("run.sh", LAUNCH + name, "shell"),))
    files = {"train.py": Source("train.py", script, "python")}
    report = run.run(s.h200(), request, launches.read_model, files.get)
    return [finding for finding in report.findings if finding.code == "ATN444"]


def test_an_attention_without_masks_is_named_with_its_line() -> None:
    [finding] = lint("own", REGISTERS)
    assert finding.severity == "error" and "without a mask function" in finding.message
    assert (finding.locations[0].source, finding.locations[0].line) == ("train.py", 2)
    assert 'ALL_MASK_ATTENTION_FUNCTIONS.register("own"' in finding.fixes[0].text


@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("sdpa", REGISTERS),
        ("own", "print()"),
        ("own", REGISTERS + 'AttentionMaskInterface.register("own", make_mask)'),
    ],
)
def test_another_attention_and_one_with_masks_are_let_be(name: str, script: str) -> None:
    assert lint(name, script) == []


LOADS = """
from verl.utils import kernels
class Trainer:
    def build(self):
        self.model = AutoModelForCausalLM.from_pretrained(self.config.model.path, {})
"""
FIXED = 'torch_dtype=torch.float32, attn_implementation="flash_attention_2"'


@pytest.mark.parametrize(
    ("arguments", "elsewhere", "ignored"),
    [
        (FIXED, "", ["model.attn_implementation=sdpa", "model.torch_dtype=bfloat16"]),
        (FIXED, "A = Model.from_pretrained(p, attn_implementation=a)", ["model.torch_dtype=bfloat16"]),
        (FIXED + ", **self.options", "", ["model.attn_implementation=sdpa", "model.torch_dtype=bfloat16"]),
        ("**self.options", "", []),
        ('torch_dtype=torch.bfloat16, attn_implementation="sdpa"', "", []),
        ("attn_implementation=chosen", "", []),
    ],
)
def test_a_setting_that_the_source_fixes_is_ignored(
    tmp_path: Path, arguments: str, elsewhere: str, ignored: list[str]
) -> None:
    for name, text in [
        ("verl/trainer/fsdp_sft_trainer.py", LOADS.format(arguments)),
        ("verl/utils/kernels.py", elsewhere),
        (
            "run.sh",
            "torchrun -m verl.trainer.fsdp_sft_trainer +model.attn_implementation=sdpa +model.torch_dtype=bfloat16",
        ),
    ]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    request = Request((read_source(str(tmp_path / "run.sh")),))
    report = run.run(s.h200(), request, launches.read_model, launches.read_no_file)
    messages = [finding.message for finding in report.findings if finding.code == "ATN443"]
    assert sorted(message.partition(" is ignored")[0] for message in messages) == ignored
    assert not [finding for finding in report.findings if finding.code == "ATN440"]


@pytest.mark.parametrize(("key", "version"), [("attn_implementation", "0.5.0"), ("torch_dtype", "0.5.0")])
def test_a_setting_that_the_framework_ignores_is_named_once(tmp_path: Path, key: str, version: str) -> None:
    name, values = f"actor_rollout_ref.model.override_config.{key}", {"attn_implementation": "sdpa"}
    words = f"+{name}={values.get(key, 'bfloat16')}"
    for path, text in [
        ("verl/trainer/main_ppo.py", LOADS.format(FIXED)),
        ("verl/utils/kernels.py", ""),
        ("run.sh", f"python3 -m verl.trainer.main_ppo {words}"),
    ]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    request = Request((read_source(str(tmp_path / "run.sh")),), version=version)
    report = run.run(s.h200(), request, launches.read_model, launches.read_no_file)
    found = [finding.message for finding in report.findings if finding.code == "ATN443"]
    assert [key in message for message in found] == [True]
