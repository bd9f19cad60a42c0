"""The versions that a tree states judge its launches, unless a target or an environment is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from attncheck.core.facts import Known
from attncheck.core.job import Job, UnknownSetting
from attncheck.core.launch import SourceLocation
from attncheck.core.report import Report
from attncheck.core.results.lint import launches_of
from attncheck.doctor.target import apply_target, parse_target, with_version
from attncheck.lint import proof, run
from attncheck.lint.context import LintContext, Request
from attncheck.lint.fields.hugging_face import resolve_versions
from attncheck.lint.fields.releases import list_allowed
from attncheck.lint.inputs import list_named, make_file_reader
from attncheck.lint.programs.known_classes import make_class_finder
from attncheck.lint.release import ChosenRelease
from attncheck.lint.sources import read_source
from attncheck.lint.stated_versions import find_stated_versions
from tests.lint import launches
from tests.lint.programs.trees import write_tree

ENVIRONMENT = launches.make_environments()["laptop"]
VERL = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=m\n"

FROM_CLI = "from .cli import VERSION\n__version__ = VERSION\n"
PACKAGE_INFO = (
    "MAJOR = 0\nMINOR = 5\nPATCH = 0\nPRE_RELEASE = 'rc0'\nVERSION = (MAJOR, MINOR, PATCH, PRE_RELEASE)\n"
    "__version__ = '.'.join(map(str, VERSION[:3])) + ''.join(VERSION[3:])\n"
)

CONDA = "dependencies:\n  - pip:\n    - accelerate==0.29.2\n    - "
EXTRA = "[project.optional-dependencies]\n"
LOCK = 'version = 1\n\n[[package]]\nname = "trl"\nversion = "0.29.1"\n'  # which only an extra takes


def lint_tree(folder: Path, target: str) -> Report:
    source = read_source(str(folder / "run.sh"))
    request = Request((source,), stated="missing" if target else "all")
    snapshot = apply_target(ENVIRONMENT, parse_target(target)) if target else ENVIRONMENT
    return run.run(snapshot, request, launches.read_model, make_file_reader((source,)))


@pytest.mark.parametrize(
    ("files", "name", "version"),
    [
        ({"verl/version/version": "0.7.0.dev\n"}, "verl", "0.7.0.dev"),
        ({"src/llamafactory/extras/env.py": 'VERSION = "0.9.4"\n'}, "llamafactory", "0.9.4"),
        ({"swift/version.py": "__version__ = '3.11.1'\n"}, "ms-swift", "3.11.1"),
        ({"openrlhf/__init__.py": "", "version.txt": "0.9.1"}, "openrlhf", "0.9.1"),
        ({"requirements.txt": "transformers==4.56.1\n"}, "transformers", "4.56.1"),
        ({"setup.py": "setup(install_requires=['trl==0.18.0'])"}, "trl", "0.18.0"),
        ({"verl/version/version": "0.5.0", "requirements.txt": "verl==0.4.0"}, "verl", "0.5.0"),
        ({"scripts/requirements.txt": "trl==0.9.6", "requirements.txt": "trl==1.0.0"}, "trl", "0.9.6"),
        ({"verl/version/version": "main"}, "verl", ""),
        ({"environment.yaml": "dependencies:\n  - pip:\n    - transformers==4.48.0\n"}, "transformers", "4.48.0"),
        ({"swift.yml": "name: swift\ndependencies:\n  - pip:\n      - ms-swift==3.5.1\n"}, "ms-swift", "3.5.1"),
        ({"requirements.txt": "trl==0.15.0\n", "environment.yml": f"{CONDA}trl==0.15.0\n"}, "accelerate", "0.29.2"),
        ({"requirements.txt": "trl==0.15.0\n", "environment.yml": f"{CONDA}trl==0.9.6\n"}, "accelerate", ""),
        ({"requirements.txt": "torch==2.5.1\n", "environment.yml": f"{CONDA}pytorch=2.5\n"}, "accelerate", "0.29.2"),
        ({f"{name}.yml": f"dependencies:\n  - transformers==4.5{name}.0\n" for name in "12"}, "transformers", ""),
        (
            {f"{name}.yml": f"dependencies:\n  - trl==1.{len(name)}.0\n" for name in ("env_eval", "environment")},
            "trl",
            "1.11.0",
        ),
        ({"config.yml": "packages:\n  - ms-swift==3.5.1\n"}, "ms-swift", ""),  # no conda environment
        ({"environment.yml": "dependencies:\n  - pytorch=2.5.1=py3.11_cuda\n"}, "torch", "2.5.1"),
        ({"Dockerfile": "RUN pip install 'trl[peft]==0.14.0' \\\n  vllm==0.7.2\n"}, "vllm", "0.7.2"),
        ({"Dockerfile": "RUN pip install trl>=0.14.0\nENV A=1.0\n"}, "trl", ""),
        ({"setup.py": "# such as:\n#   trl: 'trl==0.9.4'\nsetup(install_requires=['trl'])"}, "trl", ""),
        ({"setup.py": "setup(\n    name='slime',\n    version='0.2.2',\n)"}, "slime", "0.2.2"),
        ({"pyproject.toml": '[project]\nname = "openrlhf"\nversion = "0.8.1"\n'}, "openrlhf", "0.8.1"),
        ({"pyproject.toml": '[project]\nname = "openrlhf"\n[tool.x]\nversion = "1.5.4"\n'}, "openrlhf", ""),
        (
            {"pyproject.toml": '[project]\nname = "axolotl"\n[tool.x]\nversion = { file = "V" }\n', "V": "0.18.0\n"},
            "axolotl",
            "0.18.0",
        ),
        ({"pyproject.toml": '[project]\nname = "axolotl"\n[tool.x]\nversion = { file = "V" }\n'}, "axolotl", ""),
        (
            {"llamafactory/__init__.py": FROM_CLI, "llamafactory/cli.py": 'VERSION = "0.7.2.dev0"\n'},
            "llamafactory",
            "0.7.2.dev0",
        ),
        ({"llamafactory/__init__.py": FROM_CLI, "llamafactory/cli.py": "VERSION = read()\n"}, "llamafactory", ""),
        ({"setup.py": "x = ['trl>=0.9', 'trl==0.12.0']"}, "trl", "0.12.0"),
        ({"requirements.txt": "trl @ git+https://github.com/huggingface/trl.git@v0.16.0"}, "trl", "0.16.0"),
        ({"requirements.txt": "git+https://github.com/huggingface/trl@v0.16.0"}, "trl", "0.16.0"),
        ({"requirements.txt": "-e git+https://github.com/a/fork.git@0.16.0#egg=trl"}, "trl", "0.16.0"),
        ({"requirements.txt": "git+https://git@github.com/huggingface/trl.git@main"}, "trl", ""),
        ({"requirements.txt": "git+https://github.com/a/unknown.git@v0.16.0"}, "unknown", ""),
        ({"requirements.txt": "trl\n", "Dockerfile": "RUN pip install trl==0.14.0\n"}, "trl", "0.14.0"),
        ({"setup.sh": "pip install --upgrade pip\npip install \\\n  trl==0.14.0 peft\n"}, "trl", "0.14.0"),
        ({"scripts/install_env.sh": "uv pip install 'transformers[torch]==4.49.0'\n"}, "transformers", "4.49.0"),
        ({"setup.sh": "pip install trl==0.14.0", "requirements.txt": "trl==0.9.6"}, "trl", ""),
        ({"setup.sh": "pip install trl==0.14.0", "requirements.txt": "trl>=0.9"}, "trl", "0.14.0"),
        ({"setup.sh": "if a; then pip install trl==0.14.0\nelse pip install trl==0.12.0; fi\n"}, "trl", ""),
        ({"setup.sh": "pip install trl==0.14.0", "install.sh": "pip install trl==0.12.0"}, "trl", ""),
        ({"setup.sh": "# pip install trl==0.14.0\necho pip install trl==0.14.0\n"}, "trl", ""),
        ({"nemo_rl/package_info.py": PACKAGE_INFO}, "nemo-rl", "0.5.0rc0"),
        ({"nemo_rl/package_info.py": "MAJOR = None\n"}, "nemo-rl", ""),
        ({"megatron/core/package_info.py": PACKAGE_INFO}, "megatron-core", "0.5.0rc0"),
        ({"evaluate.sh": "pip install trl==0.14.0\n"}, "trl", ""),
        ({"requirements-trl.txt": "trl==1.2.0\n"}, "trl", "1.2.0"),
        ({"requirements_a.txt": "trl==1.2.0\n", "requirements_b.txt": "trl==1.3.0\n"}, "trl", ""),
        ({"requirements_a.txt": "trl==1.2.0\n", "requirements.txt": "trl==1.3.0\n"}, "trl", "1.3.0"),
        ({"pyproject.toml": '[project]\nname = "areal"\nversion = "1.0.1"\n'}, "areal", "1.0.1"),
        ({"verl-0.4.0/verl/__init__.py": "", "verl-0.4.0/verl/version/version": "0.4.0"}, "verl", "0.4.0"),
        ({"trl/trl/__init__.py": '__version__ = "0.16.0.dev0"', "requirements.txt": "trl==1.0"}, "trl", "1.0"),
        (
            {"a-verl/verl/__init__.py": "", "b-verl/verl/__init__.py": "", "b-verl/verl/version/version": "1"},
            "verl",
            "",
        ),
        ({"uv.lock": LOCK, "pyproject.toml": '[project]\nname = "x"\ndependencies = ["trl>=0.9"]'}, "trl", "0.29.1"),
        ({"uv.lock": LOCK + LOCK.replace("0.29.1", "0.28.0")}, "trl", ""),
        ({"poetry.lock": LOCK}, "trl", "0.29.1"),
        ({"pyproject.toml": f"{EXTRA}verl = ['verl[vllm]==0.6.1']\nui = ['x']\n"}, "verl", "0.6.1"),
        ({"pyproject.toml": f"{EXTRA}# a = ['verl==0.6.1']\n[tool.x]\na = ['verl==0.6.1']\n"}, "verl", ""),
        ({"pyproject.toml": f"{EXTRA}a = ['verl==0.6.1']\nb = ['verl==0.7.0']\n"}, "verl", ""),
        ({"pyproject.toml": f"[project]\ndependencies = ['trl==0.9.6']\n{EXTRA}a = ['trl==0.8']\n"}, "trl", "0.9.6"),
        ({"pdm.lock": LOCK.replace("\n", "\r\n")}, "trl", "0.29.1"),
    ],
)
def test_what_a_tree_states(tmp_path: Path, files: dict[str, str], name: str, version: str) -> None:
    write_tree(tmp_path, {**files, ".git/HEAD": "", "scripts/run.sh": VERL})
    stated = find_stated_versions(read_source(str(tmp_path / "scripts/run.sh")))
    assert stated.versions.get(name, "") == version


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ('uv pip install "trl>=0.24,<0.25" peft\n', ">=0.24,<0.25"),
        ('pip install "trl>=0.24"\npip install "trl>=0.9"\n', None),
    ],
)
def test_a_setup_script_may_state_a_range(tmp_path: Path, text: str, allowed: str | None) -> None:
    write_tree(tmp_path, {"scripts/setup_gpu.sh": text, ".git/HEAD": "", "run.sh": VERL})
    assert find_stated_versions(read_source(str(tmp_path / "run.sh"))).allowed.get("trl") == allowed


def test_a_package_that_is_installed_from_a_commit_has_no_release(tmp_path: Path) -> None:
    text = "trl @ git+https://github.com/huggingface/trl.git@1bca49515ecd5b85d16e68c42c76670e252e19f1\n"
    project = '[project]\nname = "x"\ndependencies = ["trl"]\n'
    files = {"requirements.txt": text, "pyproject.toml": project, ".git/HEAD": "", "run.sh": VERL}
    write_tree(tmp_path, files)
    stated = find_stated_versions(read_source(str(tmp_path / "run.sh")))
    assert "trl" not in stated.versions and "1bca495" in stated.allowed["trl"]
    assert stated.describe("trl") == () and stated.list_ranges() == ()


def test_a_renamed_package_states_the_version_of_its_copy(tmp_path: Path) -> None:
    packages = dict.fromkeys(("own/__init__.py", "own/verl/__init__.py", "own/verl/trainer/__init__.py"), "")
    program = "# a copy of verl.trainer\nfrom own.verl.trainer import x\n"
    overrides = " algorithm.adv_estimator=grpo data.train_batch_size=8 actor_rollout_ref.rollout.n=4\n"
    launch = VERL.replace("verl.trainer.main_ppo", "own.verl.trainer.main_ppo").replace("\n", overrides)
    files = {"own/verl/trainer/main_ppo.py": program, "own/verl/version/version": "0.7.0.dev", "run.sh": launch}
    write_tree(tmp_path, {**packages, **files, ".git/HEAD": ""})
    (linted,) = launches_of(lint_tree(tmp_path, "h100x8"))
    assert linted.job.version == "0.7.0.dev"


def test_what_a_launch_installs_comes_before_what_its_tree_states(tmp_path: Path) -> None:
    text = f"pip install -q 'verl==0.4.0'\n{VERL}"
    write_tree(tmp_path, {"requirements.txt": "verl==0.5.0\nvllm==0.8.4", ".git/HEAD": "", "scripts/run.sh": text})
    stated = find_stated_versions(read_source(str(tmp_path / "scripts/run.sh")))
    assert (stated.versions["verl"], stated.versions["vllm"]) == ("0.4.0", "0.8.4")
    assert stated.files["verl"].endswith("run.sh")


@pytest.mark.parametrize(
    ("target", "version", "files"),
    [
        ("", "0.7.0.dev", ("verl/version/version", "requirements.txt")),
        ("h100x8", "0.7.0.dev", ("verl/version/version", "requirements.txt")),
        ("h100x8,verl=0.5.0", "0.5.0", ("requirements.txt",)),
        ("h100x8,verl=0.5.0,transformers=4.57.6", "0.5.0", ()),
    ],
)
def test_what_a_target_does_not_name_is_as_the_tree_states_it(
    tmp_path: Path, target: str, version: str, files: tuple[str, ...]
) -> None:
    tree = {"verl/version/version": "0.7.0.dev", "requirements.txt": "transformers==4.56.1", "run.sh": VERL}
    write_tree(tmp_path, {**tree, ".git/HEAD": ""})
    [launch] = launches_of(lint_tree(tmp_path, target))
    assert (launch.job.version, launch.job.stated_by) == (version, files)


@pytest.mark.parametrize(
    ("since", "stated", "is_kept"),
    [
        ("transformers 5.0.0", (), True),
        ("transformers 5.0.0", ("transformers",), False),
        ("trl 0.20.0", ("transformers",), True),  # a target names TRL, and the tree only states transformers
        ("trl 0.20.0", ("trl",), False),
        ("0.20.0", ("trl",), False),
        ("0.20.0", ("transformers",), True),
        ("", ("trl",), False),
    ],
)
def test_a_removed_name_is_judged_if_its_package_is_not_only_stated(
    since: str, stated: tuple[str, ...], is_kept: bool
) -> None:
    unknown = UnknownSetting("no_cuda", SourceLocation(), now=("use_cpu",), since=since)
    job = Job("trl", "0.28.0", "sft", unknown_settings=(unknown,))
    kept = proof.leave_out_unproven(job, ChosenRelease("0.28.0", is_known=True), stated, True, False, None)
    assert bool(kept.unknown_settings) == is_kept


SFT = "trl sft --model_name_or_path m --dataset_name d --packing --output_dir o --max_seq_length 512\n"


@pytest.mark.parametrize(
    ("files", "version", "stated_by", "severities"),
    [
        # packing joins documents in each release of the first three, and in only some of the fourth
        ({"requirements.txt": "trl>=0.12,<0.15"}, "0.14.0", "requirements.txt (trl <0.15,>=0.12)", ["warning"]),
        ({"setup.py": "x = ['trl~=0.15.0']"}, "0.15.2", "setup.py (trl ~=0.15.0)", ["error"]),
        ({"setup.py": "x = ['trl<=0.14.0; python_version > \"3\"']"}, "0.14.0", "setup.py (trl <=0.14.0)", ["warning"]),
        ({"requirements.txt": "trl>=0.12,<1.0"}, "0.19.1", "requirements.txt (trl <1.0,>=0.12)", ["warning"]),
        ({"requirements.txt": "trl>=0.12\ntransformers<4.20"}, "0.19.1", "", ["warning"]),
        ({"requirements.txt": "trl>=0.12\ntransformers<4.40"}, "0.12.2", "", ["warning"]),
        ({"requirements.txt": "trl>=1.0"}, "1.16.0", "requirements.txt (trl >=1.0)", []),
        ({"requirements.txt": "trl<0.9"}, "0.9.6", "requirements.txt (trl <0.9)", []),
        ({"requirements.txt": "trl"}, "0.19.1", "()", ["warning"]),
        ({"requirements.txt": "trl==0.15.2"}, "0.15.2", "requirements.txt", ["error"]),
    ],
)
def test_a_range_limits_the_release_that_a_launch_is_read_as(
    tmp_path: Path, files: dict[str, str], version: str, stated_by: str, severities: list[str]
) -> None:
    write_tree(tmp_path, {**files, "run.sh": SFT, ".git/HEAD": ""})
    report = lint_tree(tmp_path, "h100x8")
    [launch] = launches_of(report)
    assert launch.job.version == version
    assert stated_by in (*launch.job.stated_by, str(launch.job.stated_by), "")
    assert [finding.severity for finding in report.findings if finding.code == "ATN444"] == severities


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [("", None), ("it is not pinned", None), ("~=0.15.1", ("0.15.2",)), (">=2", ("0.16.0",)), ("<0.14.9", ("0.14.0",)),
     ("<=0.14.0", ("0.14.0",)), ("<0.1", ())],
)  # fmt: skip
def test_the_releases_in_a_range(allowed: str, expected: tuple[str, ...] | None) -> None:
    assert list_allowed(allowed, ("0.14.0", "0.15.2", "0.16.0")) == expected


@pytest.mark.parametrize(
    ("allowed", "expected"), [("<4.45", "4.41.2"), (">=4.50,<5", "4.50.3"), (">=4.40", "4.49.0"), ("", "4.49.0")]
)
def test_a_range_of_transformers_limits_the_release_of_the_time(allowed: str, expected: str) -> None:
    snapshot = with_version(ENVIRONMENT, "transformers", "", allowed)
    versions = resolve_versions(snapshot, "trl", "0.15.2", {"0.12": "4.46.3", "0.15": "4.49.0", "0.17": "4.51.3"})
    assert Version(versions["transformers"]).release[:2] == Version(expected).release[:2]


@pytest.mark.parametrize(("vllm", "count"), [("0.15.0", 0), ("0.15.1", 0), ("0.14.0", 1)])
def test_an_extra_of_openrlhf_pins_vllm_and_another_takes_a_newer_one(tmp_path: Path, vllm: str, count: int) -> None:
    command = "python -m openrlhf.cli.train_ppo_ray --pretrain m --prompt_data d --remote_rm_url r.py\n"
    tree = {"setup.sh": f"pip install vllm=={vllm}\npip install openrlhf==0.9.3\n", "run.sh": command, ".git/HEAD": ""}
    write_tree(tmp_path, tree)
    report = lint_tree(tmp_path, "h100x8")
    assert len([finding for finding in report.findings if finding.code == "ATN453"]) == count


@pytest.mark.parametrize(
    ("statement", "count"),
    [({"openrlhf/version.py": "__version__ = '0.9.1'"}, 0), ({"setup.py": "'openrlhf==0.9.1'"}, 1)],
)
def test_a_fork_requires_what_its_own_tree_states(tmp_path: Path, statement: dict[str, str], count: int) -> None:
    command = "deepspeed --module openrlhf.cli.train_sft --pretrain m --dataset d\n"
    tree = {**statement, "requirements.txt": "transformers==4.40.2\n", "run.sh": command, ".git/HEAD": ""}
    write_tree(tmp_path, tree)
    report = lint_tree(tmp_path, "h100x8")
    assert [launch.job.version for launch in launches_of(report)] == ["0.9.1"]
    assert len([finding for finding in report.findings if finding.code == "ATN453"]) == count


def test_what_is_installed_here_is_not_the_tree_s(tmp_path: Path) -> None:
    tree = {"requirements.txt": "trl==0.12.2\n", "run.sh": "trl sft --model_name_or_path m\n", ".git/HEAD": ""}
    write_tree(tmp_path, tree)
    source = read_source(str(tmp_path / "run.sh"))
    snapshot = apply_target(launches.make_environments()["h200"], parse_target("h100x8,flash-attn=2.8.3"))
    assert snapshot.version("transformers") == Known(Version("5.15.0"))
    assert list_named("h100x8,flash-attn=2.8.3") == {"flash-attn"} and not list_named(None)
    context = LintContext(
        snapshot, Request((source,), stated="missing", named=frozenset({"flash-attn"})), launches.read_model
    )
    assert {item.name for item in context.at_tree(source).snapshot.distributions} == {"trl", "flash-attn"}


TRL = "python train.py --model_name_or_path m --dataset_name d --output_dir o --packing\n"
TRL_MAIN = "git+https://github.com/huggingface/trl.git"
TRAIN = """
from trl import ModelConfig, ScriptArguments, SFTConfig, SFTTrainer, TrlParser

