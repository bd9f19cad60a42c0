"""The files that `--target` reads: what each says of packages, what it leaves open, and what is broken in it."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import pytest

from attncheck.core.facts import Absent, Known, Unreadable
from attncheck.core.io.errors import BadUsage
from attncheck.doctor.target import apply_target, parse_target
from attncheck.doctor.target_files import read_package_list
from attncheck.doctor.target_files.collector import NO_VERSION, PackageList
from tests import snapshots as s
from tests.adversary.mutation import mutate
from tests.conftest import Run


def read(folder: Path, name: str, text: str, **others: str) -> PackageList:
    """Return what the file `name` says; `others` lie next to it, with "_" for "." in their names."""
    for other, content in others.items():
        (folder / other.replace("_", ".")).write_text(content, encoding="utf-8")
    (folder / name).write_text(text, encoding="utf-8")
    return read_package_list(str(folder / name))


REQUIREMENTS = """\
# the environment that trains
--extra-index-url https://user:secret@example.com/simple
-r base.txt
-c limits.txt
torch==2.6.0 \\
    --hash=sha256:0000
transformers>=4.51,<5  # a range
liger-kernel
flash_attn @ https://github.com/x/y/releases/download/v2/flash_attn-2.7.4.post1+cu12torch2.6cxx11abiFALSE-cp311-cp311-linux_x86_64.whl
https://example.com/ring_flash_attn-0.1.8-py3-none-any.whl
triton==3.2.0; sys_platform == "linux"
bitsandbytes==0.45; sys_platform == "win32"
tokenizers==0.21; python_version < "3.11"
tokenizers==0.22; python_version >= "3.11"
ray==2.9; python_version < "3.11"
git+https://github.com/x/verl@main#egg=verl
"""


def test_requirements(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "requirements.txt",
        REQUIREMENTS,
        base_txt="accelerate==1.2\n-r requirements.txt\nvllm\n",
        limits_txt="vllm==0.8.5\ndeepspeed==0.15\n",
    )
    assert found.versions == {
        "accelerate": "1.2",
        "vllm": "0.8.5",
        "torch": "2.6.0",
        "flash-attn": "2.7.4.post1+cu12torch2.6cxx11abifalse",
        "ring-flash-attn": "0.1.8",
        "triton": "3.2.0",
    }
    assert found.allowed.keys() == {"transformers", "liger-kernel", "tokenizers", "verl"}
    assert found.allowed["transformers"] == "<5,>=4.51" and "deepspeed" not in found.allowed
    assert found.remarks == ("ray is required only for some interpreters, so it is treated as not installed",)


@pytest.mark.parametrize(
    ("lines", "allowed"),
    [
        (("transformers<=4.45.2,>=4.41.2", "transformers<=4.48.2,!=4.46.*,>=4.41.2"), "<=4.48.2,>=4.41.2"),
        (("transformers>=4.41", "transformers>=4.45"), ">=4.41"),
        (("transformers==4.40", "transformers>=4.45"), NO_VERSION),
        (("transformers>=4.45,<5", "transformers>=4.45,<5"), "<5,>=4.45"),
    ],
)
def test_requirements_that_differ_between_interpreters(tmp_path: Path, lines: tuple[str, str], allowed: str) -> None:
    """What only one interpreter's requirement excludes is allowed, since the interpreter is unknown."""
    text = f"{lines[0]}; python_version < '3.10'\n{lines[1]}; python_version >= '3.10'\n"
    assert read(tmp_path, "requirements.txt", text).allowed["transformers"] == allowed


@pytest.mark.parametrize(
    ("lines", "remark"),
    [
        ("torch==2.6\ntorch==2.7", "torch is required in versions that exclude each other: ==2.6, ==2.7"),
        ("torch==2.6\ntorch<2.6", "exclude each other"),
        ("-e .", "its package and version are unknown"),
        ("-r https://example.com/all.txt", "is not downloaded"),
        ("torch==${TORCH}", "depends on a variable"),
    ],
)
def test_what_requirements_leave_open_is_said(tmp_path: Path, lines: str, remark: str) -> None:
    found = read(tmp_path, "requirements.txt", lines + "\n")
    assert "torch" not in found.versions
    assert any(remark in line for line in found.remarks), found.remarks


