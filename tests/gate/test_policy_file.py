"""The policy file: read from either place, and every mistake named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attncheck.core.findings import Allowance
from attncheck.core.io.errors import BadUsage
from attncheck.gate.policy import Policy, load_policy, override_policy

FULL_POLICY = """
profile = "ring"
checks = ["bench", "doctor", "lint"]
models = ["meta-llama/Llama-3.1-8B", "models/small"]
launch = ["run.sh"]
target = "h100x8"
framework-version = "0.10.2"
ring-size = 4
budget = 600
suite = "standard"
device = "cuda"
baseline = "known.json"
select = ["atn1"]
ignore = [
  {code = "ATN140", reason = "flash only", until = "2026-12-31"},
  {code = "atn2", reason = "shared", until = 2027-01-02},
]
[thresholds]
min-efficiency = 0.5
max-error = 1
[plan]
attn-implementation = "sdpa"
"""


def test_nothing_configured(tmp_path: Path) -> None:
    assert load_policy(tmp_path) == Policy()


def test_every_key(tmp_path: Path) -> None:
    (tmp_path / "attncheck.toml").write_text(FULL_POLICY)
    policy = load_policy(tmp_path)
    assert policy == Policy(
        profile="ring",
        checks=("doctor", "lint", "bench"),
        models=("meta-llama/Llama-3.1-8B", "models/small"),
        launch=("run.sh",),
        target="h100x8",
        framework_version="0.10.2",
        ring_size=4,
        budget=600.0,
        suite="standard",
        device="cuda",
        baseline="known.json",
        select=("ATN1",),
        allowances=(Allowance("ATN140", "flash only", "2026-12-31"), Allowance("ATN2", "shared", "2027-01-02")),
        min_efficiency=0.5,
        max_error=1.0,
        plan={"attn_implementation": "sdpa"},
    )
    assert policy.file == "attncheck.toml"


def test_pyproject_of_a_parent_folder_and_its_paths(tmp_path: Path) -> None:
    text = '[tool.attncheck]\nprofile = "ring"\nlaunch = ["run.sh"]\nbaseline = "b.json"\nmodels = ["m", "org/name"]\n'
    (tmp_path / "pyproject.toml").write_text(text + 'target = "h100x8,requirements.txt,torch=2.9"\n')
    (tmp_path / "requirements.txt").write_text("")
    (tmp_path / "m").mkdir()
    start_folder = tmp_path / "a" / "b"
    start_folder.mkdir(parents=True)
    policy = load_policy(start_folder)
    assert (policy.profile, policy.launch, policy.baseline) == ("ring", ("../../run.sh",), "../../b.json")
    assert policy.models == ("../../m", "org/name")
    assert policy.target == "h100x8,../../requirements.txt,torch=2.9"


def test_own_file_wins_over_pyproject(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.attncheck]\nprofile = "ring"\n')
    (tmp_path / "attncheck.toml").write_text('fail-on = "warning"\n')
    assert load_policy(tmp_path) == Policy(fail_on="warning")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("profil = 'ring'", "unknown key 'profil'; did you mean 'profile'?"),
        ("ring_size = 2", "unknown key 'ring_size'; did you mean 'ring-size'?"),
        ("xyzzy = 1", "known keys: profile"),
        ("max-error = 1", "'max-error' belongs in the table thresholds"),
        ("profile = 'fast'", "profile: 'fast' is not one of auto, flash"),
        ("fail-on = 3", "fail-on: 3 is not one of"),
        ("select = 'ATN1'", "select: expected an array"),
        ("timeout = true", "timeout: True is not a number of seconds"),
        ("timeout = -1", "timeout: -1 is not a number of seconds"),
        ("budget = inf", "budget: inf is not a number of seconds"),
        ("profile = ", "cannot read attncheck.toml"),
        ("checks = 'doctor'", "checks: expected an array of checks: doctor, lint"),
        ("checks = ['docter']", "checks: 'docter' is not a check; did you mean 'doctor'?"),
        ("checks = [1]", "checks: 1 is not a check"),
        ("models = 'gpt2'", "models: expected an array of strings: ['gpt2']"),
        ("launch = [3]", "launch: 3 is not a name"),
        ("framework-version = 0.10", 'framework-version: 0.1 is not a string: write it as "0.1"'),
        ("framework-version = 'new'", "framework-version: 'new' is not a version"),
        ("ring-size = 1", "ring-size: 1 is not a whole number from 2 to 1024"),
        ("ring-size = true", "ring-size: True is not a whole number"),
        ("suite = 'huge'", "suite: 'huge' is not one of quick"),
        ("device = 'tpu'", "device: 'tpu' is not one of auto, cpu, cuda"),
        ("baseline = ''", "baseline: '' is not a name"),
        ("thresholds = 1", "thresholds: expected a table of min-efficiency and max-error"),
        ("thresholds.max-eror = 1", "thresholds: unknown key 'max-eror'; did you mean 'max-error'?"),
        ("thresholds.max-error = 0", "thresholds: max-error: 0 is not a number above 0 and up to 1"),
        ("thresholds.max-error = 1.5", "thresholds: max-error: 1.5 is not"),
        ("thresholds.max-error = nan", "thresholds: max-error: nan is not"),
        ("plan.packing = 'dense'", "plan: packing: 'dense' is not one of position_ids"),
        ("plan.pack = 'x'", "plan: unknown key 'pack'; did you mean 'packing'?"),
        ("plan.batch = 0", "plan: batch: 0 is not 1 or more"),
        ("ignore = 'ATN1'", "ignore: expected an array of tables such as"),
        ("ignore = [1]", "ignore: 1 is not a table such as"),
        ("ignore = [{code = 'ATN1', reason = 'x'}]", 'ignore: ATN1: until is missing; write {code = "ATN1"'),
        ("ignore = [{reason = 'x', until = '2027-01-01'}]", "ignore: code is missing; write {code ="),
        ("ignore = [{code = 'ATN1', reason = ' ', until = '2027-01-01'}]", "ATN1: reason: ' ' is not a reason"),
        ("ignore = [{code = 'ATN1', reason = 'x', until = 'soon'}]", "ATN1: until: soon is not a date such as 20"),
        ("ignore = [{code = 'ATN1', reason = 'x', until = '2027-W10-1'}]", "is not a date such as"),
        ("ignore = [{code = 'ATN1', reason = 'x', until = 2027-01-01T10:00:00}]", "is not a date such as"),
        ("ignore = [{code = 'ATN1', reason = 'x', untill = '2027-01-01'}]", "key 'untill'; did you mean 'until'?"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "attncheck.toml").write_text(text)
    with pytest.raises(BadUsage) as caught:
        load_policy(tmp_path)
    assert message in str(caught.value)
    assert "attncheck.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bare_code_is_told_how_to_be_written(tmp_path: Path) -> None:
    (tmp_path / "attncheck.toml").write_text('ignore = ["ATN140"]')
    with pytest.raises(BadUsage, match="lacks a reason and a date") as caught:
        load_policy(tmp_path)
    example = re.search(r"write (\{.*\})$", str(caught.value))
    assert example
    (tmp_path / "attncheck.toml").write_text(f"ignore = [{example[1]}]")
    assert load_policy(tmp_path).allowances[0].code == "ATN140"


def test_deep_nesting_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "attncheck.toml").write_text("select = " + "[" * 100_000)
    with pytest.raises(BadUsage, match=r"cannot read attncheck\.toml"):
        load_policy(tmp_path)


def test_options_win_and_their_mistakes_are_named() -> None:
    base = Policy(suite="standard", max_error=0.5, models=("a",))
    policy = override_policy(base, {"suite": None, "models": [], "max-error": 0.8, "checks": ["lint"], "ring-size": 2})
    assert (policy.suite, policy.models, policy.max_error, policy.ring_size) == ("standard", ("a",), 0.8, 2)
    assert policy.checks == ("lint",)
    with pytest.raises(BadUsage, match="--checks: 'linn' is not a check; did you mean 'lint'"):
        override_policy(base, {"checks": ["linn"]})


def test_a_bom_and_a_bad_pyproject_of_somebody_else_end_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_bytes(b'\xef\xbb\xbf[tool.attncheck]\nprofile = "ring"\n')
    assert load_policy(tmp_path).profile == "ring"
    path.write_text("[project\n")
    assert load_policy(tmp_path) == Policy()
    assert "pyproject.toml" in capsys.readouterr().err
    path.write_text("[tool.attncheck\n")
    with pytest.raises(BadUsage, match="cannot read pyproject"):
        load_policy(tmp_path)
