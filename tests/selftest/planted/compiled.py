"""Writes small shared libraries (ELF) without a compiler: dependencies, imported and exported symbols, no code.

The system's loader reads them like any other: it looks for the libraries, symbols and versions that they need, and
reports in its own messages which are missing. Layouts: System V ABI, chapters 4 and 5; glibc elf/dl-lookup.c and
elf/dl-version.c.
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


class _StringTable:
    """An ELF string table, each string once."""

    def __init__(self) -> None:
        self.data = b"\0"

    def add(self, text: str) -> int:
        offset = len(self.data)
        self.data += text.encode() + b"\0"
        return offset


def is_supported() -> bool:
    """Say whether libraries for this machine's architecture can be written."""
    return platform.machine() in MACHINES


def extension_suffix() -> str:
    """Return the file name ending of compiled modules of this Python."""
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def build_library(
    exports: Sequence[str] = (),
    imports: Sequence[str] = (),
    needed: Sequence[str] = (),
    soname: str = "",
    version: tuple[str, str] | None = None,
    fat_binary: bytes = b"",
) -> bytes:
    """Return a shared library that exports and imports symbols, and needs libraries.

    `version` is the (library, symbol version) that it requires: ("libc.so.6", "GLIBC_9.9"). `fat_binary` lies in the
    section where CUDA's compiler puts kernels.
    """
    machine, relocation = MACHINES[platform.machine()]
    strings = _StringTable()
    symbols = [b"\0" * 24]
    symbols += [struct.pack("<IBBHQQ", strings.add(name), 0x12, 0, 0, 0, 0) for name in imports]
    symbols += [struct.pack("<IBBHQQ", strings.add(name), 0x12, 0, 0xFFF1, 0x100, 0) for name in exports]
    entries = [(NEEDED, strings.add(name)) for name in (*needed, *((version[0],) if version else ()))]
    if soname:
        entries.append((SONAME, strings.add(soname)))
    parts = {GNU_HASH: _gnu_hash_table(len(imports), exports)}
    if version:
        parts[VERSYM] = struct.pack("<H", 1) * len(symbols) + b"\0" * (-2 * len(symbols) % 8)
        parts[VERNEED] = _version_need(strings, *version)
        entries.append((VERNEEDNUM, 1))
    parts[SYMTAB] = b"".join(symbols)  # right before the strings: readers count symbols by that
    parts[STRTAB] = strings.data + b"\0" * (-len(strings.data) % 8)
    relocations = [(0, number << 32 | relocation, 0) for number in range(1, len(imports) + 1)]
    return _assemble_file(machine, parts, entries, relocations, fat_binary)


def _assemble_file(
    machine: int,
    parts: dict[int, bytes],
    entries: list[tuple[int, int]],
    relocations: list[tuple[int, int, int]],
    fat_binary: bytes,
) -> bytes:
    """Return the file: headers, slots that the loader fills, relocations, tables, the dynamic segment, sections."""
    offset = 64 + 2 * 56
    body = b"\0" * (8 * len(relocations))
    slots, offset = offset, offset + len(body)
    if relocations:
        entries += [(RELA, offset), (RELASZ, 24 * len(relocations)), (RELAENT, 24)]
        body += b"".join(
            struct.pack("<QQq", slots + 8 * index, info, 0) for index, (_, info, _) in enumerate(relocations)
        )
        offset += 24 * len(relocations)
    for tag, data in parts.items():
        entries.append((tag, offset))
        body += data
        offset += len(data)
    entries += [(STRSZ, len(parts[STRTAB])), (SYMENT, 24), (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    end = offset + len(dynamic)
    sections, section_offset, count = _build_sections(end, fat_binary)
    load_header = struct.pack("<IIQQQQQQ", 1, 6, 0, 0, 0, end, end, PAGE)
    dynamic_header = struct.pack("<IIQQQQQQ", 2, 6, offset, offset, offset, len(dynamic), len(dynamic), 8)
    elf_header = b"\x7fELF\x02\x01\x01" + b"\0" * 9
    elf_header += struct.pack(
        "<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, section_offset, 0, 64, 56, 2, 64, count, max(0, count - 1)
    )
    return elf_header + load_header + dynamic_header + body + dynamic + sections


def _build_sections(offset: int, fat_binary: bytes) -> tuple[bytes, int, int]:
    """Return what follows the segments, the offset of its section table, and the number of sections."""
    if not fat_binary:
        return b"", 0, 0
    names = f"\0{FAT_BINARY}\0.shstrtab\0".encode()
    data = fat_binary + b"\0" * (-len(fat_binary) % 8)
    table = b"\0" * 64
    table += struct.pack("<IIQQQQIIQQ", 1, 1, 2, 0, offset, len(fat_binary), 0, 0, 8, 0)
    second = 2 + len(FAT_BINARY)
    table += struct.pack("<IIQQQQIIQQ", second, 3, 0, 0, offset + len(data), len(names), 0, 0, 1, 0)
    return data + names + table, offset + len(data) + len(names), 3


def _gnu_hash_table(imports: int, exports: Sequence[str]) -> bytes:
    """Return GNU's hash table of the exported symbols, which follow `imports` others: one bucket holds all."""
    first = imports + 1
    chain = [_gnu_hash(name) & ~1 for name in exports]
    if chain:
        chain[-1] |= 1
    words = [1, first, 1, 0, 0xFFFFFFFF, 0xFFFFFFFF, first if chain else 0, *chain]
    words += [0] * (len(words) % 2)
    return struct.pack(f"<{len(words)}I", *words)


def _gnu_hash(name: str) -> int:
    code = 5381
    for letter in name.encode():
        code = (code * 33 + letter) & 0xFFFFFFFF
    return code


def _version_need(strings: _StringTable, file: str, name: str) -> bytes:
    code = 0
    for letter in name.encode():
        code = (code << 4) + letter
        code = (code ^ (code & 0xF0000000) >> 24) & 0x0FFFFFFF
    need = struct.pack("<HHIII", 1, 1, strings.add(file), 16, 0)
    return need + struct.pack("<IHHII", code, 0, 2, strings.add(name), 0)


def build_fat_binary(*entries: tuple[int, int]) -> bytes:
    """Return CUDA's container of kernels: (kind, architecture) each, kind 2 for machine code, 1 for PTX."""
    body = b""
    for kind, number in entries:
        body += struct.pack("<HHIQIIHHIIIQQQ", kind, 257, 64, 8, 0, 0, 1, 8, number, 0, 0, 0, 0, 0) + b"\0" * 8
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
