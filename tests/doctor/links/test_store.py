"""What the linker keeps between two looks: found again, never of another environment, and damage costs only time."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from attncheck.doctor.probes.payload.links import interface, linker, store
from attncheck.doctor.probes.payload.packages import distributions

RECORDS: Any = {"trl": [{"name": "gone"}]}


def lay(site: Path, text: str = "from transformers.utils import gone\n") -> list[dict[str, Any]]:
    """Lay transformers and a trl, as pip would, and return what is installed."""
    for name, files in {"transformers": {"__init__": "", "utils": ""}, "trl": {"__init__": text}}.items():
        info = site / f"{name}-5.0.0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 5.0.0\n")
        for stem, source in files.items():
            (site / name).mkdir(exist_ok=True)
            (site / name / f"{stem}.py").write_text(source)
        (info / "RECORD").write_text("".join(f"{name}/{stem}.py,,\n" for stem in files))
    return distributions.collect_distributions([str(site)])[0]


def link(site: Path, folder: Path, installed: list[dict[str, Any]]) -> list[str]:
    return [r["name"] for r in interface.link_installed(installed, [str(site)], str(folder), "1")]


def test_a_second_look_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = lay(tmp_path / "site")
    assert link(tmp_path / "site", tmp_path, installed) == ["gone"]
    monkeypatch.setattr(linker, "link_distributions", None)
    assert link(tmp_path / "site", tmp_path, installed) == ["gone"]


def test_a_module_that_changed_is_read_again(tmp_path: Path) -> None:
    installed = lay(tmp_path / "site")
    assert link(tmp_path / "site", tmp_path, installed) == ["gone"]
    (tmp_path / "site" / "transformers" / "utils.py").write_text("gone = 1\n")
    assert link(tmp_path / "site", tmp_path, installed) == []


def test_a_module_that_no_list_of_files_names_is_seen(tmp_path: Path) -> None:
    installed = lay(tmp_path / "site", "from transformers.more import gone\n")
    assert link(tmp_path / "site", tmp_path, installed) == [""]
    (tmp_path / "site" / "transformers" / "more.py").write_text("gone = 1\n")
    assert link(tmp_path / "site", tmp_path, installed) == []


def test_what_is_kept_is_private_and_not_more_than_there_is_room_for(tmp_path: Path) -> None:
    for number in range(store.MAX_FILES + 5):
        store.write_records(str(tmp_path), f"{number:032}", RECORDS)
    names = os.listdir(tmp_path)
    assert len(names) == store.MAX_FILES
    assert all((tmp_path / name).stat().st_mode & 0o777 == 0o600 for name in names)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"code": "0"}', json.dumps({"key": "other", "records": {}})])
def test_damage_costs_a_look(content: str, tmp_path: Path) -> None:
    store.write_records(str(tmp_path), "key", RECORDS)
    assert store.read_records(str(tmp_path), "key") == RECORDS
    (tmp_path / "links-key.json").write_text(content)
    assert store.read_records(str(tmp_path), "key") is None


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    installed = lay(tmp_path / "site")
    assert link(tmp_path / "site", tmp_path / "nowhere", installed) == ["gone"]


def test_a_package_without_a_list_of_its_files_is_not_kept(tmp_path: Path) -> None:
    installed = lay(tmp_path / "site")
    (tmp_path / "site" / "trl-5.0.0.dist-info" / "RECORD").unlink()
    assert link(tmp_path / "site", tmp_path, installed) == ["gone"]
    assert not list(tmp_path.glob("links-*"))
