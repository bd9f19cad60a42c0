"""What triton compiles with, and where pip builds: read from real folders and variables."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest

from attncheck.doctor.probes.payload.packages import build_tools, pip_config


def test_the_compiler_that_triton_would_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert "absent" in build_tools.find_c_compiler()
    for name in ("clang", "gcc"):  # gcc wins
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
        assert build_tools.find_c_compiler() == {"known": str(tmp_path / name)}
    monkeypatch.setenv("CC", "ccache clang")
    assert build_tools.find_c_compiler() == {"absent": "CC names ccache clang, which does not exist"}


def test_the_headers_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda **unused: {"include": str(tmp_path)})
    assert "absent" in build_tools.find_python_headers()
    (tmp_path / "Python.h").write_text("")
    assert build_tools.find_python_headers() == {"known": str(tmp_path)}


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no second file system")
def test_pip_cache_on_another_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "not" / "yet"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert pip_config.compare_file_systems() == {"known": False}
    monkeypatch.setenv("TMPDIR", "/dev/shm")
    assert pip_config.compare_file_systems() == {"known": os.stat("/dev/shm").st_dev != os.stat(tmp_path).st_dev}
