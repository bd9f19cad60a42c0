"""Turns between workers: one measures alone, several share a turn, and whoever waits says so."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from attncheck.measure.worker.turns import hold_turn


@pytest.mark.parametrize(("sharers", "last_shares"), [(0, False), (2, False), (0, True)])
def test_who_measures_alone_waits_for_all_and_lets_all_wait(tmp_path: Path, sharers: int, last_shares: bool) -> None:
    order: list[str] = []
    has_waited, may_end = threading.Event(), threading.Event()
    count = max(1, sharers)
    all_hold = threading.Barrier(count + 1)

    def measure_first() -> None:
        with hold_turn(str(tmp_path), lambda: order.append("it waits for nobody"), shared=sharers > 0):
            all_hold.wait(10.0)
            may_end.wait(10.0)
            order.append("first")

    def measure_last() -> None:
        with hold_turn(str(tmp_path), has_waited.set, shared=last_shares):
            order.append("last")

    threads = [threading.Thread(target=measure_first) for _ in range(count)]
    for thread in threads:
        thread.start()
    all_hold.wait(10.0)
    threads.append(threading.Thread(target=measure_last))
    threads[-1].start()
    assert has_waited.wait(10.0)
    assert order == []
    may_end.set()
    for thread in threads:
        thread.join(10.0)
    assert order == ["first"] * count + ["last"]
