"""Real virtual environments built from real wheels, cheaply: one base, then copies made of hard links.

Installing or removing a package in a copy replaces names, never the contents of a shared file, so the base stays
unchanged. What no index offers for this machine is stated where it is written: `install_stub_flash_attn` is the only
stand-in.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.selftest.planted.stubs import FLASH_FUNCTIONS

ARCHIVE = os.environ.get("ATTNCHECK_FLASH_ATTN_ARCHIVE", "")
# Of thousands of modules few are imported: compiling them all takes longer than all else.
PIP_SETTINGS = {"PIP_COMPILE": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
TORCH = "torch==2.13.0"  # exactly this: a looser range pulls gigabytes of CUDA libraries


@dataclass(frozen=True)
class Environment:
    """One virtual environment."""

    folder: Path

    @property
    def python(self) -> str:
        """Return the path of its interpreter."""
        return str(self.folder / "bin" / "python")

    @property
    def site(self) -> Path:
        """Return its site-packages."""
        return next(self.folder.glob("lib/python3*/site-packages"))

    def run_pip(self, *arguments: str) -> None:
        """Run pip in it, with torch held at its version."""
        constraint = self.folder / "constraint.txt"
        constraint.write_text(TORCH + "\n")
        environment = {**os.environ, **PIP_SETTINGS, "PIP_CONSTRAINT": str(constraint)}
        result = subprocess.run([self.python, "-m", "pip", *arguments], env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr[-3000:]

    def install(self, *requirements: str) -> Environment:
        """Install requirements with pip."""
        self.run_pip("install", "--quiet", *requirements)
        return self

    def copy(self, folder: Path) -> Environment:
        """Return a copy made of hard links."""
        shutil.copytree(self.folder, folder, symlinks=True, copy_function=os.link)
        return Environment(folder)

    def run_shell(self, command: str) -> None:
        """Run a command that attncheck printed, as a user would paste it."""
        environment = {**os.environ, **PIP_SETTINGS, "PIP_CONSTRAINT": str(self.folder / "constraint.txt")}
        (self.folder / "constraint.txt").write_text(TORCH + "\n")
        result = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=600)
        assert result.returncode == 0, f"{command}\n{result.stderr[-3000:]}"

    def run_doctor(self, *arguments: str) -> dict[str, Any]:
        """Return doctor's JSON report on it."""
        command = [sys.executable, "-m", "attncheck", "doctor", "--python", self.python, "--format", "json", *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert result.returncode in (0, 1), result.stderr
        report: dict[str, Any] = json.loads(result.stdout)
        assert report["snapshot"]["problems"] == []
        return report


def create_base(folder: Path) -> Environment:
    """Return a new environment with torch and what transformers needs next to it."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    environment = Environment(folder)
    environment.install(TORCH, "numpy", "transformers==5.17.0")
    writing = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([environment.python, "-I", "-c", "import torch, transformers"], env=writing, check=True)
    return environment


def install_stub_flash_attn(environment: Environment) -> Environment:
    """Write a flash-attn 2.8.3 that imports but computes nothing: no wheel of it runs without a GPU.

    It offers the names that ring-flash-attn, OpenRLHF and transformers import, so that what comes after those imports
    is the real code of the real wheels.
    """
    write_stub_flash_attn(environment.site)
    return environment


def write_stub_flash_attn(site: Path) -> None:
    """Write that flash-attn, with the metadata of an installed distribution, into a folder of packages."""
    functions = {
        "__init__.py": '__version__ = "2.8.3"\nfrom flash_attn.flash_attn_interface import *\n',
        "flash_attn_interface.py": "".join(
            f"def {name}(*args, **kwargs):\n    raise NotImplementedError\n\n" for name in FLASH_FUNCTIONS
        ),
        "bert_padding.py": "".join(
            f"def {name}(*args, **kwargs):\n    raise NotImplementedError\n\n"
            for name in ("index_first_axis", "pad_input", "unpad_input", "rearrange")
        ),
        "utils/__init__.py": "",
        "utils/distributed.py": "def all_gather(*args, **kwargs):\n    raise NotImplementedError\n",
        "layers/__init__.py": "",
        "layers/rotary.py": "def apply_rotary_emb(*args, **kwargs):\n    raise NotImplementedError\n",
    }
    for name, text in functions.items():
        path = site / "flash_attn" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    info = site / "flash_attn-2.8.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.8.3\nRequires-Dist: torch\n")
    (info / "INSTALLER").write_text("pip\n")
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    record = [f"flash_attn/{name},," for name in functions]
    record += [f"{info.name}/{name},," for name in ("METADATA", "INSTALLER", "WHEEL", "RECORD")]
    (info / "RECORD").write_text("\n".join(record) + "\n")


def find_flash_attn_archive() -> Path | None:
    """Return the archive of a genuine flash-attn 2.8.3 build, if this machine has one."""
    shared_folder = Path(__file__).resolve().parents[3] / "shared" / "gpu"
    candidates = [Path(ARCHIVE)] if ARCHIVE else sorted(shared_folder.glob("flash_attn-*.tar.xz"))
    return next((path for path in candidates if path.is_file()), None)


def unpack_genuine_flash_attn(environment: Environment, archive: Path) -> Environment:
    """Unpack the genuine build, its extension renamed to this interpreter's tag so that it is really loaded."""
    with tarfile.open(archive) as stream:
        stream.extractall(environment.site, filter="data")
    tag = f"cpython-{sys.version_info[0]}{sys.version_info[1]}"
    for path in environment.site.glob("flash_attn_2_cuda.cpython-*.so"):
        path.rename(path.with_name(path.name.replace("cpython-312", tag)))
    record = environment.site / "flash_attn-2.8.3.dist-info" / "RECORD"
    record.write_text(record.read_text().replace("cpython-312", tag))
    return environment
