"""The packages that a launch lacks, and the one command that installs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.rehearsal.missing import list_installs
from tests.snapshots import h200, with_package

REMARK = "{} is not installed, so the script ends at its import: rehearsed up to its first use"


@pytest.mark.parametrize(
    ("lines", "packages"),
    [
        ([REMARK.format("tyro"), REMARK.format("pycountry")], ("tyro==0.9", "pycountry")),  # the project lists both
        (["ModuleNotFoundError: No module named 'bitsandbytes'"], ("bitsandbytes",)),  # an extra of an installed one
        (["The 'qwen_omni_utils' distribution was not found and is required"], ("qwen-omni-utils",)),
        (["needs thop. Run `pip install thop`", REMARK.format("tyro")], ("thop", "tyro==0.9")),
        ([REMARK.format("my_helpers")], ()),  # anyone may publish a package of this name
        (["ModuleNotFoundError: No module named 'torch'"], ()),  # installed: it is another process's error
        (["ValueError: bad rows"], ()),
    ],
)
def test_all_missing_packages_are_installed_by_one_command(
    lines: list[str], packages: tuple[str, ...], tmp_path: Path
) -> None:
    snapshot = with_package(h200(), "owner", "1.0", requires=("bitsandbytes>=0.40; extra == 'quant'",))
    (tmp_path / "requirements.txt").write_text("# ours\ntyro==0.9\npycountry  # for languages\n")
    fixes = list_installs(snapshot, [str(tmp_path)], "\n".join(lines))
    assert [fix.installs for fix in fixes] == ([packages] if packages else [])
