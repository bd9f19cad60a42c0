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
from attncheck.lint.files import editing
from attncheck.lint.frameworks.verl import FRAMEWORK
from attncheck.lint.frameworks.verl import tables as verl
from attncheck.lint.frameworks.verl.given import taken
from tests import snapshots, wheels

CORPUS = Path(__file__).parents[2] / "data" / "launch" / "verl"
SCRIPTS = sorted(CORPUS.glob("*.sh"))
RELEASES = ("0.9.1", "0.4.1")
PPO = "python3 -m verl.trainer.main_ppo"
SFT = "torchrun --nnodes=1 --nproc_per_node=8 -m verl.trainer.sft_trainer"
OLD_SFT = "torchrun --nnodes=1 --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer"
ACTOR, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"
SIZE = "ulysses_sequence_parallel_size"
# A GRPO command that every release takes and that has nothing to object to.
SOUND = (
    f"{PPO} algorithm.adv_estimator=grpo data.train_batch_size=64 data.max_prompt_length=512 "
    f"data.max_response_length=512 {MODEL}.path=Qwen/Qwen3-8B {MODEL}.use_remove_padding=True "
    f"{ACTOR}.ppo_mini_batch_size=32 {ACTOR}.ppo_micro_batch_size_per_gpu=4 "
    "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=2 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 "
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 "
    "actor_rollout_ref.rollout.tensor_model_parallel_size=2 trainer.n_gpus_per_node=8 trainer.nnodes=1"
)


def launch(text: str, kind: Any = "shell", name: str = "run.sh") -> Launch:
    [found] = launches.launches(Source(name, text, kind), lambda path: None)
    return found


def job(text: str, version: str = "0.9.1", snapshot: Snapshot | None = None) -> Job:
    return FRAMEWORK.read(launch(text), version, snapshot or snapshots.h200())


def written(text: str, version: str = "0.9.1", sets: Mapping[str, str] = {}, kind: Any = "shell") -> str:
    given = launch(text, kind)
    read = FRAMEWORK.read(given, version, snapshots.h200())
    return editing.applied(given.source, FRAMEWORK.write(given, read, sets))


def objections(text: str, version: str = "0.9.1", snapshot: Snapshot | None = None) -> tuple[SettingProblem, ...]:
    return job(text, version, snapshot).problems


def unknown(text: str, version: str = "0.9.1") -> dict[str, tuple[str, ...]]:
    return {each.name: each.now for each in job(text, version).unknown_settings}


# Real Hydra --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def hydra() -> dict[str, str]:
    """Return the environment in which Hydra can be imported; it is installed once beside the wheels."""
    if importlib.util.find_spec("hydra") is not None:
        return dict(os.environ)
    place = wheels.CACHE.parent / "hydra-1.3"
    if not (place / "hydra").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(place), "hydra-core>=1.3,<1.4"]
        if subprocess.run(command, capture_output=True, timeout=120).returncode:
            pytest.skip("hydra-core is not installed and cannot be")
    return {**os.environ, "PYTHONPATH": str(place)}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the folder with verl's own configurations of each release in `RELEASES`."""
    found = {}
    for release in RELEASES:
        root = tmp_path_factory.mktemp(f"verl-{release}")
        wheel = wheels.fetch("verl", release)
        wheel.archive.extractall(root, [name for name in wheel.names if name.startswith("verl/trainer/config/")])
        found[release] = str(root / "verl/trainer/config")
    return found


