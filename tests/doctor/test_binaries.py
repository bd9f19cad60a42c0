"""The record of each compiled extension: planted faults must be reported, healthy extensions must not."""

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
from tests.doctor import binary_files

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ELF files are Linux's")

EXPORTED, MISSING = "_ZNK3c106SymInt6sym_neERKS0_", "_ZN3c104cuda9SetDeviceEa"
TAG = f"cpython-{sys.version_info[0]}{sys.version_info[1]}"
FLASH_FILE = f"flash_attn_2_cuda.{TAG}-x86_64-linux-gnu.so"


def build_flash_attn(site: Path, *names: str, file: str = FLASH_FILE, **options: Any) -> dict[str, Any]:
    """Build an extension of flash-attn alongside the fake torch and return its record."""
    flags = (f"-L{site}/torch/lib", "-Wl,--no-as-needed", "-l:libc10.so", "-Wl,--as-needed", *options.pop("flags", ()))
    binary_files.compile_extension(site / file, *names, flags=flags, **options)
    return read_record(site, binary_files.write_distribution(site, "flash-attn", file))


def read_record(site: Path, *installed: dict[str, object], distribution: str = "flash-attn") -> dict[str, Any]:
    """Return the record of the only extension of `distribution`."""
    records = binaries.collect_binaries(list(installed), [str(site)])
    records = [record for record in records if record["distribution"] == distribution]
    assert len(records) == 1
    return records[0]


def test_a_healthy_extension(tmp_path: Path) -> None:
    binary_files.write_fake_torch(tmp_path, EXPORTED)
    binary = build_flash_attn(tmp_path, EXPORTED)
    assert binary["path"] == FLASH_FILE
    assert binary["module"] == "flash_attn_2_cuda"
    assert binary["problem"] == ""
    assert binary["needed"][0] == "libc10.so"
    assert (binary["torch_symbols"], binary["missing_symbols"], binary["unresolved"]) == (1, [], [])
    assert binary["size_bytes"] == (tmp_path / FLASH_FILE).stat().st_size
    codec.read(environment.Binary, binary)  # it has the shape that attncheck reads


def test_a_symbol_that_torch_does_not_export_is_missing(tmp_path: Path) -> None:
    binary_files.write_fake_torch(tmp_path, EXPORTED)
    binary = build_flash_attn(tmp_path, EXPORTED, MISSING, "_ZNK2at6Tensor5indexEv", "THPVariable_Wrap")
    assert binary["torch_symbols"] == 4
    assert binary["missing_symbols"] == ["THPVariable_Wrap", MISSING, "_ZNK2at6Tensor5indexEv"]


@pytest.mark.parametrize(
    "name",
    ["PyList_New", "_ZN5flash9run_mha_aERN2at6TensorE", "_ZN7cutlass1fEv", "cudaLaunchKernel", "_ZNSt6thread4joinEv"],
)
def test_what_is_not_torchs_is_not_asked_of_torch(tmp_path: Path, name: str) -> None:
    binary_files.write_fake_torch(tmp_path)
    binary = build_flash_attn(tmp_path, name)
    assert (binary["torch_symbols"], binary["missing_symbols"]) == (0, [])


def test_a_weak_symbol_is_not_missing(tmp_path: Path) -> None:
    binary_files.write_fake_torch(tmp_path, EXPORTED)
    assert build_flash_attn(tmp_path, EXPORTED, weak=(MISSING,))["missing_symbols"] == []


def test_another_library_of_torch_may_have_it(tmp_path: Path) -> None:
    binary_files.write_fake_torch(tmp_path)
    assert build_flash_attn(tmp_path, "_ZN2at5emptyEv")["missing_symbols"] == []


def test_a_library_of_the_package_itself_may_have_it(tmp_path: Path) -> None:
    binary_files.write_fake_torch(tmp_path)
    binary_files.compile_exports(tmp_path / "own/libown.so", MISSING)
    flags = (f"-L{tmp_path}/own", "-l:libown.so", "-Wl,-rpath,$ORIGIN/own")
    binary = build_flash_attn(tmp_path, MISSING, flags=flags)
    assert (binary["missing_symbols"], binary["unresolved"]) == ([], [])


