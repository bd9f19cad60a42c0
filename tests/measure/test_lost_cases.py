"""What the lost cases of a backend share, in words, and whether its build may lack that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attncheck.core.cases import Case, with_name
from attncheck.core.verdicts import BackendState, Outcome, Run, Score
from attncheck.measure import lost_cases

PLAIN = Case("test", (70,), (70,))
FLASH = BackendState("flash_attention_2", "flash-attn 2, dense", "flash-attn")


def make_run(outcome: Outcome, z_rms: float = 1.0, **fields: object) -> Run:
    score = Score("out", z_rms, z_rms, 0, 0.0, 1.0, 0.0, 1.0, 0, 0, 0, 0)
    case = with_name(replace(PLAIN, **fields))  # type: ignore[arg-type]
    return Run(FLASH.name, case, outcome, scores=(score,) if outcome == "ok" else ())


SURVIVORS = [make_run("ok"), make_run("ok", head_dim=128), make_run("ok", causal=False, dtype="float16")]
LOST = [make_run("died", head_dim=160), make_run("died", head_dim=160, causal=False)]
REBUILD = "rebuild flash-attn with head_dim 160, in case this build omits it"


def test_the_feature_of_all_losses_is_named_with_its_cases_and_the_rest() -> None:
    described = lost_cases.describe(FLASH, [*SURVIVORS, *LOST])
    assert described.lines == ("died at head_dim 160 in both cases of it; the rest passes",)
    assert described.missing_feature == REBUILD


def test_what_was_skipped_and_what_else_is_wrong_is_counted() -> None:
    skipped = make_run("skipped", head_dim=160, dtype="float16")
    wrong = make_run("ok", 100.0, head_dim=96)
    (line,) = lost_cases.describe(FLASH, [*SURVIVORS, *LOST, skipped, wrong]).lines
    assert line == "died at head_dim 160 in both cases of it that ran; 1 more was skipped; 3 of the other 4 pass"


@pytest.mark.parametrize(
    ("state", "runs"),
    [
        (FLASH, [*SURVIVORS, LOST[0]]),
        (FLASH, [*SURVIVORS, *LOST, make_run("died", alibi=True)]),
        (FLASH, [*SURVIVORS, *(replace(run, outcome="raised") for run in LOST)]),
        (FLASH, [*SURVIVORS[:1], *LOST, make_run("ok", head_dim=160), make_run("ok", head_dim=160, causal=False)]),
        (replace(FLASH, name="sdpa_flash", package="torch"), [*SURVIVORS, *LOST]),
        (replace(FLASH, name="flash_attention_4", package="flash-attn-4"), [*SURVIVORS, *LOST]),
    ],
)
def test_a_build_is_not_suspected_without_reason(state: BackendState, runs: list[Run]) -> None:
    assert lost_cases.describe(state, runs).missing_feature == ""
