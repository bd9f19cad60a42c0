"""The tables of attncheck.doctor.knowledge, derived again from the released wheels.

Set ATTNCHECK_WHEELS to a folder to keep the downloads (about 400 MB) somewhere else than in ~/.cache/attncheck.
"""

from __future__ import annotations

import re

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from attncheck.doctor.knowledge import liger, ring_flash_attn, transformer_engine
from attncheck.doctor.knowledge import transformers as knowledge
from tests import wheels

pytestmark = pytest.mark.slow

RINGS = ("0.1.0", "0.1.1", "0.1.2", "0.1.3", "0.1.4", "0.1.5", "0.1.6", "0.1.7", "0.1.8")
# The first and the last release on either side of every boundary.
_TRANSFORMERS = """
    4.42.4 4.43.0 4.44.0 4.46.3 4.47.0 4.48.0 4.50.3 4.51.0 4.52.4 4.53.0 4.53.3 4.54.0 4.55.0 4.55.1 4.55.4 4.57.6
    5.0.0 5.1.0 5.3.0 5.4.0 5.5.0 5.12.1 5.13.0 5.14.1 5.15.0 5.17.0 5.18.0 5.19.0 5.20.0 5.22.2 5.23.0
"""
TRANSFORMERS = _TRANSFORMERS.split()
MODULE, FORWARD = ring_flash_attn.FORWARD.split(":")
ADAPTER = "ring_flash_attn.adapters.hf_adapter"
SHIM = f"{MODULE}:{ring_flash_attn.SYMBOL}"


def holds(specifier: str, version: str) -> bool:
    return Version(version) in SpecifierSet(specifier)


def import_fails(ring: wheels.Wheel, transformers: wheels.Wheel, *given: str) -> bool:
    missing = wheels.first_missing(ring, "ring_flash_attn", transformers, "transformers", frozenset(given))
    return missing is not None


@pytest.mark.parametrize("version", RINGS)
def test_parameter_counts_that_ring_flash_attn_replaces(version: str) -> None:
    found = wheels.parameter_counts(wheels.fetch("ring-flash-attn", version), ADAPTER, FORWARD)
    assert set(found) == ring_flash_attn.accepted(Version(version))


@pytest.mark.parametrize("version", TRANSFORMERS)
def test_parameters_of_the_function_in_transformers(version: str) -> None:
    found = wheels.parameter_counts(wheels.fetch("transformers", version), MODULE, FORWARD)
    count = ring_flash_attn.parameters(Version(version))
    assert found == (() if count is None else (count,))


@pytest.mark.parametrize("version", TRANSFORMERS)
@pytest.mark.parametrize("ring", RINGS)
def test_ring_flash_attn_imports_and_works(ring: str, version: str) -> None:
    wheel, transformers = wheels.fetch("ring-flash-attn", ring), wheels.fetch("transformers", version)
    fails = import_fails(wheel, transformers)
    fits = set(wheels.parameter_counts(wheel, ADAPTER, FORWARD)) & set(
        wheels.parameter_counts(transformers, MODULE, FORWARD)
    )
    assert fails is not holds(ring_flash_attn.imports(Version(ring))[1], version)
    assert (not fails and bool(fits)) is holds(ring_flash_attn.works(Version(ring)), version)


@pytest.mark.parametrize("version", TRANSFORMERS)
def test_the_missing_name_can_be_put_back(version: str) -> None:
    wheel, transformers = wheels.fetch("ring-flash-attn", "0.1.8"), wheels.fetch("transformers", version)
    elsewhere = wheels.defines(transformers, "transformers.utils", ring_flash_attn.SYMBOL)
    here = wheels.defines(transformers, MODULE, ring_flash_attn.SYMBOL)
    fits = ring_flash_attn.parameters(Version(version)) in ring_flash_attn.accepted(Version("0.1.8"))
    mends = elsewhere and not here and fits and not import_fails(wheel, transformers, SHIM)
    if Version(version) >= Version("5"):  # older ones are served by an older ring-flash-attn
        assert mends is holds(ring_flash_attn.WORKS_WITH_SHIM, version)
    assert (not elsewhere and not here) is holds(ring_flash_attn.NOWHERE, version)


@pytest.mark.parametrize("version", TRANSFORMERS)
def test_what_transformers_asks_of_kernels(version: str) -> None:
    asked = wheels.dependency_table(wheels.fetch("transformers", version)).get("kernels")
    told = knowledge.row(knowledge.KERNELS, Version(version))
    assert SpecifierSet((asked or "").removeprefix("kernels")) == SpecifierSet(told or "")


@pytest.mark.parametrize("version", TRANSFORMERS)
def test_the_oldest_torch_that_transformers_works_with(version: str) -> None:
    wheel = wheels.fetch("transformers", version)
    said = re.findall(r"PyTorch >= ([\d.]+) is required", wheel.read("transformers/utils/import_utils.py"))
    assert (said[0] if said else None) == knowledge.row(knowledge.MINIMUM_TORCH, Version(version))


@pytest.mark.parametrize("version", TRANSFORMERS)
def test_the_global_that_openrlhf_sets(version: str) -> None:
    wheel = wheels.fetch("transformers", version)
    name = wheel.file(MODULE)
    reads = name is not None and "deterministic_g" in wheel.read(name)
    assert reads is holds(knowledge.DETERMINISTIC_GLOBAL, version)


@pytest.mark.parametrize("version", ["0.6.5", "0.7.0", "0.8.0", "0.8.4", "0.8.5"])
def test_the_oldest_transformers_that_liger_kernel_patches(version: str) -> None:
    source = wheels.fetch("liger-kernel", version).read("liger_kernel/transformers/monkey_patch.py")
    found = re.findall(r'MIN_SUPPORTED_TRANSFORMERS_VERSION = version.parse\("([\d.]+)"\)', source)
    assert (f">={found[0]}" if found else None) == knowledge.row(liger.TRANSFORMERS, Version(version))


@pytest.mark.parametrize(
    "version", ["1.13.0", "2.1.0", "2.5.0", "2.6.0", "2.9.0", "2.10.0", "2.18.0", "2.19.0", "2.20.2"]
)
def test_the_newest_flash_attn_that_transformer_engine_uses(version: str) -> None:
    wheel = wheels.fetch("transformer-engine", version)
    sources = [wheel.read(name) for name in wheel.names if re.search(r"pytorch/(attention\.py|attention/.*\.py)", name)]
    found = {match for source in sources for match in re.findall(r'max_version = PkgVersion\("([\d.]+\w*)"\)', source)}
    told = transformer_engine.flash_attn(Version(version))
    signs = {
        match
        for source in sources
        for match in re.findall(r"version (<=?) \w*(?:utils|Utils)?\.?\w*max_version", source)
    }
    assert len(signs) == 1
    assert told is not None and told.endswith(signs.pop() + max(found, key=Version))
