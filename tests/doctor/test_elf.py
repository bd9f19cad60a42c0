"""Reading ELF files and fat binaries: against small libraries compiled here, and against nm if it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from attncheck.doctor.probes.payload.binaries import fatbin, torch_files
from attncheck.doctor.probes.payload.binaries.elf import Elf, ElfError, _find_highest_versions, gnu_hash
from tests.doctor import binary_files


def test_what_a_library_needs(tmp_path: Path) -> None:
    binary_files.compile_exports(tmp_path / "libc10.so", "_ZN3c101aEv")
    library_folder = f"-L{tmp_path}"
    flags = (library_folder, "-l:libc10.so", "-Wl,-rpath,$ORIGIN/../lib:/opt/x", "-Wl,--no-as-needed", "-lc")
    with Elf(str(binary_files.compile_extension(tmp_path / "x.so", "_ZN3c101aEv", flags=flags))) as elf:
        assert elf.needed_libraries() == ["libc10.so", "libc.so.6"]
        assert elf.search_path() == ["$ORIGIN/../lib", "/opt/x"]
        assert "_ZN3c101aEv" in elf.undefined_symbols()
        assert elf.machine in ("x86_64", "aarch64")


def test_rpath_of_the_old_kind_is_read(tmp_path: Path) -> None:
    flags = ("-Wl,--disable-new-dtags,-rpath,/opt/old",)
    with Elf(str(binary_files.compile_exports(tmp_path / "x.so", "f", flags=flags))) as elf:
        assert elf.search_path() == ["/opt/old"]


def test_weak_symbols_are_not_asked_for(tmp_path: Path) -> None:
    with Elf(str(binary_files.compile_extension(tmp_path / "x.so", "strong_symbol", weak=("weak_symbol",)))) as elf:
        assert "strong_symbol" in elf.undefined_symbols()
        assert "weak_symbol" not in elf.undefined_symbols()


@pytest.mark.parametrize("style", ["gnu", "sysv", "both"])
def test_a_library_that_exports_nothing_still_tells_what_it_needs(tmp_path: Path, style: str) -> None:
    hidden = tmp_path / "hide"
    hidden.write_text("{ local: *; };")
    flags = (f"-Wl,--version-script={hidden}", f"-Wl,--hash-style={style}")
    with Elf(str(binary_files.compile_extension(tmp_path / "x.so", "_ZN3c101aEv", flags=flags))) as elf:
        assert "_ZN3c101aEv" in elf.undefined_symbols()


def test_exports_are_found_in_the_hash_table(tmp_path: Path) -> None:
    names = [f"symbol_{number}" for number in range(300)]
    with Elf(str(binary_files.compile_exports(tmp_path / "x.so", *names, flags=("-Wl,--hash-style=gnu",)))) as elf:
        assert all(elf.defines_symbol(name) for name in names)
        assert not any(elf.defines_symbol(name + "x") for name in names)
        assert not elf.defines_symbol("")


def test_an_undefined_symbol_is_not_an_export(tmp_path: Path) -> None:
    with Elf(str(binary_files.compile_extension(tmp_path / "x.so", "undefined_symbol"))) as elf:
        assert elf.defines_symbol("PyInit_x")
        assert not elf.defines_symbol("undefined_symbol")


def test_glibc_required_is_the_highest(tmp_path: Path) -> None:
    path = binary_files.compile_library(
        tmp_path / "x.so", '#include <stdio.h>\nvoid f(void) { puts(""); quick_exit(0); }'
    )
    with Elf(str(path)) as elf:
        parts = [int(part) for part in elf.required_versions()["GLIBC"].split(".")]
        assert parts >= [2, 10]  # quick_exit came with 2.10 on x86_64


@pytest.mark.parametrize(
    ("name", "highest"),
    [
        ("GLIBC_2.38", {"GLIBC": "2.38"}),
        ("GLIBC_2.3.4", {"GLIBC": "2.4"}),
        ("GLIBC_2.10", {"GLIBC": "2.10"}),
        ("GLIBC_PRIVATE", {"GLIBC": "2.4"}),
        ("GLIBC_ABI_DT_RELR", {"GLIBC": "2.4"}),
        ("GLIBCXX_3.4.32", {"GLIBC": "2.4", "GLIBCXX": "3.4.32"}),
        ("CXXABI_TM_1", {"GLIBC": "2.4"}),
        ("GLIBC_2.\u00b2", {"GLIBC": "2.4"}),
        ("GLIBC_2." + "9" * 5000, {"GLIBC": "2.4"}),
        ("GLIBC_", {"GLIBC": "2.4"}),
    ],
)
def test_highest_versions(name: str, highest: dict[str, str]) -> None:
    assert _find_highest_versions(["GLIBC_2.4", name]) == highest


def test_gnu_hash_of_known_names() -> None:
    assert [gnu_hash(name) for name in ("", "printf", "exit")] == [0x1505, 0x156B2BB8, 0x7C967E3F]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "truncated"),
        (b"\x7fEL", "truncated"),
        (b"<html>404 Not Found</html>", "not an ELF file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "not an ELF file"),
        (b"\x7fELF\x01\x01" + b"\0" * 60, "not a 64-bit little-endian ELF file"),
        (b"\x7fELF\x02\x02" + b"\0" * 60, "not a 64-bit little-endian ELF file"),
        (b"\x7fELF\x02\x01" + b"\0" * 20, "truncated"),
    ],
)
def test_what_is_not_an_elf_file_says_so(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(data)
    with pytest.raises(ElfError, match=reason):
        Elf(str(path))


def test_no_path_is_told_and_nothing_hangs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "none.so", tmp_path, tmp_path / "pipe"):
        with pytest.raises(ElfError) as caught:
            Elf(str(path))
        assert str(tmp_path) not in str(caught.value)


def test_a_half_copied_library_is_an_error(tmp_path: Path) -> None:
    data = binary_files.compile_exports(tmp_path / "x.so", "f").read_bytes()
    (tmp_path / "half.so").write_bytes(data[: len(data) // 2])
    with pytest.raises(ElfError, match="truncated"):
        Elf(str(tmp_path / "half.so"))


def test_no_file_is_left_open(tmp_path: Path) -> None:
    data = binary_files.compile_exports(tmp_path / "x.so", "f").read_bytes()
    (tmp_path / "half.so").write_bytes(data[: len(data) // 2])
    before = len(os.listdir("/proc/self/fd"))
    for name in ("x.so", "half.so") * 20:
        try:
            Elf(str(tmp_path / name)).close()
        except ElfError:
            continue
    assert len(os.listdir("/proc/self/fd")) == before


def test_architectures_of_a_fat_binary(tmp_path: Path) -> None:
    first = binary_files.build_fat_binary((2, 80, 0x11), (2, 90, 0x100011), (1, 80, 0x2011), (16, 75, 0x11))
    second = binary_files.build_fat_binary((2, 120, 0x1008011), (2, 100, 0x1100011), (1, 90, 0x102011))
    path = binary_files.compile_with_fat_binary(tmp_path / "x.so", first + b"\0" * 16 + second)
    with Elf(str(path)) as elf:
        assert fatbin.read_architectures(elf) == (
            ["sm_80", "sm_90a", "sm_100a", "sm_120"],
            ["compute_80", "compute_90a"],
        )


def test_input_of_the_device_linker_promises_nothing(tmp_path: Path) -> None:
    path = binary_files.compile_with_fat_binary(
        tmp_path / "x.so", binary_files.build_fat_binary((1, 120, 0x11)), section="__nv_relfatbin"
    )
    with Elf(str(path)) as elf:
        assert fatbin.read_architectures(elf) == ([], [])


def test_a_fat_binary_larger_than_its_section_is_an_error(tmp_path: Path) -> None:
    path = binary_files.compile_with_fat_binary(tmp_path / "x.so", binary_files.build_fat_binary((2, 80, 0x11))[:-1])
    with Elf(str(path)) as elf, pytest.raises(ElfError, match="damaged"):
        fatbin.read_architectures(elf)


def test_torch_is_read_without_being_imported(tmp_path: Path) -> None:
    binary_files.write_fake_torch(tmp_path)
    assert torch_files.collect_torch_build([str(tmp_path)]) == {
        "known": {
            "version": "2.11.0+cu130",
            "cuda": {"known": "13.0"},
            "hip": {"absent": "not a ROCm build"},
            "cxx11_abi": {"known": True},
        }
    }


def test_the_old_abi_is_told_apart(tmp_path: Path) -> None:
    folder = binary_files.write_fake_torch(tmp_path)
    binary_files.compile_exports(folder / "lib/libc10.so", binary_files.ERROR_OLD)
    fact = torch_files.collect_torch_build([str(tmp_path)])["known"]
    assert isinstance(fact, dict)
    assert fact["cxx11_abi"] == {"known": False}


def test_torch_absent_or_half_there(tmp_path: Path) -> None:
    assert torch_files.collect_torch_build([str(tmp_path)]) == {"absent": "torch is not installed"}
    folder = binary_files.write_fake_torch(tmp_path)
    (folder / "lib/libc10.so").write_bytes(b"")
    fact = torch_files.collect_torch_build([str(tmp_path)])["known"]
    assert isinstance(fact, dict)
    assert fact["cxx11_abi"] == {"unreadable": "libc10.so: truncated"}
    (folder / "version.py").unlink()
    assert "unreadable" in torch_files.collect_torch_build([str(tmp_path)])


@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm to compare with")
@pytest.mark.parametrize("name", ["libc10.so", "libtorch_python.so"])
def test_it_agrees_with_nm_on_the_installed_torch(name: str) -> None:
    path = binary_files.find_installed_torch() / "lib" / name
    if not path.exists():
        pytest.skip("the installed torch has no " + name)

    def list_symbols(option: str) -> list[list[str]]:
        text = subprocess.run(["nm", "-D", option, str(path)], capture_output=True, text=True, check=True).stdout
        return [line.split() for line in text.splitlines()]

    with Elf(str(path)) as elf:
        assert set(elf.undefined_symbols()) == {
            row[-1].split("@")[0] for row in list_symbols("--undefined-only") if row[-2] == "U"
        }
        assert all(elf.defines_symbol(row[-1].split("@")[0]) for row in list_symbols("--defined-only"))
