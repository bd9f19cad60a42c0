from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.facts import Known
from attncheck.core.job import Job, SettingProblem
from attncheck.core.launch import Launch, Source
from attncheck.core.snapshot import Snapshot
from attncheck.lint import launches
from attncheck.lint.fields.releases import list_releases
from attncheck.lint.files import editing
from attncheck.lint.frameworks.verl import FRAMEWORK, tables
from attncheck.lint.frameworks.verl.given import parse_hydra_inputs
from tests import snapshots, wheels
from tests.lint.frameworks.ranges import check_range
from tools.names.verl import iter_engine_choices

CORPUS = Path(__file__).parents[2] / "data" / "launch" / "verl"
SCRIPTS = sorted(CORPUS.glob("*.sh"))
RELEASES = ("0.9.1", "0.4.1")
# Each composes in its own Hydra, which takes seconds.
NEWEST_QUICKLY = [RELEASES[0], *(pytest.param(release, marks=pytest.mark.nightly) for release in RELEASES[1:])]
PPO = "python3 -m verl.trainer.main_ppo"
SFT = "torchrun --nnodes=1 --nproc_per_node=8 -m verl.trainer.sft_trainer"
OLD_SFT = "torchrun --nnodes=1 --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer"
ACTOR, MODEL, REF = "actor_rollout_ref.actor", "actor_rollout_ref.model", "actor_rollout_ref.ref"
ULYSSES_SIZE = "ulysses_sequence_parallel_size"
# A GRPO command that every release takes and that has nothing to object to.
VALID = (
    f"{PPO} algorithm.adv_estimator=grpo data.train_batch_size=64 data.max_prompt_length=512 "
    f"data.max_response_length=512 {MODEL}.path=Qwen/Qwen3-8B {MODEL}.use_remove_padding=True "
    f"{ACTOR}.ppo_mini_batch_size=32 {ACTOR}.ppo_micro_batch_size_per_gpu=4 "
    "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=2 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 "
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 "
    "actor_rollout_ref.rollout.tensor_model_parallel_size=2 trainer.n_gpus_per_node=8 trainer.nnodes=1"
)


def read_launch(text: str, kind: Any = "shell", name: str = "run.sh") -> Launch:
    [launch] = launches.find_launches(Source(name, text, kind), lambda path: None)
    return launch


def read_job(text: str, version: str = "0.9.1", snapshot: Snapshot | None = None) -> Job:
    return FRAMEWORK.read(read_launch(text), version, snapshot or snapshots.h200())


def write_settings(text: str, version: str = "0.9.1", sets: Mapping[str, str] = {}, kind: Any = "shell") -> str:
    launch = read_launch(text, kind)
    job = FRAMEWORK.read(launch, version, snapshots.h200())
    return editing.apply_edits(launch.source, FRAMEWORK.write(launch, job, sets))


def find_problems(text: str, version: str = "0.9.1", snapshot: Snapshot | None = None) -> tuple[SettingProblem, ...]:
    return read_job(text, version, snapshot).problems


def names_now(text: str, version: str = "0.9.1") -> dict[str, tuple[str, ...]]:
    return {setting.name: setting.now for setting in read_job(text, version).unknown_settings}


# Real Hydra --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def hydra_environ() -> dict[str, str]:
    """Return the environment in which Hydra can be imported; it is installed once alongside the wheels."""
    if importlib.util.find_spec("hydra") is not None:
        return dict(os.environ)
    folder = wheels.CACHE.parent / "hydra-1.3"
    if not (folder / "hydra").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), "hydra-core>=1.3,<1.4"]
        if subprocess.run(command, capture_output=True, timeout=120).returncode:
            pytest.skip("hydra-core is not installed and cannot be")
    return {**os.environ, "PYTHONPATH": str(folder)}


@pytest.fixture(scope="session")
def config_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return release -> folder with verl's own configurations, for each of `RELEASES`."""
    folders_by_release = {}
    for release in RELEASES:
        root = tmp_path_factory.mktemp(f"verl-{release}")
        wheel = wheels.fetch_wheel("verl", release)
        wheel.archive.extractall(root, [name for name in wheel.names if name.startswith("verl/trainer/config/")])
        folders_by_release[release] = str(root / "verl/trainer/config")
    return folders_by_release


def compose_with_hydra(hydra_environ: dict[str, str], jobs: list[list[Any]]) -> list[Any]:
    completed = subprocess.run(
        [sys.executable, "-m", "tests.lint.hydra_composing"],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        env=hydra_environ,
        cwd=Path(__file__).parents[3],
        timeout=120,
    )
    assert completed.returncode == 0, completed.stderr
    answers: list[Any] = json.loads(completed.stdout)
    return answers


def hydra_job(launch: Launch, version: str, folder: str) -> list[Any]:
    """Return a launch as a job for Hydra; one without a configuration if the release has no such module."""
    release = tables.find_release(version)
    inputs = parse_hydra_inputs(launch)
    module_config = release.config_of_module(inputs.module)
    # Shell variables represent something without signs of Hydra's grammar.
    overrides = [re.sub(r"\$\{?\w+\}?", "x", override.text) for override in inputs.overrides]
    return [folder, (inputs.config_name or module_config) if module_config else "no such module", overrides]


