"""The files that `--target` reads: what each says of packages, what it leaves open, and what is broken in it."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import pytest

from attncheck.core.errors import BadUsage
from attncheck.core.facts import Absent, Known, Unreadable
from attncheck.doctor.target import apply_target, parse_target
from attncheck.doctor.target_files import read_package_list
from attncheck.doctor.target_files.collector import PackageList
from tests import snapshots as s
from tests.adversary.mutation import mutate
from tests.conftest import Run


def read(folder: Path, name: str, text: str, **others: str) -> PackageList:
    """Return what the file `name` says; `others` lie beside it, with "_" for "." in their names."""
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
    assert found.remarks == ("ray is required for some interpreters only: not taken as installed",)


@pytest.mark.parametrize(
    ("lines", "remark"),
    [
        ("torch==2.6\ntorch==2.7", "torch is required in versions that exclude each other: ==2.6, ==2.7"),
        ("torch==2.6\ntorch<2.6", "exclude each other"),
        ("-e .", "which package and version it is was not read"),
        ("-r https://example.com/all.txt", "is not fetched"),
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
POETRY_OLD = """\
[[package]]
name = "torch"
version = "2.6.0"
optional = false
[package.dependencies]
triton = {version = "3.2.0", markers = "platform_system == \\"Linux\\""}
numpy = "*"
[[package]]
name = "numpy"
version = "2.0.0"
optional = false
[[package]]
name = "triton"
version = "3.2.0"
optional = false
[[package]]
name = "flash-attn"
version = "2.8.3"
optional = true
[metadata]
lock-version = "2.0"
python-versions = "^3.11"
content-hash = "x"
"""
POETRY_NEW = POETRY_OLD.replace('"2.0"\npython', '"2.1"\npython').replace(
    'version = "3.2.0"\noptional = false',
    'version = "3.2.0"\noptional = false\ngroups = ["main"]\nmarkers = "platform_system == \\"Linux\\""',
)
PIPFILE_LOCK = json.dumps(
    {
        "_meta": {"requires": {"python_version": "3.11"}},
        "default": {
            "torch": {"version": "==2.6.0"},
            "trl": {"git": "https://github.com/huggingface/trl"},
            "tomli": {"version": "==2.0", "markers": "python_version < '3.11'"},
        },
        "develop": {"flash-attn": {"version": "==2.8.3"}},
    }
)
PYPROJECT = """\
[project]
name = "mine"
requires-python = ">=3.11"
dependencies = ["torch==2.6.0", "transformers>=4.51", "trl==0.16", "tomli==2; python_version < '3.11'"]
optional-dependencies = {flash = ["flash-attn==2.8.3"]}
[tool.uv.sources]
trl = {git = "https://github.com/huggingface/trl"}
"""
POETRY_PROJECT = """\
[tool.poetry.dependencies]
python = "^3.11"
torch = "2.6.0"
transformers = "^4.51"
flash-attn = {version = "2.8.3", optional = true}
trl = {git = "https://github.com/huggingface/trl"}
"""
CONDA = """\
name: train
channels: [pytorch]
dependencies:
  - python=3.11
  - pytorch::pytorch=2.6.0=py3.11_cuda12.4_cudnn9.1.0_0
  - pytorch-cuda=12.4
  - transformers==4.51.3
  - accelerate=1.2
  - numpy>=1.26,<3
  - pip
  - pip:
      - flash-attn==2.8.3
      - tomli==2; python_version < "3.11"
