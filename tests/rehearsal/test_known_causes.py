"""What the rules know of a launch is alongside what was measured, and is not taken for an error's cause."""

from __future__ import annotations

from attncheck.core.facts import Absent
from attncheck.core.launch import Source
from attncheck.lint.rewriting import ReadLaunch, read_launches
from attncheck.rehearsal.known import list_known_causes
from tests.lint.frameworks import test_rehearsal_cuts as launches
from tests.snapshots import h200


def read_grpo() -> ReadLaunch:
    source = Source("run.sh", launches.VERL_GRPO, "shell")
    (read,) = read_launches(h200(), source, lambda name: Absent("not available here"), lambda path: None)
    return read


def test_an_error_is_not_said_to_be_of_what_lint_knows() -> None:
    """The batches that verl would refuse are cut: an error of the cut launch is another one."""
    lines = list_known_causes(read_grpo(), "run")
    assert any("(ATN441)" in line for line in lines)
    assert all(line.startswith("the launch as written: ") for line in lines)


def test_nothing_is_known_where_no_rule_speaks() -> None:
    assert list_known_causes(read_grpo(), "batch") == ()
    assert list_known_causes(read_grpo(), "documents") == ()