def test_the_table_gives_what_hydra_composes(hydra_environ: dict[str, str], config_folders: dict[str, str]) -> None:
    jobs, schemas = [], []
    for version, folder in config_folders.items():
        release = tables.find_release(version)
        for config_name in ("ppo_trainer", "ppo_megatron_trainer", "sft_trainer", "sft_trainer_engine"):
            if config_name not in release.config_names():
                continue
            for choices in iter_engine_choices(release, config_name):
                jobs.append([folder, config_name, [f"{key}={value}" for key, value in choices.items()]])
                schemas.append(release.schema(config_name, choices))
    assert len(jobs) > 12
    assert compose_with_hydra(hydra_environ, jobs) == schemas


@pytest.mark.parametrize("release", NEWEST_QUICKLY)
def test_corrected_commands_compose_where_the_originals_did_not(
    release: str, hydra_environ: dict[str, str], config_folders: dict[str, str]
) -> None:
    before, after, jobs = [], [], []
    for script in SCRIPTS:
        launch = read_launch(script.read_text(encoding="utf-8"))
        job = FRAMEWORK.read(launch, release, snapshots.h200())
        edits = FRAMEWORK.write(launch, job, {})
        assert bool(edits) == bool(job.unknown_settings), script.name
        corrected = read_launch(editing.apply_edits(launch.source, edits))
        assert FRAMEWORK.read(corrected, release, snapshots.h200()).unknown_settings == (), script.name
        jobs.append(job)
        before.append(hydra_job(launch, release, config_folders[release]))
        after.append(hydra_job(corrected, release, config_folders[release]))
    answers = compose_with_hydra(hydra_environ, [*before, *after])
    for script, job, first, second in zip(SCRIPTS, jobs, answers[: len(before)], answers[len(before) :]):
        assert isinstance(second, dict), (script.name, second)
        assert isinstance(first, str) == bool(job.unknown_settings), (script.name, first, job.unknown_settings)
    assert sum(isinstance(first, str) for first in answers[: len(before)]) >= 6


TRICKY_OVERRIDES = (
    "trainer.nnodes=2",
    "+trainer.nnodes=2",
    "++trainer.nnodes=2",
    "++never.heard.of=1",
    "+never.heard.of=1",
    "never.heard.of=1",
    "+actor_rollout_ref.model.path=x",
    "+actor_rollout_ref.model.hf_config_path=x",
    "actor_rollout_ref.model.hf_config_path.x=1",
    f"+{MODEL}.override_config.attn_implementation=sdpa",
    f"++{MODEL}.override_config.attn_implementation=sdpa",
    f"{MODEL}.override_config.attn_implementation=sdpa",
    f"{MODEL}.attn_implementation=sdpa",
    "+actor_rollout_ref.model.override_config={attn_implementation: sdpa}",
    "~actor_rollout_ref.model.path",
    "~never",
    "~critic",
    "model_engine=megatron",
    "model_engine=nothing",
    "actor@actor_rollout_ref.actor=megatron_actor",
    "actor=megatron_actor",
    "engine=fsdp",
    "+engine=fsdp",
    "trainer.logger=[console,wandb]",
    "+trainer.logger=[console]",
    f"+{ACTOR}.{ULYSSES_SIZE}=2",
    f"+actor_rollout_ref.ref.{ULYSSES_SIZE}=2",
    f"{ACTOR}.fsdp_config.{ULYSSES_SIZE}=2",
    f"+{ACTOR}.fsdp_config.model_dtype=bf16",
    f"{ACTOR}.fsdp_config.model_dtype=bf16",
    f"+{ACTOR}.fsdp_config.mixed_precision.param_dtype=fp16",
    f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=fp16",
    "data={train_batch_size: 3}",
    "hydra.run.dir=x",
    "critic.model.fsdp_config.param_offload=True",
    "critic.fsdp.param_offload=True",
    "ray_init.num_cpus=8",
    "trainer.device=cuda",
    "actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=triton",
    "critic.checkpoint.contents=[model]",
    f"{ACTOR}.checkpoint.save_contents=[model]",
    "trainer.use_legacy_worker_impl=disable",
)


@pytest.mark.parametrize("release", NEWEST_QUICKLY)
def test_what_is_called_unknown_is_what_hydra_refuses(
    release: str, hydra_environ: dict[str, str], config_folders: dict[str, str]
) -> None:
    unknown = [bool(read_job(f"{PPO} '{text}'", release).unknown_settings) for text in TRICKY_OVERRIDES]
    jobs = [[config_folders[release], "ppo_trainer", [text]] for text in TRICKY_OVERRIDES]
    answers = compose_with_hydra(hydra_environ, jobs)
    refused = [isinstance(answer, str) for answer in answers]
    assert dict(zip(TRICKY_OVERRIDES, unknown)) == dict(zip(TRICKY_OVERRIDES, refused))
    assert 8 < sum(refused) < len(TRICKY_OVERRIDES) - 8


