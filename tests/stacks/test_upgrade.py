"""What an upgrade is predicted to break: requests, plans, requirements, builds, wheels, and what is left open."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.core import codec
from attncheck.core.io.errors import BadUsage
from attncheck.core.io.outgoing import clean
from attncheck.core.report import Report
from attncheck.core.results.upgrade import UpgradeSection
from attncheck.core.snapshot import Snapshot
from attncheck.report.formats import format_names, load_format
from attncheck.stacks.upgrade.compare import Judging
from attncheck.stacks.upgrade.moves import list_torch_moves, sort_moves
from attncheck.stacks.upgrade.requests import UpgradeRequest, locate_wheels, parse_request
from attncheck.stacks.upgrade.run import UpgradeSettings, run_upgrade
from attncheck.stacks.upgrade.wheel_fit import list_host_tags
from attncheck.stacks.upgrade.wheels import read_wheel
from attncheck.workers.overlay import ResolvedPackage
from tests import snapshots as s
from tests.conftest import Run
from tests.planted_secrets import TOKENS, make_secret
from tests.stacks.upgrade_wheels import write_wheel

AUTO = Judging()


def predict(snapshot: Snapshot, *words: str, judging: Judging = AUTO) -> Report:
    return run_upgrade(parse_request(words), snapshot, UpgradeSettings(judging), lambda text: None)


def section_of(report: Report) -> UpgradeSection:
    section = report.section(UpgradeSection)
    assert section is not None
    return section


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name what to upgrade"),
        (("transformers",), "transformers: name the release"),
        (("transformers=5",), "is not a requirement"),
        (("transformers>=5",), "does not name one release: write"),
        (("transformers==5.*",), "does not name one release: write"),
        (("transformers===latest",), "'latest' is not a version"),
        (("trl[vllm]==1.0",), "the extra [vllm]"),
        (("trl==1.0; python_version < '3'",), "markers are not needed"),
        (("trl @ https://example.org/trl-1.0-py3-none-any.whl",), "is a URL"),
        (("https://example.org/trl-1.0-py3-none-any.whl",), "is a URL"),
        (("Trl==1.0", "trl==1.1"), "trl is named twice"),
        (("trl==1.0", "a/b", "c/d"), "one MODEL at a time"),
        (("none-1.0-py3-none-any.whl",), "no such file"),
        (("none.whl",), "does not have a wheel's file name"),
    ],
)
def test_what_is_no_upgrade_is_one_clear_line(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(BadUsage) as caught:
        locate_wheels(parse_request(words), (), frozenset())
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_request_holds_packages_and_a_model(tmp_path: Path) -> None:
    request = parse_request(("Liger_Kernel==0.8.0", str(tmp_path)))
    assert [(p.name, p.version, p.requirement) for p in request.packages] == [
        ("liger-kernel", "0.8.0", "liger-kernel==0.8.0")
    ]
    assert request.model == str(tmp_path) and parse_request(("a==1", "org/model")).model == "org/model"


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"no archive at all"])
def test_a_file_that_is_no_wheel_is_one_clear_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a-1.0-py3-none-any.whl"
    path.write_bytes(data)
    with pytest.raises(BadUsage, match="cannot be read as a wheel"):
        read_wheel(str(path))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/__init__.py", "")
    with pytest.raises(BadUsage, match="has no METADATA"):
        read_wheel(str(path))


def test_a_folder_of_wheels_decides_a_range_by_what_fits(tmp_path: Path) -> None:
    for version, tag in (("1.0", "py3-none-any"), ("1.5", "py3-none-any"), ("1.9", "cp39-cp39-win32")):
        write_wheel(tmp_path, "trl", version, {}, tag=tag)
    tags = list_host_tags(s.h200().host)

    def locate(word: str) -> UpgradeRequest:
        return locate_wheels(parse_request((word,)), [str(tmp_path)], tags)

    assert [package.version for package in locate("trl>=1").packages] == ["1.5"]
    assert [package.version for package in locate("trl==1.9").packages] == ["1.9"], "named, though it does not fit"
    assert locate("peft==1.0").packages[0].wheel is None
    with pytest.raises(BadUsage, match="no wheel in"):
        locate("trl>=2")
    with pytest.raises(BadUsage, match="no such folder"):
        locate_wheels(parse_request(("trl>=1",)), [str(tmp_path / "none")], tags)


# On the recorded machine ring-flash-attn 0.1.8 is broken from the start (transformers 5.17.0: ATN140).
def test_a_release_that_fixes_and_one_that_breaks() -> None:
    fixed = predict(s.h200(), "transformers==5.1.0")
    assert "ATN140" in [effect.code for effect in section_of(fixed).fixes]
    assert fixed.findings == ()
    assert codes(predict(s.h200(), "transformers==5.3.0")) == ["ATN457"], "it divides gradients twice"
    good = s.with_package(s.h200(), "transformers", "5.1.0")
    good = replace(good, imports=s.Absent("not asked"), interfaces=s.Absent("not asked"), links=s.Absent("not asked"))
    broken = predict(good, "transformers==5.17.0")
    assert "ATN140" in codes(broken) and not section_of(broken).fixes
    (finding,) = (finding for finding in broken.findings if finding.code == "ATN140")
    assert finding.evidence[0] == "predicted, not run: transformers 5.17.0"


def test_what_goes_because_another_takes_its_place_is_not_fixed() -> None:
    report = predict(s.h200(), "transformers==5.23.0")
    assert "ATN141" in codes(report) and "ATN140" not in [effect.code for effect in section_of(report).fixes]
    (finding,) = (finding for finding in report.findings if finding.code == "ATN141")
    assert any(line.startswith("replaces today's ATN140") for line in finding.evidence)


def test_an_upgrade_that_changes_nothing_finds_nothing() -> None:
    report = predict(s.h200(), "transformers==5.17.0", "torch==2.11.0")
    assert report.findings == () and section_of(report).unknown == ()
    assert "nothing would change" in load_format("text").render(report, False)


@pytest.mark.parametrize("word", ["einops==0.8.9", "numpy==2.4.0", "peft==0.18.0"])
def test_an_upgrade_that_is_fine_has_no_finding_and_is_not_called_fine(word: str) -> None:
    report = predict(s.h200(), word)
    assert report.findings == () and not section_of(report).fixes
    assert any("its releases are in no table" in line for line in section_of(report).unknown)


def test_a_release_beyond_the_tables_is_not_judged_by_them() -> None:
    lines = section_of(predict(s.h200(), "transformers==6.0.0")).unknown
    assert any("the tables end at 5.23.0; later changes are unknown" in line for line in lines)
    assert any("nothing was run" in line for line in lines)


def test_a_requirement_that_is_met_today_and_would_not_be() -> None:
    snapshot = s.with_package(s.h200(), "some-tool", "1.0", requires=("transformers<5.18", "numpy>=1", "einops<0.1"))
    report = predict(snapshot, "transformers==5.20.0", "einops==0.8.9")
    (finding,) = (finding for finding in report.findings if finding.code == "ATN921")
    assert finding.message == "some-tool 1.0 requires transformers<5.18, but transformers would be 5.20.0"
    together = predict(snapshot, "transformers==5.20.0", "some-tool==2.0")
    assert "ATN921" not in codes(together), "what moves along is asked what it requires by its wheel alone"
    marked = s.with_package(s.h200(), "some-tool", "1.0", requires=("transformers<5.18; sys_platform == 'win32'",))
    assert "ATN921" not in codes(predict(marked, "transformers==5.20.0"))
    assert "ATN921" not in codes(predict(snapshot, "transformers==5.17.1"))


def test_a_framework_that_says_it_already_is_not_said_twice() -> None:
    snapshot = s.with_package(s.h200(), "openrlhf", "0.11.2", requires=("transformers==5.17.0",))
    found = predict(snapshot, "transformers==5.20.0")
    assert "ATN147" in codes(found) and "ATN921" not in codes(found)


def test_select_and_ignore_hold() -> None:
    snapshot = s.with_package(s.h200(), "some-tool", "1.0", requires=("transformers<5.18",))
    assert codes(predict(snapshot, "transformers==5.23.0", judging=Judging(select=("ATN921",)))) == ["ATN921"]
    assert "ATN921" not in codes(predict(snapshot, "transformers==5.23.0", judging=Judging(ignore=("ATN92",))))


def test_what_is_compiled_against_a_torch_that_goes() -> None:
    snapshot = s.with_binary(s.h200(), "flash_attn_2_cuda", needed=("libtorch.so", "libc10.so"), missing_symbols=())
    snapshot = s.with_package(snapshot, "flash-attn", "2.8.3")
    report = predict(snapshot, "torch==2.14.0")
    (finding,) = (f for f in report.findings if f.code == "ATN923" and f.subject == "flash-attn 2.8.3")
    assert finding.severity == "warning" and "against torch 2.11, but torch would be 2.14.0" in finding.message
    assert "ATN923" not in codes(predict(snapshot, "torch==2.11.1"))
    together = predict(snapshot, "torch==2.14.0", "flash-attn==2.9.0")
    assert not [f for f in together.findings if f.code == "ATN923" and f.subject.startswith("flash-attn")]
    assert any("compiled against torch" in line for line in section_of(report).unknown)


def test_a_fault_of_compiled_code_is_not_called_fixed_by_another_torch() -> None:
    broken = s.with_binary(
        s.h200(), "flash_attn_2_cuda", needed=("libtorch.so",), torch_symbols=9, missing_symbols=("_ZN3c104gone",)
    )
    broken = s.with_import(
        broken, "flash_attn_2_cuda", "raised", exception="ImportError", message="undefined symbol: _ZN3c104gone"
    )
    report = predict(broken, "torch==2.12.0")
    assert "ATN104" not in [effect.code for effect in section_of(report).fixes]
    assert any("ATN104" in line for line in section_of(report).unknown)


@pytest.mark.parametrize(
    ("name", "version", "tag", "python", "reason"),
    [
        ("trl", "9.0", "py3-none-any", "", ""),
        ("trl", "9.0", "cp312-cp312-manylinux_2_28_x86_64", "", ""),
        ("trl", "9.0", "cp38-abi3-manylinux2014_x86_64", "", ""),
        ("trl", "9.0", "cp311-cp311-manylinux_2_28_x86_64", "", "it is for cp311-cp311-manylinux_2_28_x86_64"),
        ("trl", "9.0", "cp312-cp312-manylinux_2_28_aarch64", "", "on x86_64"),
        ("trl", "9.0", "cp312-cp312-manylinux_2_60_x86_64", "", "glibc"),
        ("trl", "9.0", "cp312-cp312-win_amd64", "", "it is for cp312-cp312-win_amd64"),
        ("trl", "9.0", "py3-none-any", ">=3.13", "it requires Python >=3.13"),
        ("flash-attn", "2.8.4+cu13torch2.11cxx11abitrue", "cp312-cp312-linux_x86_64", "", ""),
        ("flash-attn", "2.8.4+cu13torch2.9cxx11abitrue", "cp312-cp312-linux_x86_64", "", "it is built for torch 2.9"),
        ("flash-attn", "2.8.4+cu12torch2.11cxx11abitrue", "cp312-cp312-linux_x86_64", "", "it is built for CUDA 12"),
        ("flash-attn", "2.8.4+cu13torch2.11cxx11abifalse", "cp312-cp312-linux_x86_64", "", "the other C++ ABI"),
    ],
)
def test_a_wheel_fits_or_not(tmp_path: Path, name: str, version: str, tag: str, python: str, reason: str) -> None:
    snapshot = s.with_torch(s.h200(), cxx11_abi=s.Known(True))
    path = write_wheel(tmp_path, name, version, {}, tag=tag, requires_python=python)
    report = predict(snapshot, str(path))
    messages = [finding.message for finding in report.findings if finding.code == "ATN924"]
    assert len(messages) == bool(reason) and all(reason in message for message in messages)


def test_what_the_new_release_requires_is_read_in_its_wheel(tmp_path: Path) -> None:
    requires = ("torch>=2.99", "einops>=0.1", "brand-new>=1", "flash-attn>=9; extra == 'flash'", "numpy>=99")
    path = write_wheel(tmp_path, "trl", "9.0", {}, requires)
    report = predict(s.h200(), str(path))
    messages = {finding.code: finding.message for finding in report.findings}
    assert messages["ATN922"] == "trl 9.0 requires torch>=2.99, and torch 2.11.0+cu130 is installed"
    assert "brand-new>=1 (here: none)" in messages["ATN925"] and "numpy>=99" in messages["ATN925"]
    assert "einops" not in messages["ATN925"] and "flash" not in messages["ATN925"]
    assert not {"ATN147", "ATN170"} & set(codes(report)), "an installer meets them"


def test_what_pip_would_move_along() -> None:
    request = parse_request(("trl==9.0", "flash-attn==2.9.0"))
    resolved = [
        ResolvedPackage("trl", "9.0"),
        ResolvedPackage("torch", "2.99.0"),
        ResolvedPackage("brand_new", "1.0"),
    ]
    moves = sort_moves(request.packages, s.h200(), resolved)
    assert moves.tried == ("trl==9.0", "brand_new==1.0")
    assert [(change.name, change.after) for change in moves.along] == [("torch", "2.99.0"), ("brand-new", "1.0")]
    assert [line.partition(":")[0] for line in moves.not_tried] == [
        "flash-attn 2.9.0",
        "torch 2.99.0, which changes too",
    ]
    (finding,) = list_torch_moves(moves, request.packages)
    assert finding.message == "pip would change torch 2.11.0 to 2.99.0 for trl 9.0 flash-attn 2.9.0"


def test_no_planted_secret_gets_into_a_report() -> None:
    planted = [make_secret(shape, 5) for shape in TOKENS]
    requires = tuple(f"transformers<5.18; '{secret}' != ''" for secret in planted)
    snapshot = s.with_package(s.h200(), "some-tool", f"1.0+{planted[0]}", requires=requires)
    report = clean(predict(snapshot, "transformers==5.20.0"))
    for name in format_names():
        text = load_format(name).render(report, True)
        assert not [secret for secret in planted if secret in text], name


def test_every_format_shows_what_would_move_break_and_is_not_known(tmp_path: Path) -> None:
    report = clean(predict(s.h200(), "transformers==5.23.0"))
    for name in format_names():
        text = load_format(name).render(report, True)
        assert "ATN141" in text, name
        if name in ("text", "markdown", "html"):
            assert "5.23.0" in text and "unknown" in text and "nothing was run" in text, name


def test_the_command_line_judges_a_recording_and_exits_as_elsewhere(attncheck: Run, tmp_path: Path) -> None:
    facts = tmp_path / "facts.json"
    facts.write_text(codec.dumps(s.h200()))
    broken = attncheck("upgrade", "transformers==5.23.0", "--facts", str(facts), "--format", "json")
    document = json.loads(broken.stdout)
    assert broken.returncode == 1 and "ATN141" in [finding["code"] for finding in document["findings"]]
    assert document["upgrade"]["basis"] == "predicted"
    assert attncheck("upgrade", "einops==0.8.9", "--facts", str(facts)).returncode == 0
    for requirement, verdict in (
        ("nosuchpkg==1.0", "unknown: no table has nosuchpkg"),
        ("liger-kernel==99.0", "unknown: the tables of liger-kernel end at "),
    ):
        unknown = attncheck("upgrade", requirement, "--facts", str(facts))
        assert unknown.returncode == 3 and unknown.stdout.startswith(verdict), unknown.stdout
    for arguments, message in (
        (("transformers", "--facts", str(facts)), "name the release"),
        (("transformers==5.23.0", "--facts", str(facts), "--try"), "remove --facts"),
        (("transformers==5.23.0", "org/model", "--facts", str(facts)), "pass MODEL to `attncheck probe`"),
        (("transformers==5.23.0", "--only", "smoke"), "--only is for --try"),
        (("transformers==5.23.0", "--try", "--only", "bench"), "--only 'bench' is not one of"),
    ):
        wrong = attncheck("upgrade", *arguments)
        assert (wrong.returncode, wrong.stdout) == (2, "") and message in wrong.stderr, wrong
        assert wrong.stderr.count("\n") == 1