def composed(hydra: dict[str, str], jobs: list[list[Any]]) -> list[Any]:
    run = subprocess.run(
        [sys.executable, "-m", "tests.lint.hydra_composing"],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        env=hydra,
        cwd=Path(__file__).parents[3],
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    found: list[Any] = json.loads(run.stdout)
    return found


def composition(given: Launch, release: str, folder: str) -> list[Any]:
    """Return the job for Hydra that a launch is; one without a configuration where the release has no such module."""
    names = verl.of(release)
    read = taken(given)
    home = names.config(read.module)
    # Shell variables stand for something without signs of Hydra's grammar.
    overrides = [re.sub(r"\$\{?\w+\}?", "x", override.text) for override in read.overrides]
    return [folder, (read.config or home) if home else "no such module", overrides]


def test_the_table_gives_what_hydra_composes(hydra: dict[str, str], folders: dict[str, str]) -> None:
    asked, given = [], []
    for release, folder in folders.items():
        names = verl.of(release)
        for config in ("ppo_trainer", "ppo_megatron_trainer", "sft_trainer", "sft_trainer_engine"):
            if config not in names.configs():
                continue
            for choices in names.engines(config):
                asked.append([folder, config, [f"{key}={value}" for key, value in choices.items()]])
                given.append(names.schema(config, choices))
    assert len(asked) > 12
    assert composed(hydra, asked) == given


@pytest.mark.parametrize("release", RELEASES)
def test_corrected_commands_compose_where_the_originals_did_not(
    release: str, hydra: dict[str, str], folders: dict[str, str]
) -> None:
    before, after, jobs = [], [], []
    for script in SCRIPTS:
        given = launch(script.read_text(encoding="utf-8"))
        read = FRAMEWORK.read(given, release, snapshots.h200())
        edits = FRAMEWORK.write(given, read, {})
        assert bool(edits) == bool(read.unknown_settings), script.name
        corrected = launch(editing.applied(given.source, edits))
        assert FRAMEWORK.read(corrected, release, snapshots.h200()).unknown_settings == (), script.name
        jobs.append(read)
        before.append(composition(given, release, folders[release]))
        after.append(composition(corrected, release, folders[release]))
    found = composed(hydra, [*before, *after])
    for script, read, first, second in zip(SCRIPTS, jobs, found[: len(before)], found[len(before) :]):
        assert isinstance(second, dict), (script.name, second)
        assert isinstance(first, str) == bool(read.unknown_settings), (script.name, first, read.unknown_settings)
    assert sum(isinstance(first, str) for first in found[: len(before)]) >= 6


TRICKY = (
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
    f"+{ACTOR}.{SIZE}=2",
    f"+actor_rollout_ref.ref.{SIZE}=2",
    f"{ACTOR}.fsdp_config.{SIZE}=2",
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


@pytest.mark.parametrize("release", RELEASES)
def test_what_is_called_unknown_is_what_hydra_refuses(
    release: str, hydra: dict[str, str], folders: dict[str, str]
) -> None:
    said = [bool(job(f"{PPO} '{text}'", release).unknown_settings) for text in TRICKY]
    found = composed(hydra, [[folders[release], "ppo_trainer", [text]] for text in TRICKY])
    refused = [isinstance(answer, str) for answer in found]
    assert dict(zip(TRICKY, said)) == dict(zip(TRICKY, refused))
    assert 8 < sum(refused) < len(TRICKY) - 8


@pytest.mark.parametrize("release", RELEASES)
def test_settings_written_back_compose(release: str, hydra: dict[str, str], folders: dict[str, str]) -> None:
    sets = {"attn_implementation": "sdpa", "ring_size": "2", "packing": "on", "precision": "fp16", "liger": "on"}
    sets |= {"gradient_checkpointing": "off", "batch": "2", "max_length": "2048", "global_batch": "16"}
    texts = [written(SOUND, release, {key: value}) for key, value in sets.items()]
    texts += [written(f"{SFT if release == '0.9.1' else OLD_SFT} optim.lr=1", release, sets)]
    found = composed(hydra, [composition(launch(text), release, folders[release]) for text in texts])
    assert all(isinstance(answer, dict) for answer in found), found
    assert found[1][f"{ACTOR}.{SIZE}"] == 2
    assert found[7]["data.max_response_length"] == 2048 - 512
    if release == "0.9.1":
        assert found[0][f"{MODEL}.override_config.attn_implementation"] == "sdpa"
        assert found[3][f"{ACTOR}.fsdp_config.mixed_precision.param_dtype"] == "float16"
        assert found[-1]["engine.ulysses_sequence_parallel_size"] == 2


# What is read ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "trainer"),
    [
        (SOUND, "grpo"),
        (f"{PPO} trainer.nnodes=1", "ppo"),
        ("python3 verl/trainer/main_ppo.py algorithm.adv_estimator=rloo", "rloo"),
        ("python3 -m recipe.dapo.main_dapo actor_rollout_ref.model.path=x", "ppo"),
        (f"{SFT} model.path=x", "sft"),
        (f"{OLD_SFT} model.partial_pretrain=x", "sft"),
        ("python3 -m verl.model_merger merge", ""),
        ("python3 train.py --flag", ""),
    ],
)
def test_trainers(text: str, trainer: str) -> None:
    assert FRAMEWORK.trainer(launch(text)) == trainer


def test_a_sound_command_has_nothing_against_it() -> None:
    for version in ("0.2.0.post2", "0.4.1", "0.6.1", "0.7.1", "0.9.1"):
        found = job(SOUND, version)
        assert (found.unknown_settings, found.problems, found.remarks) == ((), (), ()), version
        assert (found.model, found.world_size, found.gpus) == ("Qwen/Qwen3-8B", Known(8), Known(8))
        assert found.plan.packing == "position_ids" and found.plan.precision == "autocast"
        assert (found.plan.batch, found.plan.accumulation, found.plan.max_length) == (4, 2, 1024)
        assert found.reinforcement and found.plan.attn_implementation == "flash_attention_2"


def test_defaults_move_with_the_release() -> None:
    plain = SOUND.replace(f"{MODEL}.use_remove_padding=True", "")
    assert job(plain, "0.6.1").plan.packing == "padding"
    assert job(plain, "0.7.0").plan.packing == "position_ids"
    assert job(SOUND, "0.3.0.post1").imports == ("flash_attn",)
    assert job(plain, "0.6.1").imports == ()
    assert job(SOUND, "0.9.0").imports == ("flash_attn",) and job(SOUND, "0.9.1").imports == ()
    assert "transformers!=5.6.0,<5.11,>=5.5.3" in job(SOUND).requires
    assert not any(text.startswith("transformers") for text in job(SOUND, "0.8.0").requires)
    assert "vllm==0.24.0" in job(SOUND).requires


def test_the_attention_override() -> None:
    text = f"{SOUND} +{MODEL}.override_config.attn_implementation=sdpa"
    assert job(text, "0.6.1").plan.attn_implementation == "sdpa"
    assert job(text, "0.6.0").plan.attn_implementation == "flash_attention_2"
    assert [found.consequence for found in objections(text, "0.6.0")] == ["ignores"]
    assert objections(text, "0.6.1") == ()
    assert job(f"{text} trainer.use_legacy_worker_impl=disable", "0.6.0").plan.attn_implementation == "sdpa"
    nested = f"{SOUND} +{MODEL}.override_config.model_config.attn_implementation=sdpa"
    [found] = objections(nested)
    assert found.consequence == "ignores" and dict(found.sets) == {"attn_implementation": "sdpa"}


def test_sequence_parallelism() -> None:
    found = job(f"{SOUND} {ACTOR}.{SIZE}=2")
    assert (found.plan.ring_size, found.scheme, found.plan.scheme) == (2, "ulysses", "ulysses")
    assert "flash_attention_3" in found.hooked and "sdpa" not in found.hooked
    assert found.locations["ring_size"].column > 1
    inner = f"{SOUND} {ACTOR}.fsdp_config.{SIZE}=4"
    assert job(inner).plan.ring_size == 4
    assert job(inner, "0.7.1").plan.ring_size == 1  # the workers of then read the other key
    [ignored] = objections(inner, "0.7.1")
    assert ignored.consequence == "ignores" and dict(ignored.sets) == {f"{ACTOR}.{SIZE}": "4"}
    [left] = objections(f"{inner} {ACTOR}.use_kl_loss=True")
    assert left.mild and dict(left.sets) == {f"actor_rollout_ref.ref.{SIZE}": "4"}
    assert objections(f"{SOUND} {ACTOR}.{SIZE}=4 {ACTOR}.use_kl_loss=True") == ()


def test_ulysses_needs_packing() -> None:
    padded = f"{SOUND} {ACTOR}.{SIZE}=2".replace("padding=True", "padding=False")
    for version in ("0.4.1", "0.6.1", "0.9.1"):
        [found] = objections(padded, version)
        assert found.consequence == "refuses" and dict(found.sets) == {"packing": "on"}, version
        assert objections(written(padded, version, {"packing": "on"}), version) == ()


def test_the_old_trainer_packs_under_ulysses_alone() -> None:
    base = f"{OLD_SFT} data.train_batch_size=64 data.micro_batch_size_per_gpu=4"
    assert job(base, "0.4.1").plan.packing == "padding" and objections(base, "0.4.1") == ()
    [alone] = objections(f"{base} use_remove_padding=True", "0.4.1")
    assert alone.consequence == "ignores" and alone.mild
    [wrong] = objections(f"{base} {SIZE}=2", "0.4.1")
    assert wrong.consequence == "wrong" and dict(wrong.sets) == {"packing": "on"}
    both = job(f"{base} {SIZE}=2 use_remove_padding=True", "0.4.1")
    assert both.problems == () and both.plan.packing == "position_ids" and both.plan.ring_size == 2


def test_the_critic_is_flash_attention_2() -> None:
    gae = SOUND.replace("=grpo", "=gae") + " critic.ppo_mini_batch_size=32 critic.ppo_micro_batch_size_per_gpu=4"
    sdpa = f"{gae} +{MODEL}.override_config.attn_implementation=sdpa"
    assert objections(gae) == ()
    [found] = objections(sdpa)
    assert found.consequence == "replaces" and found.mild
    [refused] = objections(sdpa, snapshot=snapshots.without(snapshots.h200(), "flash-attn"))
    assert refused.consequence == "refuses" and not refused.mild
    [volta] = objections(sdpa, snapshot=snapshots.gpus(snapshots.h200(), *[(7, 0)] * 8))
    assert volta.consequence == "refuses"
    assert objections(f"{sdpa} critic.enable=False") == ()
    [size] = objections(f"{gae} critic.{SIZE}=2 critic.model.use_remove_padding=False")
    assert size.consequence == "refuses" and "critic.model.use_remove_padding" in size.sets


def test_models_that_ulysses_or_packing_spoils() -> None:
    oss = snapshots.model(snapshots.h200(), model_type="gpt_oss", sinks=True)
    assert [found.consequence for found in objections(f"{SOUND} {ACTOR}.{SIZE}=2", snapshot=oss)] == ["wrong"]
    assert objections(SOUND, snapshot=oss) == ()
    hybrid = snapshots.model(snapshots.h200(), model_type="qwen3_next")
    [packed] = objections(SOUND, snapshot=hybrid)
    assert packed.consequence == "wrong" and dict(packed.sets) == {"packing": "off"}
    [both] = objections(f"{SOUND} {ACTOR}.{SIZE}=2", snapshot=hybrid)
    assert dict(both.sets) == {"packing": "off", "ring_size": "1"}
    assert objections(SOUND.replace("padding=True", "padding=False"), snapshot=hybrid) == ()


def test_switches_that_do_nothing() -> None:
    grouper = f"{SOUND} {ACTOR}.use_prefix_grouper=True"
    assert [found.consequence for found in objections(grouper)] == ["ignores"]
    assert objections(grouper, "0.7.1") == ()
    determinism = f"{SOUND} {ACTOR}.fsdp_config.full_determinism=True"
    assert objections(determinism) == () and job(determinism).plan.deterministic
    assert [found.consequence for found in objections(determinism, "0.7.1")] == ["ignores"]


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("train_batch_size=64", "train_batch_size=16", "is less than"),
        ("train_batch_size=64", "train_batch_size=61", "does not divide by 8"),
        ("ppo_micro_batch_size_per_gpu=4", "ppo_micro_batch_size_per_gpu=3", "do not divide into micro batches of 3"),
        ("ppo_mini_batch_size=32", "ppo_mini_batch_size=2", "not a whole number of rows"),
        (f"{ACTOR}.ppo_micro_batch_size_per_gpu=4", "", "are both unset"),
        ("parallel_size=2", "parallel_size=3", "does not divide 8 GPUs"),
        (f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
         f"{ACTOR}.use_dynamic_bsz=True {ACTOR}.ppo_max_token_len_per_gpu=512", "holds no row of 1024"),
        ("trainer.nnodes=1", f"trainer.nnodes=1 model_engine=megatron {ACTOR}.megatron.tensor_model_parallel_size=3",
         "do not divide by tensor"),
    ],
)  # fmt: skip
def test_batches_that_verl_asserts(old: str, new: str, part: str) -> None:
    assert old in SOUND
    found = objections(SOUND.replace(old, new))
    assert any(part in each.message and each.consequence == "refuses" for each in found), found
    for each in found:
        if each.sets:  # what is advised mends it
            mended = objections(written(SOUND.replace(old, new), "0.9.1", each.sets))
            assert each.message not in [other.message for other in mended]


