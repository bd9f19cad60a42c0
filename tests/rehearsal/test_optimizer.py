"""What the watcher reads of an optimiser and its schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attncheck.rehearsal.watcher.optimizer import find_lost_rates


@pytest.mark.parametrize(
    ("rates", "highest", "is_lost"),
    [((1e-5, 1e-3), 1e-3, True), ((1e-5, 1e-3), [1e-5, 1e-3], False), ((1e-3, 1e-3), 1e-3, False)],
)
def test_a_schedule_keeps_the_rates_of_groups(rates: tuple[float, float], highest: Any, is_lost: bool) -> None:
    groups = [{"params": [torch.nn.Parameter(torch.ones(2))], "lr": rate} for rate in rates]
    found = list[str]()

    class Watched(torch.optim.lr_scheduler.OneCycleLR):
        def step(self, *arguments: Any) -> None:
            found.append(find_lost_rates(self))  # a schedule begins with a step
            super().step(*arguments)

    Watched(torch.optim.AdamW(groups), max_lr=highest, total_steps=10)
    assert found == (
        ["Watched takes every group of the optimiser to 0.001: their own rates, 1e-05, 0.001, have no effect"]
        if is_lost
        else [""]
    )


def test_a_schedule_of_factors_keeps_them() -> None:
    groups = [{"params": [torch.nn.Parameter(torch.ones(2))], "lr": rate} for rate in (1e-5, 1e-3)]
    schedule = torch.optim.lr_scheduler.LambdaLR(torch.optim.AdamW(groups), lambda step: 1.0)
    assert find_lost_rates(schedule) == ""