@pytest.mark.parametrize("release", NEWEST_QUICKLY)
def test_settings_written_back_compose(
    release: str, hydra_environ: dict[str, str], config_folders: dict[str, str]
) -> None:
    sets = {"attn_implementation": "sdpa", "ring_size": "2", "packing": "on", "precision": "fp16", "liger": "on"}
    sets |= {"gradient_checkpointing": "off", "batch": "2", "max_length": "2048", "global_batch": "16"}
    texts = [write_settings(VALID, release, {key: value}) for key, value in sets.items()]
    texts += [write_settings(f"{SFT if release == '0.9.1' else OLD_SFT} optim.lr=1", release, sets)]
    jobs = [hydra_job(read_launch(text), release, config_folders[release]) for text in texts]
    answers = compose_with_hydra(hydra_environ, jobs)
    assert all(isinstance(answer, dict) for answer in answers), answers
    assert answers[1][f"{ACTOR}.{ULYSSES_SIZE}"] == 2
    assert answers[7]["data.max_response_length"] == 2048 - 512
    if release == "0.9.1":
        assert answers[0][f"{MODEL}.override_config.attn_implementation"] == "sdpa"
        assert answers[3][f"{ACTOR}.fsdp_config.mixed_precision.param_dtype"] == "float16"
        assert answers[-1]["engine.ulysses_sequence_parallel_size"] == 2


# What is read ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "trainer"),
    [
        (VALID, "grpo"),
        (f"{PPO} trainer.nnodes=1", "ppo"),
        ("python3 verl/trainer/main_ppo.py algorithm.adv_estimator=rloo", "rloo"),
        ("python3 -m recipe.dapo.main_dapo actor_rollout_ref.model.path=x", "ppo"),
        (f"{SFT} model.path=x", "sft"),
        (f"{OLD_SFT} model.partial_pretrain=x", "sft"),
        ("python3 -m verl.model_merger merge", ""),
        ("python3 train.py --flag", ""),
        ("python3 -m verl.trainer.main_grpo trainer.nnodes=1", "ppo"),  # of a fork
        ("python3 -m verl.trainer.main_generation trainer.nnodes=1", ""),
        ("python3 -m verl.inference.plot_sft model.path=m", ""),
        ("python3 -m verl.own.own_sft model.path=m", "sft"),
    ],
)
def test_trainers(text: str, trainer: str) -> None:
    assert FRAMEWORK.trainer(read_launch(text)) == trainer


def test_only_the_trainer_of_conversations_lacks_columns() -> None:
    said = [
        any("convert the data" in line for line in read_job(f"{text} data.response_key=a").remarks)
        for text in (SFT, PPO)
    ]
    assert said == [True, False]


def test_a_sound_command_has_nothing_against_it() -> None:
    for version in ("0.2.0.post2", "0.4.1", "0.6.1", "0.7.1", "0.9.1"):
        job = read_job(VALID, version)
        assert (job.unknown_settings, job.problems, job.remarks) == ((), (), ()), version
        assert (job.model, job.world_size, job.gpus) == ("Qwen/Qwen3-8B", Known(8), Known(8))
        assert job.plan.packing == "position_ids" and job.plan.precision == "autocast"
        assert (job.plan.batch, job.plan.accumulation, job.plan.max_length) == (4, 2, 1024)
        assert job.reinforcement and job.plan.attn_implementation == "flash_attention_2"


def test_defaults_move_with_the_release() -> None:
    plain = VALID.replace(f"{MODEL}.use_remove_padding=True", "")
    assert read_job(plain, "0.6.1").plan.packing == "padding"
    assert read_job(plain, "0.7.0").plan.packing == "position_ids"
    assert read_job(VALID, "0.3.0.post1").imports == ("flash_attn",)
    assert read_job(plain, "0.6.1").imports == ()
    assert read_job(VALID, "0.9.0").imports == ("flash_attn",) and read_job(VALID, "0.9.1").imports == ()
    assert "transformers!=5.6.0,<5.11,>=5.5.3" in read_job(VALID).requires
    assert not any(text.startswith("transformers") for text in read_job(VALID, "0.8.0").requires)
    assert "vllm==0.24.0" in read_job(VALID).requires


def test_the_attention_override() -> None:
    text = f"{VALID} +{MODEL}.override_config.attn_implementation=sdpa"
    assert read_job(text, "0.6.1").plan.attn_implementation == "sdpa"
    assert read_job(text, "0.6.0").plan.attn_implementation == "flash_attention_2"
    assert [problem.consequence for problem in find_problems(text, "0.6.0")] == ["ignores"]
    assert find_problems(text, "0.6.1") == ()
    assert read_job(f"{text} trainer.use_legacy_worker_impl=disable", "0.6.0").plan.attn_implementation == "sdpa"
    nested = f"{VALID} +{MODEL}.override_config.model_config.attn_implementation=sdpa"
    [problem] = find_problems(nested)
    assert problem.consequence == "ignores" and dict(problem.sets) == {"attn_implementation": "sdpa"}