def load(model_args: ModelConfig):
    return {load}

parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))
script_args, training_args, model_args = parser.parse_args_and_config()
SFTTrainer(model=load(model_args), args=training_args).train()
"""


@pytest.mark.parametrize(
    ("files", "load", "is_certain"),
    [
        ({}, "model_args.torch_dtype", True),
        ({}, "model_args.dtype", False),
        ({}, 'model_args.dtype if hasattr(model_args, "dtype") else model_args.torch_dtype', True),
        (
            {"Makefile": "install:\n\tuv pip install git+https://github.com/huggingface/trl.git && \\\n\techo\n"},
            "1",
            False,
        ),
        ({"Dockerfile": "RUN pip3 install 'trl[peft]==0.24.0'\n"}, "1", False),
        ({"README.md": f"```\npip install {TRL_MAIN}@v0.18.0\n```\n"}, "1", True),
        ({"README.md": "pip install trl==0.18.0\n# pip install trl==0.24.0\n"}, "1", True),
        ({".github/workflows/test.yml": "    - run: pip install -U trl\n"}, "1", False),
        ({"README.md": "```\npip install -U trl\n```\n"}, "1", True),  # advice next to the pin
        ({"README.md": "pip install trl==0.24.0\n"}, "1", False),
        ({"setup.sh": "pip install -U pip\npip install trl\n"}, "1", True),
    ],
)
def test_a_pin_that_its_tree_contradicts_proves_nothing(
    tmp_path: Path, files: dict[str, str], load: str, is_certain: bool
) -> None:
    pins = "setup(install_requires=['trl==0.18.0', 'transformers==4.52.4'])\n"
    tree = {"setup.py": pins, "train.py": TRAIN.replace("{load}", load), "run.sh": TRL, ".git/HEAD": "", **files}
    write_tree(tmp_path, tree)
    report = lint_tree(tmp_path, "h100x8")
    assert ("ATN444" in {item.code for item in report.findings if item.severity == "error"}) is is_certain
    (launch,) = launches_of(report)
    assert any("pins 0.18.0, but" in remark for remark in launch.job.remarks) is not is_certain


@pytest.mark.parametrize(
    ("files", "is_certain"),
    [
        ({"sub/setup.py": "x = ['trl==0.18.0']", "README.md": "pip install trl==0.24.0\n"}, True),  # it is farther
        ({"sub/setup.py": "x = ['trl==0.18.0']", "sub/README.md": "pip install trl==0.24.0\n"}, False),
        ({"requirements.txt": "trl==0.18.0", "sub/README.md": "pip install trl==0.24.0\n"}, False),
        ({"requirements.txt": "trl==0.18.0", "sub/setup.py": f"x = ['trl @ {TRL_MAIN}@main']"}, False),
        ({"requirements.txt": "trl==0.24.0", "sub/setup.py": f"x = ['trl @ {TRL_MAIN}@v0.18.0']"}, True),
        ({"requirements.txt": "trl==0.18.0", "sub/setup.py": f"x = [\n# 'trl @ {TRL_MAIN}@main'\n]"}, True),
        ({"sub/requirements.txt": "trl==0.18.0", "setup.py": f"x = ['trl @ {TRL_MAIN}@main']"}, True),
    ],
)
def test_what_is_nearer_to_the_program_decides(tmp_path: Path, files: dict[str, str], is_certain: bool) -> None:
    tree = {"sub/train.py": TRAIN.replace("{load}", "1"), "sub/run.sh": TRL, ".git/HEAD": ""}
    write_tree(tmp_path, tree | files)
    stated = find_stated_versions(read_source(str(tmp_path / "sub/run.sh")))
    assert stated.versions.get("trl") == ("0.18.0" if is_certain else None)


def test_a_class_that_a_table_lacks_between_two_releases_contradicts_nothing(tmp_path: Path) -> None:
    program = "from trl import GRPOConfig, GRPOTrainer\nGRPOTrainer('m', args=GRPOConfig()).train()\n"
    write_tree(tmp_path, {"requirements.txt": "trl==0.29.1\n", "t.py": program, ".git/HEAD": ""})
    (tmp_path / "run.sh").write_text("python t.py\n")
    (launch,) = launches_of(lint_tree(tmp_path, "h100x8"))
    assert launch.job.version == "0.29.1"


def test_the_program_of_a_checkout_in_the_tree_is_read(tmp_path: Path) -> None:
    files = {"verl-0.4.0/verl/__init__.py": "", "verl-0.4.0/verl/version/version": "0.4.0", ".git/HEAD": ""}
    write_tree(tmp_path, {**files, "verl-0.4.0/verl/trainer/main_ppo.py": "", "run.sh": VERL})
    (launch,) = launches_of(lint_tree(tmp_path, "h100x8"))
    assert launch.job.version == "0.4.0" and not any("no such file" in remark for remark in launch.job.remarks)


def test_a_clone_beside_the_tree_is_not_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exported tree has no .git that would end the search."""
    files = {"verl-0.4.0/verl/__init__.py": "", "verl-0.4.0/verl/version/version": "0.4.0", "own/run.sh": VERL}
    write_tree(tmp_path, {**files, "verl-0.4.0/verl/trainer/main_ppo.py": ""})
    monkeypatch.chdir(tmp_path / "own")
    assert find_stated_versions(read_source("run.sh")).versions.get("verl") is None
    monkeypatch.chdir(tmp_path)
    assert find_stated_versions(read_source("own/run.sh")).versions["verl"] == "0.4.0"


