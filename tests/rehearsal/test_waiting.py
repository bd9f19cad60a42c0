"""Ranks that wait for each other: named if all stand still in a collective, and left alone otherwise."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from attncheck.core.results.smoke import judge_result
from attncheck.rehearsal.ending import judge_end
from attncheck.rehearsal.execution import Execution, list_waits
from attncheck.rehearsal.watcher.waiting import find_wait


def lay(folder: Path, *places: str, world_size: int = 2) -> str:
    for rank, place in enumerate(places):
        (folder / f"waiting-{rank}").write_text(json.dumps([place, world_size]))
    return str(folder)


def test_all_ranks_that_wait_are_named(tmp_path: Path) -> None:
    waits = list_waits(lay(tmp_path, "all_reduce (a.py:3)", "backward (a.py:9)"))
    assert waits == ("rank 0 in all_reduce (a.py:3)", "rank 1 in backward (a.py:9)")
    result = judge_end(Execution(None, 1, (), 60.0, waits=waits))
    assert judge_result(result) == "fail" and all(text in result.violations[0] for text in waits)


@pytest.mark.parametrize(
    ("places", "world_size"),
    [
        ((), 2),
        (("all_reduce (a.py:3)",), 2),  # the other rank works
        (("barrier (a.py:3)",) * 2, 4),
        (("backward (a.py:3)",) * 2, 2),  # a compiler's processes may work
    ],
)
def test_ranks_that_may_go_on_are_left_alone(tmp_path: Path, places: tuple[str, ...], world_size: int) -> None:
    assert list_waits(lay(tmp_path, *places, world_size=world_size)) == ()


def wait_for_peer(store: Any) -> None:
    with contextlib.suppress(RuntimeError):  # rank 1 never comes
        dist.init_process_group("gloo", store=store, rank=0, world_size=2, timeout=timedelta(seconds=5))


def test_a_frame_in_a_collective_waits() -> None:
    store = TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5))
    rank = threading.Thread(target=wait_for_peer, args=(store,))
    assert find_wait(None) == "" and find_wait(sys._getframe()) == ""
    rank.start()
    deadline = time.monotonic() + 5
    while not (place := find_wait(sys._current_frames().get(rank.ident or 0))):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert place.startswith("init_process_group (test_waiting.py:")
    rank.join()
