"""The fixes that a release lacks are listed for the launches that run the changed code, and for no other."""

import re
from dataclasses import replace

import pytest
from packaging.version import Version

from attncheck.core.launch import Source
from attncheck.core.results.lint import launches_of
from attncheck.doctor.knowledge import later_fixes
from attncheck.lint import run
from attncheck.lint.later_fixes import IMPLIED, IN_SETTINGS
from tests import snapshots as s
from tests.lint import launches

TRL = "accelerate launch --num_processes 8 -m trl.scripts.{} --model_name_or_path m --dataset_name d "
FSDP = TRL.format("sft") + "--use_fsdp true"
SWIFT = "swift rlhf --rlhf_type {} --model m --dataset d "


def list_numbers(text: str, **versions: str) -> set[int]:
    snapshot = s.without_packages(s.h200(), *IMPLIED)
    for name, version in versions.items():
        snapshot = s.with_package(snapshot, name.replace("_", "-"), version)
    source = Source("run.sh", text, "shell")
    report = run.run(snapshot, run.Request((source,)), launches.read_model, launches.read_no_file)
    return {fix.number for launch in launches_of(report) for fix in launch.job.fixed_later}


@pytest.mark.parametrize(
    ("number", "text", "version", "others"),
    [
        (6357, TRL.format("gkd"), {"trl": "1.8.0"}, [(TRL.format("dpo"), "1.8.0"), (TRL.format("gkd"), "1.9.0")]),
        (
            3674,
            TRL.format("sft") + "--use_liger_kernel true --completion_only_loss true",
            {"trl": "0.19.1"},
            [(TRL.format("sft") + "--completion_only_loss true", "0.19.1"), (TRL.format("sft"), "0.19.1")],
        ),
    ],
)
def test_a_fix_is_listed_for_launches_that_run_its_code(
    number: int, text: str, version: dict[str, str], others: list[tuple[str, str]]
) -> None:
    assert number in list_numbers(text, **version)
    for other, release in others:
        assert number not in list_numbers(other, trl=release)


def test_a_package_counts_only_with_its_feature() -> None:
    text = TRL.format("sft")
    assert not list_numbers(text, trl="99.0", deepspeed="0.17.6")
    assert list_numbers(text + "--deepspeed zero3.json", trl="99.0", deepspeed="0.17.6")


def test_the_table_is_sound() -> None:
    packages = {*IMPLIED, "trl", "axolotl", "ms-swift", "llamafactory", "verl", "openrlhf"}
    known = {
        *IN_SETTINGS,
        "packing",
        "liger",
        "fsdp",
        "tensor_parallel",
        "sequence_parallel",
        "checkpointing",
        "multimodal",
    }
    for package in packages:
        rows = later_fixes.list_missing_fixes(package, "0.0.1") + [
            fix for fix in later_fixes._load_fixes()[package] if not fix.is_missing_in(Version("0.0.1"))
        ]
        assert rows
        for fix in rows:
            assert not fix.until or Version(fix.since) < Version(fix.until), fix
            assert all(need in known or re.fullmatch(r"model:[a-z0-9|]+", need) for need in fix.needs), fix
            assert fix.number and fix.title and fix.title == fix.title.strip(), fix


def test_a_version_that_is_not_one_lacks_nothing() -> None:
    assert later_fixes.list_missing_fixes("trl", "main") == [] == later_fixes.list_missing_fixes("other", "1.0")
    assert replace(later_fixes.list_missing_fixes("trl", "1.0.0")[0], until="").is_missing_in(Version("99"))
