"""The record of each compiled extension: planted faults that must be seen, healthy ones not accused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from attncheck.core import codec, environment
from attncheck.doctor.probes.payload.binaries import binaries
from tests.doctor import binary_files as b

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ELF files are Linux's")

GOOD, GONE = "_ZNK3c106SymInt6sym_neERKS0_", "_ZN3c104cuda9SetDeviceEa"
TAG = f"cpython-{sys.version_info[0]}{sys.version_info[1]}"
FLASH = f"flash_attn_2_cuda.{TAG}-x86_64-linux-gnu.so"


def flash(site: Path, *names: str, file: str = FLASH, **options: Any) -> dict[str, Any]:
    """Build an extension of flash-attn beside the fake torch and return its record."""
    flags = (f"-L{site}/torch/lib", "-Wl,--no-as-needed", "-l:libc10.so", "-Wl,--as-needed", *options.pop("flags", ()))
    b.importing(site / file, *names, flags=flags, **options)
    return record(site, b.distribution(site, "flash-attn", file))


def record(site: Path, *found: dict[str, object], distribution: str = "flash-attn") -> dict[str, Any]:
    records = [item for item in binaries.look(list(found), [str(site)]) if item["distribution"] == distribution]
    assert len(records) == 1
    return records[0]


def test_a_healthy_extension(tmp_path: Path) -> None:
    b.fake_torch(tmp_path, GOOD)
    seen = flash(tmp_path, GOOD)
    assert seen["path"] == FLASH
    assert seen["module"] == "flash_attn_2_cuda"
    assert seen["problem"] == ""
    assert seen["needed"][0] == "libc10.so"
    assert (seen["torch_symbols"], seen["missing_symbols"], seen["unresolved"]) == (1, [], [])
    assert seen["size_bytes"] == (tmp_path / FLASH).stat().st_size
    codec.read(environment.Binary, seen)  # it has the shape that the judging side reads


def test_a_symbol_that_torch_does_not_export_is_missing(tmp_path: Path) -> None:
    b.fake_torch(tmp_path, GOOD)
    seen = flash(tmp_path, GOOD, GONE, "_ZNK2at6Tensor5indexEv", "THPVariable_Wrap")
    assert seen["torch_symbols"] == 4
    assert seen["missing_symbols"] == ["THPVariable_Wrap", GONE, "_ZNK2at6Tensor5indexEv"]


@pytest.mark.parametrize(
    "name",
    ["PyList_New", "_ZN5flash9run_mha_aERN2at6TensorE", "_ZN7cutlass1fEv", "cudaLaunchKernel", "_ZNSt6thread4joinEv"],
)
def test_what_is_not_torchs_is_not_asked_of_torch(tmp_path: Path, name: str) -> None:
    b.fake_torch(tmp_path)
    seen = flash(tmp_path, name)
    assert (seen["torch_symbols"], seen["missing_symbols"]) == (0, [])


def test_a_weak_symbol_is_not_missing(tmp_path: Path) -> None:
    b.fake_torch(tmp_path, GOOD)
    assert flash(tmp_path, GOOD, weak=(GONE,))["missing_symbols"] == []


def test_another_library_of_torch_may_have_it(tmp_path: Path) -> None:
    b.fake_torch(tmp_path)
    assert flash(tmp_path, "_ZN2at5emptyEv")["missing_symbols"] == []


def test_a_library_of_the_package_itself_may_have_it(tmp_path: Path) -> None:
    b.fake_torch(tmp_path)
    b.exporting(tmp_path / "own/libown.so", GONE)
    flags = (f"-L{tmp_path}/own", "-l:libown.so", "-Wl,-rpath,$ORIGIN/own")
    seen = flash(tmp_path, GONE, flags=flags)
    assert (seen["missing_symbols"], seen["unresolved"]) == ([], [])


def test_nothing_is_called_missing_beside_a_damaged_torch(tmp_path: Path) -> None:
    torch = b.fake_torch(tmp_path, GOOD)
    seen_first = flash(tmp_path, GOOD, GONE)
    assert seen_first["missing_symbols"] == [GONE]
    (torch / "lib/libtorch_cpu.so").write_bytes(b"\x7fELF")
    found = binaries.look(
        [{"name": "flash-attn", "_path": str(tmp_path / "flash_attn-1.0.dist-info")}], [str(tmp_path)]
    )
    by_path = {item["path"]: item for item in found}
    assert by_path[FLASH]["missing_symbols"] == []
    assert by_path["torch/lib/libtorch_cpu.so"]["problem"] == "truncated"


def test_a_missing_libcudart_is_unresolved(tmp_path: Path) -> None:
    b.fake_torch(tmp_path)
    b.exporting(tmp_path / "elsewhere/libcudart.so.99", "cudaLaunchKernel")
    flags = (f"-L{tmp_path}/elsewhere", "-l:libcudart.so.99")
    assert flash(tmp_path, "cudaLaunchKernel", flags=flags)["unresolved"] == ["libcudart.so.99"]


@pytest.mark.parametrize(
    "where", ["nvidia/cuda_runtime/lib", "nvidia/cu13/lib", "torch/lib", "LD_LIBRARY_PATH", "rpath"]
)
def test_a_library_is_found_where_the_loader_would(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    b.fake_torch(tmp_path)
    folder = tmp_path / where
    b.exporting(folder / "libcudart.so.99", "cudaLaunchKernel")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder) if where == "LD_LIBRARY_PATH" else "")
    flags = (f"-L{folder}", "-l:libcudart.so.99", *(["-Wl,-rpath,$ORIGIN/rpath"] if where == "rpath" else []))
    assert flash(tmp_path, "cudaLaunchKernel", flags=flags)["unresolved"] == []


def test_built_for_another_python(tmp_path: Path) -> None:
    b.fake_torch(tmp_path)
    seen = flash(tmp_path, file="flash_attn_2_cuda.cpython-38-x86_64-linux-gnu.so")
    assert seen["module"] == "flash_attn_2_cuda"
    assert seen["problem"] == f"built for cpython-38, this is {sys.implementation.cache_tag}"


def test_another_pythons_twin_is_left_out(tmp_path: Path) -> None:
    other = "flash_attn_2_cuda.cpython-38-x86_64-linux-gnu.so"
    for name in (other, FLASH):
        b.importing(tmp_path / name)
    assert record(tmp_path, b.distribution(tmp_path, "flash-attn", other, FLASH))["path"] == FLASH


def test_without_torch_nothing_is_missing(tmp_path: Path) -> None:
    b.importing(tmp_path / FLASH, GONE)
    seen = record(tmp_path, b.distribution(tmp_path, "flash-attn", FLASH))
    assert (seen["torch_symbols"], seen["missing_symbols"]) == (1, [])


@pytest.mark.parametrize("recorded", ["flash_attn/__init__.py", ""])
def test_without_a_record_the_name_finds_it(tmp_path: Path, recorded: str) -> None:
    b.importing(tmp_path / FLASH)
    (tmp_path / "xformers").mkdir()
    assert record(tmp_path, b.distribution(tmp_path, "flash-attn", recorded))["module"] == "flash_attn_2_cuda"


def test_modules_inside_packages(tmp_path: Path) -> None:
    b.importing(tmp_path / "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so")
    found = b.distribution(tmp_path, "vllm", "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so")
    seen = record(tmp_path, found, distribution="vllm")
    assert (seen["module"], seen["problem"]) == ("vllm.vllm_flash_attn._vllm_fa2_C", "")


def test_a_damaged_extension_costs_only_itself(tmp_path: Path) -> None:
    b.fake_torch(tmp_path)
    b.importing(tmp_path / "good.so")
    (tmp_path / FLASH).write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    found = binaries.look([b.distribution(tmp_path, "flash-attn", FLASH, "good.so", "gone.so")], [str(tmp_path)])
    mine = {item["path"]: item["problem"] for item in found if item["distribution"] == "flash-attn"}
    assert mine == {FLASH: "not an ELF file", "good.so": ""}


def test_a_record_that_points_outside_reads_nothing_there(tmp_path: Path) -> None:
    b.importing(tmp_path / "outside.so")
    site = tmp_path / "site"
    found = b.distribution(site, "flash-attn", "../outside.so", "../../etc/x.so", "/etc/y.so")
    assert binaries.look([found], [str(site)]) == []


def test_only_the_variant_that_would_be_loaded(tmp_path: Path) -> None:
    b.fake_torch(tmp_path)  # CUDA 13.0
    names = [f"bitsandbytes/libbitsandbytes_{name}.so" for name in ("cpu", "cuda128", "cuda130", "rocm71", "xpu2025")]
    for name in names:
        b.exporting(tmp_path / name, "f")
    found = binaries.look([b.distribution(tmp_path, "bitsandbytes", *names)], [str(tmp_path)])
    assert [item["path"] for item in found if item["distribution"] == "bitsandbytes"] == [names[0], names[2]]


def test_too_many_are_not_all_read_and_this_is_told(tmp_path: Path) -> None:
    first = b.importing(tmp_path / "vllm/m0.so")
    names = [f"vllm/m{number}.so" for number in range(70)]
    for name in names[1:]:
        shutil.copy(first, tmp_path / name)
    problems: list[str] = []
    found = binaries.look([b.distribution(tmp_path, "vllm", *names)], [str(tmp_path)], problems)
    assert len(found) == 60
    assert problems == ["binaries: 10 of 70 were not read"]


def archive() -> Path | None:
    """Return the archive of a genuine flash-attn installation, where there is one."""
    named = os.environ.get("ATTNCHECK_FLASH_ATTN_ARCHIVE")
    beside = Path(__file__).parents[3] / "shared/gpu"
    return Path(named) if named else next(iter(sorted(beside.glob("flash_attn-*.tar.xz"))), None)


@pytest.fixture(scope="module")
def genuine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the genuine flash_attn_2_cuda extension and its dist-info."""
    found = archive()
    if found is None or not found.exists():
        pytest.skip("no genuine flash-attn: set ATTNCHECK_FLASH_ATTN_ARCHIVE to its .tar.xz")
    folder = tmp_path_factory.mktemp("genuine")
    with tarfile.open(found) as packed:
        for member in packed:
            parts = Path(member.name).parts
            if member.isfile() and (member.name.endswith(".so") or ".dist-info" in member.name):
                member.name = "/".join(parts[-2:] if ".dist-info" in parts[0] else parts[-1:])
                packed.extract(member, folder)
    return folder


def test_the_genuine_flash_attn(genuine: Path) -> None:
    torch = b.installed_torch()
    info = next(genuine.glob("flash_attn-*.dist-info"))
    found: list[dict[str, object]] = [{"name": "flash-attn", "_path": str(info)}]
    sites = [str(genuine), str(torch.parent)]
    binaries.look(found, sites)  # the file's pages are now in memory
    start = time.process_time()
    seen = next(item for item in binaries.look(found, sites) if item["module"] == "flash_attn_2_cuda")
    assert time.process_time() - start < 0.1
    assert seen["sass"] == ["sm_90"]
    assert seen["ptx"] == []
    assert seen["glibc_required"] == "2.38"
    assert "libcudart.so.13" in str(seen["needed"])
    names = subprocess.run(["nm", "-D", "--undefined-only", str(genuine / str(seen["path"]))], capture_output=True)
    asked = names.stdout.decode()
    missing = seen["missing_symbols"]
    assert isinstance(missing, list)
    assert all(f"U {name}\n" in asked for name in missing)
    if "+cpu" in (torch / "version.py").read_text():
        assert GONE[:-2] in " ".join(missing)  # c10::cuda is not in a CPU build
        assert "libtorch_cuda.so" in str(seen["unresolved"])
