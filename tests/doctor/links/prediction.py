"""What the linker predicts, without importing anything: the one place where the tests of this folder call it."""

from __future__ import annotations

import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from attncheck.doctor.probes.payload.links.linker import link_distributions
from attncheck.doctor.probes.payload.links.own_code import OwnCodeLinker
from attncheck.doctor.probes.payload.links.packages import CONSUMERS


def list_path(site_dirs: list[Path]) -> list[str]:
    """Return the folders that an interpreter would look into: these, and then its own packages (torch)."""
    return [*map(str, site_dirs), sysconfig.get_paths()["purelib"]]


def list_installed(site_dirs: list[Path]) -> list[dict[str, str]]:
    """Return name and version of each distribution in these folders, the first of a name winning."""
    versions: dict[str, str] = {}
    for distribution in metadata.distributions(path=list_path(site_dirs)):
        if distribution.metadata["Name"]:
            versions.setdefault(canonicalize_name(distribution.metadata["Name"]), distribution.version)
    return [{"name": name, "version": version} for name, version in versions.items()]


def predict(site_dirs: list[Path], consumer: str) -> dict[str, str]:
    """Return the modules of a distribution whose import fails for a name that another package lacks: the name."""
    records = link_distributions(list_installed(site_dirs), list_path(site_dirs), {consumer: CONSUMERS[consumer]})
    return read_breaks([record for found in records.values() for record in found])


def predict_files(paths: list[Path], site_dirs: list[Path]) -> dict[str, str]:
    """Return the files, by stem, of a model's own code whose import fails: the name that is missing."""
    linker = OwnCodeLinker(list_installed(site_dirs), list_path(site_dirs))
    records = [record for path in paths for record in linker.link("model", [str(path)], [])]
    return {module.rpartition(".")[2]: name for module, name in read_breaks(records).items()}


def read_breaks(records: list[dict[str, Any]]) -> dict[str, str]:
    """Return the modules that records of the linker name as broken, each with what it lacks: "source:name".

    What the package puts back itself is left to the import.
    """
    certain = [record for record in records if not record["patched_by"]]
    return {module: f"{record['source']}:{record['name']}" for record in certain for module in record["breaks"]}
