"""What the linker predicts is what importing shows: on recorded pairs each time, on many real ones at night."""

from __future__ import annotations

import json
import os
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from tests import wheels
from tests.doctor.links import prediction, remote_models, sites, truth
from tests.doctor.links.sites import FLASH_ATTN_STUB, Pair

TRITON, FLASH = "triton==3.5.1", FLASH_ATTN_STUB
OLD_TRL = ("trl==0.19.1", "peft==0.15.2", "accelerate==1.6.0")
NIGHTLY_PAIRS = (
    Pair("ring-flash-attn==0.1.8", "5.3.0", (FLASH, TRITON)),
    Pair("ring-flash-attn==0.1.8", "5.4.0", (FLASH, TRITON)),
    Pair("ring-flash-attn==0.1.6", "4.51.3", (FLASH, TRITON)),
    Pair("ring-flash-attn==0.1.6", "4.57.6", (FLASH, TRITON)),
    Pair("liger-kernel==0.5.10", "4.57.6", (TRITON,)),
    Pair("liger-kernel==0.5.10", "5.23.0", (TRITON,)),
    Pair("liger-kernel==0.8.5", "4.51.3", (TRITON,)),
    Pair("liger-kernel==0.8.5", "5.23.0", (TRITON,)),
    Pair("peft==0.17.1", "4.57.6", ("accelerate==1.10.1",)),
    Pair("peft==0.17.1", "5.4.0", ("accelerate==1.10.1",)),
    Pair("trl==0.19.1", "4.57.6", ("peft==0.17.1", "accelerate==1.10.1")),
    Pair("trl==0.19.1", "5.4.0", ("peft==0.21.2", "accelerate==1.15.0")),
    Pair("accelerate==1.15.0", "5.23.0"),
    Pair("llamafactory==0.9.3", "4.51.3", ("trl==0.9.6", "peft==0.15.2", "accelerate==1.6.0")),
    Pair("llamafactory==0.9.3", "5.4.0", ("trl==0.9.6", "peft==0.21.2", "accelerate==1.15.0")),
    Pair("openrlhf==0.8.11", "5.4.0", ("peft==0.21.2", "accelerate==1.15.0", FLASH, "ring-flash-attn==0.1.8")),
    Pair("verl==0.5.0", "5.4.0", ("peft==0.21.2", "accelerate==1.15.0", FLASH)),
    Pair("ms-swift==3.6.4", "5.4.0", OLD_TRL),
)
# Consumers beside the transformers that the tests run with, from wheels of less than a megabyte. Recorded by this file:
# ATTNCHECK_RECORD_LINKS=1 python -m pytest tests/doctor/links/test_import_truth.py -k recorded -n 0
RECORDED_TRANSFORMERS = "5.17.0"
RECORDED = ("ring-flash-attn==0.1.8", "ring-flash-attn==0.1.6", "liger-kernel==0.5.10", "liger-kernel==0.8.5")


def unpack_wheel(requirement: str, folder: Path) -> Path:
    """Return a folder with the files of one released wheel."""
    name, _, version = requirement.partition("==")
    with zipfile.ZipFile(wheels.fetch_wheel(name, version).path) as archive:
        archive.extractall(folder / f"{name}-{version}")
    return folder / f"{name}-{version}"


def assert_agreement(known: truth.Truth, predicted: dict[str, str], package: str) -> None:
    compared = truth.compare(known, predicted, package)
    assert not compared.false_alarms
    assert not compared.misses


@pytest.mark.parametrize(
    "consumer", [*RECORDED[::2], *(pytest.param(name, marks=pytest.mark.nightly) for name in RECORDED[1::2])]
)
def test_predictions_agree_with_recorded_imports(consumer: str, tmp_path: Path) -> None:
    if metadata.version("transformers") != RECORDED_TRANSFORMERS:
        pytest.skip(f"recorded with transformers {RECORDED_TRANSFORMERS}")
    pair = Pair(consumer, RECORDED_TRANSFORMERS)
    site_dirs = [unpack_wheel(consumer, tmp_path), sites.lay_stub_flash_attn(tmp_path / "flash")]
    if os.environ.get("ATTNCHECK_RECORD_LINKS"):
        known = truth.record_imports(pair.package, [*site_dirs, sites.lay(TRITON)], tmp_path, "--cuda")
        truth.save_truth(pair.name, [consumer, f"transformers=={RECORDED_TRANSFORMERS}", FLASH, TRITON], known)
    predicted = prediction.predict(site_dirs, consumer.partition("==")[0])
    assert_agreement(truth.load_truth(pair.name), predicted, pair.package)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("pair", NIGHTLY_PAIRS, ids=lambda pair: pair.name)
