"""Copies of a model on several GPUs are noted. This machine has none, so a class replaces torch's wrapper."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from attncheck.rehearsal.execution import describe_data_parallel
from attncheck.rehearsal.watcher.hooks import note_data_parallel


class Wrapper:
    def __init__(self, module: object, device_ids: list[int]) -> None:
        self.module, self.device_ids = module, device_ids


@pytest.mark.parametrize(("gpus", "words"), [(2, "2 GPUs by torch.nn.DataParallel"), (1, ""), (0, "")])
def test_a_model_copied_to_several_gpus_is_noted(tmp_path: Path, gpus: int, words: str) -> None:
    (tmp_path / "watch").mkdir()
    wrapped = type("DataParallel", (Wrapper,), {})
    note_data_parallel(str(tmp_path / "watch"), SimpleNamespace(DataParallel=wrapped))
    assert wrapped(None, list(range(gpus))).device_ids == list(range(gpus))
    remark = describe_data_parallel(str(tmp_path))
    assert words in remark and bool(words) == bool(remark)
