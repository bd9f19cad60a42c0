"""A script with the user's rows, packages and options trains on synthetic rows, and is judged by them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attncheck.rehearsal.columns import list_columns, list_modules
from attncheck.rehearsal.execution import list_absent, list_replaced
from attncheck.rehearsal.shapes import read_shapes
from tests.rehearsal.staging import LABELLED as OBJECTIVE
from tests.rehearsal.staging import (
    SCRIPTS,
    ForkServer,
    ask_for_materials,
    judge,
    list_failures,
    make_argv,
    make_materials,
    rehearse,
)

SCRIPT = SCRIPTS / "own_rows.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return materials whose rows have the shape that the script needs."""
    folder = tmp_path_factory.mktemp("own_rows")
    modules = list_modules(SCRIPT, ())
    options: dict[str, Any] = {"columns": list_columns(modules), "shapes": read_shapes(modules)}
    assert "answer" in ask_for_materials(folder, documents=100, **options)
    return folder


def test_a_list_of_data_sets_has_its_rows(folder: Path) -> None:
    """As scripts of LLaVA's family read it: `datasets`, each with a `json_path`."""
    yaml: Any = pytest.importorskip("yaml")
    listed = yaml.safe_load((folder / "array" / "train.yaml").read_text())["datasets"]
    assert [Path(own["json_path"]).read_text() for own in listed] == [(folder / "data" / "train.jsonl").read_text()]


@pytest.mark.parametrize(("fault", "checks"), [("", set()), ("shifted", {"ATN431"})])
def test_its_rows_train_and_a_fault_in_them_is_found(
    fault: str, checks: set[str], server: ForkServer, folder: Path, tmp_path: Path
) -> None:
    """The parser does not take the sizes, a package is missing, and the data file does not exist."""
    watch = tmp_path / "watch"
    watch.mkdir()
    rows = str(folder / "data" / "train.jsonl")
    environ = {"PLANTED_FAULT": fault, "ATTNCHECK_ROWS": rows, "ATTNCHECK_LINES": rows, "ATTNCHECK_WATCH": str(watch)}
    environ |= {"ATTNCHECK_MODEL": str(folder / "model"), "ATTNCHECK_ADDED": '{"max_steps": "8"}'}
    ended = server.run(make_argv(folder, "--seed 3", 8, SCRIPT), environ, watch, 1)
    assert ended["statuses"] == [0], ended
    results = judge(folder, watch, OBJECTIVE)
    assert set(list_failures(results)) == checks, list_failures(results)
    assert any("reader_of_sound" in line for line in list_absent(str(tmp_path)))
    assert any("--seed" in line for line in list_absent(str(tmp_path)))
    assert any("user.jsonl" in line for line in list_replaced(str(tmp_path)))


@pytest.mark.parametrize(("fault", "checks"), [("", set()), ("gradient_turned_after_clipping", {"ATN438"})])
def test_the_update_is_judged_if_no_document_is_known(
    fault: str, checks: set[str], server: ForkServer, stages: dict[int, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A script may make inputs in which no word of its rows is left."""
    if not stages:
        stages[0] = make_materials(tmp_path_factory.mktemp("unknown") / "stage")
        other = {"turns": [["user", [200] * 8], ["assistant", [201] * 8]], "advantage": 0.5}  # no row has these words
        (stages[0] / "documents.json").write_text(json.dumps([other]))
    results = rehearse(server, stages[0], tmp_path_factory.mktemp("run") / "watch", "", fault, steps=4)
    assert set(list_failures(results)) == checks, results
    assert {results[name].outcome for name in ("batch", "documents", "loss", "gradients")} == {"skipped"}
    assert "no input token belongs to a document" in results["batch"].reason and results["update"].outcome == "ok"
