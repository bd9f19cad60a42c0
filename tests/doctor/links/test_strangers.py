"""Packages that attncheck does not know are linked too, if their metadata requires a provider of names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attncheck.doctor.probes.payload.links import interface
from attncheck.doctor.probes.payload.links.packages import IMPORTED
from attncheck.doctor.probes.payload.links.suspects import confirm_links, find_suspects
from attncheck.doctor.probes.payload.packages import distributions

BROKEN = "from transformers.utils import gone\n"


def lay(site: Path, name: str, package: str, text: str, requires: str = "", tree: Path | None = None) -> None:
    """Lay a distribution as pip would; with a tree, an editable one whose files are there."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}")
    folder = (tree or site) / package
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(text)
    (info / "RECORD").write_text(f"__editable__.{name}.pth,,\n" if tree else f"{package}/__init__.py,,\n")
    if tree:
        (info / "direct_url.json").write_text(f'{{"url": "file://{tree}", "dir_info": {{"editable": true}}}}')


def link(site: Path, *folders: Path) -> list[str]:
    """Return "distribution: module" of each name that is missing."""
    (site / "transformers").mkdir(parents=True, exist_ok=True)
    for name in ("__init__", "utils"):
        (site / "transformers" / f"{name}.py").write_text("")
    installed = distributions.collect_distributions([str(site)])[0]
    records = interface.link_installed(installed, [str(site), *map(str, folders)], "", "1")
    return [f"{record['consumer']}: {record['module']}" for record in records]


@pytest.mark.parametrize(
    ("requires", "found"),
    [
        ("Requires-Dist: transformers>=4.40\n", ["my-trainer: trainlib"]),
        ("Requires-Dist: Flash_Attn ; sys_platform == 'linux'\n", ["my-trainer: trainlib"]),
        ("Requires-Dist: transformers>=4.40 ; extra == 'train'\n", []),
        ("Requires-Dist: torch\n", []),
        ("", []),
    ],
)
def test_a_package_is_linked_by_what_it_requires(requires: str, found: list[str], tmp_path: Path) -> None:
    lay(tmp_path, "my-trainer", "trainlib", BROKEN, requires)
    assert link(tmp_path) == found


def test_a_package_in_a_folder_that_distributions_share_is_linked(tmp_path: Path) -> None:
    lay(tmp_path, "my-trainer", "space/trainlib", BROKEN, "Requires-Dist: transformers\n")
    lay(tmp_path, "another", "space/other", BROKEN)
    lay(tmp_path, "right", "space/right", "import transformers.utils\n", "Requires-Dist: transformers\n")
    assert link(tmp_path) == ["my-trainer: space.trainlib"]


@pytest.mark.parametrize("layout", ["", "src/"])
def test_the_tree_of_an_editable_package_is_linked(layout: str, tmp_path: Path) -> None:
    tree = tmp_path / "work"
    lay(tmp_path / "site", "my-trainer", f"{layout}trainlib", BROKEN, "Requires-Dist: trl\n", tree)
    assert link(tmp_path / "site", tree / layout) == ["my-trainer: trainlib"]


def test_a_package_that_is_right_says_nothing(tmp_path: Path) -> None:
    lay(tmp_path, "my-trainer", "trainlib", "import transformers.utils\n", "Requires-Dist: transformers\n")
    assert link(tmp_path) == []


def test_no_unknown_package_is_imported() -> None:
    links: list[dict[str, Any]] = [
        {"breaks": ["trainlib", "trl.trainer"]},
        {"breaks": ["trainlib"]},
        {"breaks": ["vllm"]},
        {"breaks": []},
    ]
    assert find_suspects({"links": {"known": links}}) == ["trl.trainer"]
    assert "trl" in IMPORTED and "vllm" not in IMPORTED
    answer = {"outcomes": [{"module": "trl.trainer", "outcome": "ok", "exception": "", "message": ""}]}
    confirm_links({"links": {"known": links}}, answer)
    assert [link.get("outcome") for link in links] == ["ok", None, None, None]
