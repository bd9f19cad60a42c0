"""Small wheels and environments for tests of upgrades: packages named like real ones, with what is planted in them."""

from __future__ import annotations

import venv
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

# Not imported: setuptools gives distutils up in a process that imports pip, and torch compiles nothing there any more.
PIP_FOLDER = Path(str(metadata.distribution("pip").locate_file("pip")))


def write_wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str],
    requires: tuple[str, ...] = (),
    tag: str = "py3-none-any",
    requires_python: str = "",
) -> Path:
    """Write a wheel with these files and METADATA; return its path."""
    stem = f"{name.replace('-', '_')}-{version}"
    information = f"{stem}.dist-info"
    headers = [f"Requires-Dist: {line}" for line in requires]
    headers += [f"Requires-Python: {requires_python}"] if requires_python else []
    metadata = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *headers, ""])
    contents = {
        **files,
        f"{information}/METADATA": metadata,
        f"{information}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = "".join(f"{path},,\n" for path in [*contents, f"{information}/RECORD"])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file_name, text in {**contents, f"{information}/RECORD": record}.items():
            archive.writestr(file_name, text)
    return path


def make_environment(folder: Path, *wheels: Path) -> Path:
    """Return the Python of a new environment with these wheels, and pip."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    (site / "pip").symlink_to(PIP_FOLDER)
    return folder / "bin" / "python"


def list_files(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder with what they hold; pip's own are left out."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and "pip" not in path.parts
    }
