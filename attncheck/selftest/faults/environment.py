"""Lays a throwaway environment: an interpreter of its own with the packages of a healthy training job, as stubs.

Everything that a probe reads is there, and small: metadata with RECORD, modules that answer like the real ones, torch's
libraries with a few symbols, and an nvidia-smi that prints two H200s joined by NVLink.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from attncheck.selftest.faults import Ground, compiled, nvidia, stubs

VERSIONS = {  # a stack in which everything fits
    "torch": "2.11.0",
    "triton": "3.6.0",
    "nvidia-nccl-cu13": "2.28.9",
    "transformers": "4.57.6",
    "flash-attn": "2.8.3",
    "ring-flash-attn": "0.1.8",
    "trl": "0.24.0",
    "packaging": "25.0",
    "numpy": "2.3.0",
    "einops": "0.8.2",
}


def lay(ground: Ground) -> None:
    """Lay the environment, and let the check examine it: no variable of the user's is seen, nor any home or cache."""
    python = _interpreter(ground)
    for name, version in VERSIONS.items():
        install(ground, name, version)
    for file, data in stubs.libraries().items():
        ground.write(f"{ground.site.relative_to(ground.folder)}/torch/lib/{file}", data)
    tools = ground.folder / "tools"
    nvidia.machine(tools)
    home = ground.folder / "home"
    home.mkdir()
    ground.hermetic = True
    ground.environ |= {
        "PATH": f"{tools}:/usr/bin:/bin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PIP_CONFIG_FILE": os.devnull,
        "TMPDIR": str(ground.folder),
    }
    ground.python = str(python)


def _interpreter(ground: Ground) -> Path:
    """Make what `python -m venv --without-pip` makes, and return its interpreter."""
    base = _base(Path(ground.python))
    folder = ground.folder / "env"
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.symlink_to(base)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    name = base.name if base.name.startswith("python3.") else f"python3.{_minor(base)}"
    (folder / "lib" / name / "site-packages").mkdir(parents=True)
    return python


def _base(python: Path) -> Path:
    """Return the interpreter that a virtual environment was made of."""
    if str(python) == sys.executable:
        return Path(getattr(sys, "_base_executable", "") or sys.executable).resolve()
    settings = python.absolute().parent.parent / "pyvenv.cfg"
    real = python.resolve()
    if settings.is_file() and real.parent == python.absolute().parent:  # a copy
        for line in settings.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "home":
                return (Path(value.strip()) / real.name).resolve()
    return real


def _minor(base: Path) -> int:
    libraries = sorted((base.parent.parent / "lib").glob("python3.*"))
    names = [path.name.partition(".")[2] for path in libraries if (path / "os.py").is_file()]
    return int(names[-1]) if names and base != Path(sys.executable).resolve() else sys.version_info[1]


def install(
    ground: Ground,
    name: str,
    version: str,
    modules: Mapping[str, str] | None = None,
    requires: Iterable[str] | None = None,
) -> Path:
    """Install a distribution as a wheel would be, of `modules` (path -> source), and return its metadata folder.

    Where none are given, they are the stub's, or one empty module.
    """
    for old in _infos(ground, name):
        shutil.rmtree(old)
    if modules is None:
        own = VERSIONS.get(name, version)
        modules = {path: text.replace(own, version) for path, text in stubs.MODULES.get(name, {}).items()}
        modules = modules or {f"{name.replace('-', '_')}/__init__.py": f"__version__ = '{version}'\n"}
    return metadata(ground, name, version, modules, stubs.REQUIRES.get(name, ()) if requires is None else requires)


def _infos(ground: Ground, name: str) -> list[Path]:
    """Return the metadata folders of a distribution; flash-attn's are not flash-attn-3's."""
    return sorted(ground.site.glob(f"{name.replace('-', '_')}-*.dist-info"))


def metadata(ground: Ground, name: str, version: str, modules: Mapping[str, str], requires: Iterable[str] = ()) -> Path:
    """Write a distribution beside any other of its name, and return its metadata folder."""
    for path, source in modules.items():
        ground.write(f"{ground.site.relative_to(ground.folder)}/{path}", source)
    info = ground.site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(head + "".join(f"Requires-Dist: {each}\n" for each in requires))
    (info / "INSTALLER").write_text("pip\n")
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    lines = [f"{path},sha256={_digest(source)},{len(source.encode())}" for path, source in modules.items()]
    lines += [f"{info.name}/{each},," for each in ("METADATA", "INSTALLER", "WHEEL", "RECORD")]
    (info / "RECORD").write_text("\n".join(lines) + "\n")
    return info


def _digest(source: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(source.encode()).digest()).rstrip(b"=").decode()


def remove(ground: Ground, *names: str) -> None:
    """Uninstall distributions, with the modules that their RECORD names."""
    for name in names:
        for info in _infos(ground, name):
            for line in (info / "RECORD").read_text().splitlines():
                (ground.site / line.partition(",")[0]).unlink(missing_ok=True)
            shutil.rmtree(info)
        package = ground.site / name.replace("-", "_")
        if package.is_dir() and not any(path.is_file() for path in package.rglob("*")):
            shutil.rmtree(package)


def module(ground: Ground, path: str, source: str) -> Path:
    """Write a module into the environment, RECORD or not, and return its path."""
    return ground.write(f"{ground.site.relative_to(ground.folder)}/{path}", source)


def extension(ground: Ground, name: str, distribution: str, data: bytes, tag: str = "") -> Path:
    """Add the compiled module `name` to a distribution, tagged for this Python unless `tag` says another."""
    path = ground.site / (name.replace(".", "/") + (tag or _suffix(ground)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    (info,) = _infos(ground, distribution)
    with (info / "RECORD").open("a") as stream:
        stream.write(f"{path.relative_to(ground.site)},,{len(data)}\n")
    return path


def _suffix(ground: Ground) -> str:
    """Return how compiled modules of the throwaway environment's Python are called; the platform's part is ours."""
    version = ground.site.parent.name.removeprefix("python").replace(".", "")
    return re.sub(r"cpython-\d+", f"cpython-{version}", compiled.suffix())