def test_the_token_budget_counts_the_ranks() -> None:
    budget = SOUND.replace(f"{ACTOR}.ppo_micro_batch_size_per_gpu=4", f"{ACTOR}.use_dynamic_bsz=True")
    budget += f" {ACTOR}.ppo_max_token_len_per_gpu=512"
    assert objections(budget)[0].mild and not objections(budget, "0.7.1")[0].mild
    assert objections(f"{budget} {ACTOR}.{SIZE}=2") == ()


def test_fine_tuning() -> None:
    text = f"{SFT} model.path=Qwen/Qwen3-8B data.train_batch_size=64 data.micro_batch_size_per_gpu=4"
    found = job(f"{text} engine.{SIZE}=2 model.use_liger=True +model.override_config.attn_implementation=sdpa")
    assert (found.trainer, found.world_size, found.plan.ring_size, found.plan.liger) == ("sft", Known(8), 2, True)
    assert found.plan.attn_implementation == "sdpa" and found.scheme == "ulysses" and not found.reinforcement
    odd = f"{text} data.use_dynamic_bsz=False".replace("gpu=4", "gpu=3")
    [refused] = objections(odd)
    assert dict(refused.sets) == {"batch": "2"}
    assert objections(written(odd, sets=refused.sets)) == ()


def test_megatron() -> None:
    text = f"{SOUND} model_engine=megatron {ACTOR}.megatron.tensor_model_parallel_size=2"
    found = job(f"{text} {ACTOR}.megatron.context_parallel_size=2")
    assert (found.scheme, found.plan.ring_size, found.tensor_parallel, found.hooked) == ("megatron", 2, 2, ())
    old = unknown(text, "0.7.0")
    assert old == {"model_engine": ("--config-name=ppo_megatron_trainer",)}
    assert job(written(text, "0.7.0"), "0.7.0").unknown_settings == ()
    assert job(written(text, "0.7.0"), "0.7.0").tensor_parallel == 2


