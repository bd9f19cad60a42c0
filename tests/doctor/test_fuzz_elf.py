"""Ten thousand damaged ELF files and fat binaries: nothing but `ElfError`, and never slow."""

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
from tests.doctor import binary_files as b

ROUNDS = 10_000
SLOWEST = 3.0  # seconds for one file, on a machine with other work to do
LIES = (
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
    fat = b.fat_binary((2, 90, 0x100011), (1, 90, 0x2011)) + b"\0" * 8 + b.fat_binary((2, 80, 0x11))
    numbers = ",".join(map(str, fat))
    source = (
        '__attribute__((section(".nv_fatbin"), aligned(8), used))'
        f"static const unsigned char held[] = {{{numbers}}};\n"
        "extern void _ZN3c101aEv(void); extern int puts(const char *); extern void quick_exit(int);\n"
        "void PyInit_x(void) { _ZN3c101aEv(); puts(0); quick_exit(0); }\nvoid other(void) {}\n"
    )
    flags = ("-Wl,--hash-style=gnu", "-Wl,-rpath,$ORIGIN/x:/opt/y", "-Wl,-z,noseparate-code")
    return b.library(folder / "x.so", source, *flags).read_bytes()


def read_everything(path: Path) -> None:
    """Ask every question of one file; where one is refused the others are still asked."""
    try:
        elf = Elf(str(path))
    except ElfError:
        return
    with elf:
        for question in (elf.needed, elf.search_path, elf.glibc_required, elf.undefined):
            _ask(question)
        for name in ("PyInit_x", "other", "_ZN3c101aEv", "absent", ""):
            _ask(partial(elf.defines, name))
        _ask(partial(fatbin.architectures, elf))


def _ask(question: Callable[[], object]) -> None:
    try:
        question()
    except ElfError:
        return


def tables(data: bytes) -> list[int]:
    """Return the places worth lying at: headers, the dynamic section, and the tables that this points to."""
    places = [0, 16]
    program, sections = struct.unpack_from("<QQ", data, 32)
    count, _, section_count = struct.unpack_from("<HHH", data, 56)
    places += [program + 56 * index for index in range(count)]
    for index in range(section_count):
        place, size = struct.unpack_from("<QQ", data, sections + 64 * index + 24)
        places += [sections + 64 * index, *range(place, place + min(size, 400), 40)]
    return [place for place in places if place < len(data) - 64]


def damaged(source: random.Random, data: bytes, places: list[int]) -> bytes:
    """Return `data` with a few bits flipped, a size or offset replaced by a lie, cut short, or scrambled."""
    broken = bytearray(data)
    for _ in range(source.randint(1, 4)):
        at = min(source.choice(places) + source.randrange(64), len(broken) - 8)
        kind = source.randrange(5)
        if kind == 0:
            broken[at] ^= 1 << source.randrange(8)
        elif kind == 1:
            struct.pack_into("<Q", broken, at & ~7, source.choice(LIES))
        elif kind == 2:
            struct.pack_into("<I", broken, at & ~3, source.choice(LIES) & 0xFFFFFFFF)
        elif kind == 3:
            broken[at : at + 8] = source.randbytes(8)
        else:
            struct.pack_into("<H", broken, at & ~1, source.choice(LIES) & 0xFFFF)
    return bytes(broken[: source.randrange(len(broken))] if source.random() < 0.1 else broken)


def test_damaged_libraries_end_in_elf_errors_and_soon(sample: bytes, tmp_path: Path) -> None:
    source = random.Random(20261121)
    path, places = tmp_path / "x.so", tables(sample)
    slowest = 0.0
    for number in range(ROUNDS):
        data = damaged(source, sample, places) if number % 20 else b"\x7fELF\x02\x01" + source.randbytes(500)
        path.write_bytes(data)
        start = time.process_time()
        read_everything(path)
        slowest = max(slowest, time.process_time() - start)
    assert slowest < SLOWEST


def test_the_sample_is_read_whole_when_it_is_not_damaged(sample: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.so").write_bytes(sample)
    with Elf(str(tmp_path / "x.so")) as elf:
        assert fatbin.architectures(elf) == (["sm_80", "sm_90a"], ["compute_90"])
        assert elf.defines("PyInit_x")
        assert elf.glibc_required()
        assert "_ZN3c101aEv" in elf.undefined()


def test_lying_counts_cannot_multiply(tmp_path: Path) -> None:
    """Thousands of version needs, each of which claims all that follow as its own: millions to walk if believed."""
    start_mark = b"start of the lies"
    lies = struct.pack("<HHIII", 1, 0xFFFF, 1, 16, 16) * 6000 + struct.pack("<HHIII", 1, 1, 1, 16, 0)
    source = f"""__attribute__((used)) static const unsigned char held[{len(lies)}] = "{start_mark.decode()}";
        extern int puts(const char *); void PyInit_x(void) {{ puts(0); }}"""
    data = bytearray(b.library(tmp_path / "x.so", source, "-Wl,-z,noseparate-code").read_bytes())
    place = data.index(start_mark)  # with this flag, code and constants are mapped at their offset in the file
    data[place : place + len(lies)] = lies
    for tag, value in ((0x6FFFFFFE, place), (0x6FFFFFFF, 0xFFFFFFFF)):
        struct.pack_into("<Q", data, data.index(struct.pack("<Q", tag)) + 8, value)
    (tmp_path / "x.so").write_bytes(data)
    start = time.process_time()
    read_everything(tmp_path / "x.so")
    assert time.process_time() - start < SLOWEST
