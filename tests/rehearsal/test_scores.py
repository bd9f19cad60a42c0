"""A reward model of the script's own, on a model without a head: where its score is read, and what it is judged on."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.core.rehearsal import UNDOCUMENTED
from attncheck.core.results.smoke import deciding_reason, judge_result
from tests.rehearsal.staging import SCRIPTS, ForkServer, judge, list_failures, make_argv, make_materials, nightly


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_materials(tmp_path_factory.mktemp("materials") / "made")


@pytest.mark.parametrize(("place", "failures"), [("padding", {"loss"}), nightly("end", set())])
def test_a_score_is_read_at_the_last_token(
    place: str, failures: set[str], server: ForkServer, folder: Path, tmp_path: Path
) -> None:
    watch = tmp_path / "watch"
    watch.mkdir()
    ended = server.run(make_argv(folder, "", script=SCRIPTS / "scores.py"), {"SCORED": place}, watch, 1)
    assert ended["statuses"] == [0], ended
    results = judge(folder, watch, UNDOCUMENTED)
    assert {check for check, result in results.items() if judge_result(result) == "fail"} == failures, list_failures(
        results
    )
    assert {judge_result(results[check]) for check in ("batch", "documents", "update")} == {"pass"}
    if failures:
        assert "predictions within padding are trained" in deciding_reason(results["loss"])
