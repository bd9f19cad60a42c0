"""What a launch should learn of the user's rows, by its settings and the form of its rows."""

from __future__ import annotations

import pytest

from attncheck.core.facts import Absent
from attncheck.core.launch import Source
from attncheck.lint.rewriting import read_launches
from attncheck.rehearsal import cutting
from attncheck.rehearsal.run import choose_targets
from tests.snapshots import laptop, with_package


@pytest.mark.parametrize(
    ("setting", "targets"),
    [("", "assistant"), ("null", "assistant"), ("None", "assistant"), ("true", "assistant"), ("false", "all")],
)
def test_completions_alone_are_learned_of_pairs(setting: str, targets: str) -> None:
    text = "model_name_or_path: a/b\ndataset_name: c/d\noutput_dir: o\nlearning_rate: 1.0e-5\npacking: false\n"
    text += f"completion_only_loss: {setting}\n" if setting else ""
    snapshot = with_package(laptop(), "trl", "1.16.0")
    (read,) = read_launches(
        snapshot, Source("sft.yaml", text, "yaml"), lambda name: Absent("not cached"), lambda path: None
    )
    materials = cutting.make_materials(read, "", 1, False, 1, True, True)
    assert choose_targets(read, materials, {"pairs": True, "is_mixed": False}) == targets
