"""A lock is silent against itself, each planted move gives its code, and a file that is none is one clear line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attncheck.core import codec
from attncheck.core.cases import Case
from attncheck.core.devices import Driver
from attncheck.core.io.errors import BadUsage
from attncheck.core.lock import LOCK_SCHEMA, Lock
from attncheck.core.report import Report, Section
from attncheck.core.results.bench import BenchSection
from attncheck.core.results.determinism import DeterminismSection
from attncheck.core.results.parity import ParitySection
from attncheck.core.results.timings import Timing
from attncheck.core.snapshot import NOT_ASKED, Snapshot
from attncheck.core.verdicts import HUGE, Answer, BackendState, MeasuredOn, Verdict
from attncheck.report import document
from attncheck.stacks.lock.check import check_lock, check_report
from attncheck.stacks.lock.file import load_lock, write_lock
from attncheck.stacks.lock.make import make_lock
from tests import snapshots as s
from tests.conftest import Run
from tests.planted_secrets import TOKENS, make_secret

H200 = MeasuredOn("cuda", "NVIDIA H200", "2.11.0+cu130", "quick")
CASE = Case("bench", (8192,), (8192,), name="dense-causal-s8192-h32-d128-bf16-normal")
PASS = Verdict("parity", "flash_attn_2", "gqa-128", "gqa", "pass", "as expected", 0.4)
SAME_BITS = Verdict("determinism", "flash_attn_2", "dense@deterministic", "repeats", "pass", "the same bits")
TIMING = Timing(
    "flash_attn_2", CASE, "forward", "default", "ok", median_ms=1.0, interval_ms=0.01, stable=True, reference_ms=(2.0,)
)


def make_report(snapshot: Snapshot, *sections: Section) -> Report:
    return Report("gate", snapshot, sections={section.name: section for section in sections})


def parity(snapshot: Snapshot, *verdicts: Verdict, on: MeasuredOn = H200, missing: str = "") -> Report:
    states = (BackendState("flash_attn_2", "flash-attn 2", "flash-attn", "2.8.3", missing),)
    return make_report(snapshot, ParitySection(on, states, verdicts))


def bench(snapshot: Snapshot, on: MeasuredOn = H200, **fields: Any) -> Report:
    return make_report(snapshot, BenchSection(on, timings=(replace(TIMING, **fields),)))


def determinism(snapshot: Snapshot, answer: Answer = "pass") -> Report:
    return make_report(snapshot, DeterminismSection(H200, (), (replace(SAME_BITS, answer=answer),)))


def full_lock() -> Lock:
    snapshot = with_hashes(s.h200())
    reports = (parity(snapshot, PASS), determinism(snapshot), bench(snapshot))
    return make_lock(snapshot, reports, "2026-11-23")


def with_hashes(snapshot: Snapshot) -> Snapshot:
    packages = (replace(d, record_sha256=f"{len(d.name):064x}") for d in snapshot.distributions)
    return replace(snapshot, distributions=tuple(packages))


def check(snapshot: Snapshot, *reports: Report, lock: Lock | None = None) -> Report:
    return check_lock(lock or full_lock(), "attncheck.lock.json", snapshot, reports)


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


@pytest.mark.parametrize("snapshot", [s.h200(), s.h200x2(), s.laptop()], ids=["h200", "h200x2", "laptop"])
def test_a_lock_is_silent_against_itself(snapshot: Snapshot) -> None:
    snapshot = with_hashes(snapshot)
    reports = (parity(snapshot, PASS), determinism(snapshot), bench(snapshot))
    lock = make_lock(snapshot, reports, "2026-11-23")
    report = check(snapshot, *reports, lock=lock)
    section: Any = report.sections["lock"]
    assert (report.findings, section.moves, section.not_compared, report.unanswered) == ((), (), (), ())
    assert (section.packages, section.measurements) == (len(lock.packages), 3)


MEASURED_MOVES = {
    "an error over its budget": (lambda h: parity(h, replace(PASS, answer="warn", budget_ratio=1.2)), "ATN914"),
    "a wrong result": (lambda h: parity(h, PASS, replace(PASS, answer="fail", budget_ratio=9.0)), "ATN914"),
    "a backend that dies": (lambda h: parity(h, replace(PASS, answer="lost", budget_ratio=HUGE)), "ATN914"),
    "a refusal": (lambda h: parity(h, replace(PASS, answer="refused", budget_ratio=0.0)), "ATN915"),
    "a backend that no longer exists": (lambda h: parity(h, missing="flash-attn is not installed"), "ATN915"),
    "bits that vary": (lambda h: determinism(h, "fail"), "ATN917"),
    "a slow kernel": (lambda h: bench(h, median_ms=1.2), "ATN916"),
}


@pytest.mark.parametrize("name", MEASURED_MOVES)
def test_a_number_that_moved_beyond_its_noise_is_a_finding_that_names_what_moved(name: str) -> None:
    make, code = MEASURED_MOVES[name]
    here = with_hashes(
        s.with_package(s.h200(), "transformers", "5.20.0", installer="pip", wheel_tags=("py3-none-any",))
    )
    report = check(here, make(here))
    assert set(codes(report)) == {code, "ATN913"}
    (finding,) = (finding for finding in report.findings if finding.code == code)
    assert finding.subject == "flash_attn_2"
    assert any("transformers 5.17.0 → 5.20.0" in line for line in finding.evidence)
    assert "transformers==5.17.0" in finding.fixes[0].text


WITHIN_NOISE = {
    "another error within its budget": lambda h: parity(h, replace(PASS, budget_ratio=0.9)),
    "no time": lambda h: parity(h, PASS, replace(PASS, answer="lost", budget_ratio=0.0)),
    "no memory": lambda h: parity(h, PASS, replace(PASS, answer="skipped", budget_ratio=0.0)),
    "9 % slower": lambda h: bench(h, median_ms=1.09),
    "slower, within its interval": lambda h: bench(h, median_ms=1.3, interval_ms=0.25),
    "a slower GPU": lambda h: bench(h, median_ms=1.3, reference_ms=(2.6,)),
    "faster": lambda h: bench(h, median_ms=0.5),
}


@pytest.mark.parametrize("name", WITHIN_NOISE)
def test_noise_is_no_finding(name: str) -> None:
    here = with_hashes(s.h200())
    assert codes(check(here, WITHIN_NOISE[name](here))) == []


NOT_COMPARABLE = {
    "another GPU": lambda h: bench(h, on=replace(H200, name="NVIDIA A100"), median_ms=9.0),
    "another suite": lambda h: parity(h, replace(PASS, answer="fail"), on=replace(H200, suite="full")),
    "another seed": lambda h: parity(h, replace(PASS, answer="fail"), on=replace(H200, seed=1)),
    "a CPU": lambda h: parity(h, replace(PASS, answer="fail"), on=replace(H200, device="cpu")),
}


@pytest.mark.parametrize("name", NOT_COMPARABLE)
def test_what_cannot_be_compared_is_left_open_and_said(name: str) -> None:
    here = with_hashes(s.h200())
    report = check(here, NOT_COMPARABLE[name](here))
    section: Any = report.sections["lock"]
    assert codes(report) == [] and section.measurements == 0 and len(section.not_compared) == 3


def test_a_version_that_moved_is_a_note_where_the_numbers_stayed_and_a_warning_where_nobody_knows() -> None:
    here = with_hashes(s.with_package(s.h200(), "transformers", "5.20.0", installer="pip"))
    assert [(f.code, f.severity) for f in check(here, parity(here, PASS)).findings] == [("ATN912", "note")]
    report = check(here)
    assert [(f.code, f.severity, f.subject) for f in report.findings] == [("ATN913", "warning", "transformers")]
    assert "transformers==5.17.0" in report.findings[0].fixes[0].text


STACK_MOVES = {
    "missing": (lambda h: s.without_packages(h, "liger-kernel"), {"ATN911"}),
    "new": (lambda h: s.with_package(h, "flash-attn-3", "3.0.0"), {"ATN913"}),
    "another build": (lambda h: s.with_package(h, "flash-attn", "2.8.3", record_sha256="f" * 64), {"ATN913"}),
    "another Python": (lambda h: s.with_host(h, python_version="3.11.7", python_abi="cp311"), {"ATN913"}),
    "another torch": (lambda h: s.with_torch(h, version="2.12.0+cu130"), {"ATN913"}),
    "another CUDA of torch": (lambda h: s.with_torch(h, cuda=s.Known("12.8")), {"ATN913"}),
    "an older driver": (lambda h: s.with_driver(h, version="570.10"), {"ATN919"}),
    "a newer driver": (lambda h: s.with_driver(h, version="590.10"), set()),
    "another GPU": (lambda h: s.with_gpus(h, (8, 0)), {"ATN918"}),
    "a mixed node": (lambda h: s.with_gpus(h, (9, 0), (8, 0)), {"ATN918"}),
    "no GPU": (lambda h: s.with_gpus(h), {"ATN918"}),
    "more GPUs of one kind": (lambda h: s.with_gpus(h, (9, 0), (9, 0)), set()),
    "GPUs that nobody looked at": (
        lambda h: replace(h, devices=s.Absent(NOT_ASKED), driver=s.Absent(NOT_ASKED)),
        set(),
    ),
}


@pytest.mark.parametrize("name", STACK_MOVES)
def test_each_planted_move_of_the_stack_gives_its_code(name: str) -> None:
    change, expected = STACK_MOVES[name]
    assert set(codes(check(change(with_hashes(s.h200()))))) == expected


def test_gpus_that_cannot_be_read_leave_the_question_open() -> None:
    report = check(replace(with_hashes(s.h200()), devices=s.Unreadable("the device lane gave no answer")))
    assert codes(report) == []
    assert [question.reason for question in report.unanswered] == ["GPUs: the device lane gave no answer"]


def test_fixes_are_commands_only_where_an_index_has_the_build() -> None:
    here = s.without_packages(with_hashes(s.h200()), "flash-attn", "triton")
    kinds = {finding.subject: finding.fixes[0].kind for finding in check(here).findings}
    assert kinds == {"flash-attn": "manual", "triton": "command"}  # flash-attn came from a wheel that no index has
    report = check(s.with_torch(with_hashes(s.h200()), version="2.12.0+cpu", cuda=s.Absent("")))
    fix = next(finding.fixes[0] for finding in report.findings if finding.subject == "torch")
    assert "--index-url https://download.pytorch.org/whl/cu130 torch==2.11.0+cu130" in fix.text


def test_a_lock_is_written_and_read_back_and_stays_byte_for_byte_where_nothing_moved(tmp_path: Path) -> None:
    path, lock = tmp_path / "x.json", full_lock()
    write_lock(lock, str(path))
    assert load_lock(str(path)) == lock
    before = path.read_bytes()
    write_lock(replace(lock, date="2027-01-01"), str(path))
    assert path.read_bytes() == before
    write_lock(replace(lock, date="2027-01-01", driver=s.Known("590.1")), str(path))
    assert load_lock(str(path)).date == "2027-01-01"


GOOD = codec.to_plain(full_lock())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not a lock written by `attncheck lock`"),
        (b"\xff\xfe", "is not a lock"),
        (b"[]", "expected Lock, found list"),
        (b'{"schema_version": 2}', "lock_schema is missing"),
        (b"[" * 100_000, "is not a lock"),
        (json.dumps({"lock_schema": LOCK_SCHEMA + 1}).encode(), "was written by a newer attncheck"),
        (json.dumps({**GOOD, "lock_schema": 0}).encode(), "no attncheck wrote"),
        (json.dumps({**GOOD, "packages": [{"name": "torch"}]}).encode(), "$.packages[0]: version is missing"),
        (json.dumps({**GOOD, "packages": {"torch": "2.11"}}).encode(), "$.packages: expected an array"),
        (
            json.dumps({**GOOD, "errors": [{**GOOD["errors"][0], "worst": float("nan")}]}).encode(),
            "NaN is not a number",
        ),
        (json.dumps({**GOOD, "errors": [{**GOOD["errors"][0], "answer": "good"}]}).encode(), "expected one of pass"),
    ],
)
def test_a_file_that_is_no_lock_is_one_clear_line_and_is_not_overwritten(
    tmp_path: Path, data: bytes, message: str
) -> None:
    path = tmp_path / "attncheck.lock.json"
    path.write_bytes(data)
    for action in (lambda: load_lock(str(path)), lambda: write_lock(full_lock(), str(path))):
        with pytest.raises(BadUsage) as caught:
            action()
        assert message in str(caught.value) and "\n" not in str(caught.value)
    assert path.read_bytes() == data


def test_a_report_of_another_environment_or_without_measurements_is_refused() -> None:
    here = s.h200()
    check_report(parity(here, PASS), "p.json", here)
    with pytest.raises(BadUsage, match=r"another environment: torch 2.13.0\+cpu there, 2.11.0\+cu130 here"):
        check_report(parity(s.laptop(), PASS), "p.json", here)
    with pytest.raises(BadUsage, match="contains no measurement of parity"):
        check_report(Report("doctor", here), "p.json", here)


def test_no_planted_secret_gets_into_a_lock(tmp_path: Path) -> None:
    planted = [make_secret(shape, 7) for shape in TOKENS]
    snapshot = s.with_env(s.h200(), **{f"MY_{index}_TOKEN": secret for index, secret in enumerate(planted)})
    snapshot = s.with_host(snapshot, executable=f"~/{planted[0]}/python", prefix=f"~/{planted[1]}")
    for index, secret in enumerate(planted):
        name = ("trl", "peft", "vllm", "einops")[index % 4]
        snapshot = s.with_package(snapshot, name, "1.0", direct_url=f"https://u:{secret}@example.org/x.whl")
        snapshot = replace(snapshot, driver=s.Known(Driver(f"580.1 {secret}", s.Known("13.0"))))
        path = tmp_path / f"{index}.json"
        verdict = replace(PASS, reason=secret, evidence=(secret,), family=f"gqa {secret}")
        write_lock(make_lock(snapshot, (parity(snapshot, verdict),), "2026-11-23"), str(path))
        text = path.read_text()
        assert not [secret for secret in planted if secret in text]
        assert "example.org" not in text and "~/" not in text and "…" in text


def test_the_command_line_writes_checks_and_exits_as_elsewhere(attncheck: Run, tmp_path: Path) -> None:
    facts, moved, report = tmp_path / "facts.json", tmp_path / "moved.json", tmp_path / "parity.json"
    facts.write_text(codec.dumps(s.h200()))
    moved.write_text(codec.dumps(s.without_packages(s.h200(), "flash-attn")))
    report.write_text(document.dumps(parity(s.h200(), PASS)))
    lock = str(tmp_path / "stack.json")
    written = attncheck("lock", lock, "--facts", str(facts), "--report", str(report))
    assert (written.returncode, written.stderr) == (0, "") and "1 worst parity errors" in written.stdout
    same = attncheck("lock", "--check", lock, "--facts", str(facts), "--report", str(report))
    assert same.returncode == 0 and "nothing changed" in same.stdout
    gone = attncheck("lock", lock, "--check", "--facts", str(moved), "--format", "json")
    assert gone.returncode == 1
    assert [finding["code"] for finding in json.loads(gone.stdout)["findings"]] == ["ATN911"]
    for arguments, message in (
        (("lock", "--check", str(tmp_path / "none.json")), "`attncheck lock` writes it"),
        (("lock", "--check", lock, "--report", str(facts)), "is not a report written by attncheck"),
        (("lock", lock, "--facts", str(moved), "--report", str(report)), "another environment: flash-attn"),
        (("lock", lock, "--facts", str(facts), "--format", "json"), "apply to `attncheck lock --check`"),
        (("lock", "-"), "a lock is a project file"),
    ):
        wrong = attncheck(*arguments)
        assert (wrong.returncode, wrong.stdout) == (2, "") and message in wrong.stderr
        assert wrong.stderr.count("\n") == 1
