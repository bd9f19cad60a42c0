"""libstdc++ as the loader finds it, and an extension that asks for more than that copy has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attncheck.doctor.probes.payload import files
from attncheck.doctor.probes.payload.binaries import runtime
from attncheck.doctor.probes.payload.binaries.elf import Elf
from attncheck.doctor.queries.runtime_libraries import parse_runtime_gap
from tests.doctor import binary_files

VERSIONS = "GLIBCXX_3.4.5 { global: f; };\nGLIBCXX_3.4.12 { global: g; } GLIBCXX_3.4.5;\nCXXABI_TM_1 { };\n"
FROM_CHARS = """
#include <charconv>
extern "C" double parse(const char *a, const char *b) { double d = 0; std::from_chars(a, b, d); return d; }
"""  # GLIBCXX_3.4.29
linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ELF and its loader")


def compile_versioned(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    script = path.parent / "versions"
    script.write_text(VERSIONS)
    return binary_files.compile_library(
        path, "void f(void) {} void g(void) {}", f"-Wl,--version-script={script}", f"-Wl,-soname,{path.name}"
    )


@linux_only
def test_versions_offered_and_required(tmp_path: Path) -> None:
    library = compile_versioned(tmp_path / "libstdc++.so.6")
    flags = (str(library), "-Wl,--no-as-needed")
    with Elf(str(library)) as elf:
        assert elf.defined_versions() == {"GLIBCXX": "3.4.12"}  # 12 is more than 5, and TM_1 is not a version
    with Elf(str(binary_files.compile_extension(tmp_path / "x.so", "g", flags=flags))) as elf:
        assert elf.required_versions()["GLIBCXX"] == "3.4.12"


@linux_only
def test_ld_library_path_comes_before_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = compile_versioned(tmp_path / "old" / "libstdc++.so.6")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    monkeypatch.setattr(files, "read_text", lambda *unused: "")  # torch may be loaded in this process
    copies = [r for r in runtime.collect_runtime_libraries([str(tmp_path)]) if r["name"] == library.name]
    assert copies[0] == {
        "name": library.name,
        "path": str(library),
        "found_by": "LD_LIBRARY_PATH",
        "provides": {"GLIBCXX": "3.4.12"},
    }
    assert [copy["found_by"] for copy in copies[1:2]] in ([], ["system"])


@linux_only
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_the_loader_refuses_and_preloading_the_newer_copy_fixes_it(tmp_path: Path) -> None:
    extension = tmp_path / "needs_new.so"
    (tmp_path / "x.cpp").write_text(FROM_CHARS)
    command = ["g++", "-std=c++17", "-shared", "-fPIC", "-o", str(extension), str(tmp_path / "x.cpp")]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this compiler has no std::from_chars for double")
    newer = next(r for r in runtime.collect_runtime_libraries([]) if r["name"] == "libstdc++.so.6")
    old = tmp_path / "old" / "libstdc++.so.6"
    old.parent.mkdir()
    old.write_bytes(Path(str(newer["path"])).read_bytes().replace(b"GLIBCXX_3.4.29\0", b"GLIBCXX_3.4.1x\0"))

    def load(**variables: str) -> str:
        code = f"import ctypes; ctypes.CDLL({str(extension)!r})"
        environ = {**os.environ, "LD_LIBRARY_PATH": str(old.parent), **variables}
        run = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
        return run.stderr

    gap = parse_runtime_gap(load())
    assert gap is not None
    assert (gap.required, gap.path, gap.required_by) == ("GLIBCXX_3.4.29", str(old), extension.name)
    assert load(LD_PRELOAD=str(newer["path"])) == ""