PYLOCK = """\
lock-version = "1.0"
requires-python = ">=3.11"
[[packages]]
name = "torch"
version = "2.6.0"
[[packages]]
name = "tomli"
version = "2.0"
marker = "python_version < '3.11'"
[[packages]]
name = "flash-attn"
version = "2.8.3"
marker = "'flash' in extras"
[[packages]]
name = "trl"
vcs = {type = "git", url = "https://github.com/huggingface/trl"}
"""
UV_LOCK = """\
version = 1
requires-python = ">=3.11"
[[package]]
name = "mine"
version = "0.1"
source = { virtual = "." }
dependencies = [
    { name = "torch" },
    { name = "accelerate", extra = ["test"] },
    { name = "colorama", marker = "sys_platform == 'win32'" },
]
[package.optional-dependencies]
flash = [{ name = "flash-attn" }]
[[package]]
name = "torch"
version = "2.6.0"
source = { registry = "https://pypi.org/simple" }
dependencies = [{ name = "triton", marker = "sys_platform == 'linux'" }]
[[package]]
name = "triton"
version = "3.2.0"
[[package]]
name = "accelerate"
version = "1.2.0"
[package.optional-dependencies]
test = [{ name = "peft" }]
[[package]]
name = "peft"
version = "0.14.0"
[[package]]
name = "flash-attn"
version = "2.8.3"
[[package]]
name = "colorama"
version = "0.4"
"""
PYPROJECT = """\
[project]
name = "mine"
requires-python = ">=3.11"
dependencies = ["torch==2.6.0", "transformers>=4.51", "trl==0.16", "tomli==2; python_version < '3.11'"]
optional-dependencies = {flash = ["flash-attn==2.8.3"]}
[tool.uv.sources]
trl = {git = "https://github.com/huggingface/trl"}
"""
POETRY = """\
[tool.poetry.dependencies]
python = "^3.10"
torch = "2.6.0"
transformers = "^4.44.2"
trl = {version = "~0.16", extras = ["vllm"]}
vllm = "^0.8.1"
peft = "*"
accelerate = "^1 || ^2"
flash-attn = {version = "2.8.3", optional = true}
"""


def test_poetry_s_constraints(tmp_path: Path) -> None:
    allowed = read(tmp_path, "pyproject.toml", POETRY).allowed
    assert [allowed[name] for name in ("transformers", "trl", "vllm")] == [
        ">=4.44.2,<5",
        ">=0.16,<0.17",
        ">=0.8.1,<0.9",
    ]
    assert allowed["peft"] == allowed["accelerate"] == NO_VERSION


@pytest.mark.parametrize(
    ("name", "text", "versions", "allowed"),
    [
        ("pylock.toml", PYLOCK, {"torch": "2.6.0"}, {"trl"}),
        ("pylock.train.toml", PYLOCK, {"torch": "2.6.0"}, {"trl"}),
        ("uv.lock", UV_LOCK, {"torch": "2.6.0", "triton": "3.2.0", "accelerate": "1.2.0", "peft": "0.14.0"}, set()),
        ("pyproject.toml", PYPROJECT, {"torch": "2.6.0"}, {"transformers", "trl"}),
        ("pyproject.toml", POETRY, {"torch": "2.6.0"}, {"transformers", "trl", "vllm", "peft", "accelerate"}),
    ],
)
def test_locks_and_projects(tmp_path: Path, name: str, text: str, versions: dict[str, str], allowed: set[str]) -> None:
    found = read(tmp_path, name, text)
    assert found.versions == versions
    assert found.allowed.keys() == allowed


