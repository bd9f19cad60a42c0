"""Makes small real ELF libraries with gcc, and a synthetic fat binary, for the tests of the binary readers."""

from __future__ import annotations

import importlib.util
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

ERROR_NEW = "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
ERROR_OLD = "_ZN3c105ErrorC1ENS_14SourceLocationESs"


def compile_library(path: Path, source: str, *flags: str) -> Path:
    """Compile `source` (C) into the shared library `path`."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to compile a small library with")
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-O0", "-w", "-x", "c", "-", "-x", "none", *flags, "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True, capture_output=True)
    return path


def compile_exports(path: Path, *names: str, flags: tuple[str, ...] = ()) -> Path:
    """Compile a library that exports `names` as functions; its soname is its file name."""
    source = "".join(f"void {name}(void) {{}}\n" for name in names)
    return compile_library(path, source, f"-Wl,-soname,{path.name}", *flags)


def compile_extension(path: Path, *names: str, weak: tuple[str, ...] = (), flags: tuple[str, ...] = ()) -> Path:
    """Compile an extension that needs the symbols `names`, and weakly `weak`."""
    source = "".join(f"extern void {name}(void);\n" for name in names)
    source += "".join(f"extern void {name}(void) __attribute__((weak));\n" for name in weak)
    calls = "".join(f"{name}();" for name in names) + "".join(f"if ({name}) {name}();" for name in weak)
    return compile_library(path, source + f"void PyInit_x(void) {{ {calls} }}\n", *flags)


def write_fake_torch(site: Path, *exports: str, version: str = "2.11.0+cu130", cuda: str = "'13.0'") -> Path:
    """Write a torch package of a version.py and small libraries: libc10 exports `exports`."""
    folder = site / "torch"
    (folder / "lib").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('torch must not be imported')\n")
    (folder / "version.py").write_text(f"__version__ = '{version}'\ncuda: Optional[str] = {cuda}\nhip = None\n")
    compile_exports(folder / "lib/libc10.so", ERROR_NEW, *exports)
    compile_exports(folder / "lib/libtorch_cpu.so", "_ZN2at5emptyEv")
    return folder


def write_distribution(site: Path, name: str, *files: str) -> dict[str, object]:
    """Write a dist-info whose RECORD lists `files`; return it as the distributions probe does."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "RECORD").write_text("".join(f"{name},sha256=x,1\n" for name in files))
    return {"name": name, "version": "1.0", "_path": str(info)}


def build_fat_binary(*entries: tuple[int, int, int]) -> bytes:
    """Return a container of entries (kind, architecture, flags), each with a short payload."""
    body = b""
    for kind, number, flags in entries:
        body += struct.pack("<HHIQIIHHIIIQQQ", kind, 257, 64, 8, 0, 0, 1, 8, number, 0, 0, flags, 0, 0) + b"\0" * 8
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def compile_with_fat_binary(path: Path, data: bytes, section: str = ".nv_fatbin") -> Path:
    """Compile a library that holds `data` in the section of CUDA's fat binaries."""
    numbers = ",".join(map(str, data))
    attribute = f'__attribute__((section("{section}"), aligned(8), used))'
    return compile_library(
        path, f"{attribute} static const unsigned char held[] = {{{numbers}}};\nvoid PyInit_x(void) {{}}\n"
    )


def find_installed_torch() -> Path:
    """Return the directory of the installed torch, which is not imported."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        pytest.skip("torch is not installed")
    return Path(spec.origin).parent
