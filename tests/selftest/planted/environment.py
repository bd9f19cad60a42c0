"""Makes a throwaway environment: its own interpreter with the packages of a healthy training job, as stubs.

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

from attncheck.selftest.faults import Sandbox
from tests.selftest.planted import compiled, nvidia, stubs

VERSIONS = {  # a stack whose versions are compatible
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


def site_packages(sandbox: Sandbox) -> Path:
    """Return the site-packages of the environment that `setup_environment` has made."""
    return next((sandbox.folder / "env" / "lib").iterdir()) / "site-packages"


def setup_environment(sandbox: Sandbox) -> None:
    """Make the environment and let the check examine it, without any variable, home or cache of the user's."""
    python = _make_venv(sandbox)
    for name, version in VERSIONS.items():
        install_distribution(sandbox, name, version)
    for file, data in stubs.build_libraries().items():
        write_module(sandbox, f"torch/lib/{file}", data)
    tools = sandbox.folder / "tools"
    nvidia.install_nvidia_smi(tools)
    home = sandbox.folder / "home"
    home.mkdir()
    sandbox.hermetic = True
    sandbox.environ |= {
        "PATH": f"{tools}:/usr/bin:/bin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PIP_CONFIG_FILE": os.devnull,
        "TMPDIR": str(sandbox.folder),
    }
    sandbox.python = str(python)


def _make_venv(sandbox: Sandbox) -> Path:
    """Make what `python -m venv --without-pip` makes, and return its interpreter."""
    base = _base_interpreter(Path(sandbox.python))
    folder = sandbox.folder / "env"
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.symlink_to(base)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    name = base.name if base.name.startswith("python3.") else f"python3.{_minor_version(base)}"
    (folder / "lib" / name / "site-packages").mkdir(parents=True)
    return python


def _base_interpreter(python: Path) -> Path:
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


def _minor_version(base: Path) -> int:
    libraries = sorted((base.parent.parent / "lib").glob("python3.*"))
    names = [path.name.partition(".")[2] for path in libraries if (path / "os.py").is_file()]
    return int(names[-1]) if names and base != Path(sys.executable).resolve() else sys.version_info[1]


def install_distribution(
    sandbox: Sandbox,
    name: str,
    version: str,
    modules: Mapping[str, str] | None = None,
    requires: Iterable[str] | None = None,
) -> Path:
    """Install a distribution as a wheel would be, of `modules` (path -> source), and return its metadata folder.

    If none are given, they are the stub's, or one empty module.
    """
    for old in _metadata_folders(sandbox, name):
        shutil.rmtree(old)
    if modules is None:
        stub_version = VERSIONS.get(name, version)
        modules = {path: text.replace(stub_version, version) for path, text in stubs.MODULES.get(name, {}).items()}
        modules = modules or {f"{name.replace('-', '_')}/__init__.py": f"__version__ = '{version}'\n"}
    if requires is None:
        requires = stubs.REQUIRES.get(name, ())
    return write_distribution(sandbox, name, version, modules, requires)


def _metadata_folders(sandbox: Sandbox, name: str) -> list[Path]:
    """Return the metadata folders of a distribution; flash-attn's are not flash-attn-3's."""
    return sorted(site_packages(sandbox).glob(f"{name.replace('-', '_')}-*.dist-info"))


def write_distribution(
    sandbox: Sandbox, name: str, version: str, modules: Mapping[str, str], requires: Iterable[str] = ()
) -> Path:
    """Write a distribution alongside any other of its name, and return its metadata folder."""
    for path, source in modules.items():
        write_module(sandbox, path, source)
    info = site_packages(sandbox) / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    fields = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(fields + "".join(f"Requires-Dist: {requirement}\n" for requirement in requires))
    (info / "INSTALLER").write_text("pip\n")
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    lines = [f"{path},sha256={_record_digest(source)},{len(source.encode())}" for path, source in modules.items()]
    lines += [f"{info.name}/{file},," for file in ("METADATA", "INSTALLER", "WHEEL", "RECORD")]
    (info / "RECORD").write_text("\n".join(lines) + "\n")
    return info


def _record_digest(source: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(source.encode()).digest()).rstrip(b"=").decode()


def remove_distributions(sandbox: Sandbox, *names: str) -> None:
    """Uninstall distributions, with the modules that their RECORD names."""
    for name in names:
        for info in _metadata_folders(sandbox, name):
            for line in (info / "RECORD").read_text().splitlines():
                (site_packages(sandbox) / line.partition(",")[0]).unlink(missing_ok=True)
            shutil.rmtree(info)
        package = site_packages(sandbox) / name.replace("-", "_")
        if package.is_dir() and not any(path.is_file() for path in package.rglob("*")):
            shutil.rmtree(package)


def write_module(sandbox: Sandbox, path: str, source: str | bytes) -> Path:
    """Write a file into the environment, RECORD or not, and return its path."""
    return sandbox.write_file(f"{site_packages(sandbox).relative_to(sandbox.folder)}/{path}", source)


def add_extension(sandbox: Sandbox, name: str, distribution: str, data: bytes, tag: str = "") -> Path:
    """Add the compiled module `name` to a distribution, tagged for this Python unless `tag` says another."""
    path = site_packages(sandbox) / (name.replace(".", "/") + (tag or _extension_suffix(sandbox)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    (info,) = _metadata_folders(sandbox, distribution)
    with (info / "RECORD").open("a") as stream:
        stream.write(f"{path.relative_to(site_packages(sandbox))},,{len(data)}\n")
    return path


def _extension_suffix(sandbox: Sandbox) -> str:
    """Return the suffix of compiled modules of the sandbox's Python; its platform part is ours."""
    version = site_packages(sandbox).parent.name.removeprefix("python").replace(".", "")
    return re.sub(r"cpython-\d+", f"cpython-{version}", compiled.extension_suffix())
