"""What a launch should learn of the user's rows, by its settings and the form of its rows."""

from __future__ import annotations

import pytest

from attncheck.core.facts import Absent
from attncheck.core.launch import Source
from attncheck.lint.rewriting import read_launches
from attncheck.rehearsal import cutting
from attncheck.rehearsal.staging import choose_targets
from tests.lint.frameworks.test_rehearsal_cuts import LLAMAFACTORY
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
    assert choose_targets(read, materials, {"pairs": True, "is_mixed": False, "chooses": False}) == targets


@pytest.mark.parametrize(("setting", "targets"), [("true", "all"), ("false", "assistant")])
def test_messages_may_choose_what_is_learned(setting: str, targets: str) -> None:
    """Otherwise the launch's settings say it, also of the user's own rows."""
    source = Source("sft.yaml", f"{LLAMAFACTORY}train_on_prompt: {setting}\n", "yaml")
    snapshot = with_package(laptop(), "llamafactory", "0.9.5")
    (read,) = read_launches(snapshot, source, lambda name: Absent("not cached"), lambda path: None)
    materials = cutting.make_materials(read, "", 1, False, 1, True, True)
    for chooses in (False, True):
        made = {"pairs": False, "is_mixed": False, "chooses": chooses}
        assert choose_targets(read, materials, made) == ("chosen" if chooses else targets)
