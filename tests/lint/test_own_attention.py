"""A script that registers its own attention is read: without a mask function the launch computes wrong."""

from __future__ import annotations

import pytest

from attncheck.core.findings import Finding
from attncheck.core.launch import Source
from attncheck.lint import run
from tests import snapshots as s
from tests.lint import launches

LAUNCH = (
    "torchrun train.py --model_name_or_path m --output_dir o --per_device_train_batch_size 1 --attn_implementation "
)
REGISTERS = 'from own import forward\nALL_ATTENTION_FUNCTIONS.register("own", forward)\n'


def lint(name: str, script: str) -> list[Finding]:
    request = run.Request((Source("run.sh", LAUNCH + name, "shell"),))
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
