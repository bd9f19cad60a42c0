"""Which release a launch is read as if nobody names one, and what is reported of one older than every table."""

from __future__ import annotations

from functools import partial

import pytest

from attncheck.core.launch import Source
from attncheck.core.report import Report
from attncheck.core.results.lint import launches_of
from attncheck.doctor.target import forget_packages, with_version
from attncheck.lint import frameworks, run
from attncheck.lint.context import Request
from attncheck.lint.fields.releases import find_release, parse_release, parse_version
from attncheck.lint.launches import find_launches
from attncheck.lint.release import choose_release, is_older_than_known, may_be_met
from tests import snapshots as s
from tests.lint import launches

OLD = "deepspeed --module openrlhf.cli.train_sft --pretrain m --dataset d --max_len 2048 --flash_attn --bf16"
NEW = "deepspeed --module openrlhf.cli.train_sft --model.model_name_or_path m --data.dataset d --data.max_len 2048"
# --flash_attn went with 0.9.0, --data.* came with 0.10.2: no release has both
MIXED = "deepspeed --module openrlhf.cli.train_sft --pretrain m --data.dataset d --data.max_len 2048"


def lint(text: str, version: str = "") -> Report:
    source = Source("run.sh", text, "shell")
    return run.run(s.laptop(), Request((source,), version=version), launches.read_model, launches.read_no_file)


@pytest.mark.parametrize(
    ("text", "expected", "remark"),
    [
        (NEW, "0.11.2", "the newest known"),
        (OLD, "0.8", "the newest release that has all of its names"),
        (MIXED, "", "no single release has all names and values"),
        (NEW + " --my_option 3", "0.11.2", "the newest known"),  # what no release had dates nothing
    ],
)
def test_the_release_that_fits_the_names(text: str, expected: str, remark: str) -> None:
    report = lint(text)
    [launch] = launches_of(report)
    assert launch.job.version.startswith(expected)
    assert any(remark in line for line in launch.job.remarks)
    assert not [finding for finding in report.findings if finding.code == "ATN440" and finding.severity == "error"]
    assert launch.diff == "", "a guess corrects nothing"


def test_a_name_that_went_with_transformers_dates_the_release_too() -> None:
    options = "--model_name_or_path m --dataset_name d --output_dir o"
    source = Source("run.sh", f"trl rloo {options} --max_prompt_length 8 --save_safetensors true", "shell")
    snapshot = forget_packages(s.laptop(), "not known")
    report = run.run(snapshot, Request((source,)), launches.read_model, launches.read_no_file)
    assert [launch.job.version for launch in launches_of(report)] == ["0.26.2"]
    assert not [finding for finding in report.findings if finding.code == "ATN440"]


LOSS = "torchrun -m verl.trainer.fsdp_sft_trainer data.train_files=a model.partial_pretrain=m data.micro_batch_size=8"


@pytest.mark.parametrize("version", ["0.6.0", ""])
@pytest.mark.parametrize(
    "text", [LOSS, LOSS.partition(" data.micro_batch_size")[0]]
)  # 0.5.0: another fault of the loss
def test_what_depends_on_a_guessed_release_is_left_out(text: str, version: str) -> None:
    report, count = lint(text, version), int(bool(version))
    assert len([finding for finding in report.findings if finding.code == "ATN444"]) == count
    [launch] = launches_of(report)
    assert any("depend on which release of verl runs" in line for line in launch.job.remarks) is not bool(count)


@pytest.mark.parametrize(
    ("program", "version", "count"),
    [("verl.trainer.main_ppo", "", 0), ("mine.main_grpo", "", 0), ("mine.main_grpo", "0.9.1", 1)],
)
def test_a_similar_name_is_a_misspelling_of_known_names_only(program: str, version: str, count: int) -> None:
    text = f"python3 -m {program} data.train_files=a actor_rollout_ref.model.path=m actor_rollout_ref.rollout.n_agent=5"
    findings = [finding for finding in lint(text, version).findings if finding.code == "ATN440"]
    assert [finding.severity for finding in findings] == ["warning"] * count


@pytest.mark.parametrize(("name", "count"), [("ppo_trainer", 1), ("mine", 0)])
def test_an_own_configuration_may_lack_the_keys_of_the_release(name: str, count: int) -> None:
    text = f"python3 -m verl.trainer.main_ppo --config-name={name} actor_rollout_ref.model.path=m +trainer.nnodes=2"
    findings = [finding for finding in lint(text, "0.4.1").findings if finding.code == "ATN440"]
    assert [finding.severity for finding in findings] == ["error"] * count