"""


@pytest.mark.parametrize(
    ("name", "text", "versions", "allowed"),
    [
        ("pylock.toml", PYLOCK, {"torch": "2.6.0"}, {"trl"}),
        ("pylock.train.toml", PYLOCK, {"torch": "2.6.0"}, {"trl"}),
        ("uv.lock", UV_LOCK, {"torch": "2.6.0", "triton": "3.2.0", "accelerate": "1.2.0", "peft": "0.14.0"}, set()),
        ("poetry.lock", POETRY_OLD, {"torch": "2.6.0", "numpy": "2.0.0"}, set()),
        ("poetry.lock", POETRY_NEW, {"torch": "2.6.0", "numpy": "2.0.0", "triton": "3.2.0"}, set()),
        ("Pipfile.lock", PIPFILE_LOCK, {"torch": "2.6.0"}, {"trl"}),
        ("pyproject.toml", PYPROJECT, {"torch": "2.6.0"}, {"transformers", "trl"}),
        ("pyproject.toml", POETRY_PROJECT, {"torch": "2.6.0"}, {"transformers", "trl"}),
        (
            "environment.yml",
            CONDA,
            {"torch": "2.6.0", "transformers": "4.51.3", "flash-attn": "2.8.3"},
            {"accelerate", "numpy", "pip", "pytorch-cuda"},
        ),
    ],
)
def test_locks_projects_and_environments(
    tmp_path: Path, name: str, text: str, versions: dict[str, str], allowed: set[str]
) -> None:
    found = read(tmp_path, name, text)
    assert found.versions == versions
    assert found.allowed.keys() == allowed


DOCKERFILE = """\
# syntax=docker/dockerfile:1
ARG TORCH=2.6.0
FROM python:3.12 AS tools
RUN pip install torch==1.0
FROM pytorch/pytorch:${TORCH}-cuda12.4-cudnn9-devel AS base
ENV NCCL_P2P_DISABLE=1 HF_TOKEN=hf_planted PATH=/opt/bin:$PATH
ENV NCCL_DEBUG INFO
FROM base
ARG FLASH=2.8.3
COPY requirements.txt /tmp/
RUN --mount=type=cache,target=/root/.cache apt-get update && apt-get install -y git \\
    # a comment within
    && pip install --no-cache-dir -r /tmp/requirements.txt \\
    && python3 -m pip install "flash-attn==${FLASH}" --no-build-isolation