def test_sequence_parallelism() -> None:
    job = read_job(f"{VALID} {ACTOR}.{ULYSSES_SIZE}=2")
    assert (job.plan.ring_size, job.scheme, job.plan.scheme) == (2, "ulysses", "ulysses")
    assert "flash_attention_3" in job.hooked and "sdpa" not in job.hooked
    assert job.locations["ring_size"].column > 1
    own = read_job(f"{VALID} model_engine=veomni {ACTOR}.veomni.ulysses_parallel_size=2")
    assert (own.scheme, own.hooked) == ("ulysses", ())
    inner = f"{VALID} {ACTOR}.fsdp_config.{ULYSSES_SIZE}=4"
    assert read_job(inner).plan.ring_size == 4
    assert read_job(inner, "0.7.1").plan.ring_size == 1  # the workers of then read the other key
    [problem] = find_problems(inner, "0.7.1")
    assert problem.consequence == "ignores" and dict(problem.sets) == {f"{ACTOR}.{ULYSSES_SIZE}": "4"}
    [problem] = find_problems(f"{inner} {ACTOR}.use_kl_loss=True")
    assert problem.mild and dict(problem.sets) == {f"actor_rollout_ref.ref.{ULYSSES_SIZE}": "4"}
    assert find_problems(f"{VALID} {ACTOR}.{ULYSSES_SIZE}=4 {ACTOR}.use_kl_loss=True") == ()


def test_ulysses_needs_packing() -> None:
    padded = f"{VALID} {ACTOR}.{ULYSSES_SIZE}=2".replace("padding=True", "padding=False")
    for version in ("0.4.1", "0.6.1", "0.9.1"):
        [problem] = find_problems(padded, version)
        assert problem.consequence == "refuses" and dict(problem.sets) == {"packing": "on"}, version
        packed = find_problems(write_settings(padded, version, {"packing": "on"}), version)
        assert all(problem.mild for problem in packed), "how the loss is weighted is all that is left"


def test_the_old_trainer_packs_under_ulysses_alone() -> None:
    base = f"{OLD_SFT} data.train_batch_size=32 data.micro_batch_size_per_gpu=4"
    assert read_job(base, "0.4.1").plan.packing == "padding" and find_problems(base, "0.4.1") == ()
    [alone] = find_problems(f"{base} use_remove_padding=True", "0.4.1")
    assert alone.consequence == "ignores" and alone.mild
    [refused] = (problem for problem in find_problems(f"{base} {ULYSSES_SIZE}=2", "0.4.1") if not problem.mild)
    assert refused.consequence == "refuses" and dict(refused.sets) == {"packing": "on"}
    both = read_job(f"{base} {ULYSSES_SIZE}=2 use_remove_padding=True", "0.4.1")
    assert all(problem.mild for problem in both.problems)
    assert (both.plan.packing, both.plan.ring_size) == ("position_ids", 2)


def test_the_critic_is_flash_attention_2() -> None:
    gae = VALID.replace("=grpo", "=gae") + " critic.ppo_mini_batch_size=32 critic.ppo_micro_batch_size_per_gpu=4"
    sdpa = f"{gae} +{MODEL}.override_config.attn_implementation=sdpa"
    assert find_problems(gae) == ()
    [problem] = find_problems(sdpa)
    assert problem.consequence == "replaces" and problem.mild
    [refused] = find_problems(sdpa, snapshot=snapshots.without_packages(snapshots.h200(), "flash-attn"))
    assert refused.consequence == "refuses" and not refused.mild
    [volta] = find_problems(sdpa, snapshot=snapshots.with_gpus(snapshots.h200(), *[(7, 0)] * 8))
    assert volta.consequence == "refuses"
    assert find_problems(f"{sdpa} critic.enable=False") == ()
    [size] = find_problems(f"{gae} critic.fsdp.{ULYSSES_SIZE}=2 critic.model.use_remove_padding=False")
    assert size.consequence == "refuses" and "critic.model.use_remove_padding" in size.sets


def test_models_that_ulysses_or_packing_spoils() -> None:
    oss = snapshots.with_model(snapshots.h200(), model_type="gpt_oss", sinks=True)
    assert [problem.consequence for problem in find_problems(f"{VALID} {ACTOR}.{ULYSSES_SIZE}=2", snapshot=oss)] == [
        "wrong"
    ]
    assert find_problems(VALID, snapshot=oss) == ()
    hybrid = snapshots.with_model(snapshots.h200(), model_type="qwen3_next")
    [packed] = find_problems(VALID, snapshot=hybrid)
    assert packed.consequence == "wrong" and dict(packed.sets) == {"packing": "off"}
    [both] = find_problems(f"{VALID} {ACTOR}.{ULYSSES_SIZE}=2", snapshot=hybrid)
    assert dict(both.sets) == {"packing": "off", "ring_size": "1"}
    assert find_problems(VALID.replace("padding=True", "padding=False"), snapshot=hybrid) == ()