def test_nothing_is_called_missing_beside_a_damaged_torch(tmp_path: Path) -> None:
    torch = binary_files.write_fake_torch(tmp_path, EXPORTED)
    binary = build_flash_attn(tmp_path, EXPORTED, MISSING)
    assert binary["missing_symbols"] == [MISSING]
    (torch / "lib/libtorch_cpu.so").write_bytes(b"\x7fELF")
    records = binaries.collect_binaries(
        [{"name": "flash-attn", "_path": str(tmp_path / "flash_attn-1.0.dist-info")}], [str(tmp_path)]
    )
    by_path = {record["path"]: record for record in records}
    assert by_path[FLASH_FILE]["missing_symbols"] == []
    assert by_path["torch/lib/libtorch_cpu.so"]["problem"] == "truncated"


def test_a_missing_libcudart_is_unresolved(tmp_path: Path) -> None:
    binary_files.write_fake_torch(tmp_path)
    binary_files.compile_exports(tmp_path / "elsewhere/libcudart.so.99", "cudaLaunchKernel")
    flags = (f"-L{tmp_path}/elsewhere", "-l:libcudart.so.99")
    assert build_flash_attn(tmp_path, "cudaLaunchKernel", flags=flags)["unresolved"] == ["libcudart.so.99"]


@pytest.mark.parametrize(
    "where", ["nvidia/cuda_runtime/lib", "nvidia/cu13/lib", "torch/lib", "LD_LIBRARY_PATH", "rpath"]
)
def test_a_library_is_found_where_the_loader_would(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    binary_files.write_fake_torch(tmp_path)
    folder = tmp_path / where
    binary_files.compile_exports(folder / "libcudart.so.99", "cudaLaunchKernel")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder) if where == "LD_LIBRARY_PATH" else "")
    flags = (f"-L{folder}", "-l:libcudart.so.99", *(["-Wl,-rpath,$ORIGIN/rpath"] if where == "rpath" else []))
    assert build_flash_attn(tmp_path, "cudaLaunchKernel", flags=flags)["unresolved"] == []


def test_built_for_another_python(tmp_path: Path) -> None:
    binary_files.write_fake_torch(tmp_path)
    binary = build_flash_attn(tmp_path, file="flash_attn_2_cuda.cpython-38-x86_64-linux-gnu.so")
    assert binary["module"] == "flash_attn_2_cuda"
    assert binary["problem"] == f"built for cpython-38, this is {sys.implementation.cache_tag}"


def test_another_pythons_twin_is_left_out(tmp_path: Path) -> None:
    other = "flash_attn_2_cuda.cpython-38-x86_64-linux-gnu.so"
    for name in (other, FLASH_FILE):
        binary_files.compile_extension(tmp_path / name)
    installed = binary_files.write_distribution(tmp_path, "flash-attn", other, FLASH_FILE)
    assert read_record(tmp_path, installed)["path"] == FLASH_FILE


def test_without_torch_nothing_is_missing(tmp_path: Path) -> None:
    binary_files.compile_extension(tmp_path / FLASH_FILE, MISSING)
    binary = read_record(tmp_path, binary_files.write_distribution(tmp_path, "flash-attn", FLASH_FILE))
    assert (binary["torch_symbols"], binary["missing_symbols"]) == (1, [])


@pytest.mark.parametrize("recorded", ["flash_attn/__init__.py", ""])
def test_without_a_record_the_name_finds_it(tmp_path: Path, recorded: str) -> None:
    binary_files.compile_extension(tmp_path / FLASH_FILE)
    (tmp_path / "xformers").mkdir()
    installed = binary_files.write_distribution(tmp_path, "flash-attn", recorded)
    assert read_record(tmp_path, installed)["module"] == "flash_attn_2_cuda"


def test_modules_inside_packages(tmp_path: Path) -> None:
    binary_files.compile_extension(tmp_path / "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so")
    installed = binary_files.write_distribution(tmp_path, "vllm", "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so")
    binary = read_record(tmp_path, installed, distribution="vllm")
    assert (binary["module"], binary["problem"]) == ("vllm.vllm_flash_attn._vllm_fa2_C", "")


def test_a_damaged_extension_costs_only_itself(tmp_path: Path) -> None:
    binary_files.write_fake_torch(tmp_path)
    binary_files.compile_extension(tmp_path / "good.so")
    (tmp_path / FLASH_FILE).write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    installed = binary_files.write_distribution(tmp_path, "flash-attn", FLASH_FILE, "good.so", "gone.so")
    records = binaries.collect_binaries([installed], [str(tmp_path)])
    problems = {record["path"]: record["problem"] for record in records if record["distribution"] == "flash-attn"}
    assert problems == {FLASH_FILE: "not an ELF file", "good.so": ""}


