"""Extensions that torch has built are taken along, and those that are half built are not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.core.facts import Absent, Known
from attncheck.rehearsal.extensions import copy_built, find_built
from tests.snapshots import h200

LOAD = """
from torch.utils.cpp_extension import load
print(load("attncheck_one", [{source!r}], verbose=True).one())
"""
SOURCE = """
#include <Python.h>
static PyObject* one(PyObject*, PyObject*) { return PyLong_FromLong(1); }
static PyMethodDef methods[] = {{"one", one, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "attncheck_one", "", -1, methods};
PyMODINIT_FUNC PyInit_attncheck_one() { return PyModule_Create(&module); }
"""


def load(source: Path, folder: Path) -> str:
    """Load an extension with torch, and return what it printed, ninja's words among it."""
    environment = {**os.environ, "TORCH_EXTENSIONS_DIR": str(folder)}
    code = LOAD.format(source=str(source))
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "1", done.stderr
    return done.stdout + done.stderr


def test_a_copy_of_what_was_built_is_not_built_again(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if not (shutil.which("ninja") and shutil.which("g++")):
        pytest.skip("torch needs ninja and g++ to build one")
    source, built, folder = tmp_path / "one.cpp", tmp_path / "built", tmp_path / "copy"
    source.write_text(SOURCE)
    built.mkdir()
    assert "no work to do" not in load(source, built)
    before = sorted((path, path.stat().st_mtime_ns) for path in built.rglob("*"))
    copy_built(built, folder)
    assert "no work to do" in load(source, folder)
    assert sorted((path, path.stat().st_mtime_ns) for path in built.rglob("*")) == before


def test_what_is_half_built_is_left(tmp_path: Path) -> None:
    for file in ("whole/a.so", "whole/build.ninja", "locked/b.so", "locked/lock", "begun/build.ninja"):
        path = tmp_path / "built" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    copy_built(tmp_path / "built", tmp_path / "copy")
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["whole"]


@pytest.mark.parametrize(("cuda", "name"), [("13.0", "py312_cu130"), ("", "py312_cpu")])
def test_the_folder_is_the_one_that_torch_takes(tmp_path: Path, cuda: str, name: str) -> None:
    snapshot = h200()
    assert isinstance(snapshot.torch, Known)
    torch = replace(snapshot.torch.value, cuda=Known(cuda) if cuda else Absent("a CPU build"), hip=Absent("no"))
    snapshot = replace(snapshot, torch=Known(torch), host=replace(snapshot.host, python_abi="cp312"))
    environ = {"HOME": str(tmp_path)}
    assert find_built(snapshot, environ) is None
    folder = tmp_path / ".cache" / "torch_extensions" / name
    folder.mkdir(parents=True)
    assert find_built(snapshot, environ) == folder
    assert find_built(snapshot, {**environ, "TORCH_EXTENSIONS_DIR": str(tmp_path)}) == tmp_path
