"""What `--try-packages` lays into a temporary folder: the repair of all findings of doctor, then each fix."""

from __future__ import annotations

from attncheck.smoke.package_trials import list_package_fixes
from attncheck.workers.overlay import parse_fix_requirements
from tests import snapshots as s


def test_the_repair_of_all_findings_is_tried_first() -> None:
    fixes = list_package_fixes(s.with_package(s.h200(), "kernels", "0.9.1"))
    assert fixes[0].title == "the repair of all findings of doctor"
    assert parse_fix_requirements(fixes[0]) == ("transformers==5.1.0", "kernels>=0.10.2,<0.11")
    sets = [parse_fix_requirements(fix) for fix in fixes]
    assert len(sets) == len(set(sets)), "no set of packages is tried twice"
    assert ("kernels<0.17,>=0.16.0",) in sets, "a fix that the repair replaces is still tried alone"
