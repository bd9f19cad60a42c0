"""What explains a finding of one side ranks first; what nobody judged is left open; equal facts are not shown."""

from __future__ import annotations

import json
import re
import venv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attncheck.cli.stack_file import read_side
from attncheck.core import codec
from attncheck.core.facts import Absent
from attncheck.core.findings import Problem
from attncheck.core.io.errors import BadUsage
from attncheck.core.io.outgoing import clean
from attncheck.core.report import Report
from attncheck.core.results.diff import DiffSection
from attncheck.core.results.parity import ParitySection
from attncheck.core.snapshot import NOT_ASKED, Snapshot
from attncheck.core.verdicts import Answer, MeasuredOn, Verdict
from attncheck.doctor.engine import make_finding_by_code
from attncheck.report import document
from attncheck.report.formats import format_names, load_format
from attncheck.stacks.diff.compare import compare_sides
from attncheck.stacks.diff.sides import make_lock_side, make_report_side, make_snapshot_side
from attncheck.stacks.lock.make import make_lock
from tests import snapshots as s
from tests.conftest import Run
from tests.planted_secrets import TOKENS, make_secret


def good() -> Snapshot:
    """Return an H200 on which ring-flash-attn works."""
    return s.with_import(s.with_package(s.h200x2(), "transformers", "5.1.0", installer="pip"), "ring_flash_attn")


