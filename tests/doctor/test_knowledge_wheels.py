"""The tables of attncheck.doctor.knowledge, derived again from the released wheels.

Set ATTNCHECK_WHEELS to a folder to keep the downloads (about 400 MB) somewhere else than in ~/.cache/attncheck.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from attncheck.doctor.knowledge import liger, ring_flash_attn, transformer_engine
from attncheck.doctor.knowledge import transformers as knowledge
from attncheck.doctor.probes.payload.packages.faults import find_faults
from tests import wheels

pytestmark = pytest.mark.slow

RINGS = ("0.1.0", "0.1.1", "0.1.2", "0.1.3", "0.1.4", "0.1.5", "0.1.6", "0.1.7", "0.1.8")
# The first and the last release on either side of every boundary.
_TRANSFORMERS = """
    4.42.4 4.43.0 4.44.0 4.46.3 4.47.0 4.48.0 4.50.3 4.51.0 4.52.4 4.53.0 4.53.3 4.54.0 4.55.0 4.55.1 4.55.4 4.57.6
    5.0.0 5.1.0 5.3.0 5.4.0 5.5.0 5.12.1 5.13.0 5.14.1 5.15.0 5.17.0 5.18.0 5.19.0 5.20.0 5.22.2 5.23.0
"""
TRANSFORMERS = _TRANSFORMERS.split()
FAULTY = ["5.2.0", "5.3.0", "5.4.0", "5.5.0", "5.5.3"]
MODULE, FORWARD = ring_flash_attn.FORWARD_FUNCTION.split(":")
ADAPTER = "ring_flash_attn.adapters.hf_adapter"
SHIM = f"{MODULE}:{ring_flash_attn.MOVED_SYMBOL}"


def contains_version(specifier: str, version: str) -> bool:
    return Version(version) in SpecifierSet(specifier)


def import_fails(ring: wheels.Wheel, transformers: wheels.Wheel, *shimmed_names: str) -> bool:
    missing = wheels.find_missing_import(
        ring, "ring_flash_attn", transformers, "transformers", frozenset(shimmed_names)
    )
    return missing is not None


@pytest.mark.parametrize("version", RINGS)
def test_parameter_counts_that_ring_flash_attn_replaces(version: str) -> None:
    counts = wheels.parameter_counts(wheels.fetch_wheel("ring-flash-attn", version), ADAPTER, FORWARD)
    assert set(counts) == ring_flash_attn.accepted_parameter_counts(Version(version))


@pytest.mark.parametrize("version", TRANSFORMERS)
def test_parameters_of_the_function_in_transformers(version: str) -> None:
    counts = wheels.parameter_counts(wheels.fetch_wheel("transformers", version), MODULE, FORWARD)
    count = ring_flash_attn.forward_parameter_count(Version(version))
    assert counts == (() if count is None else (count,))


@pytest.mark.parametrize("ring", RINGS)
@pytest.mark.parametrize("version", TRANSFORMERS)
def test_ring_flash_attn_imports_and_works(ring: str, version: str) -> None:
    wheel, transformers = wheels.fetch_wheel("ring-flash-attn", ring), wheels.fetch_wheel("transformers", version)
    fails = import_fails(wheel, transformers)
    fits = set(wheels.parameter_counts(wheel, ADAPTER, FORWARD)) & set(
        wheels.parameter_counts(transformers, MODULE, FORWARD)
    )
    assert fails is not contains_version(ring_flash_attn.imported_name(Version(ring))[1], version)
    assert (not fails and bool(fits)) is contains_version(
        ring_flash_attn.compatible_transformers(Version(ring)), version
    )


@pytest.mark.parametrize("version", TRANSFORMERS)
def test_the_missing_name_can_be_put_back(version: str) -> None:
    wheel, transformers = wheels.fetch_wheel("ring-flash-attn", "0.1.8"), wheels.fetch_wheel("transformers", version)
    in_utils = wheels.defines_name(transformers, "transformers.utils", ring_flash_attn.MOVED_SYMBOL)
    in_old_module = wheels.defines_name(transformers, MODULE, ring_flash_attn.MOVED_SYMBOL)
    fits = ring_flash_attn.forward_parameter_count(Version(version)) in ring_flash_attn.accepted_parameter_counts(
        Version("0.1.8")
    )
    is_shimmable = in_utils and not in_old_module and fits and not import_fails(wheel, transformers, SHIM)
    if Version(version) >= Version("5"):  # older ones are served by an older ring-flash-attn
        assert is_shimmable is contains_version(ring_flash_attn.COMPATIBLE_WITH_SHIM, version)
    assert (not in_utils and not in_old_module) is contains_version(ring_flash_attn.WITHOUT_SYMBOL, version)


@pytest.mark.parametrize("version", TRANSFORMERS)
def test_what_transformers_asks_of_kernels(version: str) -> None:
    required = wheels.dependency_table(wheels.fetch_wheel("transformers", version)).get("kernels")
    table_entry = knowledge.entry_for_version(knowledge.COMPATIBLE_KERNELS, Version(version))
    assert SpecifierSet((required or "").removeprefix("kernels")) == SpecifierSet(table_entry or "")


@pytest.mark.parametrize("version", TRANSFORMERS)
def test_the_oldest_torch_that_transformers_works_with(version: str) -> None:
    wheel = wheels.fetch_wheel("transformers", version)
    minimums = re.findall(r"PyTorch >= ([\d.]+) is required", wheel.read("transformers/utils/import_utils.py"))
    assert (minimums[0] if minimums else None) == knowledge.entry_for_version(knowledge.MINIMUM_TORCH, Version(version))


@pytest.mark.parametrize("version", ["0.6.5", "0.7.0", "0.8.0", "0.8.4", "0.8.5"])
def test_the_oldest_transformers_that_liger_kernel_patches(version: str) -> None:
    source = wheels.fetch_wheel("liger-kernel", version).read("liger_kernel/transformers/monkey_patch.py")
    minimums = re.findall(r'MIN_SUPPORTED_TRANSFORMERS_VERSION = version.parse\("([\d.]+)"\)', source)
    assert (f">={minimums[0]}" if minimums else None) == knowledge.entry_for_version(
        liger.TRANSFORMERS_BY_LIGER, Version(version)
    )


@pytest.mark.parametrize(
    "version", ["1.13.0", "2.1.0", "2.5.0", "2.6.0", "2.9.0", "2.10.0", "2.18.0", "2.19.0", "2.20.2"]
)
def test_the_newest_flash_attn_that_transformer_engine_uses(version: str) -> None:
    wheel = wheels.fetch_wheel("transformer-engine", version)
    sources = [wheel.read(name) for name in wheel.names if re.search(r"pytorch/(attention\.py|attention/.*\.py)", name)]
    max_versions = {
        match for source in sources for match in re.findall(r'max_version = PkgVersion\("([\d.]+\w*)"\)', source)
    }
    specifier = transformer_engine.compatible_flash_attn(Version(version))
    operators = {
        match
        for source in sources
        for match in re.findall(r"version (<=?) \w*(?:utils|Utils)?\.?\w*max_version", source)
    }
    assert len(operators) == 1
    assert specifier is not None and specifier.endswith(operators.pop() + max(max_versions, key=Version))


# What rests on either side of the fault, and what divides in another way: 4.45.2 in accelerate alone.
@pytest.mark.parametrize(
    "version", ["4.45.2", "4.46.3", "4.57.6", "5.0.0", "5.1.0", *FAULTY, "5.5.4", "5.6.0", "5.17.0", "5.23.0"]
)
def test_gradients_that_are_divided_twice(version: str, tmp_path: Path) -> None:
    """What the probe reads in each release's trainer.py is what the table says, for which no file is there."""
    (tmp_path / "transformers").mkdir()
    trainer = wheels.fetch_wheel("transformers", version).read("transformers/trainer.py")
    (tmp_path / "transformers" / "trainer.py").write_text(trainer)
    expected = contains_version(knowledge.DIVIDES_GRADIENTS_TWICE, version)
    assert find_faults("transformers", str(tmp_path)) == {"ATN457": expected}


@pytest.mark.parametrize("version", ["1.1.0", "1.8.1", "1.15.0"])
def test_accelerate_divides_the_loss_unless_deepspeed_runs(version: str) -> None:
    source = wheels.fetch_wheel("accelerate", version).read("accelerate/accelerator.py")
    guard = "if self.distributed_type != DistributedType.DEEPSPEED:"
    assert re.search(re.escape(guard) + r"\n(?: +#.*\n)* +loss = loss / self\.gradient_accumulation_steps\n", source)
