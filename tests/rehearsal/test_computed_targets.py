"""Scripts that choose the learned tokens by a setting whose value is known only at run time."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.cli.commands.smoke import make_rehearsal_request
from attncheck.rehearsal.columns import chooses_targets
from attncheck.rehearsal.reading import read_launches_of
from tests.snapshots import h200, with_package

SCRIPT = """import sys
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer
args = SFTConfig(output_dir="out", per_device_train_batch_size=2, {})
SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=args, train_dataset=load_dataset("a/b", split="train")).train()
"""


@pytest.mark.parametrize(
    ("setting", "is_computed"),
    [
        ("assistant_only_loss=not sys.argv[1:]", True),
        ("completion_only_loss=bool(sys.argv[1:])", True),
        ("assistant_only_loss=True", False),
        ("assistant_only_loss=False", False),
        ("max_length=8", False),
    ],
)
def test_labels_decide_if_a_setting_of_them_is_computed(
    setting: str, is_computed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT.format(setting))
    (tmp_path / "run.sh").write_text("python train.py\n")
    request = make_rehearsal_request(("run.sh",), None, False, 0)
    snapshot = with_package(h200(), "trl", "1.16.0")
    assert [chooses_targets(read) for read in read_launches_of(snapshot, request, request.sources[0])] == [is_computed]