def with_noise(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot with differences that explain nothing: packages, a variable, the machine."""
    for name, version in (("einops", "0.9.9"), ("aiohttp", "9.9"), ("tokenizers", "9.9"), ("numpy", "9.9")):
        snapshot = s.with_package(snapshot, name, version)
    return s.with_host(s.with_env(snapshot, OMP_NUM_THREADS="3"), cpu_count=77, kernel="9.9.9")


def compare(a: Snapshot, b: Snapshot) -> tuple[Report, DiffSection]:
    report = compare_sides(make_snapshot_side(a, "a.json"), make_snapshot_side(b, "b.json"))
    section = report.section(DiffSection)
    assert section is not None
    return report, section


def without_flash_attn(snapshot: Snapshot) -> Snapshot:
    message = "No module named 'flash_attn'"
    for module in ("flash_attn", "flash_attn_2_cuda", "ring_flash_attn"):
        snapshot = s.with_import(snapshot, module, "raised", exception="ModuleNotFoundError", message=message)
    return s.without_packages(snapshot, "flash-attn")


def with_old_driver(snapshot: Snapshot) -> Snapshot:
    snapshot = s.with_torch(snapshot, cuda_available=s.Known(False), cuda_error=s.Known("the driver is too old"))
    return s.with_driver(snapshot, version="535.10", cuda=s.Known("12.2"))


# What is planted on the second side, the code that then rests on it alone, and what must explain it first.
PLANTED: dict[str, tuple[Callable[[Snapshot], Snapshot], str, str]] = {
    "transformers": (
        lambda h: s.with_import(
            s.with_package(h, "transformers", "5.17.0"),
            "ring_flash_attn",
            "raised",
            exception="ImportError",
            message=(
                "cannot import name 'is_flash_attn_greater_or_equal_2_10' from "
                "'transformers.modeling_flash_attention_utils'"
            ),
        ),
        "ATN140",
        "transformers",
    ),
    "flash-attn no longer exists": (without_flash_attn, "ATN142", "flash-attn"),
    "driver": (with_old_driver, "ATN201", "driver"),
    "GPU": (lambda h: s.with_gpus(h, (7, 5)), "ATN206", "gpus"),
    "variable": (lambda h: s.with_env(h, CUDA_LAUNCH_BLOCKING="1"), "ATN561", "CUDA_LAUNCH_BLOCKING"),
    "triton": (lambda h: s.with_package(h, "triton", "3.1.0"), "ATN122", "triton"),
    "shared memory": (lambda h: s.with_host(h, shm_bytes=s.Known(64 << 20)), "ATN222", "/dev/shm"),
}


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("is_swapped", [False, True], ids=["on B", "on A"])
def test_the_planted_difference_ranks_first_among_others_that_explain_nothing(name: str, is_swapped: bool) -> None:
    plant, code, subject = PLANTED[name]
    sides = (good(), with_noise(plant(good())))
    report, section = compare(*(sides[::-1] if is_swapped else sides))
    assert (("A" if is_swapped else "B"), code) in [(row.side, row.code) for row in section.one_sided]
    assert section.differences[0].subject == subject and section.differences[0].relation == "named"
    assert code in section.differences[0].explains
    finding = next(finding for finding in report.findings if finding.code == code)
    assert finding.evidence[0] == ("only on A, a.json" if is_swapped else "only on B, b.json")
    noise = {d.subject: d.relation for d in section.differences}
    assert (noise["aiohttp"], noise["Linux kernel"], noise["OMP_NUM_THREADS"]) == ("other",) * 3
    relations = [d.relation for d in section.differences]
    assert relations == sorted(relations, key=("named", "stack", "other").index)


@pytest.mark.parametrize("snapshot", [s.h200(), s.h200x2(), s.laptop()], ids=["h200", "h200x2", "laptop"])
def test_nothing_differs_from_itself(snapshot: Snapshot) -> None:
    report, section = compare(snapshot, snapshot)
    assert (report.findings, section.differences, section.not_judged) == ((), (), ())


def test_what_both_sides_have_is_not_shown_whatever_the_version_in_its_subject() -> None:
    broken = s.with_package(s.h200(), "ring-flash-attn", "0.1.7")
    broken = s.with_import(broken, "ring_flash_attn", "raised", exception="ImportError", message="cannot import name")
    assert "ATN140" not in [row.code for row in compare(s.h200(), broken)[1].one_sided]


def test_a_side_that_was_not_looked_at_is_no_side_that_works() -> None:
    unseen = replace(s.h200(), devices=Absent(NOT_ASKED), driver=Absent(NOT_ASKED), topology=Absent(NOT_ASKED))
    report, section = compare(with_old_driver(s.h200()), unseen)
    assert report.findings == () and section.differences == ()
    assert "ATN201 of A (driver 535.10): not examined on the other side: driver" in section.not_judged


def measured(snapshot: Snapshot, answer: Answer, backend: str = "sdpa_cudnn") -> Report:
    verdict = Verdict("parity", backend, "gqa-128", "gqa", answer, "dq has z_row 40")
    finding = make_finding_by_code("ATN601", Problem(f"{backend} is wrong", ("dq",), (), backend))
    sections = {"parity": ParitySection(MeasuredOn("cuda", "NVIDIA H200"), (), (verdict,))}
    return Report("parity", snapshot, (finding,) if answer == "fail" else (), sections=sections)


def test_what_a_report_measured_is_one_sided_only_where_the_other_measured_it_too() -> None:
    bad = make_report_side(measured(s.with_driver(s.h200(), version="570.10"), "fail"), "bad.json")
    for other, expected in (
        (make_report_side(measured(s.h200(), "pass"), "good.json"), ["ATN601"]),
        (make_report_side(measured(s.h200(), "pass", "flash_attn_2"), "good.json"), []),
        (make_report_side(measured(s.h200(), "refused"), "good.json"), []),
        (make_snapshot_side(s.h200(), "good.json"), []),
    ):
        report = compare_sides(bad, other)
        section: Any = report.sections["diff"]
        assert [finding.code for finding in report.findings] == expected
        assert bool(section.not_judged) == (not expected)


def test_beside_a_lock_facts_alone_are_compared_and_only_those_that_it_holds() -> None:
    lock = make_lock(s.h200(), (), "2026-11-23")
    here = s.with_driver(with_noise(s.h200()), version="570.10")
    report = compare_sides(make_lock_side(lock, "x.lock.json"), make_snapshot_side(here, "b.json"))
    section: Any = report.sections["diff"]
    assert report.findings == ()
    assert {d.subject for d in section.differences} == {"driver", "einops", "tokenizers", "numpy"}
    two = compare_sides(make_lock_side(lock, "x"), make_lock_side(replace(lock, driver=s.Known("570.10")), "y"))
    assert [d.subject for d in two.section(DiffSection).differences] == ["driver"]  # type: ignore[union-attr]
    assert document.loads(document.dumps(two)) == two


def test_another_build_of_the_same_version_differs_and_a_moved_version_is_one_difference() -> None:
    before = s.with_package(s.h200(), "flash-attn", "2.8.3", record_sha256="a" * 64, wheel_tags=("cp312-x",))
    after = s.with_package(s.h200(), "flash-attn", "2.8.3", record_sha256="b" * 64, wheel_tags=("cp312-x",))
    assert [(d.kind, d.a) for d in compare(before, after)[1].differences] == [("content", "a" * 12)]
    moved = s.with_package(s.h200(), "flash-attn", "2.8.2", record_sha256="b" * 64, wheel_tags=("cp312-y",))
    assert [d.kind for d in compare(before, moved)[1].differences] == ["package"]


def test_the_command_line_in_each_format_and_with_wrong_input(attncheck: Run, tmp_path: Path) -> None:
    a, b, lock = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "stack.json"
    a.write_text(codec.dumps(good()))
    b.write_text(document.dumps(Report("doctor", s.h200())))
    lock.write_text(codec.dumps(make_lock(good(), (), "2026-11-23")))
    text = attncheck("diff", str(a), str(b))
    assert text.returncode == 1 and text.stderr == ""
    assert text.stdout.index("ATN140") < text.stdout.index("A 5.1.0 · B 5.17.0 · named by ATN140")
    assert attncheck("diff", str(a), str(a)).returncode == 0
    assert attncheck("diff", str(a), str(lock), "--format", "markdown").returncode == 0
    document_b = json.loads(attncheck("diff", str(a), str(b), "--format", "json", "--fail-on", "never").stdout)
    assert document_b["exit_code"] == 0 and document_b["diff"]["differences"][0]["subject"] == "transformers"
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    for arguments in ((str(a), str(broken)), (str(a),), (str(a), str(a), "--lane", "static")):
        wrong = attncheck("diff", *arguments)
        assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not a snapshot, report or lock"),
        ("[]", "is not a snapshot, report or lock"),
        ('{"lock_schema": 99, "packages": []}', "newer attncheck"),
        ('{"schema_version": 99, "snapshot": {}}', "schema version 99; this attncheck reads 3: update attncheck"),
        ("[" * 100_000, "is not a snapshot, report or lock"),
    ],
)
def test_a_file_that_is_no_side_is_one_clear_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "broken.json").write_text(content)
    with pytest.raises(BadUsage) as caught:
        read_side(str(tmp_path / "broken.json"))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def make_environment(folder: Path, **versions: str) -> str:
    """Return the Python of a new environment with stubs of distributions."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    for name, version in versions.items():
        (site / name).mkdir()
        (site / name / "__init__.py").write_text(f'__version__ = "{version}"\n')
        information = site / f"{name}-{version}.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (information / "WHEEL").write_text("Wheel-Version: 1.0\nTag: py3-none-any\n")
        (information / "INSTALLER").write_text("pip\n")
        record = (
            f"{name}/__init__.py,sha256=x,{len(version)}\n{information.name}/METADATA,,\n../../../bin/{folder.name},,\n"
        )
        (information / "RECORD").write_text(record)
    return str(folder / "bin" / "python")


def test_two_real_environments_of_stubs(attncheck: Run, tmp_path: Path) -> None:
    one = make_environment(tmp_path / "one", einops="0.8.1", peft="0.17.0")
    two = make_environment(tmp_path / "two", einops="0.8.2", peft="0.17.0")
    result = attncheck("diff", "--python", one, "--python", two, "--lane", "static", "--format", "json")
    section = json.loads(result.stdout)["diff"]
    assert [(d["kind"], d["subject"], d["a"], d["b"]) for d in section["differences"]] == [
        ("package", "einops", "0.8.1", "0.8.2")  # peft's content is the same: scripts and metadata do not count
    ]
    lock = str(tmp_path / "stack.json")
    assert attncheck("lock", lock, "--python", one, "--lane", "static").returncode == 0
    assert [package["name"] for package in json.loads(Path(lock).read_text())["packages"]] == ["einops", "peft"]
    assert str(tmp_path) not in Path(lock).read_text()
    same = attncheck("lock", "--check", lock, "--python", one, "--lane", "static")
    assert same.returncode == 0 and "nothing changed" in same.stdout
    moved = attncheck("lock", "--check", lock, "--python", two, "--lane", "static", "--fail-on", "warning")
    assert moved.returncode == 1 and "einops==0.8.1" in moved.stdout and "peft" not in moved.stdout


def test_no_planted_secret_gets_into_a_diff() -> None:
    planted = [make_secret(shape, 11) for shape in TOKENS]
    variables = {f"NCCL_{index}": secret for index, secret in enumerate(planted)}
    snapshot = s.with_env(s.h200(), **variables)
    snapshot = s.with_package(snapshot, "peft", "1.0", problem=f"cannot be read: {planted[0]}")
    report = clean(compare(s.h200(), snapshot)[0])
    for name in format_names():
        text = load_format(name).render(report, True)
        assert not [secret for secret in planted if secret in text], name
    assert re.search("NCCL_0 +A not set · B …", load_format("text").render(report, True))