# What is written ---------------------------------------------------------------------------------------------------


def test_nothing_else_changes() -> None:
    text = (
        "#!/bin/bash\nSP=4  # ranks\npython3 -m verl.trainer.main_ppo \\\n"
        "    'critic.model.fsdp_config.param_offload=True' \\\n"
        '    +critic.model.fsdp_config.optimizer_offload="${OFFLOAD}" \\\n'
        f"    {ACTOR}.{SIZE}=$SP \\\n"
        "    actor_rollout_ref.actor.megatron.grad_offload=True \\\n"
        "    trainer.nnodes=1 $@\n"
    )
    assert written(text) == (
        "#!/bin/bash\nSP=4  # ranks\npython3 -m verl.trainer.main_ppo \\\n"
        "    'critic.fsdp.param_offload=True' \\\n"
        '    critic.fsdp.optimizer_offload="${OFFLOAD}" \\\n'
        f"    {ACTOR}.{SIZE}=$SP \\\n"
        "    trainer.nnodes=1 $@\n"
    )
    assert written(SOUND) == SOUND


def test_settings_in_the_names_of_the_release() -> None:
    assert written(SOUND, sets={"attn_implementation": "sdpa"}) == (
        f"{SOUND} +{MODEL}.override_config.attn_implementation=sdpa"
    )
    assert written(SOUND, "0.6.0", {"attn_implementation": "sdpa"}) == SOUND  # no name for it
    asked = f"{SOUND} +{MODEL}.override_config.attn_implementation=sdpa"
    assert written(asked, sets={"attn_implementation": "eager"}).endswith("attn_implementation=eager")
    both = f"{SOUND} {ACTOR}.fsdp_config.{SIZE}=4 actor_rollout_ref.ref.fsdp_config.{SIZE}=4"
    assert written(both, sets={"ring_size": "2"}) == both.replace("size=4", "size=2")
    assert written(both, sets={f"{ACTOR}.fsdp_config.{SIZE}": "\0drop"}) == both.replace(
        f" {ACTOR}.fsdp_config.{SIZE}=4", ""
    )