def test_a_release_that_is_named_is_not_guessed() -> None:
    report = lint(OLD, "0.11.2")
    [launch] = launches_of(report)
    findings = [finding for finding in report.findings if finding.code == "ATN440"]
    assert launch.job.version == "0.11.2" and {finding.severity for finding in findings} == {"error"}
    assert "--ds.attn_implementation" in launch.diff


@pytest.mark.parametrize("framework", ["openrlhf", "verl", "trl", "llamafactory", "axolotl", "ms-swift"])
def test_older_than_every_table_is_said_and_not_judged(framework: str) -> None:
    record = next(record for record in frameworks.load() if record.name == framework)
    assert record.releases()[-1] == record.newest
    assert is_older_than_known(record, "0.0.1") and not is_older_than_known(record, record.releases()[0])
    assert not is_older_than_known(record, "99") and not is_older_than_known(record, "no version")
    report = lint(NEW.replace("--data.dataset", "--no_such_name"), "0.2.1")
    [launch] = launches_of(report)
    assert launch.job.unknown_settings == () and "is older than" in launch.job.remarks[0]
    assert not [finding for finding in report.findings if finding.code in ("ATN440", "ATN441", "ATN444")]


def test_development_versions_are_the_next_release() -> None:
    record = next(record for record in frameworks.load() if record.name == "openrlhf")
    [launch] = find_launches(Source("run.sh", NEW, "shell"), launches.read_no_file)
    here = s.laptop()
    met = partial(may_be_met, here)
    chosen = choose_release(record, lambda version: record.read(launch, version, here), here, "0.11.2.dev0", met)
    assert chosen.is_known and not chosen.remark
    assert parse_release("0.7.0rc0") == parse_release("0.7.0.dev1") == parse_version("0.7.0")
    assert find_release("verl", "0.7.0rc0") == "0.7.0"
    text = "python3 -m verl.trainer.main_ppo trainer.log_val_generations=3"  # since 0.4.0
    findings = [finding for finding in lint(text, "0.4.0.dev0").findings if finding.code == "ATN440"]
    assert findings == []
    assert [finding.severity for finding in lint(text, "0.3.0.post1").findings if finding.code == "ATN440"] == ["error"]


UNUSED_REFERENCE = (
    "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 critic.ppo_micro_batch_size_per_gpu=1"
)


@pytest.mark.parametrize(("version", "count"), [("0.3.0.post1", 1), ("0.2.0.dev", 0)])
def test_a_development_tree_is_judged_by_what_holds_in_the_releases_around_it(version: str, count: int) -> None:
    findings = [finding for finding in lint(UNUSED_REFERENCE, version).findings if finding.code == "ATN441"]
    assert len([finding for finding in findings if "ref.log_prob_micro_batch_size" in finding.message]) == count


UNEVEN = (
    "python3 -m {}.main_ppo actor_rollout_ref.actor.ppo_mini_batch_size=64 trainer.n_gpus_per_node=4 trainer.nnodes=1 "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=64 data.train_batch_size=256 trainer.log_val_generations=4"
)


@pytest.mark.parametrize(
    ("package", "version", "count"), [("verl.trainer", "0.4.0", 1), ("own", "0.4.0", 0), ("own", "", 0)]
)
def test_only_a_program_that_is_known_to_check_sizes_refuses_them(package: str, version: str, count: int) -> None:
    findings = [finding for finding in lint(UNEVEN.format(package), version).findings if finding.code == "ATN441"]
    assert len([finding for finding in findings if "do not divide" in finding.message]) == count


FACTORY = "llamafactory-cli train --model_name_or_path m --dataset d --template qwen --output_dir o --stage"


