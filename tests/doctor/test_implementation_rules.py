"""A rule about one implementation reads the one that the launch requests: a launch with another keeps it silent."""

from __future__ import annotations

import pytest

from attncheck.core.snapshot import Snapshot
from attncheck.doctor.rules import Rule
from tests import snapshots as s
from tests.doctor.test_rules import RULES, load_cases, run_rule

ABOUT_FLASH = [f"ATN{number}" for number in (308, *range(311, 318), 323, 324, 325, 404, 408)]
ABOUT_SDPA = ["ATN307", "ATN310"]
CASES = [
    pytest.param(rule, snapshot, id=f"{rule.code}-{title}")
    for rule in RULES
    if rule.code in (*ABOUT_FLASH, *ABOUT_SDPA)
    for title, snapshot in load_cases(rule).FIRES.items()
]


@pytest.mark.parametrize(("rule", "snapshot"), CASES)
def test_eager_keeps_silent_what_flash_and_sdpa_leave_out(rule: Rule, snapshot: Snapshot) -> None:
    assert run_rule(rule, s.with_job(snapshot, {"attn_implementation": "eager", "precision": "fp32"})) == []


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.code in ABOUT_SDPA], ids=lambda rule: rule.name)
def test_a_launch_that_asks_for_nothing_runs_sdpa(rule: Rule) -> None:
    snapshot = next(iter(load_cases(rule).FIRES.values()))
    assert run_rule(rule, s.with_job(snapshot, {"attn_implementation": ""}))
    assert not run_rule(rule, s.with_job(snapshot, {"attn_implementation": "flash_attention_2"}))


def test_checkpointing_has_no_cache_that_right_padding_could_raise_in() -> None:
    rule = next(rule for rule in RULES if rule.code == "ATN404")
    snapshot = next(iter(load_cases(rule).FIRES.values()))
    plan = {"attn_implementation": "flash_attention_2", "packing": "padding", "padding_side": "right"}
    assert run_rule(rule, s.with_job(snapshot, plan))
    assert not run_rule(rule, s.with_job(snapshot, {**plan, "gradient_checkpointing": True}))


def test_gemma_in_a_launch_is_judged_by_its_precision() -> None:
    rule = next(rule for rule in RULES if rule.code == "ATN319")
    for snapshot in load_cases(rule).FIRES.values():
        assert not run_rule(rule, s.with_job(snapshot, {"precision": "bf16"}))
        assert run_rule(rule, s.with_job(snapshot, {"precision": "fp16"}))
