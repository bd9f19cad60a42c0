"""Reads which GPUs a CUDA binary was compiled for, out of its fat binary, without any CUDA tool.

The section .nv_fatbin holds containers (magic 0xBA55ED50, header size, payload size); each holds entries: kind 1 is
PTX, kind 2 is SASS, with the architecture number. The layout is not published by NVIDIA: it was read off real files
(cuobjdump --list-elf and --list-ptx name the same architectures).
"""

from __future__ import annotations

import struct

from .elf import Elf, ElfError

SECTIONS = (".nv_fatbin", "__nv_relfatbin")
MOST_ENTRIES = 20_000  # of a real library's: enough to meet every architecture it holds
_MAGIC = 0xBA55ED50
_PTX, _SASS = 1, 2


def architectures(elf: Elf) -> tuple[list[str], list[str]]:
    """Return (sass, ptx): "sm_90" and "compute_90" names, sorted by number. Raises `ElfError`."""
    sass: set[int] = set()
    ptx: set[int] = set()
    left = MOST_ENTRIES
    for offset, size in elf.sections(*SECTIONS):
        left = _section(elf, offset, offset + size, sass, ptx, left)
    return ["sm_%d" % number for number in sorted(sass)], ["compute_%d" % number for number in sorted(ptx)]


def _section(elf: Elf, at: int, end: int, sass: set[int], ptx: set[int], left: int) -> int:
    while at + 16 <= end and left > 0:
        left -= 1
        magic, _, header, size = struct.unpack("<IHHQ", elf.read(at, 16))
        if magic != _MAGIC:  # padding between containers
            at += 8
            continue
        if header < 16 or at + header + size > end:
            raise ElfError("damaged: a fat binary larger than its section")
        left = _container(elf, at + header, at + header + size, sass, ptx, left)
        at += header + size
    return left


def _container(elf: Elf, at: int, end: int, sass: set[int], ptx: set[int], left: int) -> int:
    while at + 32 <= end and left > 0:
        left -= 1
        kind, _, header, size = struct.unpack("<HHIQ", elf.read(at, 16))
        number = struct.unpack("<I", elf.read(at + 28, 4))[0]
        if header < 32:
            raise ElfError("damaged: a fat binary entry without a header")
        if 0 < number < 1000:
            (ptx if kind == _PTX else sass if kind == _SASS else set()).add(number)
        at += header + size
    return left