def test_a_renamed_trainer_with_a_new_value() -> None:
    text = f"{OLD_SFT} model.partial_pretrain=m {SIZE}=8 use_remove_padding=true data.prompt_key=q"
    now = written(text, "0.7.1", {"ring_size": "2"})
    assert now == f"{SFT} model.path=m engine.{SIZE}=2 model.use_remove_padding=true"
    assert "reads conversations" in job(text, "0.7.1").remarks[0] and job(text, "0.7.0").remarks == ()


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
    given = launch(YAML, "yaml", "config.yaml")
    assert FRAMEWORK.trainer(given) == "ppo" and FRAMEWORK.model(given) == "Qwen/Qwen3-8B"
    found = FRAMEWORK.read(given, "0.9.1", snapshots.h200())
    assert {each.name: each.now for each in found.unknown_settings} == {
        "critic.model.fsdp_config.param_offload": ("critic.fsdp.param_offload",)
    }
    assert found.plan.ring_size == 2 and found.unknown_settings[0].location.line == 10
    assert FRAMEWORK.read(given, "0.7.1", snapshots.h200()).unknown_settings == ()
    sets = {"attn_implementation": "sdpa", "ring_size": "1"}
    text = editing.applied(given.source, FRAMEWORK.write(given, found, sets))
    assert "# the critic" in text and "path: m  # ours" in text and "fsdp_config" not in text
    assert "  fsdp:\n    param_offload: true\n" in text and "    override_config:\n" in text
    again = FRAMEWORK.read(launch(text, "yaml", "config.yaml"), "0.9.1", snapshots.h200())
    assert (again.unknown_settings, again.plan.attn_implementation, again.plan.ring_size) == ((), "sdpa", 1)


