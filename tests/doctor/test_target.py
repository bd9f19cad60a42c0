"""`--target`: another machine, as its text names it, and what is wrong with it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from attncheck.core.facts import Absent, Known, MissingFact, Unreadable
from attncheck.core.io.errors import BadUsage
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.needs import Need
from attncheck.doctor.target import apply_target, forget_environment, parse_target
from tests import snapshots as s
from tests.conftest import Run

NEEDS: frozenset[Need] = frozenset({"flash", "ring"})


def finding_codes(text: str, snapshot: Snapshot | None = None) -> set[str]:
    return {f.code for f in engine.run_rules(apply_target(snapshot or s.laptop(), parse_target(text)), NEEDS).findings}


@pytest.mark.parametrize(
    ("text", "gpus", "capability"),
    [
        ("h100x8", 8, (9, 0)),
        ("H200", 1, (9, 0)),
        ("v100x4,driver=470", 4, (7, 0)),
        ("sm_90,gpus=8,driver=580,torch=2.9,transformers=5.15", 8, (9, 0)),
        ("h100x8,torch==2.9,transformers==5.15", 8, (9, 0)),
        ("gpus=2,sm_120", 2, (12, 0)),
        ("sm80x2", 2, (8, 0)),
        ("rtx4090x2", 2, (8, 9)),
        ("rtx4090", 1, (8, 9)),
        ("rtx3090", 1, (8, 6)),
        ("rtx5090", 1, (12, 0)),
    ],
)
def test_words_are_read(text: str, gpus: int, capability: tuple[int, int]) -> None:
    snapshot = apply_target(s.laptop(), parse_target(text))
    assert isinstance(snapshot.devices, Known)
    assert len(snapshot.visible_devices()) == gpus
    assert {device.compute_capability for device in snapshot.devices.value} == {Known(capability)}


def test_versions_take_the_place_of_those_here_and_none_removes() -> None:
    snapshot = apply_target(
        s.h200(), parse_target("a100,torch=2.6,transformers=4.51.3,flash-attn=none,Ring.Flash_Attn=0.1.7,driver=550")
    )
    versions = [snapshot.version(name) for name in ("torch", "transformers", "ring-flash-attn")]
    assert [str(version.value) for version in versions if isinstance(version, Known)] == [
        "2.6",
        "4.51.3",
        "0.1.7",
    ]
    assert isinstance(snapshot.package("flash-attn"), Absent)
    assert not [binary for binary in snapshot.binaries if binary.distribution == "flash-attn"]
    assert isinstance(snapshot.imports, Absent), "nothing was imported there"
    assert isinstance(snapshot.driver, Known) and snapshot.driver.value.version == "550"


def test_what_is_not_said_stays_as_it_is_here() -> None:
    snapshot = apply_target(s.h200(), parse_target("transformers=5.15.0"))
    assert snapshot.devices == s.h200().devices
    assert snapshot.version("flash-attn") == s.h200().version("flash-attn")
    assert isinstance(apply_target(s.h200(), parse_target("cpu")).devices, Absent)
    assert isinstance(apply_target(s.laptop(), parse_target("h100")).driver, Unreadable)


def test_rules_judge_the_target() -> None:
    assert "ATN206" in finding_codes("v100x8", s.h200())
    assert "ATN206" not in finding_codes("h100x8", s.h200())
    assert finding_codes("h100,driver=470,torch=2.9", s.h200()) - finding_codes(
        "h100,driver=580,torch=2.9", s.h200()
    ) <= {"ATN201"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h10x8", "did you mean h100?"),
        ("spam", "no GPU of that name"),
        ("gpus=8", "which kind of GPU"),
        ("h100,gpus=many", "not a number of GPUs"),
        ("h100,torch=new", "is not a version"),
        ("h100,torch>=2.6", "write NAME=VERSION"),
        ("h100,torch~=2.6", "write NAME=VERSION"),
        ("h100,driver=new", "not a driver's version"),
    ],
)
def test_a_wrong_word_is_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(BadUsage, match=message.replace("?", r"\?")) as caught:
        parse_target(text)
    assert "\n" not in str(caught.value)


def test_doctor_takes_a_target(attncheck: Run) -> None:
    process = attncheck("doctor", "--target", "v100x8", "--profile", "flash", "--format", "json")
    assert process.returncode == 1
    report = json.loads(process.stdout)
    assert "ATN206" in {finding["code"] for finding in report["findings"]}
    assert len(report["snapshot"]["devices"]["known"]) == 8
    for arguments in (("--target", "h100", "--lane", "device"), ("--target", "nonsense")):
        refused = attncheck("doctor", *arguments)
        assert refused.returncode == 2
        assert refused.stderr.count("\n") == 1 and not refused.stdout


def test_what_a_target_does_not_name_is_neither_there_nor_missing() -> None:
    snapshot = apply_target(s.without_packages(s.h200(), "flash-attn"), parse_target("h100x8,liger-kernel=none"))
    assert isinstance(snapshot.package("flash-attn"), Unreadable)
    assert isinstance(snapshot.package("liger-kernel"), Absent)
    assert snapshot.has("torch") and not snapshot.lists("flash-attn")
    with pytest.raises(MissingFact, match="it is not known which other packages are installed"):
        snapshot.has("flash-attn")


def test_beside_an_environment_of_attnchecks_own_nothing_here_counts() -> None:
    own = s.with_package(replace(s.h200(), distributions=(), torch=Absent("not installed")), "rich", "15.0")
    snapshot = apply_target(own, parse_target("torch=2.9"))
    assert [entry.name for entry in snapshot.distributions] == ["torch"]
    assert isinstance(snapshot.devices, Unreadable) and not snapshot.environ
    assert isinstance(apply_target(own, parse_target("h100")).torch, Unreadable)
    forgotten = forget_environment(own)
    codes = {finding.code for finding in engine.run_rules(forgotten, NEEDS).findings}
    assert codes == {"ATN905"}, "an environment that nobody knows has no other finding"


def test_every_rule_bears_packages_that_are_not_known() -> None:
    """Launches and models of all kinds: nothing is called missing, no rule crashes, what cannot be judged is said."""
    judged = 0
    for base in (s.h200(), s.with_model(s.h200()), s.with_job(s.h200()), s.with_job(s.with_model(s.h200()))):
        for target in (
            "h100x8",
            "h100x8,torch=2.9",
            "cpu",
            "h100x8,torch=2.9,transformers=5.15.0,ring-flash-attn=0.1.8",
        ):
            unknown = apply_target(replace(base, distributions=()), parse_target(target))
            needs: frozenset[Need] = frozenset({"flash", "ring", "ulysses", "context_parallel", "rl", "liger", "job"})
            report = engine.run_rules(unknown, needs)
            judged += len(report.passed)
            assert not {"ATN901", "ATN101", "ATN452"} & {finding.code for finding in report.findings}
            assert not [finding for finding in report.findings if "not installed" in finding.message]
            assert any("is not known" in skip.reason for skip in report.skips)
    print(f"{judged} rules passed over 16 targets")


def test_a_known_problem_is_kept_where_the_rest_cannot_be_judged() -> None:
    snapshot = apply_target(
        s.with_job(s.h200(), imports=("flash_attn", "ring_flash_attn")), parse_target("h100,flash-attn=none")
    )
    snapshot = replace(snapshot, distributions=())
    report = engine.run_rules(snapshot, frozenset({"job", "flash"}), select=("ATN452",))
    assert [finding.subject for finding in report.findings] == ["flash-attn"] and not report.skips
    assert "pip install" in report.findings[0].fixes[0].text and "/" not in report.findings[0].fixes[0].text.split()[0]
