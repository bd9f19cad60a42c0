"""doctor on environments as users of the frameworks install them: in every profile, nothing but true findings.

Each is a virtual environment with the genuine packages, their metadata and the CPU build of torch. What its findings
may be is written next to it with the reason why each is true; a finding that is not listed is a false alarm, a listed
one that is not made is a miss. ATTNCHECK_ENVIRONMENTS names a folder in which they are kept for the next run.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from attncheck.core import codec
from attncheck.core.facts import Known
from attncheck.core.snapshot import Snapshot
from attncheck.doctor import engine
from attncheck.doctor.profile import PROFILES, Profile, needs_of_profile
from tests.doctor import environments
from tests.doctor.environments import Environment

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

KEPT = os.environ.get("ATTNCHECK_ENVIRONMENTS", "")
NO_FLASH = {"ATN109": "the profile asks for flash-attn, and there is none"}
NO_RING = {**NO_FLASH, "ATN130": "the profile asks for a ring, and there is none"}
LEFT_OUT = {"ATN170": "what the framework requires alongside was left out on purpose"}
TRITON = "triton==3.5.1"


@dataclass(frozen=True)
class Case:
    """An environment, and the findings that are true of it: code -> why."""

    installed: tuple[str, ...]  # with all that they require
    alone: tuple[str, ...] = ()  # with nothing of what they require
    flash_attn: bool = False  # with the stand-in for flash-attn
    true_findings: Mapping[str, str] = field(default_factory=dict)


CASES = {
    "transformers-523": Case(("transformers==5.23.0", "accelerate"), true_findings=NO_RING),
    "trl": Case(("trl==1.16.0", "peft==0.21.2", "transformers==5.23.0"), true_findings=NO_RING),
    "liger-457": Case(
        ("transformers==4.57.6", "accelerate==1.10.1"),
        ("liger-kernel==0.8.5", TRITON),
        true_findings={**NO_RING, "ATN150": "liger-kernel 0.8.5 raises on import: it wants transformers >= 5"},
    ),
    "trl-unsloth": Case(
        ("trl==0.23.1", "peft==0.17.1", "transformers==4.57.6"),
        ("unsloth==2025.9.1", "unsloth_zoo==2025.9.1"),
        true_findings={**NO_RING, **LEFT_OUT},
    ),
    "axolotl": Case(
        (
            *("transformers==5.16.1", "trl==1.9.0", "peft==0.20.0", "accelerate==1.13.0", "datasets==4.8.4"),
            *("pydantic", "fire", "addict", "colorama", "python-dotenv", "einops"),
        ),
        ("axolotl==0.19.0", "liger-kernel==0.8.1", TRITON),
        true_findings={
            **NO_RING,
            **LEFT_OUT,
            "ATN147": "axolotl pins huggingface_hub and tokenizers to other releases",
        },
    ),
    "openrlhf": Case(
        ("transformers==5.15.0", "peft", "accelerate", "datasets", "ray", "torchdata", "einops"),
        ("openrlhf==0.11.2", "ring-flash-attn==0.1.8", TRITON),
        flash_attn=True,
        true_findings={
            **LEFT_OUT,
            "ATN140": "ring-flash-attn 0.1.8 raises on import: transformers 5.15 has moved a name",
            "ATN147": "openrlhf pins ray to another release",
        },
    ),
    "verl": Case(
        (
            *("transformers==5.10.1", "peft", "accelerate", "datasets", "ray", "torchdata", "hydra-core", "codetiming"),
            *("tensordict<=0.10.0,>=0.8.0,!=0.9.0", "pybind11", "pylatexenc", "numpy<2.0.0"),
        ),
        ("verl==0.9.1",),
        true_findings={**NO_RING, "ATN162": "a critic of verl 0.9.1 is loaded with flash_attention_2"},
    ),
    "verl-ring": Case(
        ("transformers==5.10.1", "peft", "accelerate", "datasets", "ray", "hydra-core"),
        ("verl==0.9.1", "ring-flash-attn==0.1.8", TRITON),
        flash_attn=True,
        true_findings={
            "ATN140": "ring-flash-attn 0.1.8 raises on import: transformers 5.10 has moved a name",
            "ATN170": "verl raises on import: there is no tensordict",
        },
    ),
    "ms-swift": Case(("ms-swift==4.6.0",), true_findings=NO_RING),
    "llamafactory-alone": Case(
        (
            *("transformers==5.6.0", "trl==0.24.0", "peft==0.18.1", "accelerate==1.11.0", "datasets==4.0.0"),
            *("torchdata==0.11.0", "omegaconf", "hydra-core", "einops", "fire"),
        ),
        ("llamafactory==0.9.5",),
        true_findings={
            **NO_RING,
            **LEFT_OUT,
            "ATN163": "LLaMA-Factory turns fa2 into sdpa if there is no flash-attn",
        },
    ),
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(KEPT) if KEPT else tmp_path_factory.mktemp("frameworks")


@pytest.fixture(scope="session")
def base(folder: Path) -> Environment:
    path = folder / "base"
    return Environment(path) if path.is_dir() else environments.create_base(path)


def build(case: Case, base: Environment, folder: Path) -> Environment:
    """Return the environment of a case."""
    if folder.is_dir():
        return Environment(folder)
    environment = base.copy(folder).install(*case.installed)
    if case.flash_attn:
        environments.install_stub_flash_attn(environment)
    if case.alone:
        environment.run_pip("install", "--quiet", "--no-deps", *case.alone)
    return environment


# What doctor calls gone is looked up by importing: what is there anyway is printed.
LOOK_UP = """
import importlib, json, sys, warnings
warnings.simplefilter("ignore")
for source, name in json.loads(sys.argv[1]):
    try:
        module = importlib.import_module(source)
        owner = module
        for part in filter(None, name.split(".")):
            owner = getattr(owner, part)
    except Exception:
        continue
    print(source, name)
"""


def find_names_that_are_there(environment: Environment, snapshot: Snapshot) -> str:
    """Return those of the names that the linker calls gone which importing finds; ATN132 and ATN133 rest on them."""
    assert isinstance(snapshot.links, Known)
    gone = [(link.source, link.name) for link in snapshot.links.value if link.kind != "argument"]
    command = [environment.python, "-c", LOOK_UP, json.dumps(gone)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=environment.folder).stdout


def judge(snapshot: Snapshot, profile: Profile) -> dict[str, str]:
    """Return code -> message of the findings in a profile."""
    report = engine.run_rules(snapshot, needs_of_profile(profile, snapshot))
    return {finding.code: finding.message for finding in report.findings}


@pytest.mark.parametrize("name", CASES)
def test_every_finding_is_true_and_none_is_missed(name: str, base: Environment, folder: Path) -> None:
    case = CASES[name]
    environment = build(case, base, folder / name)
    report = environment.run_doctor("--profile", "all")
    snapshot = codec.read(Snapshot, report["snapshot"])
    found: dict[str, str] = {}
    for profile in PROFILES:
        found |= judge(snapshot, profile)
    expected = {*case.true_findings, "ATN132", "ATN133"}
    assert {code: message for code, message in found.items() if code not in expected} == {}
    assert find_names_that_are_there(environment, snapshot) == ""
    assert set(case.true_findings) <= set(found)
