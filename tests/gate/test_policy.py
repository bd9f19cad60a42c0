"""What a policy allows, until when, and what it asks beyond the rules; and the policy that `init` writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.core.findings import Allowance, Finding, Fix, Problem, by_severity
from attncheck.core.io.errors import BadUsage
from attncheck.core.io.toml import parse_toml
from attncheck.core.report import Report
from attncheck.core.results.parity import ParitySection
from attncheck.core.verdicts import HUGE, Answer, Verdict
from attncheck.doctor.engine import make_finding_by_code
from attncheck.gate import apply, init
from attncheck.gate.policy import Policy, load_policy, parse_policy
from tests.conftest import Run
from tests.snapshots import h200x2, laptop

SHARED_GPUS = Allowance("ATN211", "shared on Fridays", "2026-12-31")


def make_finding(code: str, subject: str = "it") -> Finding:
    return make_finding_by_code(
        code, Problem("message", ("seen",), (Fix("fix", "setting", "x", sets={"a": "b"}),), subject)
    )


def make_report(*findings: Finding, verdicts: tuple[Verdict, ...] = ()) -> Report:
    return Report("parity", laptop(), findings, sections={"parity": ParitySection(verdicts=verdicts)})


def test_an_ignore_lets_pass_with_its_reason_until_its_last_day() -> None:
    applied = apply.apply_policy(
        make_report(make_finding("ATN211"), make_finding("ATN101")), Policy(allowances=(SHARED_GPUS,)), "2026-12-31"
    )
    assert [finding.code for finding in applied.findings] == ["ATN101"]
    assert [finding.code for finding in applied.allowed] == ["ATN211"]
    assert applied.allowances == (SHARED_GPUS,)


def test_an_expired_ignore_lets_nothing_pass_and_is_found_itself() -> None:
    applied = apply.apply_policy(make_report(make_finding("ATN211")), Policy(allowances=(SHARED_GPUS,)), "2027-01-01")
    assert [finding.code for finding in applied.findings] == ["ATN211", "ATN904"]
    assert applied.findings[1].message == "the ignore entry of ATN211 expired on 2026-12-31"
    assert "shared on Fridays" in applied.findings[1].evidence[0]
    assert applied.allowed == () and applied.allowances == ()


def test_no_ignore_covers_an_expired_one_but_the_command_line_may() -> None:
    allowances = (SHARED_GPUS, Allowance("ATN9", "quiet", "2030-01-01"))
    assert [
        f.code for f in apply.apply_policy(make_report(), Policy(allowances=allowances), "2027-01-01").findings
    ] == ["ATN904"]
    policy = Policy(allowances=allowances, ignore=("ATN904",))
    assert apply.apply_policy(make_report(), policy, "2027-01-01").findings == ()


def test_a_prefix_covers_its_rules_and_one_that_lets_nothing_pass_is_not_listed() -> None:
    wide_allowance, unused_allowance = Allowance("ATN2", "x", "2027-01-01"), Allowance("ATN3", "y", "2027-01-01")
    applied = apply.apply_policy(
        make_report(make_finding("ATN211"), make_finding("ATN201")),
        Policy(allowances=(wide_allowance, unused_allowance)),
        "2026-11-21",
    )
    assert applied.findings == () and len(applied.allowed) == 2
    assert applied.allowances == (wide_allowance,)


def test_select_and_ignore_of_the_command_line() -> None:
    full_report = make_report(make_finding("ATN101"), make_finding("ATN211"))
    assert [f.code for f in apply.apply_policy(full_report, Policy(select=("ATN2",)), "2026-11-21").findings] == [
        "ATN211"
    ]
    assert [f.code for f in apply.apply_policy(full_report, Policy(ignore=("ATN2",)), "2026-11-21").findings] == [
        "ATN101"
    ]


def test_the_same_finding_twice_is_one_and_the_graver_stays() -> None:
    milder = replace(make_finding("ATN101"), severity="warning")
    assert by_severity((milder, make_finding("ATN101"), make_finding("ATN211"))) == (
        make_finding("ATN101"),
        make_finding("ATN211"),
    )


def test_an_ignore_of_no_rule_is_an_error_that_names_the_file() -> None:
    with pytest.raises(BadUsage, match=r"attncheck\.toml: ignore: no rule's code starts with 'XYZ'"):
        apply.check_policy_codes(Policy(allowances=(Allowance("XYZ", "x", "2027-01-01"),), file="attncheck.toml"))
    apply.check_policy_codes(Policy(allowances=(SHARED_GPUS,)))


def make_verdict(backend: str, answer: Answer, budget_ratio: float) -> Verdict:
    return Verdict("parity", backend, f"case-{budget_ratio}", "dense", answer, "because", budget_ratio)


def test_max_error_finds_what_passes_beyond_it() -> None:
    verdicts = (
        make_verdict("eager", "pass", 0.3),
        make_verdict("sdpa", "pass", 0.7),
        make_verdict("sdpa", "pass", 0.9),
    )
    applied = apply.apply_policy(make_report(verdicts=verdicts), Policy(max_error=0.6), "2026-11-21").findings
    assert [(finding.code, finding.subject) for finding in applied] == [("ATN606", "sdpa")]
    assert applied[0].message == "sdpa has an error of 0.9 of its budget; the policy's max-error is 0.6"
    assert [line.split(":")[0] for line in applied[0].evidence] == ["case-0.9", "case-0.7"]


def test_max_error_is_silent_without_it_and_about_what_fails_anyway() -> None:
    failing = (
        make_verdict("sdpa", "fail", HUGE),
        make_verdict("flex", "warn", 2.0),
        make_verdict("eager", "pass", 0.5),
    )
    assert apply.apply_policy(make_report(verdicts=failing), Policy(max_error=0.5), "2026-11-21").findings == ()
    assert (
        apply.apply_policy(make_report(verdicts=(make_verdict("sdpa", "pass", 1.0),)), Policy(), "2026-11-21").findings
        == ()
    )


def write_project(folder: Path) -> None:
    (folder / "run.sh").write_text("torchrun train.py --model_name_or_path org/model \\\n --x 1\n")
    (folder / "tidy.sh").write_text("# torchrun was here\nrm -rf out\n")
    (folder / "conf").mkdir()
    (folder / "conf" / "sft.yaml").write_text("base_model: ./mine\nsample_packing: true\n")
    (folder / "conf" / "ci.yaml").write_text("jobs: {}\n")
    (folder / "venv").mkdir()
    (folder / "venv" / "x.sh").write_text("torchrun y.py\n")
    (folder / 'quo"te\n.sh').write_text("deepspeed train.py\n")


def test_init_writes_what_our_own_reader_takes(tmp_path: Path) -> None:
    write_project(tmp_path)
    project = init.inspect_project(tmp_path, h200x2())
    assert project.launch == ('quo"te\n.sh', "run.sh", "conf/sft.yaml")
    assert project.models == () and project.uncached_models == ("org/model", "./mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    project = init.inspect_project(tmp_path, h200x2())
    assert project.models == ("./mine",)
    document = init.render_policy(project)
    init.write_policy(tmp_path, document)
    policy = load_policy(tmp_path)
    assert policy.checks[:3] == ("doctor", "lint", "parity")
    assert (policy.launch, policy.models, policy.device) == (project.launch, project.models, "cuda")
    assert "2 × NVIDIA H200" in document
    assert '# models = ["org/model"]  # not cached: hf download org/model config.json' in document


def test_the_policy_that_init_writes_refuses_no_job_for_a_model_that_is_not_cached(
    attncheck: Run, tmp_path: Path
) -> None:
    """At fca601f the gate of level 1 ended with ATN301, an error, for the model that init had read in the launch."""
    (tmp_path / "train.sh").write_text(
        "trl sft --model_name_or_path Qwen/Qwen2.5-7B --dataset_name x --packing true --output_dir out\n"
    )
    assert attncheck("init", "--write").returncode == 0
    done = attncheck("gate", "--level", "1", "--format", "json")
    codes = {finding["code"] for finding in json.loads(done.stdout)["findings"]}
    assert "ATN301" not in codes and "ATN448" in codes


def test_every_line_that_init_leaves_out_can_be_put_in(tmp_path: Path) -> None:
    document = init.render_policy(init.inspect_project(tmp_path, laptop()))
    policy = parse_policy(parse_toml(document, "attncheck.toml"), "attncheck.toml")
    assert policy == Policy(checks=("doctor", "parity"), budget=600.0, suite="quick")
    uncommented = "".join(
        line.removeprefix("# ").removeprefix("#") + "\n"
        if line.startswith(("# [", "#   {", "# ]")) or " = " in line
        else line + "\n"
        for line in document.splitlines()
    )
    full_policy = parse_policy(parse_toml(uncommented, "attncheck.toml"), "attncheck.toml")
    assert full_policy.ring_size == 2 and full_policy.max_error == 0.8 and full_policy.allowances[0].code == "ATN211"
    assert full_policy.target == "h100x8" and full_policy.plan["packing"] == "position_ids"
    apply.check_policy_codes(full_policy)


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "attncheck.toml").write_text("# mine\n")
    with pytest.raises(BadUsage, match=r"attncheck\.toml already exists"):
        init.write_policy(tmp_path, "x")
    assert (tmp_path / "attncheck.toml").read_text() == "# mine\n"
    (tmp_path / "attncheck.toml").unlink()
    (tmp_path / "pyproject.toml").write_text("[tool.attncheck]\nsuite = 'quick'\n")
    with pytest.raises(BadUsage, match=r"already has a table \[tool.attncheck\]"):
        init.write_policy(tmp_path, "x")
    assert not (tmp_path / "attncheck.toml").exists()