def test_switches_that_do_nothing() -> None:
    grouper = f"{VALID} {ACTOR}.use_prefix_grouper=True"
    assert [problem.consequence for problem in find_problems(grouper)] == ["ignores"]
    assert find_problems(grouper, "0.7.1") == ()
    determinism = f"{VALID} {ACTOR}.fsdp_config.full_determinism=True"
    assert find_problems(determinism) == () and read_job(determinism).plan.deterministic
    assert [problem.consequence for problem in find_problems(determinism, "0.7.1")] == ["ignores"]


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("train_batch_size=64", "train_batch_size=16", "is less than"),
        ("train_batch_size=64", "train_batch_size=61", "is not divisible by 8"),
        ("ppo_micro_batch_size_per_gpu=4", "ppo_micro_batch_size_per_gpu=3", "do not divide evenly"),
        ("ppo_mini_batch_size=32", "ppo_mini_batch_size=2", "not a whole number of rows"),
        (f"{ACTOR}.ppo_micro_batch_size_per_gpu=4", "", "are both unset"),
        ("parallel_size=2", "parallel_size=3", "does not divide 8 GPUs"),
        (f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
         f"{ACTOR}.use_dynamic_bsz=True {ACTOR}.ppo_max_token_len_per_gpu=512", "is too small for a row of 1024"),
        ("trainer.nnodes=1", f"trainer.nnodes=1 model_engine=megatron {ACTOR}.megatron.tensor_model_parallel_size=3",
         "do not divide by tensor"),
    ],
)  # fmt: skip
def test_batches_that_verl_asserts(old: str, new: str, part: str) -> None:
    assert old in VALID
    problems = find_problems(VALID.replace(old, new))
    assert any(part in problem.message and problem.consequence == "refuses" for problem in problems), problems
    for problem in problems:
        if problem.sets:  # what is advised fixes it
            remaining = find_problems(write_settings(VALID.replace(old, new), "0.9.1", problem.sets))
            assert problem.message not in [other.message for other in remaining]


SFT_BATCH = "model.path=Qwen/Qwen3-8B data.train_batch_size=64 data.micro_batch_size_per_gpu=4"
PADDED = VALID.replace("padding=True", "padding=False")
GAE = VALID.replace("=grpo", "=gae") + " critic.ppo_mini_batch_size=32 critic.ppo_micro_batch_size_per_gpu=4"
MEGATRON = f"{VALID} model_engine=megatron {ACTOR}.strategy=megatron"
DISABLED = "trainer.use_legacy_worker_impl=disable"


