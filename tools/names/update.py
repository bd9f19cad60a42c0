"""Regenerates attncheck/lint/names: each table from the releases that it has and the newer ones of the package index.

    python -m tools.names.update [TABLE …]        (downloads some gigabytes; all tables if none is named)

Of transformers and TRL the last patch of each minor release is kept, of the other frameworks every release. Releases
older than the newest one of a table are not looked for: each table says in its generator why it begins where it does.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from packaging.version import Version

NAMES = Path(__file__).parents[2] / "attncheck" / "lint" / "names"
ONE_A_MINOR = ("transformers", "trl")
FROM_SDIST = ("axolotl",)  # releases up to 0.16.1 have no wheel


def add_new_releases(known: Sequence[str], available: Iterable[str], one_a_minor: bool) -> list[str]:
    """Return the releases of a table, oldest first, with those that are newer than its newest one."""
    newest = max(map(Version, known))
    new = [version for version in map(Version, available) if version > newest and not version.is_prerelease]
    versions = sorted({*map(Version, known), *new})
    if one_a_minor:
        last = {version.release[:2]: version for version in versions}
        replaced = {version for version in versions if version >= newest and version != last[version.release[:2]]}
        versions = [version for version in versions if version not in replaced]
    spelt = {Version(text): text for text in known}
    return [spelt.get(version, str(version)) for version in versions]


def list_available(package: str) -> list[str]:
    """Return the releases of a package that the index has."""
    command = [sys.executable, "-m", "pip", "index", "versions", package, "--json"]
    versions: list[str] = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=600).stdout)[
        "versions"
    ]
    return versions


def download_releases(package: str, versions: Iterable[str], folder: Path) -> None:
    """Put the archives of these releases into a folder."""
    form = [] if package in FROM_SDIST else ["--only-binary", ":all:"]
    for version in versions:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *form, "--dest", str(folder)]
        subprocess.run([*command, f"{package}=={version}"], check=True, timeout=600)


def update_table(table: str) -> None:
    """Write one table again, if the index has a newer release."""
    package = table.replace("_", "-")
    known = json.loads((NAMES / f"{table}.json").read_text(encoding="utf-8"))["versions"]
    versions = add_new_releases(known, list_available(package), table in ONE_A_MINOR)
    if versions == known:
        print(f"{table}: {known[-1]} is the newest release")
        return
    generator = importlib.import_module(f"tools.names.{table}")
    if table == "verl":  # fetches its wheels itself
        generator.main(versions)
        return
    with tempfile.TemporaryDirectory() as folder:
        download_releases(package, versions, Path(folder))
        if table == "trl":  # whose launcher is accelerate's
            download_releases("accelerate", list_available("accelerate")[:1], Path(folder))
        generator.main(Path(folder))
    print(f"{table}: {known[-1]} -> {versions[-1]}")


def main(tables: Sequence[str]) -> None:
    """Update the tables that are named, or all."""
    for table in tables or sorted(path.stem for path in NAMES.glob("*.json")):
        update_table(table)


if __name__ == "__main__":
    main(sys.argv[1:])
