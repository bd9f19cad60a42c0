"""Turns between workers: as many as there are places measure at a time, the others wait and say so."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from attncheck.measure.worker.turns import hold_turn


@pytest.mark.parametrize("places", [1, 2])
def test_the_last_waits_for_a_place(tmp_path: Path, places: int) -> None:
    order: list[str] = []
    has_waited, may_end = threading.Event(), threading.Event()
    began = threading.Barrier(places + 1)

    def measure_first() -> None:
        with hold_turn(str(tmp_path), lambda: order.append("it waits for nobody"), places):
            began.wait(10.0)
            may_end.wait(10.0)
            order.append("first")

    def measure_last() -> None:
        with hold_turn(str(tmp_path), has_waited.set, places):
            order.append("last")

    firsts = [threading.Thread(target=measure_first) for _ in range(places)]
    for thread in firsts:
        thread.start()
    began.wait(10.0)
    last = threading.Thread(target=measure_last)
    last.start()
    assert has_waited.wait(10.0)
    assert order == []
    may_end.set()
    for thread in (*firsts, last):
        thread.join(10.0)
    assert sorted(order) == ["first"] * places + ["last"]
    assert order[0] == "first"
