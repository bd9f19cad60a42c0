"""doctor on real environments made of real wheels: it names the cause, its fix works, and health is not questioned."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.doctor import environments
from tests.doctor.environments import Environment

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return environments.create_base(tmp_path_factory.mktemp("environments") / "base")


@pytest.fixture
def env(base: Environment, tmp_path: Path) -> Environment:
    return base.copy(tmp_path / "env")


@pytest.fixture
def archive() -> Path:
    path = environments.find_flash_attn_archive()
    if path is None:
        pytest.skip("no genuine flash-attn build here: set ATTNCHECK_FLASH_ATTN_ARCHIVE to its .tar.xz")
    return path


def finding_codes(report: dict[str, Any], severity: str = "") -> list[str]:
    return [f["code"] for f in report["findings"] if severity in ("", f["severity"])]


def get_finding(report: dict[str, Any], code: str) -> dict[str, Any]:
    findings: list[dict[str, Any]] = [f for f in report["findings"] if f["code"] == code]
    assert len(findings) == 1, f"{code} not found once among {finding_codes(report)}"
    return findings[0]


def install_ring_flash_attn(env: Environment, transformers: str) -> Environment:
    environments.install_stub_flash_attn(env)
    env.install(f"transformers=={transformers}")
    env.run_pip("install", "--quiet", "--no-deps", "ring-flash-attn==0.1.8")
    return env


def apply_first_command(env: Environment, finding: dict[str, Any]) -> None:
    command = next(fix["text"] for fix in finding["fixes"] if fix["kind"] == "command")
    env.run_shell(command)


def list_alarms(report: dict[str, Any]) -> list[str]:
    """Return code and message of each finding that is worse than a note."""
    return [f"{f['code']} {f['message']}" for f in report["findings"] if f["severity"] != "note"]


def list_files(env: Environment) -> dict[str, tuple[int, int]]:
    """Return size and time of each file of an environment."""
    return {
        str(path.relative_to(env.folder)): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in env.folder.rglob("*")
        if not path.is_dir()
    }


def test_a_healthy_environment_is_not_questioned_and_left_as_it_was(env: Environment) -> None:
    for stale in env.site.glob("torch/__pycache__/*.pyc"):  # so that byte code, were it written, would show
        os.unlink(stale)
    before = list_files(env)
    report = env.run_doctor()
    assert list_files(env) == before
    assert list_alarms(report) == []
    outcomes = {o["module"]: o["outcome"] for o in report["snapshot"]["imports"]["known"]}
    assert outcomes["torch"] == outcomes["transformers"] == "ok"
    assert str(Path.home()) + "/" not in str(report), "a snapshot names nobody"


# Each repair takes its own installation, so these run at night.
@pytest.mark.nightly
@pytest.mark.parametrize("transformers", ["5.4.0", "5.17.0"])
def test_ring_flash_attn_that_cannot_import_and_the_fix_that_works(env: Environment, transformers: str) -> None:
    broken = get_finding(install_ring_flash_attn(env, transformers).run_doctor(), "ATN140")
    assert "is_flash_attn_greater_or_equal_2_10" in str(broken)
    assert transformers in str(broken)
    apply_first_command(env, broken)
    assert list_alarms(env.run_doctor()) == []


@pytest.mark.nightly
def test_ring_flash_attn_under_a_transformers_whose_signature_it_does_not_know(env: Environment) -> None:
    report = install_ring_flash_attn(env, "5.23.0").run_doctor()
    assert {"ATN140", "ATN141"} & set(finding_codes(report, "error"))
    assert "23" in str(report["findings"])
    apply_first_command(env, next(f for f in report["findings"] if f["code"] in ("ATN140", "ATN141")))
    assert list_alarms(env.run_doctor()) == []


@pytest.mark.nightly
def test_ring_flash_attn_under_a_transformers_that_fits(env: Environment) -> None:
    report = install_ring_flash_attn(env, "4.57.6").run_doctor()
    assert list_alarms(report) == []


def test_flash_attn_built_for_another_torch(env: Environment, archive: Path) -> None:
    environments.unpack_genuine_flash_attn(env, archive)
    env.install("einops")
    for lanes in (("--lane", "static"), ()):
        report = env.run_doctor(*lanes)
        broken = get_finding(report, "ATN104")
        assert broken["severity"] == "error"
        assert "2.13.0" in str(broken)
    assert "ATN108" not in finding_codes(report), "one defect, one finding"


@pytest.mark.nightly
def test_torch_absent_and_the_fix_that_works(env: Environment) -> None:
    env.run_pip("uninstall", "--quiet", "-y", "torch")
    report = env.run_doctor("--profile", "flash")
    missing = get_finding(report, "ATN101")
    apply_first_command(env, missing)
    assert "ATN101" not in finding_codes(env.run_doctor("--profile", "flash"))


def test_flash_attn_four_laid_over_flash_attn(env: Environment, archive: Path) -> None:
    environments.unpack_genuine_flash_attn(env, archive)
    env.run_pip("install", "--quiet", "--no-deps", "--pre", "flash-attn-4==4.0.0b36")
    report = env.run_doctor("--lane", "static")
    clash = get_finding(report, "ATN113")
    assert "flash-attn-4" in str(clash)


@pytest.mark.nightly
def test_kernels_that_transformers_refuses_and_the_fix_that_works(env: Environment) -> None:
    env.run_pip("install", "--quiet", "kernels<0.12")
    broken = get_finding(env.run_doctor(), "ATN149")
    apply_first_command(env, broken)
    assert list_alarms(env.run_doctor()) == []


@pytest.mark.nightly
def test_the_whole_repair_pasted_fixes_all_of_it(env: Environment) -> None:
    """Two findings want transformers and kernels each its own way; the repair's commands fix both at once."""
    install_ring_flash_attn(env, "5.17.0")
    env.run_pip("install", "--quiet", "kernels<0.12")
    report = env.run_doctor()
    assert {"ATN140", "ATN149"} <= set(finding_codes(report, "error") + finding_codes(report, "warning"))
    assert "is_flash_attn_greater_or_equal_2_10" in str(get_finding(report, "ATN140"))
    assert {"ATN140", "ATN149"} <= set(report["repair"]["proven"])
    for step in report["repair"]["steps"]:
        env.run_shell(step["command"])
    assert list_alarms(env.run_doctor()) == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise ImportError('libcudart.so.12: cannot open shared object file: No such file')", "libcudart.so.12"),
        ("import ctypes\nctypes.string_at(0)", "SIGSEGV"),
        ("import time\nwhile True:\n    time.sleep(1)", "had not ended"),
    ],
    ids=["raises", "dies", "hangs"],
)
def test_a_torch_that_cannot_be_imported(env: Environment, marker: str, body: str, message: str) -> None:
    path = env.site / "torch" / "__init__.py"
    path.unlink()  # a hard link: the base's copy must stay unchanged
    path.write_text(body + "\n")
    report = env.run_doctor("--timeout", "4")
    broken = get_finding(report, "ATN102")
    assert message in str(broken)
    assert finding_codes(report, "error") == ["ATN102"], "one defect, one finding"


def test_a_half_removed_package(env: Environment) -> None:
    (env.site / "transformers-5.17.0.dist-info" / "METADATA").unlink()
    report = env.run_doctor("--lane", "static")
    assert "METADATA is missing" in str(get_finding(report, "ATN117"))


def test_a_checkout_that_shadows_the_package(env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checkout" / "transformers").mkdir(parents=True)
    (tmp_path / "checkout" / "transformers" / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "checkout"))
    assert "transformers" in str(get_finding(env.run_doctor("--lane", "static"), "ATN118"))