BROKEN = {
    "requirements.txt": ("torch == == 2", "-r gone.txt", b"\xff\xff\x00", "torch==not a version!"),
    "pylock.toml": ("", "lock-version = ", "a = 1"),
    "uv.lock": ("[[package]", "a = 1", "version = 1\n[[package]]\nversion = '1'\n", "version = 1\npackage = 3\n"),
    "pyproject.toml": ("a = 1", "[project", "a = " + "[" * 20_000),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_one_clear_line(tmp_path: Path, name: str) -> None:
    for content in BROKEN[name]:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(BadUsage) as caught:
            read_package_list(str(tmp_path / name))
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000, content


def test_files_that_never_end_are_refused(tmp_path: Path) -> None:
    for number in range(80):
        (tmp_path / f"{number}.txt").write_text(f"-r {number + 1}.txt\n-r {number + 1}.txt\n")
    with pytest.raises(BadUsage, match="more than 64 files"):
        read_package_list(str(tmp_path / "0.txt"))
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(BadUsage, match="a named pipe"):
        read_package_list(str(tmp_path / "pipe.txt"))
    with (tmp_path / "sparse.txt").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(BadUsage, match="larger than"):
        read_package_list(str(tmp_path / "sparse.txt"))


def test_a_file_becomes_the_facts_that_words_become(tmp_path: Path) -> None:
    read(tmp_path, "requirements.txt", "torch==2.6.0+cu124\ntransformers>=4.51\nflash-attn==2.8.3\n")
    target = parse_target(f"h100x8,{tmp_path}/requirements.txt,flash-attn=2.7.0,deepspeed=none")
    snapshot = apply_target(s.h200(), target)
    words = apply_target(
        s.without_packages(s.h200(), *(entry.name for entry in s.h200().distributions)),
        parse_target("h100x8,torch=2.6.0+cu124"),
    )
    assert snapshot.torch == words.torch and isinstance(snapshot.torch, Known)
    assert snapshot.torch.value.cuda == Known("12.4")
    version = snapshot.version("flash-attn")
    assert isinstance(version, Known) and str(version.value) == "2.7.0", "the words win"
    assert snapshot.has("transformers") and isinstance(snapshot.version("transformers"), Unreadable)
    assert isinstance(snapshot.package("deepspeed"), Absent)
    assert isinstance(snapshot.package("ring-flash-attn"), Unreadable), (
        "here it is, in the environment of the file who knows"
    )


def test_doctor_and_lint_take_files(attncheck: Run, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(
        "torch==2.6.0\ntransformers==5.17.0\nring-flash-attn==0.1.8\n-e ./mine\n"
    )
    done = attncheck("doctor", "--target", "h100x8,requirements.txt", "--format", "json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert {"ATN140", "ATN905"} <= {finding["code"] for finding in report["findings"]}
    (note,) = (finding for finding in report["findings"] if finding["code"] == "ATN905")
    assert note["evidence"] == [
        "requirements.txt:4: a project given by path or URL: its package and version are unknown"
    ]
    assert note["fixes"][0]["text"].endswith("requirements.txt,PACKAGE=VERSION"), "a file is named already"
    (tmp_path / "requirements.txt").write_text("torch = 2\n")
    for arguments in (("doctor",), ("lint",)):
        command = () if arguments == ("doctor",) else ("--", "torchrun", "train.py")
        refused = attncheck(*arguments, "--target", "requirements.txt", *command)
        assert refused.returncode == 2 and refused.stderr.count("\n") == 1 and not refused.stdout
        assert "requirements.txt:1: 'torch = 2' is not a requirement" in refused.stderr


SAMPLES = {
    "requirements.txt": REQUIREMENTS.replace("-r base.txt\n-c limits.txt\n", ""),
    "pylock.toml": PYLOCK,
    "uv.lock": UV_LOCK,
    "pyproject.toml": PYPROJECT,
}


@pytest.mark.parametrize("name", SAMPLES)
def test_no_file_ends_in_a_traceback(tmp_path: Path, name: str) -> None:
    """Damaged files are read or refused in one line; more of them by night, with another seed."""
    fuzz(tmp_path, name, 60, 20)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SAMPLES)
def test_no_file_ends_in_a_traceback_by_night(tmp_path: Path, name: str) -> None:
    fuzz(tmp_path, name, 4000, int(time.time()))


def fuzz(folder: Path, name: str, count: int, seed: int) -> None:
    source = random.Random(f"{seed} {name}")
    read_files = 0
    refusals: set[str] = set()
    for _ in range(count):
        data = mutate(source, SAMPLES[name].encode(), tuple(text.encode() for text in SAMPLES.values()))
        (folder / name).write_bytes(data)
        try:
            snapshot = apply_target(s.h200(), parse_target(f"h100,{folder / name}"))
            assert all("\0" not in key for key in snapshot.environ)
            read_files += 1
        except BadUsage as error:
            refusals.add(str(error))
    assert not [text for text in refusals if "\n" in text or len(text) > 1000], seed
    print(f"{name}: {count} damaged, {read_files} read, the others refused (seed {seed})")