def test_predictions_agree_with_real_imports(pair: Pair, tmp_path: Path) -> None:
    predicted = prediction.predict(sites.list_sites(pair), pair.consumer.partition("==")[0])
    assert_agreement(truth.record_pair(pair, tmp_path), predicted, pair.package)


# What prediction rightly leaves open: a name that the package itself puts back, one that is bound on GPU machines only.
OPEN = {
    "axolotl==0.12.2 4.57.6": 1,  # axolotl.utils.schemas.validation sets is_flash_attn_greater_or_equal
    "ring-flash-attn==0.1.6 4.51.3": 11,  # _flash_supports_window_size is under `if flash_attn_func:`
}


@pytest.mark.slow
@pytest.mark.nightly
def test_predictions_agree_with_every_recorded_pair(capsys: pytest.CaptureFixture[str]) -> None:
    """85 pairs, every module of the consumer imported once, on 2026-11-23, under Python 3.11 and torch 2.13 for CPU."""
    rows = json.loads((truth.DATA / "pairs.json").read_text())
    hits, imports, wrong = 0, 0, []
    for row in rows:
        laid = (row["consumer"], f"transformers=={row['transformers']}", *row["beside"])
        predicted = prediction.predict([sites.lay(item) for item in laid], row["consumer"].partition("==")[0])
        named = {module for module, name in predicted.items() if not name.startswith("flash_attn")}  # a stand-in's
        imported = {f"{row['package']}.{name}".rstrip(".") for name in row["imported"].split()}
        pair = f"{row['consumer']} {row['transformers']}"
        hits, imports = hits + len(named & set(row["lacks"])), imports + len(imported)
        wrong += [f"{pair}: false: {module}" for module in sorted(named & imported)]
        missed = sorted(set(row["lacks"]) - named)
        wrong += [f"{pair}: missed: {module}" for module in missed if len(missed) != OPEN.get(pair, 0)]
    with capsys.disabled():
        print(f"\n{len(rows)} pairs: {hits} breaks predicted, {len(wrong)} wrong, {imports} modules import")
    assert not wrong


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("transformers", sites.BESIDE_TRANSFORMERS)
def test_remote_code_fails_where_it_did(transformers: str, tmp_path: Path) -> None:
    site_dirs = [sites.lay(f"transformers=={transformers}"), sites.lay(FLASH)]
    predicted = prediction.predict_files(remote_models.write_models(tmp_path), site_dirs)
    assert predicted == remote_models.load_truth()[transformers]


def test_the_recorder_tells_failures_apart(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "",
        "pkg/good.py": "import transformers",
        "pkg/name.py": "from transformers import NoSuchName",
        "pkg/guarded.py": "try:\n    from transformers import NoSuchName\nexcept ImportError:\n    pass",
        "pkg/submodule.py": "import transformers.no_such_module",
        "pkg/attribute.py": "import transformers\ntransformers.NoSuchName",
        "pkg/package.py": "import no_such_package",
        "pkg/crash.py": "import os\nos.abort()",
        "pkg/other.py": "raise ValueError('no')",
        "pkg/sub/__init__.py": "from transformers import NoSuchName",
        "pkg/sub/inner.py": "",
        "pkg/tests/test_x.py": "raise SystemExit('not imported')",
        "transformers/__init__.py": "",
    }
    for name, text in files.items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(text)
    found = truth.record_imports("pkg", [tmp_path / "site"], tmp_path, "--bare")
    kinds = {module.removeprefix("pkg."): record["kind"] for module, record in found.items()}
    assert kinds == {
        "pkg": "ok",
        "good": "ok",
        "guarded": "ok",
        "name": "missing name",
        "submodule": "missing submodule",
        "attribute": "missing attribute",
        "package": "missing package",
        "crash": "died",
        "other": "other",
        "sub": "missing name",
        "sub.inner": "missing name",
    }
    assert found["pkg.name"]["frames"] == ["pkg/name.py:1"]
    assert (found["pkg.sub.inner"]["parent"], found["pkg.sub.inner"]["name"]) == ("pkg.sub", "NoSuchName")


def test_a_comparison_counts_misses_and_false_alarms() -> None:
    lack = {"kind": "missing name", "provider": "transformers", "name": "x", "frames": ["pkg/a.py:1"]}
    elsewhere = {**lack, "frames": ["pkg/b.py:1", "peft/y.py:2"]}
    known: truth.Truth = {
        "pkg.a": lack,
        "pkg.b": elsewhere,
        "pkg.c": {"kind": "ok"},
        "pkg.d": {"kind": "ok"},
        "pkg.e": lack,
    }
    compared = truth.compare(known, {"pkg.a": "transformers:x", "pkg.c": "transformers:x"}, "pkg")
    assert compared.misses == ("pkg.e: transformers:x",)
    assert compared.false_alarms == ("pkg.c: transformers:x",)
    assert (compared.hits, compared.silent) == (1, 1)
