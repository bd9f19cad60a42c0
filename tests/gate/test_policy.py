"""What a policy lets pass, until when, and what it asks beyond the rules; and the policy that `init` writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.core.errors import BadUsage
from attncheck.core.findings import Allowance, Finding, Fix, Problem, gravest_first
from attncheck.core.report import Report
from attncheck.core.results.parity import ParitySection
from attncheck.core.results.verdicts import HUGE, Answer, Verdict
from attncheck.doctor.engine import make_finding_by_code
from attncheck.gate import apply, init
from attncheck.gate.policy import Config, load, parse, read_text
from tests.snapshots import h200x2, laptop

SHARED = Allowance("ATN211", "shared on Fridays", "2026-12-31")


def finding(code: str, subject: str = "it") -> Finding:
    return make_finding_by_code(
        code, Problem("message", ("seen",), (Fix("fix", "setting", "x", sets={"a": "b"}),), subject)
    )


def report(*findings: Finding, verdicts: tuple[Verdict, ...] = ()) -> Report:
    return Report("parity", laptop(), findings, sections={"parity": ParitySection(verdicts=verdicts)})


def test_an_ignore_lets_pass_with_its_reason_until_its_last_day() -> None:
    found = apply.applied(report(finding("ATN211"), finding("ATN101")), Config(allowances=(SHARED,)), "2026-12-31")
    assert [one.code for one in found.findings] == ["ATN101"]
    assert [one.code for one in found.allowed] == ["ATN211"]
    assert found.allowances == (SHARED,)


def test_an_expired_ignore_lets_nothing_pass_and_is_found_itself() -> None:
    found = apply.applied(report(finding("ATN211")), Config(allowances=(SHARED,)), "2027-01-01")
    assert [one.code for one in found.findings] == ["ATN211", "ATN904"]
    assert found.findings[1].message == "the ignore of ATN211 ended on 2026-12-31"
    assert "shared on Fridays" in found.findings[1].evidence[0]
    assert found.allowed == () and found.allowances == ()


def test_no_ignore_covers_an_expired_one_but_the_command_line_may() -> None:
    both = (SHARED, Allowance("ATN9", "quiet", "2030-01-01"))
    assert [f.code for f in apply.applied(report(), Config(allowances=both), "2027-01-01").findings] == ["ATN904"]
    asked = Config(allowances=both, ignore=("ATN904",))
    assert apply.applied(report(), asked, "2027-01-01").findings == ()


def test_a_prefix_covers_its_rules_and_one_that_lets_nothing_pass_is_not_listed() -> None:
    wide, idle = Allowance("ATN2", "x", "2027-01-01"), Allowance("ATN3", "y", "2027-01-01")
    found = apply.applied(report(finding("ATN211"), finding("ATN201")), Config(allowances=(wide, idle)), "2026-11-21")
    assert found.findings == () and len(found.allowed) == 2
    assert found.allowances == (wide,)


def test_select_and_ignore_of_the_command_line() -> None:
    given = report(finding("ATN101"), finding("ATN211"))
    assert [f.code for f in apply.applied(given, Config(select=("ATN2",)), "2026-11-21").findings] == ["ATN211"]
    assert [f.code for f in apply.applied(given, Config(ignore=("ATN2",)), "2026-11-21").findings] == ["ATN101"]


def test_the_same_finding_twice_is_one_and_the_graver_stays() -> None:
    mild = replace(finding("ATN101"), severity="warning")
    assert gravest_first((mild, finding("ATN101"), finding("ATN211"))) == (finding("ATN101"), finding("ATN211"))


def test_an_ignore_of_no_rule_is_an_error_that_names_the_file() -> None:
    with pytest.raises(BadUsage, match=r"attncheck\.toml: ignore: no rule's code starts with 'XYZ'"):
        apply.check(Config(allowances=(Allowance("XYZ", "x", "2027-01-01"),), file="attncheck.toml"))
    apply.check(Config(allowances=(SHARED,)))


def verdict(backend: str, answer: Answer, excess: float) -> Verdict:
    return Verdict("parity", backend, f"case-{excess}", "dense", answer, "because", excess)


def test_max_error_finds_what_passes_beyond_it() -> None:
    verdicts = (verdict("eager", "pass", 0.3), verdict("sdpa", "pass", 0.7), verdict("sdpa", "pass", 0.9))
    found = apply.applied(report(verdicts=verdicts), Config(max_error=0.6), "2026-11-21").findings
    assert [(one.code, one.subject) for one in found] == [("ATN606", "sdpa")]
    assert found[0].message == "sdpa errs by 0.9 of its budget, the policy's max-error is 0.6"
    assert [line.split(":")[0] for line in found[0].evidence] == ["case-0.9", "case-0.7"]


def test_max_error_is_silent_without_it_and_about_what_fails_anyway() -> None:
    failing = (verdict("sdpa", "fail", HUGE), verdict("flex", "warn", 2.0), verdict("eager", "pass", 0.5))
    assert apply.applied(report(verdicts=failing), Config(max_error=0.5), "2026-11-21").findings == ()
    assert apply.applied(report(verdicts=(verdict("sdpa", "pass", 1.0),)), Config(), "2026-11-21").findings == ()


def project(folder: Path) -> None:
    (folder / "run.sh").write_text("torchrun train.py --model_name_or_path org/model \\\n --x 1\n")
    (folder / "tidy.sh").write_text("# torchrun was here\nrm -rf out\n")
    (folder / "conf").mkdir()
    (folder / "conf" / "sft.yaml").write_text("base_model: ./mine\nsample_packing: true\n")
    (folder / "conf" / "ci.yaml").write_text("jobs: {}\n")
    (folder / "venv").mkdir()
    (folder / "venv" / "x.sh").write_text("torchrun y.py\n")
    (folder / 'quo"te\n.sh').write_text("deepspeed train.py\n")


def test_init_writes_what_our_own_reader_takes(tmp_path: Path) -> None:
    project(tmp_path)
    found = init.look(tmp_path, h200x2())
    assert found.launch == ('quo"te\n.sh', "run.sh", "conf/sft.yaml")
    assert found.models == ("org/model", "./mine")
    document = init.text(found)
    init.write(tmp_path, document)
    asked = load(tmp_path)
    assert asked.checks[:3] == ("doctor", "lint", "parity")
    assert (asked.launch, asked.models, asked.device) == (found.launch, found.models, "cuda")
    assert "2 × NVIDIA H200" in document


def test_every_line_that_init_leaves_out_can_be_put_in(tmp_path: Path) -> None:
    document = init.text(init.look(tmp_path, laptop()))
    asked = parse(read_text(document, "attncheck.toml"), "attncheck.toml")
    assert asked == Config(checks=("doctor", "parity"), budget=600.0)
    ready = "".join(
        line.removeprefix("# ").removeprefix("#") + "\n"
        if line.startswith(("# [", "#   {", "# ]")) or " = " in line
        else line + "\n"
        for line in document.splitlines()
    )
    every = parse(read_text(ready, "attncheck.toml"), "attncheck.toml")
    assert every.ring_size == 2 and every.max_error == 0.8 and every.allowances[0].code == "ATN211"
    assert every.target == "h100x8" and every.plan["packing"] == "position_ids"
    apply.check(every)


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "attncheck.toml").write_text("# mine\n")
    with pytest.raises(BadUsage, match=r"attncheck\.toml is there already"):
        init.write(tmp_path, "x")
    assert (tmp_path / "attncheck.toml").read_text() == "# mine\n"
    (tmp_path / "attncheck.toml").unlink()
    (tmp_path / "pyproject.toml").write_text("[tool.attncheck]\nsuite = 'quick'\n")
    with pytest.raises(BadUsage, match=r"has a table \[tool.attncheck\] already"):
        init.write(tmp_path, "x")
    assert not (tmp_path / "attncheck.toml").exists()
