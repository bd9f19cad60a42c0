"""Reads what an ELF file needs from other libraries and what it exports, without loading it.

Like the loader, it uses only the dynamic segment, so stripped files can be read too. Everything is read with pread: if
the file shrinks meanwhile, a read is short instead of raising a signal. Layouts: System V ABI, chapter 5; the GNU hash
table: glibc, elf/dl-lookup.c (do_lookup_x).
"""

from __future__ import annotations

import os
import struct

MACHINES = {0x3E: "x86_64", 0xB7: "aarch64", 0x15: "ppc64", 0xF3: "riscv64", 0x16: "s390x", 0x03: "i386"}
MAX_DYNAMIC_ENTRIES = 1 << 16  # a real file has dozens
MAX_SYMBOLS = 1 << 19
MAX_CHAIN_LENGTH = 1 << 12  # symbols under one hash bucket: a real library has only a few
MAX_VERSIONS = 1 << 12
MAX_NAME_LENGTH = 1 << 14
MAX_BLOCK_BYTES = 64 << 20

_LOAD, _DYNAMIC = 1, 2
_NEEDED, _HASH, _STRTAB, _SYMTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH = 1, 4, 5, 6, 10, 14, 15, 29
_GNU_HASH, _VERNEED, _VERNEEDNUM = 0x6FFFFEF5, 0x6FFFFFFE, 0x6FFFFFFF
_VERDEF, _VERDEFNUM = 0x6FFFFFFC, 0x6FFFFFFD
_WEAK = 2


class ElfError(Exception):
    """The file is not an ELF file, or it is damaged; the message says which."""