RUN pip install transformers==4.50.0 && pip install -U transformers
RUN pip uninstall -y deepspeed
RUN if [ -n "$X" ]; then pip install peft==0.1; fi
RUN <<EOF
pip install ring-flash-attn==0.1.8
EOF
"""


def test_a_dockerfile(tmp_path: Path) -> None:
    found = read(tmp_path, "Dockerfile", DOCKERFILE, requirements_txt="accelerate==1.2.0\npeft==0.14\n")
    assert found.versions == {
        "torch": "2.6.0+cu124",
        "accelerate": "1.2.0",
        "flash-attn": "2.8.3",
        "ring-flash-attn": "0.1.8",
    }
    assert found.allowed.keys() == {"transformers", "peft"} and found.removed == ("deepspeed",)
    assert found.environ == {"NCCL_P2P_DISABLE": "1", "NCCL_DEBUG": "INFO"}
    assert any("TORCH is taken as its default, 2.6.0" in remark for remark in found.remarks)
    assert any("Dockerfile:17: an install under a condition" in remark for remark in found.remarks)
    assert "hf_planted" not in str(found)


@pytest.mark.parametrize(
    ("lines", "torch"),
    [
        ("FROM pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime", "2.6.0+cu124"),
        ("FROM pytorch/pytorch:latest", None),
        ("FROM nvcr.io/nvidia/pytorch:25.01-py3", None),
        ("FROM registry.example/pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel", None),
        ("FROM ubuntu\nRUN pip install torch==2.6.0 transformers", "2.6.0"),
        ("FROM ubuntu\nRUN pip install torch==2.6.0\nRUN pip install vllm==0.8.5", ""),
        ("FROM ubuntu\nRUN pip install torch==2.6.0\nRUN pip install --no-deps vllm==0.8.5", "2.6.0"),
        ("FROM ubuntu\nRUN pip install torch==2.6.0\nRUN pip install torch", "2.6.0"),
        ("FROM ubuntu\nRUN pip install torch==2.6.0\nRUN pip install torch==2.7.0", "2.7.0"),
        ("FROM ubuntu\nRUN pip install torch==2.6.0\nRUN pip install 'torch>=2.7'", ""),
        ("FROM ubuntu\nRUN uv pip install --system torch==2.6.0", "2.6.0"),
        ('FROM ubuntu\nRUN ["pip", "install", "torch==2.6.0"]', "2.6.0"),
        ("FROM ubuntu\nRUN conda install -y -c pytorch pytorch=2.6.0", "2.6.0"),
        ("FROM ubuntu\nRUN pip install torch==2.6.0 || pip install torch==2.5.0", None),
        ("FROM ubuntu\nRUN echo pip install torch==2.6.0", None),
        ("FROM ubuntu\nRUN pip download torch==2.6.0", None),
        ("FROM ubuntu\nRUN pip install torch==$(cat version)", None),
        ("FROM a\nRUN pip install torch==2.6.0\nFROM ubuntu", None),
    ],
)
def test_what_a_dockerfile_says_of_torch(tmp_path: Path, lines: str, torch: str | None) -> None:
    """None: nothing is known of it; "": it is there, in a version that nobody stated."""
    found = read(tmp_path, "Dockerfile", lines + "\n")
    version = found.versions.get("torch", "" if "torch" in found.allowed else None)
    assert version == torch, found


BROKEN = {
    "requirements.txt": ("torch == == 2", "-r gone.txt", b"\xff\xff\x00", "torch==not a version!"),
    "pylock.toml": ("", "lock-version = ", "a = 1"),
    "uv.lock": ("[[package]", "a = 1", "version = 1\n[[package]]\nversion = '1'\n", "version = 1\npackage = 3\n"),
    "poetry.lock": ("a = 1", "[metadata]\ncontent-hash = 'x'\n[[package]]\nx = 1\n"),
    "Pipfile.lock": ("{", "[]", "{}", "[" * 20_000),
    "pyproject.toml": ("a = 1", "[project", "a = " + "[" * 20_000),
    "environment.yml": ("a: [", "name: x", "- 1", "a: &a\n  <<: *a\n"),
    "Dockerfile": ("", "RUN pip install torch", "FROM"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_one_clear_line(tmp_path: Path, name: str) -> None:
    for content in BROKEN[name]:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(BadUsage) as caught:
            read_package_list(str(tmp_path / name))
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000, content


def test_a_strange_file_warns_of_nothing(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    text = "dependencies:\n  - &a torch==2.6.0\n  - &a numpy==2.0.0\n"
    assert read(tmp_path, "environment.yml", text).versions == {"torch": "2.6.0", "numpy": "2.0.0"}
    assert not recwarn.list


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
    doubling = "".join(f"ARG A{number + 1}=$A{number}$A{number}\n" for number in range(60))
    with pytest.raises(BadUsage, match="longer than"):
        read(tmp_path, "Dockerfile", f"ARG A0=xx\n{doubling}FROM ubuntu\n")


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
        "requirements.txt:4: a project by its path or URL: which package and version it is was not read"
    ]
    (tmp_path / "requirements.txt").write_text("torch = 2\n")
    for arguments in (("doctor",), ("lint",)):
        command = () if arguments == ("doctor",) else ("--", "torchrun", "train.py")
        refused = attncheck(*arguments, "--target", "requirements.txt", *command)
        assert refused.returncode == 2 and refused.stderr.count("\n") == 1 and not refused.stdout
        assert "requirements.txt:1: 'torch = 2' is no requirement" in refused.stderr


SAMPLES = {
    "requirements.txt": REQUIREMENTS.replace("-r base.txt\n-c limits.txt\n", ""),
    "pylock.toml": PYLOCK,
    "uv.lock": UV_LOCK,
    "poetry.lock": POETRY_OLD,
    "Pipfile.lock": PIPFILE_LOCK,
    "pyproject.toml": PYPROJECT,
    "environment.yml": CONDA,
    "Dockerfile": DOCKERFILE,
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
