"""The overview's line of a package: what of it was imported, and what was not."""

from __future__ import annotations

from attncheck.doctor.engine import run_rules
from attncheck.report.sections.doctor import make_overview
from tests import snapshots as s


def test_a_part_that_fails_is_named_in_place_of_the_package_that_imports() -> None:
    broken = s.with_import(s.h200(), "transformers.modeling_utils", "raised", exception="ImportError", message="x")
    for snapshot, expected in ((s.h200(), "imports"), (broken, "importing it (transformers.modeling_utils) raised")):
        items = {item.title: item.text for item in make_overview(run_rules(snapshot, frozenset()))}
        assert items["transformers"].endswith(expected)