@pytest.mark.parametrize(
    ("imports", "is_certain"),
    [
        ("from trl import ScriptArguments", False),
        ("from trl import ModelConfig", True),
        ("from trl.own import Own", True),
        ("from .trl import ScriptArguments", True),
        ("try:\n    from trl import ScriptArguments\nexcept ImportError:\n    pass", True),
    ],
)
def test_a_pin_of_a_release_without_an_imported_class_proves_nothing(
    tmp_path: Path, imports: str, is_certain: bool
) -> None:
    program = f"{imports}\nfrom trl import ModelConfig, SFTConfig, SFTTrainer\nSFTTrainer(1)\n"
    write_tree(tmp_path, {"requirements.txt": "trl==0.9.6\n", "train.py": program, "run.sh": TRL, ".git/HEAD": ""})
    (launch,) = launches_of(lint_tree(tmp_path, "h100x8"))
    assert any("pins 0.9.6, but" in remark for remark in launch.job.remarks) is not is_certain
    assert (launch.job.version == "0.9.6") is is_certain


@pytest.mark.parametrize("folder", ["${HERE}/sub", "/home/another/machine/sub"])
def test_the_pins_above_the_program_come_before_those_of_both(tmp_path: Path, folder: str) -> None:
    pin = "setup(install_requires=['trl==0.18.0', 'transformers==4.52.4'])\n"
    script = f'HERE="$(dirname "$0")/.."\ncd {folder}\n' + TRL.replace("train.py", "src/train.py")
    tree = {
        "run/run.sh": script,
        "sub/src/train.py": TRAIN.replace("{load}", "1"),
        "sub/setup.py": pin,
        ".git/HEAD": "",
    }
    write_tree(tmp_path, {**tree, "requirements.txt": "trl==1.0.0\n", "run.sh": ""})
    source = read_source(str(tmp_path / "run/run.sh"))
    snapshot = apply_target(ENVIRONMENT, parse_target("h100x8"))
    request = Request((source,), stated="missing")
    (launch,) = launches_of(run.run(snapshot, request, launches.read_model, make_file_reader((source,))))
    assert launch.job.version == "0.18.0"


