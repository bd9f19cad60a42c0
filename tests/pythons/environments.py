"""Virtual environments that hold attncheck as a release is installed, and its oldest or newest dependencies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args

from packaging.requirements import Requirement

from attncheck.core.io.toml import parse_toml

Dependencies = Literal["oldest", "newest"]
DEPENDENCIES: tuple[Dependencies, ...] = get_args(Dependencies)
ROOT = Path(__file__).resolve().parents[2]
CLASSIFIER = "Programming Language :: Python :: 3."


def read_project() -> dict[str, Any]:
    """Return pyproject.toml's table [project]."""
    project: dict[str, Any] = parse_toml((ROOT / "pyproject.toml").read_text(encoding="utf-8"), "pyproject.toml")[
        "project"
    ]
    return project


def list_versions() -> list[str]:
    """Return the versions of Python that pyproject.toml names."""
    return [
        f"3.{name.removeprefix(CLASSIFIER)}" for name in read_project()["classifiers"] if name.startswith(CLASSIFIER)
    ]


def build_wheel(folder: Path) -> Path:
    """Return the wheel of the working tree."""
    _run_pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    return next(folder.glob("attncheck-*.whl"))


def make_environment(folder: Path, interpreter: str, wheel: Path, dependencies: Dependencies) -> Path:
    """Return the `bin` of a new environment that holds the wheel and what it requires.

    The oldest are the lower bounds of pyproject.toml, and those of Typer, which reads the command line through click.
    """
    subprocess.run([interpreter, "-I", "-m", "venv", "--without-pip", "--clear", str(folder)], check=True)
    pins = pin_oldest(read_project()["dependencies"]) if dependencies == "oldest" else {}
    _install(folder, str(wheel), *pins.values())
    if dependencies == "oldest":
        _install(folder, *(pins | pin_oldest(read_requirements(folder, "typer")) | pins).values())
    return folder / "bin"


def pin_oldest(requirements: Iterable[str]) -> dict[str, str]:
    """Return for each required package the requirement of its oldest release that is allowed."""
    pins = {}
    for requirement in map(Requirement, requirements):
        (bound,) = (spec.version for spec in requirement.specifier if spec.operator == ">=")
        marker = f"; {requirement.marker}" if requirement.marker else ""
        pins[requirement.name] = f"{requirement.name}=={bound}{marker}"
    return pins


def read_requirements(folder: Path, name: str) -> list[str]:
    """Return what a package that is installed in an environment requires."""
    site = str(next(folder.glob("lib/python*/site-packages")))
    return next(iter(metadata.distributions(name=name, path=[site]))).requires or []


def list_packages(folder: Path) -> str:
    """Return the packages of an environment with their versions."""
    site = str(next(folder.glob("lib/python*/site-packages")))
    versions = {dist.metadata["Name"].lower(): dist.version for dist in metadata.distributions(path=[site])}
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()) if name != "attncheck")


def _install(folder: Path, *requirements: str) -> None:
    _run_pip("--python", str(folder / "bin" / "python"), "install", *requirements)


def _run_pip(*argv: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *argv]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"pip {' '.join(argv)}\n{done.stderr}")