def test_damaged_commands_give_a_job() -> None:
    draw = random.Random(6)
    texts = [script.read_text(encoding="utf-8") for script in SCRIPTS]
    signs = ["=", "+", "~", "'", "${", "[", "{", "@", "\0", "\n", "==", ".", "🙂", "null", "1e999", "--config-name"]
    read = 0
    for _ in range(300):
        text = draw.choice(texts)
        for _ in range(draw.randrange(1, 6)):
            at = draw.randrange(len(text))
            text = text[:at] + draw.choice(signs) + text[at + draw.randrange(3) :]
        for given in launches.launches(Source("run.sh", text, "shell"), lambda path: None):
            if FRAMEWORK.trainer(given):
                version = draw.choice(["0.2", "0.4.1", "0.6.1", "0.9.1", "99", "x"])
                found = FRAMEWORK.read(given, version, snapshots.h200())
                edits = FRAMEWORK.write(given, found, {"ring_size": "1", "attn_implementation": "sdpa"})
                editing.applied(given.source, edits)
                read += 1
    assert read > 150


def test_versions_between_and_beyond() -> None:
    assert verl.of("0.9.1.dev3").release == "0.9.0"
    assert verl.of("1.0").release == "0.9.1" and verl.of("0.1").release == "0.2.0.post2"
    assert verl.of("unknown").release == "0.9.1"
    assert replace(job(SOUND, "0.8.0.dev0"), version="").unknown_settings == ()
