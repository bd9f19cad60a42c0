"""Reads which GPUs a CUDA binary was compiled for, out of its fat binary, without any CUDA tool.

The section .nv_fatbin holds containers (magic 0xBA55ED50, header size, payload size); each holds entries: kind 1 is
PTX, kind 2 is SASS, with the architecture number. The layout is not published by NVIDIA: it was read off real files.
Bit 20 of an entry's flags marks code for one GPU only, the "a" of sm_90a: xformers 0.0.32.post2 (flash_attn_3/_C.so,
whose cubins carry LLVM's EF_CUDA_ACCELERATORS_V1 as well) and torchao 0.14.1 (_C_cutlass_90a, _C_cutlass_100a) set
it; flash-attn 2.8.3 for sm_90 and torchao's mxfp8_cuda for sm_100 do not.

__nv_relfatbin is left alone: it holds the input of the device linker, whose result is in .nv_fatbin. In
bitsandbytes 0.50.2 its PTX entries are empty stubs, so they would promise a forward compatibility that is not there.
"""

from __future__ import annotations

import struct

from .elf import Elf, ElfError

TYPE_CHECKING = False
if TYPE_CHECKING:
    Found = set[tuple[int, str]]  # (90, "a")

SECTION = ".nv_fatbin"
MOST_ENTRIES = 20_000  # of a real library's: enough to meet every architecture it holds
_MAGIC = 0xBA55ED50
_PTX, _SASS = 1, 2
_ONE_GPU_ONLY = 1 << 20
_ENTRY = struct.Struct("<H2xIQ12xI8xQ")  # kind, header size, payload size, architecture, flags


def architectures(elf: Elf) -> tuple[list[str], list[str]]:
    """Return (sass, ptx): "sm_90", "sm_90a" and "compute_90" names, sorted by number. Raises `ElfError`."""
    sass: Found = set()
    ptx: Found = set()
    left = MOST_ENTRIES
    for offset, size in elf.sections(SECTION):
        left = _section(elf, offset, offset + size, sass, ptx, left)
    return ["sm_%d%s" % name for name in sorted(sass)], ["compute_%d%s" % name for name in sorted(ptx)]


def _section(elf: Elf, at: int, end: int, sass: Found, ptx: Found, left: int) -> int:
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


def _container(elf: Elf, at: int, end: int, sass: Found, ptx: Found, left: int) -> int:
    found = {_PTX: ptx, _SASS: sass}
    while at + 64 <= end and left > 0:
        left -= 1
        kind, header, size, number, flags = _ENTRY.unpack(elf.read(at, 48))
        if header < 64:
            raise ElfError("damaged: a fat binary entry without a header")
        if kind in found and 0 < number < 1000:
            found[kind].add((number, "a" if flags & _ONE_GPU_ONLY else ""))
        at += header + size
    return left
