"""Every failure mode of the catalogue is presented, named by its finding, offered its fix; counts are printed."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import pytest

import tests.catalogue
from tests.catalogue.mode import Missed, Mode

AREAS = [
    importlib.import_module(f"tests.catalogue.{info.name}")
    for info in pkgutil.iter_modules(tests.catalogue.__path__)
    if info.name != "mode" and not info.name.startswith("test_")
]
MODES: list[Mode] = [mode for area in AREAS for mode in area.MODES]
MISSED: list[Missed] = [mode for area in AREAS for mode in area.MISSED]
REQUIRED_SHARE = 0.95


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_is_named_with_its_fix(mode: Mode, tmp_path: Path) -> None:
    findings = mode.present(tmp_path).findings
    naming = [finding for finding in findings if finding.code in mode.codes]
    assert naming, f"none of {mode.codes} among {[finding.code for finding in findings]}"
    fixes = [f"{fix.title}\n{fix.text}" for finding in naming for fix in finding.fixes]
    assert any(mode.fix in fix for fix in fixes), fixes
    assert mode.tried


def test_each_mode_stands_in_it_once() -> None:
    names = [*(mode.name for mode in MODES), *(mode.name for mode in MISSED)]
    assert sorted(names) == sorted(set(names))
    assert all(mode.reason for mode in MISSED)


def test_enough_of_them_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    total = len(MODES) + len(MISSED)
    with capsys.disabled():
        print(f"\n{len(MODES)} of {total} failure modes named with a fix; not: {', '.join(m.name for m in MISSED)}")
    assert total == 0 or len(MODES) / total >= REQUIRED_SHARE