def test_a_record_that_points_outside_reads_nothing_there(tmp_path: Path) -> None:
    binary_files.compile_extension(tmp_path / "outside.so")
    site = tmp_path / "site"
    installed = binary_files.write_distribution(site, "flash-attn", "../outside.so", "../../etc/x.so", "/etc/y.so")
    assert binaries.collect_binaries([installed], [str(site)]) == []


def test_only_the_variant_that_would_be_loaded(tmp_path: Path) -> None:
    binary_files.write_fake_torch(tmp_path)  # CUDA 13.0
    names = [f"bitsandbytes/libbitsandbytes_{name}.so" for name in ("cpu", "cuda128", "cuda130", "rocm71", "xpu2025")]
    for name in names:
        binary_files.compile_exports(tmp_path / name, "f")
    installed = binary_files.write_distribution(tmp_path, "bitsandbytes", *names)
    records = binaries.collect_binaries([installed], [str(tmp_path)])
    assert [record["path"] for record in records if record["distribution"] == "bitsandbytes"] == [names[0], names[2]]


def test_too_many_are_not_all_read_and_this_is_told(tmp_path: Path) -> None:
    first = binary_files.compile_extension(tmp_path / "vllm/m0.so")
    names = [f"vllm/m{number}.so" for number in range(70)]
    for name in names[1:]:
        shutil.copy(first, tmp_path / name)
    problems: list[str] = []
    installed = binary_files.write_distribution(tmp_path, "vllm", *names)
    assert len(binaries.collect_binaries([installed], [str(tmp_path)], problems)) == 60
    assert problems == ["binaries: 10 of 70 were not read"]


def find_flash_attn_archive() -> Path | None:
    """Return the archive of a genuine flash-attn installation, if there is one."""
    configured = os.environ.get("ATTNCHECK_FLASH_ATTN_ARCHIVE")
    folder = Path(__file__).parents[3] / "shared/gpu"
    return Path(configured) if configured else next(iter(sorted(folder.glob("flash_attn-*.tar.xz"))), None)


@pytest.fixture(scope="module")
def genuine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the genuine flash_attn_2_cuda extension and its dist-info."""
    archive = find_flash_attn_archive()
    if archive is None or not archive.exists():
        pytest.skip("no genuine flash-attn: set ATTNCHECK_FLASH_ATTN_ARCHIVE to its .tar.xz")
    folder = tmp_path_factory.mktemp("genuine")
    with tarfile.open(archive) as stream:
        for member in stream:
            parts = Path(member.name).parts
            if member.isfile() and (member.name.endswith(".so") or ".dist-info" in member.name):
                member.name = "/".join(parts[-2:] if ".dist-info" in parts[0] else parts[-1:])
                stream.extract(member, folder)
    return folder


def test_the_genuine_flash_attn(genuine: Path) -> None:
    torch = binary_files.find_installed_torch()
    info = next(genuine.glob("flash_attn-*.dist-info"))
    installed: list[dict[str, object]] = [{"name": "flash-attn", "_path": str(info)}]
    sites = [str(genuine), str(torch.parent)]
    binaries.collect_binaries(installed, sites)  # the file's pages are now in memory
    start = time.process_time()
    records = binaries.collect_binaries(installed, sites)
    binary = next(record for record in records if record["module"] == "flash_attn_2_cuda")
    assert time.process_time() - start < 10  # 50 ms on an idle machine: its gigabyte is not read through
    assert binary["sass"] == ["sm_90"]
    assert binary["ptx"] == []
    assert binary["glibc_required"] == "2.38"
    assert "libcudart.so.13" in str(binary["needed"])
    result = subprocess.run(["nm", "-D", "--undefined-only", str(genuine / str(binary["path"]))], capture_output=True)
    undefined = result.stdout.decode()
    missing = binary["missing_symbols"]
    assert isinstance(missing, list)
    assert all(f"U {name}\n" in undefined for name in missing)
    if "+cpu" in (torch / "version.py").read_text():
        assert MISSING[:-2] in " ".join(missing)  # c10::cuda is not in a CPU build
        assert "libtorch_cuda.so" in str(binary["unresolved"])
