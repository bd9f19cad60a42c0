"""Virtual environments laid by hand, in milliseconds: one that attncheck lives in alone, and ones to be examined."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
TORCH_FILES = {
    "torch/__init__.py": "from torch.version import __version__\n",
    "torch/version.py": "__version__ = '2.11.0'\ncuda = None\nhip = None\n",
    "torch-2.11.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0\n",
}


def make_venv(folder: Path, files: dict[str, str] | None = None) -> Path:
    """Make what `python -m venv --without-pip` makes, with `files` in its site-packages, and return its interpreter."""
    base = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    (folder / "bin").mkdir(parents=True)
    for name in ("python", "python3"):
        (folder / "bin" / name).symlink_to(base)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    site_packages(folder).mkdir(parents=True)
    for name, text in (files or {}).items():
        path = site_packages(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "bin" / "python"


def site_packages(folder: Path) -> Path:
    return folder / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"


def add_attncheck(folder: Path) -> None:
    """Install attncheck and what it needs into an environment, as links to what is installed here."""
    names, wanted = set[str](), ["typer", "rich", "packaging", "ruamel.yaml", "tomli"]
    while wanted:
        name = re.sub(r"[-_.]+", "-", wanted.pop()).lower()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if name in names:
            continue
        names.add(name)
        requirements = [Requirement(text) for text in distribution.requires or ()]
        wanted += [item.name for item in requirements if item.marker is None or item.marker.evaluate({"extra": ""})]
        site = Path(str(distribution.locate_file("")))
        for top in {str(file).split("/")[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site_packages(folder) / top).exists():
                (site_packages(folder) / top).symlink_to(site / top)
    (site_packages(folder) / "attncheck").symlink_to(ROOT / "attncheck")
    write_script(folder / "bin" / "attncheck", f"#!{folder}/bin/python", "from attncheck.__main__ import main; main()")


def write_script(path: Path, *lines: str) -> Path:
    """Write a program that its first line's interpreter runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)
    return path


def run_tool(folder: Path, *argv: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the attncheck of an environment, which is not activated, with no other variable than those."""
    environ = {"PATH": "/nowhere", "HOME": str(cwd), "XDG_CACHE_HOME": str(cwd / "cache"), **variables}
    command = [str(folder / "bin" / "attncheck"), *argv]
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=120)


def bin_path(*folders: Path) -> str:
    """Return a PATH of the programs of these environments."""
    return os.pathsep.join(str(folder / "bin") for folder in folders)