@pytest.mark.parametrize(
    ("text", "part", "since", "until"),
    [
        (f"{VALID} +{MODEL}.override_config.attn_implementation=sdpa", "always trains with", "", "0.6.1"),
        (f"{VALID} +{MODEL}.override_config.model_config.attn_implementation=sdpa", "is ignored: verl reads", "0.6.1",
         ""),
        (f"{GAE} +critic.model.override_config.attn_implementation=sdpa", "the critic (", "", ""),
        (f"{PADDED} {ACTOR}.{ULYSSES_SIZE}=2", "Ulysses over 2 ranks needs", "", ""),
        (f"{PADDED} {ACTOR}.{ULYSSES_SIZE}=2 {ACTOR}.strategy=fsdp2", "Ulysses over 2 ranks needs", "0.5.0", ""),
        (f"{SFT} {SFT_BATCH} engine.{ULYSSES_SIZE}=2 model.use_remove_padding=False", "needs use_remove_padding", "",
         "0.6.0"),
        (f"{SFT} {SFT_BATCH} engine.{ULYSSES_SIZE}=2 model.use_remove_padding=False", "needs model.use_remove_padding",
         "0.8.0", ""),
        (f"{OLD_SFT} {SFT_BATCH} {ULYSSES_SIZE}=2", "needs use_remove_padding", "", "0.7.1"),
        (f"{GAE} critic.{ULYSSES_SIZE}=2 critic.model.use_remove_padding=False", "needs critic.model", "", "0.8.0"),
        (f"{VALID} {ACTOR}.fsdp_config.{ULYSSES_SIZE}=4 {ACTOR}.use_kl_loss=True", "the reference policy keeps",
         "0.8.0", ""),
        (f"{VALID} {ACTOR}.use_prefix_grouper=True", "has no effect", "0.8.0", ""),
        (f"{MEGATRON} {ACTOR}.use_prefix_grouper=True", "has no effect", "0.9.1", "0.9.1"),
        (f"{VALID} {ACTOR}.fsdp_config.full_determinism=True", "never read it", "0.7.0", "0.8.0"),
        (VALID.replace(f"{ACTOR}.ppo_micro_batch_size_per_gpu=4", ""), "are both unset", "", ""),
        (VALID.replace("train_batch_size=64", "train_batch_size=16"), "is less than", "0.3.0.post1", ""),
        (VALID.replace("train_batch_size=64", "train_batch_size=61"), "is not divisible by 8", "", ""),
        (VALID.replace("train_batch_size=64", f"train_batch_size=61 {ACTOR}.use_dynamic_bsz=True"),
         "is not divisible by 8", "", "0.6.0"),
        (VALID.replace("gpu=4", "gpu=3"), "do not divide evenly", "0.4.0", ""),
        (VALID.replace("mini_batch_size=32", "mini_batch_size=1"), "not a whole number", "0.3.0.post1", ""),
        (VALID.replace("mini_batch_size=32", "mini_batch_size=13"), "not a whole number", "0.8.0", ""),
        (f"{VALID} {DISABLED}".replace("mini_batch_size=32", "mini_batch_size=13"), "not a whole number", "0.7.0", ""),
        (f"{VALID} {DISABLED}".replace("gpu=4", "gpu=3"), "do not divide evenly", "0.7.1", ""),
        (GAE.replace("critic.ppo_mini_batch_size=32", "critic.ppo_mini_batch_size=1"), "critic.ppo_mini_batch_size=1",
         "0.4.0", ""),
        (f"{VALID} {ACTOR}.use_dynamic_bsz=True "
        f"{ACTOR}.ppo_max_token_len_per_gpu=512", "is too small for a row of 1024", "", ""),
        (f"{MEGATRON} {ACTOR}.megatron.tensor_model_parallel_size=3", "do not divide by tensor", "0.4.0", ""),
        (f"{MEGATRON} {ACTOR}.megatron.tensor_model_parallel_size=3 {ACTOR}.use_dynamic_bsz=True",
         "do not divide by tensor", "0.4.0", "0.6.0"),
        (VALID.replace("parallel_size=2", "parallel_size=3"), "does not divide 8 GPUs", "", ""),
        (MEGATRON.replace("parallel_size=2", "parallel_size=3"), "does not divide 8 GPUs", "0.4.0", ""),
        (f"{OLD_SFT} {SFT_BATCH}".replace("=64", "=61"), "not a whole number", "", "0.7.1"),
        (f"{SFT} {SFT_BATCH}".replace("=64", "=4"), "not a whole number", "", ""),
        (f"{OLD_SFT} {SFT_BATCH}".replace("gpu=4", "gpu=3"), "do not divide evenly", "", "0.7.1"),
        (f"{OLD_SFT} {SFT_BATCH} use_remove_padding=True", "has no effect unless", "", "0.7.1"),
    ],
)  # fmt: skip
def test_objections_hold_in_their_releases_alone(text: str, part: str, since: str, until: str) -> None:
    def fires(version: str) -> bool:
        return any(part in problem.message for problem in find_problems(text, version))

    check_range(fires, list_releases("verl"), since, until)


def test_an_agent_loop_of_one_s_own_may_cut_rows() -> None:
    text = f"{VALID} {ACTOR}.use_dynamic_bsz=True {ACTOR}.ppo_max_token_len_per_gpu=512"
    own = f"{text} actor_rollout_ref.rollout.agent.agent_loop_config_path=own.yaml"
    counts = [
        sum("too small for a row" in item.message for item in find_problems(words, "0.7.1")) for words in (text, own)
    ]
    assert counts == [1, 0]


@pytest.mark.parametrize(
    ("text", "part", "before", "since"),
    [
        (f"{PADDED} {ACTOR}.fsdp_config.{ULYSSES_SIZE}=2 {DISABLED}", "Ulysses over 2 ranks needs", "0.7.1", "0.8.0"),
        (f"{GAE} critic.fsdp.{ULYSSES_SIZE}=2 critic.model.use_remove_padding=False", "critic.fsdp", "0.7.1", "0.8.0"),
        (f"{SFT} {SFT_BATCH} data.use_dynamic_bsz=False".replace("gpu=4", "gpu=3"), "do not divide", "0.7.0", "0.7.1"),
    ],
)
def test_objections_to_keys_that_had_other_names(text: str, part: str, before: str, since: str) -> None:
    releases = list_releases("verl")
    since_then = releases[releases.index(before) :]  # under its name in older releases the setting is judged as they do

    def fires(version: str) -> bool:
        return any(part in problem.message for problem in find_problems(text, version))

    check_range(fires, since_then, since)


@pytest.mark.parametrize(
    ("model", "extra", "part", "since", "until"),
    [
        ({"model_type": "gpt_oss", "sinks": True}, f"{ACTOR}.{ULYSSES_SIZE}=2", "sinks", "0.6.0", ""),
        ({"model_type": "qwen3_5_moe"}, "", "linear attention", "", "0.9.0"),
        ({"model_type": "qwen3_next"}, "", "linear attention", "", ""),
    ],
)
def test_objections_to_models_hold_in_their_releases_alone(
    model: dict[str, Any], extra: str, part: str, since: str, until: str
) -> None:
    snapshot = snapshots.with_model(snapshots.h200(), **model)

    def fires(version: str) -> bool:
        return any(part in problem.message for problem in find_problems(f"{VALID} {extra}", version, snapshot))

    check_range(fires, list_releases("verl"), since, until)


