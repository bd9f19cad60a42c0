"""Writes small shared libraries without a compiler: what they ask of others and offer, and nothing that could run.

The system's loader reads them like any other: it looks for the libraries, symbols and versions that they need, and
says in its own words which are not there. Layouts: System V ABI,
      chapters 4 and 5; glibc elf/dl-lookup.c and elf/dl-version.c.
"""

from __future__ import annotations

import platform
import struct
import sysconfig
from collections.abc import Sequence

NEEDED, STRTAB, SYMTAB, RELA, RELASZ, RELAENT, STRSZ, SYMENT, SONAME = 1, 5, 6, 7, 8, 9, 10, 11, 14
GNU_HASH, VERSYM, VERNEED, VERNEEDNUM = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFE, 0x6FFFFFFF
MACHINES = {"x86_64": (0x3E, 6), "aarch64": (0xB7, 1025)}  # ELF's number, and that of a relocation by symbol (GLOB_DAT)
PAGE = 0x10000  # the largest page of any of them
FAT_BINARY = ".nv_fatbin"


class _Strings:
    """A table of strings, each once."""

    def __init__(self) -> None:
        self.data = b"\0"

    def add(self, text: str) -> int:
        place = len(self.data)
        self.data += text.encode() + b"\0"
        return place


def supported() -> bool:
    """Say whether libraries for this machine can be written."""
    return platform.machine() in MACHINES


def suffix() -> str:
    """Return how the file names of compiled modules of this Python end."""
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def library(
    exports: Sequence[str] = (),
    imports: Sequence[str] = (),
    needed: Sequence[str] = (),
    soname: str = "",
    version: tuple[str, str] | None = None,
    fat_binary: bytes = b"",
) -> bytes:
    """Return a shared library that exports and imports symbols, and needs libraries.

    `version` is (library, symbol version) that it asks for: ("libc.so.6", "GLIBC_9.9"). `fat_binary` lies in the
    section where CUDA's compiler puts kernels.
    """
    machine, relocation = MACHINES[platform.machine()]
    strings = _Strings()
    symbols = [b"\0" * 24]
    symbols += [struct.pack("<IBBHQQ", strings.add(name), 0x12, 0, 0, 0, 0) for name in imports]
    symbols += [struct.pack("<IBBHQQ", strings.add(name), 0x12, 0, 0xFFF1, 0x100, 0) for name in exports]
    entries = [(NEEDED, strings.add(name)) for name in (*needed, *((version[0],) if version else ()))]
    if soname:
        entries.append((SONAME, strings.add(soname)))
    parts = {GNU_HASH: _hash(len(imports), exports)}
    if version:
        parts[VERSYM] = struct.pack("<H", 1) * len(symbols) + b"\0" * (-2 * len(symbols) % 8)
        parts[VERNEED] = _version(strings, *version)
        entries.append((VERNEEDNUM, 1))
    parts[SYMTAB] = b"".join(symbols)  # right before the strings: readers count symbols by that
    parts[STRTAB] = strings.data + b"\0" * (-len(strings.data) % 8)
    rows = [(0, number << 32 | relocation, 0) for number in range(1, len(imports) + 1)]
    return _laid(machine, parts, entries, rows, fat_binary)


def _laid(
    machine: int,
    parts: dict[int, bytes],
    entries: list[tuple[int, int]],
    rows: list[tuple[int, int, int]],
    fat_binary: bytes,
) -> bytes:
    """Return the file: headers, slots that the loader fills, relocations, tables, the dynamic segment, sections."""
    place = 64 + 2 * 56
    body = b"\0" * (8 * len(rows))
    slots, place = place, place + len(body)
    if rows:
        entries += [(RELA, place), (RELASZ, 24 * len(rows)), (RELAENT, 24)]
        body += b"".join(struct.pack("<QQq", slots + 8 * index, info, 0) for index, (_, info, _) in enumerate(rows))
        place += 24 * len(rows)
    for tag, data in parts.items():
        entries.append((tag, place))
        body += data
        place += len(data)
    entries += [(STRSZ, len(parts[STRTAB])), (SYMENT, 24), (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    end = place + len(dynamic)
    sections, offset, count = _sections(end, fat_binary)
    load = struct.pack("<IIQQQQQQ", 1, 6, 0, 0, 0, end, end, PAGE)
    where = struct.pack("<IIQQQQQQ", 2, 6, place, place, place, len(dynamic), len(dynamic), 8)
    head = b"\x7fELF\x02\x01\x01" + b"\0" * 9
    head += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, offset, 0, 64, 56, 2, 64, count, max(0, count - 1))
    return head + load + where + body + dynamic + sections


def _sections(place: int, fat_binary: bytes) -> tuple[bytes, int, int]:
    """Return what follows the segments, where its table begins and how many sections it has."""
    if not fat_binary:
        return b"", 0, 0
    names = f"\0{FAT_BINARY}\0.shstrtab\0".encode()
    data = fat_binary + b"\0" * (-len(fat_binary) % 8)
    table = b"\0" * 64
    table += struct.pack("<IIQQQQIIQQ", 1, 1, 2, 0, place, len(fat_binary), 0, 0, 8, 0)
    second = 2 + len(FAT_BINARY)
    table += struct.pack("<IIQQQQIIQQ", second, 3, 0, 0, place + len(data), len(names), 0, 0, 1, 0)
    return data + names + table, place + len(data) + len(names), 3


def _hash(imports: int, exports: Sequence[str]) -> bytes:
    """Return GNU's hash table of the exported symbols, which follow `imports` others: one bucket holds all."""
    first = imports + 1
    chain = [_gnu(name) & ~1 for name in exports]
    if chain:
        chain[-1] |= 1
    words = [1, first, 1, 0, 0xFFFFFFFF, 0xFFFFFFFF, first if chain else 0, *chain]
    words += [0] * (len(words) % 2)
    return struct.pack(f"<{len(words)}I", *words)


def _gnu(name: str) -> int:
    code = 5381
    for letter in name.encode():
        code = (code * 33 + letter) & 0xFFFFFFFF
    return code


def _version(strings: _Strings, file: str, name: str) -> bytes:
    code = 0
    for letter in name.encode():
        code = (code << 4) + letter
        code = (code ^ (code & 0xF0000000) >> 24) & 0x0FFFFFFF
    need = struct.pack("<HHIII", 1, 1, strings.add(file), 16, 0)
    return need + struct.pack("<IHHII", code, 0, 2, strings.add(name), 0)


def fat_binary(*entries: tuple[int, int]) -> bytes:
    """Return CUDA's container of kernels: (kind, architecture) each, kind 2 for machine code, 1 for PTX."""
    body = b""
    for kind, number in entries:
        body += struct.pack("<HHIQIIHHIIIQQQ", kind, 257, 64, 8, 0, 0, 1, 8, number, 0, 0, 0, 0, 0) + b"\0" * 8
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
