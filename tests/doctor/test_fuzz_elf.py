"""Damaged ELF files and fat binaries, ten thousand of them nightly: nothing but `ElfError`, and never slow."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from attncheck.doctor.probes.payload.binaries import fatbin
from attncheck.doctor.probes.payload.binaries.elf import Elf, ElfError
from tests.doctor import binary_files

ROUNDS = [1_500, pytest.param(10_000, marks=pytest.mark.nightly)]
MAX_SECONDS = 20.0  # of processor time for one file: a bound that tells what has no end, on a busy machine too
WRONG_NUMBERS = (
    0,
    1,
    7,
    0x7FFF,
    0xFFFF,
    0x10000,
    0x7FFFFFFF,
    0xFFFFFFFF,
    1 << 40,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return a small real library: GNU hash, symbol versions, a search path and a fat binary."""
    folder = tmp_path_factory.mktemp("sample")
    fat = (
        binary_files.build_fat_binary((2, 90, 0x100011), (1, 90, 0x2011))
        + b"\0" * 8
        + binary_files.build_fat_binary((2, 80, 0x11))
    )
    numbers = ",".join(map(str, fat))
    source = (
        '__attribute__((section(".nv_fatbin"), aligned(8), used))'
        f"static const unsigned char held[] = {{{numbers}}};\n"
        "extern void _ZN3c101aEv(void); extern int puts(const char *); extern void quick_exit(int);\n"
        "void PyInit_x(void) { _ZN3c101aEv(); puts(0); quick_exit(0); }\nvoid other(void) {}\n"
    )
    flags = ("-Wl,--hash-style=gnu", "-Wl,-rpath,$ORIGIN/x:/opt/y", "-Wl,-z,noseparate-code")
    return binary_files.compile_library(folder / "x.so", source, *flags).read_bytes()


def read_everything(path: Path) -> None:
    """Call every reader on one file; where one raises `ElfError` the others are still called."""
    try:
        elf = Elf(str(path))
    except ElfError:
        return
    with elf:
        for reader in (elf.needed_libraries, elf.search_path, elf.required_versions, elf.undefined_symbols):
            _call_reader(reader)
        for name in ("PyInit_x", "other", "_ZN3c101aEv", "absent", ""):
            _call_reader(partial(elf.defines_symbol, name))
        _call_reader(partial(fatbin.read_architectures, elf))


def _call_reader(reader: Callable[[], object]) -> None:
    try:
        reader()
    except ElfError:
        return


def table_offsets(data: bytes) -> list[int]:
    """Return the offsets worth damaging: headers, the dynamic section, and the tables that it points to."""
    offsets = [0, 16]
    program, sections = struct.unpack_from("<QQ", data, 32)
    count, _, section_count = struct.unpack_from("<HHH", data, 56)
    offsets += [program + 56 * index for index in range(count)]
    for index in range(section_count):
        start, size = struct.unpack_from("<QQ", data, sections + 64 * index + 24)
        offsets += [sections + 64 * index, *range(start, start + min(size, 400), 40)]
    return [offset for offset in offsets if offset < len(data) - 64]


def damage(rng: random.Random, data: bytes, offsets: list[int]) -> bytes:
    """Return `data` with a few bits flipped, a size or offset replaced by a wrong number, cut short, or scrambled."""
    damaged = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = min(rng.choice(offsets) + rng.randrange(64), len(damaged) - 8)
        kind = rng.randrange(5)
        if kind == 0:
            damaged[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            struct.pack_into("<Q", damaged, at & ~7, rng.choice(WRONG_NUMBERS))
        elif kind == 2:
            struct.pack_into("<I", damaged, at & ~3, rng.choice(WRONG_NUMBERS) & 0xFFFFFFFF)
        elif kind == 3:
            damaged[at : at + 8] = rng.randbytes(8)
        else:
            struct.pack_into("<H", damaged, at & ~1, rng.choice(WRONG_NUMBERS) & 0xFFFF)
    return bytes(damaged[: rng.randrange(len(damaged))] if rng.random() < 0.1 else damaged)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_damaged_libraries_end_in_elf_errors_and_soon(rounds: int, sample: bytes, tmp_path: Path) -> None:
    rng = random.Random(20261121)
    path, offsets = tmp_path / "x.so", table_offsets(sample)
    slowest = 0.0
    for number in range(rounds):
        data = damage(rng, sample, offsets) if number % 20 else b"\x7fELF\x02\x01" + rng.randbytes(500)
        path.write_bytes(data)
        began = time.process_time()
        read_everything(path)
        slowest = max(slowest, time.process_time() - began)
    assert slowest < MAX_SECONDS


def test_the_sample_is_read_whole_when_it_is_not_damaged(sample: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.so").write_bytes(sample)
    with Elf(str(tmp_path / "x.so")) as elf:
        assert fatbin.read_architectures(elf) == (["sm_80", "sm_90a"], ["compute_90"])
        assert elf.defines_symbol("PyInit_x")
        assert elf.required_versions()["GLIBC"]
        assert "_ZN3c101aEv" in elf.undefined_symbols()


def test_lying_counts_cannot_multiply(tmp_path: Path) -> None:
    """Thousands of version needs, each of which claims all that follow as its own: millions to walk if believed."""
    start_mark = b"start of the lies"
    needs = struct.pack("<HHIII", 1, 0xFFFF, 1, 16, 16) * 6000 + struct.pack("<HHIII", 1, 1, 1, 16, 0)
    source = f"""__attribute__((used)) static const unsigned char held[{len(needs)}] = "{start_mark.decode()}";
        extern int puts(const char *); void PyInit_x(void) {{ puts(0); }}"""
    data = bytearray(binary_files.compile_library(tmp_path / "x.so", source, "-Wl,-z,noseparate-code").read_bytes())
    start = data.index(start_mark)  # with this flag, code and constants are mapped at their offset in the file
    data[start : start + len(needs)] = needs
    for tag, value in ((0x6FFFFFFE, start), (0x6FFFFFFF, 0xFFFFFFFF)):
        struct.pack_into("<Q", data, data.index(struct.pack("<Q", tag)) + 8, value)
    (tmp_path / "x.so").write_bytes(data)
    began = time.process_time()
    read_everything(tmp_path / "x.so")
    assert time.process_time() - began < MAX_SECONDS