def test_evidence_cites_the_release_and_its_range() -> None:
    [problem] = find_problems(VALID.replace("train_batch_size=64", "train_batch_size=16"), "0.5.0")
    assert problem.evidence[0].startswith("verl 0.5.0 trainer/ppo/ray_trainer.py:500, 522, since 0.3.0.post1, until")
    [problem] = find_problems(VALID.replace("train_batch_size=64", "train_batch_size=16"), "0.9.1")
    assert problem.evidence[0].startswith("verl 0.9.1 workers/config/actor.py:224, since 0.6.0: ")


def test_the_token_budget_counts_the_ranks() -> None:
    budget = VALID.replace(f"{ACTOR}.ppo_micro_batch_size_per_gpu=4", f"{ACTOR}.use_dynamic_bsz=True")
    budget += f" {ACTOR}.ppo_max_token_len_per_gpu=512"
    assert find_problems(budget)[0].mild and not find_problems(budget, "0.7.1")[0].mild
    assert find_problems(f"{budget} {ACTOR}.{ULYSSES_SIZE}=2") == ()
    of_reference = f"{VALID} {REF}.log_prob_use_dynamic_bsz=True {REF}.log_prob_max_token_len_per_gpu=512"
    assert find_problems(of_reference) == (), "no reference policy is started"
    assert "too small" in find_problems(f"{of_reference} {ACTOR}.use_kl_loss=True")[0].message


def test_fine_tuning() -> None:
    text = f"{SFT} model.path=Qwen/Qwen3-8B data.train_batch_size=64 data.micro_batch_size_per_gpu=4"
    job = read_job(
        f"{text} engine.{ULYSSES_SIZE}=2 model.use_liger=True +model.override_config.attn_implementation=sdpa"
    )
    assert (job.trainer, job.world_size, job.plan.ring_size, job.plan.liger) == ("sft", Known(8), 2, True)
    assert job.plan.attn_implementation == "sdpa" and job.scheme == "ulysses" and not job.reinforcement
    odd = f"{text} data.use_dynamic_bsz=False".replace("gpu=4", "gpu=3")
    [refused] = find_problems(odd)
    assert dict(refused.sets) == {"batch": "2"}
    assert find_problems(write_settings(odd, sets=refused.sets)) == ()


def test_megatron() -> None:
    text = f"{VALID} model_engine=megatron {ACTOR}.megatron.tensor_model_parallel_size=2"
    job = read_job(f"{text} {ACTOR}.megatron.context_parallel_size=2")
    assert (job.scheme, job.plan.ring_size, job.tensor_parallel, job.hooked) == ("megatron", 2, 2, ())
    renamed = names_now(text, "0.7.0")
    assert renamed == {"model_engine": ("--config-name=ppo_megatron_trainer",)}
    assert read_job(write_settings(text, "0.7.0"), "0.7.0").unknown_settings == ()
    assert read_job(write_settings(text, "0.7.0"), "0.7.0").tensor_parallel == 2


# What is written ---------------------------------------------------------------------------------------------------


def test_nothing_else_changes() -> None:
    text = (
        "#!/bin/bash\nSP=4  # ranks\npython3 -m verl.trainer.main_ppo \\\n"
        "    'critic.model.fsdp_config.param_offload=True' \\\n"
        '    +critic.model.fsdp_config.optimizer_offload="${OFFLOAD}" \\\n'
        f"    {ACTOR}.{ULYSSES_SIZE}=$SP \\\n"
        "    actor_rollout_ref.actor.megatron.grad_offload=True \\\n"
        "    trainer.nnodes=1 $@\n"
    )
    assert write_settings(text) == (
        "#!/bin/bash\nSP=4  # ranks\npython3 -m verl.trainer.main_ppo \\\n"
        "    'critic.fsdp.param_offload=True' \\\n"
        '    critic.fsdp.optimizer_offload="${OFFLOAD}" \\\n'
        f"    {ACTOR}.{ULYSSES_SIZE}=$SP \\\n"
        "    trainer.nnodes=1 $@\n"
    )
    assert write_settings(VALID) == VALID


def test_settings_in_the_names_of_the_release() -> None:
    assert write_settings(VALID, sets={"attn_implementation": "sdpa"}) == (
        f"{VALID} +{MODEL}.override_config.attn_implementation=sdpa"
    )
    assert write_settings(VALID, "0.6.0", {"attn_implementation": "sdpa"}) == VALID  # no name for it
    explicit = f"{VALID} +{MODEL}.override_config.attn_implementation=sdpa"
    assert write_settings(explicit, sets={"attn_implementation": "eager"}).endswith("attn_implementation=eager")
    both = f"{VALID} {ACTOR}.fsdp_config.{ULYSSES_SIZE}=4 actor_rollout_ref.ref.fsdp_config.{ULYSSES_SIZE}=4"
    assert write_settings(both, sets={"ring_size": "2"}) == both.replace("size=4", "size=2")
    assert write_settings(both, sets={f"{ACTOR}.fsdp_config.{ULYSSES_SIZE}": "\0drop"}) == both.replace(
        f" {ACTOR}.fsdp_config.{ULYSSES_SIZE}=4", ""
    )