@pytest.mark.parametrize(
    ("text", "packages", "expected"),
    [
        (f"{FACTORY} sft", {}, "0.9.5"),
        (f"{FACTORY} sft", {"transformers": "4.43.2"}, "0.9.2"),
        (f"{FACTORY} sft", {"transformers": "<=4.45.0,>=4.41.2"}, "0.9.3"),
        (f"{FACTORY} sft", {"transformers": "4.10.0"}, "0.9.5"),  # no release allows it: it limits nothing
        (NEW, {"transformers": "5.5.0"}, "0.9.10"),
        ("trl sft --model_name_or_path m --dataset_name d --output_dir o", {"transformers": "4.52.4"}, "0.19.1"),
        ("swift sft --model m --dataset d", {"transformers": "5.15.0"}, "4.6.0"),
        ("swift sft --model m --dataset d", {"transformers": "4.32.0"}, "4.6.0"),
        ("axolotl train --base-model m", {"transformers": "4.55.2"}, "0.12.2"),
        ("python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=m", {"transformers": "4.57.1"}, "0.8.0"),
    ],
)
def test_versions_of_other_packages_exclude_releases(text: str, packages: dict[str, str], expected: str) -> None:
    snapshot = forget_packages(s.laptop(), "not known")
    for name, version in packages.items():
        is_range = not version[0].isdigit()
        snapshot = with_version(snapshot, name, "" if is_range else version, version if is_range else "")
    request = Request((Source("run.sh", text, "shell"),))
    report = run.run(snapshot, request, launches.read_model, launches.read_no_file)
    assert [launch.job.version for launch in launches_of(report)] == [expected]


@pytest.mark.parametrize("version", ["4.57.1", "5.9.0"])
def test_a_conclusion_must_hold_in_releases_that_other_packages_exclude(version: str) -> None:
    """`transformers==4.57.1` may belong to another environment than the one that trains."""
    record = next(record for record in frameworks.load() if record.name == "verl")
    text = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=m"
    [launch] = find_launches(Source("run.sh", text, "shell"), launches.read_no_file)
    here = with_version(forget_packages(s.laptop(), "not known"), "transformers", version, "")
    met = partial(may_be_met, here)
    chosen = choose_release(record, lambda release: record.read(launch, release, here), here, "", met)
    assert max({chosen.version, *chosen.list_others()}, key=parse_version) == "0.9.1"


@pytest.mark.parametrize(
    ("text", "version", "expected", "codes"),
    [
        ("--actor.model_name_or_path m --algo.advantage.estimator flash_reinforce", "", "0.11.2", []),
        ("--actor.model_name_or_path m --algo.advantage.estimator flash_reinforce", "0.11.1", "0.11.1", ["ATN441"]),
        ("--pretrain m --vllm_is_correction_type mis", "", "0.9.3", []),  # 0.9.4 took it away
        ("--pretrain m --vllm_is_correction_type mis", "0.9.4", "0.9.4", ["ATN441"]),
        ("--pretrain m --vllm_is_correction_type mine", "", "0.10.1.post2", ["ATN441"]),  # dated by its name
        ("--pretrain m --micro_train_batch_size many", "", "0.10.1.post2", ["ATN441"]),
    ],
)
def test_a_value_that_another_release_may_take(text: str, version: str, expected: str, codes: list[str]) -> None:
    report = lint(f"python3 -m openrlhf.cli.train_ppo_ray {text}", version)
    assert [launch.job.version for launch in launches_of(report)] == [expected]
    value = text.rpartition(" ")[2]
    assert [finding.code for finding in report.findings if repr(value) in finding.message] == codes


@pytest.mark.parametrize(
    ("stage", "version", "count"),
    [
        ("orpo", "", 0),
        ("orpo", "0.9.5", 1),
        ("sftt", "", 1),
        ("sft", "0.9.5", 0),
        ("orpo --enable_thinking true", "", 1),
    ],
)
def test_a_value_is_refused_only_by_releases_that_may_run(stage: str, version: str, count: int) -> None:
    findings = [finding for finding in lint(f"{FACTORY} {stage}", version).findings if finding.code == "ATN441"]
    assert len(findings) == count


@pytest.mark.parametrize(("version", "count"), [("0.19.0", 1), ("", 0)])
@pytest.mark.parametrize("more", ["", "precompute_ref_log_probs: false\n"])  # since 0.17; older releases drop it
def test_a_name_that_the_framework_drops_dates_nothing(more: str, version: str, count: int) -> None:
    text = f"base_model: m\nrl: dpo\nflash_attention: true\nsequence_len: 64\nmicro_batch_size: 1\n{more}"
    request = Request((Source("a.yaml", text, "yaml"),), version=version)
    snapshot = forget_packages(s.laptop(), "not known")
    report = run.run(snapshot, request, launches.read_model, launches.read_no_file)
    assert len([finding for finding in report.findings if finding.code == "ATN442"]) == count