@pytest.mark.parametrize(
    ("option", "is_refused"),
    [
        ("--stage sft", True),
        ("--max_seq_length 8", False),
        ("--torch_dtype auto", False),
        ("--sharded_ddp simple", False),
        ("--gradient_acc 2", False),
    ],
)
def test_a_name_that_no_release_has_needs_no_version(tmp_path: Path, option: str, is_refused: bool) -> None:
    write_tree(
        tmp_path, {"train.py": TRAIN.replace("{load}", "1"), "run.sh": f"{TRL.strip()} {option}\n", ".git/HEAD": ""}
    )
    errors = [item for item in lint_tree(tmp_path, "h100x8").findings if item.severity == "error"]
    assert [item.code for item in errors] == ["ATN440"] * is_refused


@pytest.mark.parametrize(("version", "is_known"), [(">=5.1.0", False), (">=4.50", True), ("", True), ("<4.60", True)])
def test_a_class_has_the_fields_of_the_releases_in_a_range(version: str, is_known: bool) -> None:
    options = make_class_finder({"transformers": version})("transformers.TrainingArguments")
    assert options is not None and ("overwrite_output_dir" in options) is is_known and "output_dir" in options


@pytest.mark.parametrize(("stated", "count"), [(">=5.1.0", 1), (">=4.50", 0)])
def test_a_name_that_no_release_of_the_range_has_is_refused(tmp_path: Path, stated: str, count: int) -> None:
    script = "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
    script += (
        "args = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()[0]\nTrainer(args=args).train()\n"
    )
    command = "python train.py --output_dir o --overwrite_output_dir\n"
    write_tree(tmp_path, {"train.py": script, "run.sh": command, "requirements.txt": f"transformers{stated}\n"})
    errors = [item.subject for item in lint_tree(tmp_path, "").findings if item.severity == "error"]
    assert errors == ["--overwrite_output_dir"] * count
