"""The packages that a launch lacks, and the one command that installs them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attncheck.core.launch import Source
from attncheck.rehearsal.missing import list_absent, list_advice, list_differing, list_installs, list_stated
from tests.snapshots import h200, with_package

REMARK = "{} is not installed, so the script ends at its import: rehearsed up to its first use"


@pytest.mark.parametrize(
    ("lines", "packages"),
    [
        ([REMARK.format("tyro"), REMARK.format("pycountry")], ("tyro==0.9", "pycountry")),  # the project lists both
        (["ModuleNotFoundError: No module named 'bitsandbytes'"], ("bitsandbytes",)),  # an extra of an installed one
        (["The 'qwen_omni_utils' distribution was not found and is required"], ("qwen-omni-utils",)),
        (["needs thop. Run `pip install thop`", REMARK.format("tyro")], ("thop", "tyro==0.9")),
        (["Please install qwen-vl-utils: pip install qwen-vl-utils"], ("qwen-vl-utils",)),
        (["as after pip install -e ."], ()),
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


@pytest.mark.parametrize(
    ("error", "titles"),
    [
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'data/new_tokens.json' (ended",
            "data/new_tokens.json",
        ),
        ("AssertionError: Image paths do not exist: ['/data/a.png'] (ended", "/data/a.png"),
        ("KeyError: 'seed' (ended with status 1", "rows of another kind"),
        ("RuntimeError: the model does not fit", ""),
        (
            "python: Error while finding module specification for 'kit.a' (ModuleNotFoundError: No module named 'kit')",
            "install kit, or put its source",
        ),
        ("python: Error while finding module specification for 'kit.tune' (ImportError: bad)", ""),
    ],
)
def test_a_launch_without_a_step_says_what_it_needs(error: str, titles: str) -> None:
    advice = [fix.title for fix in list_advice(error, "attncheck smoke run.sh --real-data")]
    assert titles in "".join(advice) and len(advice) == bool(titles)
    assert len([*list_advice(error, "")]) == ("/" in titles or "install" in titles)


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("--config_file configs/a.yaml --lr 1", "configs/a.yaml"),
        ("--config-path=configs/a.yaml", "configs/a.yaml"),
        ("--config_file configs/here.yaml", ""),
        ("--config_file /home/you/project/configs/here.yaml", ""),  # found next to the launch
        ("--deepspeed configs/zero3.json", ""),  # which a rehearsal leaves out
    ],
)
def test_a_configuration_file_that_is_not_found_is_named(
    words: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "here.yaml").touch()
    launch: Any = SimpleNamespace(words=[SimpleNamespace(text=word) for word in words.split()], folder="")
    launch.source = Source("run.sh", "", "shell")
    error = "hydra.errors.MissingConfigException: Primary config directory not found."
    titles = [fix.title for fix in list_advice(error, "", list_absent(launch))]
    assert [title.split()[1].strip(",") for title in titles] == [path] * bool(path)


@pytest.mark.parametrize(("stated", "is_other"), [("trl==0.12.0\npeft>=0.15\nnumpy==1.0\n", True), ("trl\n", False)])
def test_other_versions_than_a_project_states_are_named(tmp_path: Path, stated: str, is_other: bool) -> None:
    """The trainers' packages alone; a version that the project allows is no difference."""
    snapshot = with_package(with_package(h200(), "trl", "1.16.0"), "peft", "0.18.0")
    (tmp_path / ".git").mkdir()
    (tmp_path / "requirements.txt").write_text(stated)
    line = "requirements.txt requires trl==0.12.0; installed: trl 1.16.0"
    source = Source(str(tmp_path / "run.sh"), "", "shell")
    assert list_stated(snapshot, source) == ((line,) if is_other else ())
    fixes = list_installs(snapshot, [], "No module named 'torch'", list_differing(snapshot, source))
    assert [fix.installs for fix in fixes] == ([("trl==0.12.0",)] if is_other else [])


def test_a_vendored_package_is_not_installed(tmp_path: Path) -> None:
    """Its own source states its version, and is what runs."""
    snapshot = with_package(with_package(h200(), "trl", "1.16.0"), "verl", "0.9.1")
    (tmp_path / ".git").mkdir()
    (tmp_path / "requirements.txt").write_text("trl==0.12.0")
    (tmp_path / "verl" / "version").mkdir(parents=True)
    (tmp_path / "verl" / "version" / "version").write_text("0.5.0")
    rows = list_differing(snapshot, Source(str(tmp_path / "run.sh"), "", "shell"))
    assert {row.name for row in rows} == {"trl", "verl"}
    assert [fix.installs for fix in list_installs(snapshot, [], "", rows)] == [("trl==0.12.0",)]
