"""Reads from a CUDA binary's fat binary which GPUs it was compiled for, without any CUDA tool.

The section .nv_fatbin holds containers (magic 0xBA55ED50, header size, payload size). Each container holds entries:
kind 1 is PTX, kind 2 is SASS, with the architecture number. NVIDIA does not publish the layout, so it was derived from
real files. Bit 20 of an entry's flags marks code for one GPU only, the "a" of sm_90a. xformers 0.0.32.post2
(flash_attn_3/_C.so, whose cubins also carry LLVM's EF_CUDA_ACCELERATORS_V1) and torchao 0.14.1 (_C_cutlass_90a,
_C_cutlass_100a) set it; flash-attn 2.8.3 for sm_90 and torchao's mxfp8_cuda for sm_100 do not.

__nv_relfatbin is not read: it holds the input of the device linker, whose result is in .nv_fatbin. In bitsandbytes
0.50.2 its PTX entries are empty stubs and would wrongly indicate forward compatibility.
"""

from __future__ import annotations

import struct

from .elf import Elf, ElfError

TYPE_CHECKING = False
if TYPE_CHECKING:
    Architectures = set[tuple[int, str]]  # for example (90, "a")

SECTION = ".nv_fatbin"
MAX_ENTRIES = 20_000  # read at most: enough to see every architecture of a real library
_MAGIC = 0xBA55ED50
_PTX, _SASS = 1, 2
_ONE_GPU_ONLY = 1 << 20
_ENTRY = struct.Struct("<H2xIQ12xI8xQ")  # kind, header size, payload size, architecture, flags


def read_architectures(elf: Elf) -> tuple[list[str], list[str]]:
    """Return (sass, ptx), such as "sm_90", "sm_90a" and "compute_90", sorted by number. Raises `ElfError`."""
    sass: Architectures = set()
    ptx: Architectures = set()
    remaining = MAX_ENTRIES
    for offset, size in elf.find_sections(SECTION):
        remaining = _scan_section(elf, offset, offset + size, sass, ptx, remaining)
    return ["sm_%d%s" % name for name in sorted(sass)], ["compute_%d%s" % name for name in sorted(ptx)]


def _scan_section(elf: Elf, offset: int, end: int, sass: Architectures, ptx: Architectures, remaining: int) -> int:
    while offset + 16 <= end and remaining > 0:
        remaining -= 1
        magic, _, header, size = struct.unpack("<IHHQ", elf.read(offset, 16))
        if magic != _MAGIC:  # padding between containers
            offset += 8
            continue
        if header < 16 or offset + header + size > end:
            raise ElfError("damaged: a fat binary larger than its section")
        remaining = _scan_container(elf, offset + header, offset + header + size, sass, ptx, remaining)
        offset += header + size
    return remaining


def _scan_container(elf: Elf, offset: int, end: int, sass: Architectures, ptx: Architectures, remaining: int) -> int:
    by_kind = {_PTX: ptx, _SASS: sass}
    while offset + 64 <= end and remaining > 0:
        remaining -= 1
        kind, header, size, number, flags = _ENTRY.unpack(elf.read(offset, 48))
        if header < 64:
            raise ElfError("damaged: a fat binary entry without a header")
        if kind in by_kind and 0 < number < 1000:
            by_kind[kind].add((number, "a" if flags & _ONE_GPU_ONLY else ""))
        offset += header + size
    return remaining