def test_a_renamed_trainer_with_a_new_value() -> None:
    text = f"{OLD_SFT} model.partial_pretrain=m {ULYSSES_SIZE}=8 use_remove_padding=true data.prompt_key=q"
    now = write_settings(text, "0.7.1", {"ring_size": "2"})
    assert now == f"{SFT} model.path=m engine.{ULYSSES_SIZE}=2 model.use_remove_padding=true"
    assert "reads conversations" in read_job(text, "0.7.1").remarks[0] and read_job(text, "0.7.0").remarks == ()


YAML = """\
defaults:
  - ppo_trainer
  - _self_

# the critic
critic:
  model:
    path: m  # ours
    fsdp_config:
      param_offload: true
actor_rollout_ref:
  model:
    path: Qwen/Qwen3-8B
  actor:
    ulysses_sequence_parallel_size: 2
my_own:
  key: 1
"""


def test_a_bare_file() -> None:
    launch = read_launch(YAML, "yaml", "config.yaml")
    assert FRAMEWORK.trainer(launch) == "ppo" and FRAMEWORK.model(launch) == "Qwen/Qwen3-8B"
    job = FRAMEWORK.read(launch, "0.9.1", snapshots.h200())
    assert {setting.name: setting.now for setting in job.unknown_settings} == {
        "critic.model.fsdp_config.param_offload": ("critic.fsdp.param_offload",)
    }
    assert job.plan.ring_size == 2 and job.unknown_settings[0].location.line == 10
    assert FRAMEWORK.read(launch, "0.7.1", snapshots.h200()).unknown_settings == ()
    sets = {"attn_implementation": "sdpa", "ring_size": "1"}
    text = editing.apply_edits(launch.source, FRAMEWORK.write(launch, job, sets))
    assert "# the critic" in text and "path: m  # ours" in text and "fsdp_config" not in text
    assert "  fsdp:\n    param_offload: true\n" in text and "    override_config:\n" in text
    corrected = FRAMEWORK.read(read_launch(text, "yaml", "config.yaml"), "0.9.1", snapshots.h200())
    assert (corrected.unknown_settings, corrected.plan.attn_implementation, corrected.plan.ring_size) == ((), "sdpa", 1)


def test_damaged_commands_give_a_job() -> None:
    draw = random.Random(6)
    texts = [script.read_text(encoding="utf-8") for script in SCRIPTS]
    signs = ["=", "+", "~", "'", "${", "[", "{", "@", "\0", "\n", "==", ".", "🙂", "null", "1e999", "--config-name"]
    jobs = 0
    for _ in range(150):
        text = draw.choice(texts)
        for _ in range(draw.randrange(1, 6)):
            offset = draw.randrange(len(text))
            text = text[:offset] + draw.choice(signs) + text[offset + draw.randrange(3) :]
        for launch in launches.find_launches(Source("run.sh", text, "shell"), lambda path: None):
            if FRAMEWORK.trainer(launch):
                version = draw.choice(["0.2", "0.4.1", "0.6.1", "0.9.1", "99", "x"])
                job = FRAMEWORK.read(launch, version, snapshots.h200())
                edits = FRAMEWORK.write(launch, job, {"ring_size": "1", "attn_implementation": "sdpa"})
                editing.apply_edits(launch.source, edits)
                jobs += 1
    assert jobs > 75


def test_versions_between_and_beyond() -> None:
    assert tables.find_release("0.9.1.dev3").version == "0.9.1", "what will be 0.9.1"
    assert tables.find_release("1.0").version == "0.9.1" and tables.find_release("0.1").version == "0.2.0.post2"
    assert tables.find_release("unknown").version == "0.9.1"
    assert replace(read_job(VALID, "0.8.0.dev0"), version="").unknown_settings == ()


def test_fused_kernels_need_rows_without_padding() -> None:
    fused = VALID + f" {MODEL}.use_fused_kernels=True"
    padded = fused.replace(f"{MODEL}.use_remove_padding=True", f"{MODEL}.use_remove_padding=False")
    [problem] = [item for item in read_job(padded, "0.8.0").problems if "use_fused_kernels" in item.message]
    assert problem.consequence == "refuses" and problem.sets == {f"{MODEL}.use_fused_kernels": "False"}
    for text, version in ((fused, "0.8.0"), (padded, "0.9.0"), (padded, "0.7.1")):
        assert not [item for item in read_job(text, version).problems if "use_fused_kernels" in item.message]


def test_pools_may_have_nodes_of_their_own() -> None:
    program = f"{PPO.replace('main_ppo', 'fully_async_main')} --config-name=fully_async_ppo_trainer"
    separate = VALID.replace(PPO, program) + " rollout.nnodes=2 rollout.n_gpus_per_node=8"
    job, shared = read_job(separate), read_job(separate.replace(program, PPO))
    assert (job.gpus, job.nodes) == (Known(24), 3)
    assert (shared.gpus, shared.nodes) == (Known(8), 1), "main_ppo's rollout is on the trainer's GPUs"