class Elf:
    """One open ELF file. Raises `ElfError` on opening and from every method."""

    def __init__(self, path: str) -> None:
        try:
            self._file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except (OSError, ValueError) as error:
            raise ElfError("cannot be opened: " + (getattr(error, "strerror", None) or str(error))) from None
        try:
            self._read_headers()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> Elf:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes at `offset`."""
        if not 0 <= offset < 1 << 62 or not 0 <= size <= MAX_BLOCK_BYTES:
            raise ElfError("damaged: a table lies outside the file")
        try:
            data = os.pread(self._file, size, offset)
        except OSError as error:
            raise ElfError("cannot be read: " + (error.strerror or "")) from None
        if len(data) != size:
            raise ElfError("truncated")
        return data

    def _read_headers(self) -> None:
        ident = self.read(0, 16)
        if ident[:4] != b"\x7fELF":
            raise ElfError("not an ELF file")
        if ident[4:6] != b"\x02\x01":
            raise ElfError("not a 64-bit little-endian ELF file")
        fields = struct.unpack("<HHIQQQIHHHHHH", self.read(16, 48))
        self.machine = MACHINES.get(fields[1], "machine %d" % fields[1])
        program_offset, self._section_offset = fields[4], fields[5]
        self._section_header_size, self._section_count, self._section_names_index = fields[10:13]
        entry_size, entries = fields[8], fields[9]
        if entry_size != 56:
            raise ElfError("damaged: program headers of %d bytes" % entry_size)
        table = self.read(program_offset, 56 * entries)
        self._segments = []
        dynamic = None
        for index in range(entries):
            kind, _, offset, address, _, size = struct.unpack_from("<IIQQQQ", table, 56 * index)
            if kind == _LOAD:
                self._segments.append((address, offset, size))
            elif kind == _DYNAMIC:
                dynamic = (offset, size)
        self._read_dynamic(dynamic)

    def _read_dynamic(self, extent: tuple[int, int] | None) -> None:
        if extent is None:
            raise ElfError("not a dynamic library")
        offset, size = extent
        self._dynamic: dict[int, int] = {}
        self._lists: dict[int, list[int]] = {_NEEDED: [], _RPATH: [], _RUNPATH: []}
        table = self.read(offset, min(size, 16 * MAX_DYNAMIC_ENTRIES) // 16 * 16)
        for tag, value in struct.iter_unpack("<QQ", table):
            if tag == 0:
                break
            self._dynamic.setdefault(tag, value)
            if tag in self._lists:
                self._lists[tag].append(value)

    def _file_offset(self, address: int) -> int:
        """Return the file offset of a virtual address."""
        for start, offset, size in self._segments:
            if start <= address < start + size:
                return int(offset + address - start)
        raise ElfError("damaged: an address outside every segment")

    def _table_offset(self, tag: int) -> int:
        if tag not in self._dynamic:
            raise ElfError("damaged: a dynamic table is missing")
        return self._file_offset(self._dynamic[tag])

    def _read_string(self, index: int) -> str:
        start = self._table_offset(_STRTAB) + index
        try:
            data = os.pread(self._file, MAX_NAME_LENGTH, start)
        except (OSError, OverflowError, ValueError):
            raise ElfError("damaged: a name outside the file") from None
        name, end, _ = data.partition(b"\0")
        if not end:
            raise ElfError("damaged: a name without an end")
        return name.decode("latin-1")

    def needed_libraries(self) -> list[str]:
        """Return the names of the libraries that the file needs (DT_NEEDED)."""
        return [self._read_string(index) for index in self._lists[_NEEDED]]

    def search_path(self) -> list[str]:
        """Return the directories searched first (DT_RUNPATH, else DT_RPATH), as written in the file."""
        indices = self._lists[_RUNPATH] or self._lists[_RPATH]
        return [part for index in indices for part in self._read_string(index).split(":") if part]

    def has_runpath(self) -> bool:
        """Return whether the file has a DT_RUNPATH, which disables its loaders' search paths for its libraries."""
        return bool(self._lists[_RUNPATH])

    def required_versions(self) -> dict[str, str]:
        """Return the highest required version in each namespace: {"GLIBC": "2.32", "GLIBCXX": "3.4.30"}."""
        return _find_highest_versions(self._required_versions()) if _VERNEED in self._dynamic else {}

    def defined_versions(self) -> dict[str, str]:
        """Return the highest offered version in each namespace: {"GLIBCXX": "3.4.30", "CXXABI": "1.3.13"}."""
        return _find_highest_versions(self._defined_versions()) if _VERDEF in self._dynamic else {}

    def _defined_versions(self) -> list[str]:
        versions: list[str] = []
        offset = self._table_offset(_VERDEF)
        for _ in range(min(self._dynamic.get(_VERDEFNUM, 0), MAX_VERSIONS)):
            _, _, _, count, _, first, following = struct.unpack("<HHHHIII", self.read(offset, 20))
            if count:
                versions.append(self._read_string(struct.unpack("<I", self.read(offset + first, 4))[0]))
            if not following:
                break
            offset += following
        return versions

    def _required_versions(self) -> list[str]:
        """Return the required symbol versions; one limit covers both levels, so that false counts cannot multiply."""
        versions: list[str] = []
        offset = self._table_offset(_VERNEED)
        for _ in range(min(self._dynamic.get(_VERNEEDNUM, 0), MAX_VERSIONS)):
            _, count, _, first, following = struct.unpack("<HHIII", self.read(offset, 16))
            entry = offset + first
            for _ in range(min(count, MAX_VERSIONS - len(versions))):
                _, _, _, name, further = struct.unpack("<IHHII", self.read(entry, 16))
                versions.append(self._read_string(name))
                if not further:
                    break
                entry += further
            if not following or len(versions) >= MAX_VERSIONS:
                break
            offset += following
        return versions

    def undefined_symbols(self) -> list[str]:
        """Return the names of undefined symbols, without weak ones."""
        symbols = self._table_offset(_SYMTAB)
        count = self._unhashed_count()
        table = self.read(symbols, 24 * count)
        name_indices = []
        for index in range(1, count):
            name, info, _, section = struct.unpack_from("<IBBH", table, 24 * index)
            if section == 0 and name and info >> 4 != _WEAK:
                name_indices.append(name)
        return self._read_strings(name_indices)

    def _read_strings(self, indices: list[int]) -> list[str]:
        size = self._dynamic.get(_STRSZ, 0)
        if size > MAX_BLOCK_BYTES or len(indices) < 8:
            return [self._read_string(index) for index in indices]
        block = self.read(self._table_offset(_STRTAB), size)
        names = []
        for index in indices:
            end = block.find(b"\0", index, index + MAX_NAME_LENGTH)
            if end < 0:
                raise ElfError("damaged: a name without an end")
            names.append(block[index:end].decode("latin-1"))
        return names

    def _unhashed_count(self) -> int:
        """Return how many symbols precede the hashed ones; the undefined symbols are among them."""
        if _GNU_HASH in self._dynamic:
            count = struct.unpack("<I", self.read(self._table_offset(_GNU_HASH) + 4, 4))[0]
            if count <= 1:  # a library without exports has 1 here, however many symbols it needs
                count = self._symbol_count()
        elif _HASH in self._dynamic:
            count = struct.unpack("<I", self.read(self._table_offset(_HASH) + 4, 4))[0]
        else:
            raise ElfError("it has no symbol hash table")
        if count > MAX_SYMBOLS:
            raise ElfError("damaged: %d symbols" % count)
        return int(count)

    def _symbol_count(self) -> int:
        """Return the number of dynamic symbols if the hash table does not state it."""
        for _, size in self.find_sections(".dynsym"):
            return size // 24
        # There are no section headers, but linkers place the string table directly after the symbols.
        return max(self._table_offset(_STRTAB) - self._table_offset(_SYMTAB), 24) // 24

    def defines_symbol(self, name: str) -> bool:
        """Return whether the file exports `name`, with one lookup in its GNU hash table, as the loader does."""
        if _GNU_HASH not in self._dynamic:
            raise ElfError("it has no GNU hash table")
        table = self._table_offset(_GNU_HASH)
        buckets, first, bloom_words, shift = struct.unpack("<IIII", self.read(table, 16))
        if not buckets or not bloom_words or bloom_words & (bloom_words - 1):
            raise ElfError("damaged: a hash table without buckets")
        hash_value = gnu_hash(name)
        bloom_word = struct.unpack("<Q", self.read(table + 16 + 8 * (hash_value // 64 & (bloom_words - 1)), 8))[0]
        if not (bloom_word >> (hash_value & 63)) & (bloom_word >> (hash_value >> (shift & 31) & 63)) & 1:
            return False
        chains = table + 16 + 8 * bloom_words + 4 * buckets
        index = struct.unpack("<I", self.read(chains - 4 * buckets + 4 * (hash_value % buckets), 4))[0]
        if index < first:
            return False
        for position in range(index, index + MAX_CHAIN_LENGTH):
            value = struct.unpack("<I", self.read(chains + 4 * (position - first), 4))[0]
            if value | 1 == hash_value | 1 and self._is_defined_as(position, name):
                return True
            if value & 1:
                return False
        raise ElfError("damaged: a hash chain without an end")

    def _is_defined_as(self, position: int, name: str) -> bool:
        index, _, _, section = struct.unpack("<IBBH", self.read(self._table_offset(_SYMTAB) + 24 * position, 8))
        expected = name.encode("latin-1") + b"\0"
        return section != 0 and self.read(self._table_offset(_STRTAB) + index, len(expected)) == expected

    def find_sections(self, *names: str) -> list[tuple[int, int]]:
        """Return offset and size of the sections called `names`; empty if the section headers are stripped."""
        if (
            self._section_header_size != 64
            or not self._section_count
            or self._section_names_index >= self._section_count
        ):
            return []
        table = self.read(self._section_offset, 64 * self._section_count)
        titles = self._read_section(table, self._section_names_index)
        extents = []
        for index in range(self._section_count):
            start = struct.unpack_from("<I", table, 64 * index)[0]
            title = titles[start : titles.find(b"\0", start)].decode("latin-1")
            if title in names:
                extents.append(struct.unpack_from("<QQ", table, 64 * index + 24))
        return extents

    def _read_section(self, table: bytes, index: int) -> bytes:
        offset, size = struct.unpack_from("<QQ", table, 64 * index + 24)
        return self.read(offset, size)


def gnu_hash(name: str) -> int:
    """Return the GNU hash of a symbol name."""
    hash_value = 5381
    for byte in name.encode("latin-1"):
        hash_value = (hash_value * 33 + byte) & 0xFFFFFFFF
    return hash_value


def _find_highest_versions(names: list[str]) -> dict[str, str]:
    """Return the highest version per namespace among the symbol versions `names`; non-numeric versions are ignored."""
    highest: dict[str, tuple[int, ...]] = {}
    for name in names:
        namespace, _, text = name.partition("_")
        parts = text.split(".")
        if all(part.isdecimal() and len(part) < 6 for part in parts):
            version = tuple(map(int, parts))
            highest[namespace] = max(highest.get(namespace, ()), version)
    return {namespace: ".".join(map(str, version)) for namespace, version in highest.items()}
