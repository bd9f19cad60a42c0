"""EasyR1: launches as its examples and forks write them, written again after hiyouga/EasyR1 examples/*.sh."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.core.facts import Absent, Known
from attncheck.core.job import UnknownSetting
from attncheck.core.launch import Launch, Source
from attncheck.core.results.lint import launches_of
from attncheck.lint import frameworks, inputs, run
from attncheck.lint.context import Request
from attncheck.lint.frameworks import easyr1, verl
from tests import snapshots
from tests.lint.framework_launches import apply_edits, find_problem, parse_launch, read_job

YAML = """\
data:
  max_prompt_length: 1024
  max_response_length: 3072
worker:
  actor:
    global_batch_size: 128
    micro_batch_size_per_device_for_update: 4
    padding_free: true
    ulysses_size: 2
    model:
      model_path: Qwen/Qwen3-4B
      enable_gradient_checkpointing: true
  rollout:
    n: 4
    tensor_parallel_size: 2
trainer:
  nnodes: 1
  n_gpus_per_node: 8
"""
SCRIPT = "python3 -m verl.trainer.main config=examples/config.yaml worker.actor.model.model_path=Qwen/Qwen3-8B {}\n"
FILES = {"examples/config.yaml": YAML}
# After verl/trainer/main.py, verl/trainer/config.py and verl/workers/actor/config.py.
PROGRAM = {
    "verl/__init__.py": "",
    "verl/trainer/__init__.py": "",
    "verl/trainer/main.py": """\
from omegaconf import OmegaConf
from .config import PPOConfig

def main():
    cli_args = OmegaConf.from_cli()
    default_config = OmegaConf.structured(PPOConfig())
    if hasattr(cli_args, "config"):
        file_config = OmegaConf.load(cli_args.pop("config", None))
        default_config = OmegaConf.merge(default_config, file_config)
    ppo_config = OmegaConf.merge(default_config, cli_args)

if __name__ == "__main__":
    main()
""",
    "verl/trainer/config.py": """\
from dataclasses import dataclass, field
from typing import Any, Optional

@dataclass
class ModelConfig:
    model_path: Optional[str] = None
    override_config: dict[str, Any] = field(default_factory=dict)

@dataclass
class ActorConfig:
    padding_free: bool = True
    model: ModelConfig = field(default_factory=ModelConfig)
    global_batch_size_per_device: int = field(default=-1, init=False)

@dataclass
class WorkerConfig:
    actor: ActorConfig = field(default_factory=ActorConfig)

@dataclass
class PPOConfig:
    worker: WorkerConfig = field(default_factory=WorkerConfig)
""",
}


def parse_script(words: str = "") -> Launch:
    return parse_launch(SCRIPT.format(words), "shell", FILES)


def test_the_file_and_the_words_over_it_are_read() -> None:
    launch = parse_script("data.max_response_length=1024 worker.actor.fsdp.torch_dtype=bf16")
    job = read_job(easyr1.FRAMEWORK, launch, "0.3.3")
    assert easyr1.FRAMEWORK.trainer(launch) == "grpo"
    assert job.model == "Qwen/Qwen3-8B"
    assert (job.plan.attn_implementation, job.plan.packing, job.plan.precision) == (
        "flash_attention_2", "position_ids", "bf16",
    )  # fmt: skip
    assert (job.plan.max_length, job.plan.ring_size, job.scheme) == (2048, 2, "ulysses")
    assert (job.world_size, job.plan.batch, job.plan.accumulation) == (Known(8), 4, 128 * 4 // 4 // 4)
    assert not job.problems and not job.unknown_settings


def test_weights_are_float32_unless_the_launch_says_otherwise() -> None:
    assert read_job(easyr1.FRAMEWORK, parse_script(), "0.3.3").plan.precision == "autocast"


@pytest.mark.parametrize(
    "text",
    [
        "python3 -m verl.trainer.main data.max_prompt_length=1024",
        "python verl/trainer/main.py data.max_prompt_length=1024",
        "python3 -m my_fork.train worker.actor.model.model_path=x",
    ],
)
def test_it_and_its_forks_are_recognised_before_verl(text: str) -> None:
    launch = parse_launch(text, "command")
    assert next(f.name for f in frameworks.load() if f.trainer(launch)) == "easyr1"


@pytest.mark.parametrize(
    "text",
    [
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=x",
        "python3 -m verl.trainer.main_generation model.path=x",
        "python train.py --per_device_train_batch_size 1 --output_dir x",
    ],
)
def test_other_programs_are_not_taken_for_it(text: str) -> None:
    assert easyr1.FRAMEWORK.trainer(parse_launch(text, "command")) == ""


def test_verls_rules_do_not_judge_it() -> None:
    assert verl.FRAMEWORK.trainer(parse_script()) == ""


@pytest.mark.parametrize(
    ("words", "consequence", "part"),
    [
        ("worker.actor.micro_batch_size_per_device_for_update=3", "refuses", "not divisible"),
        ("worker.rollout.tensor_parallel_size=3", "refuses", "does not divide 8 GPUs"),
        ("worker.rollout.max_num_batched_tokens=4000", "refuses", "less than a prompt"),
        ("worker.actor.padding_free=false", "ignores", "without padding_free"),
    ],
)
def test_what_it_cannot_serve_is_said(words: str, consequence: str, part: str) -> None:
    assert find_problem(read_job(easyr1.FRAMEWORK, parse_script(words), "0.3.3"), consequence, part)


@pytest.mark.parametrize(
    "words",
    [
        "worker.actor.micro_batch_size_per_device_for_update=8",
        "worker.rollout.max_num_batched_tokens=4096",
        "worker.actor.padding_free=false worker.actor.ulysses_size=1",
        "worker.actor.padding_free=$PACK",
        "trainer.n_gpus_per_node=$GPUS worker.rollout.tensor_parallel_size=3",
    ],
)
def test_healthy_or_unknown_neighbours_are_silent(words: str) -> None:
    assert read_job(easyr1.FRAMEWORK, parse_script(words), "0.3.3").problems == ()


def test_without_its_file_nothing_is_known_to_be_absent() -> None:
    launch = parse_launch(SCRIPT.format("trainer.n_gpus_per_node=4"), "shell")
    assert isinstance(read_job(easyr1.FRAMEWORK, launch, "0.3.3").world_size, Absent)
    stated = parse_launch(SCRIPT.format("trainer.n_gpus_per_node=4 trainer.nnodes=2"), "shell")
    assert read_job(easyr1.FRAMEWORK, stated, "0.3.3").world_size == Known(8)


def test_settings_are_written_where_they_stand() -> None:
    launch = parse_script("worker.actor.padding_free=false")
    job = read_job(easyr1.FRAMEWORK, launch, "0.3.3")
    texts = apply_edits(launch, easyr1.FRAMEWORK.write(launch, job, {"packing": "on", "ring_size": "1", "liger": "on"}))
    assert "worker.actor.padding_free=true" in texts["run.sh"]
    assert "    ulysses_size: 1\n" in texts["examples/config.yaml"]


@pytest.mark.parametrize(
    ("word", "is_refused"),
    [
        ("worker.actor.pading_free=true", True),
        ("worker.actor.global_batch_size_per_device=1", False),  # init=False: OmegaConf takes it anyway
        ("worker.actor.model.override_config.rope_theta=1", False),  # any key goes into a dict
        ("worker.actor.padding_free=true", False),
    ],
)
def test_names_are_those_of_the_program_beside_the_launch(
    word: str, is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, text in PROGRAM.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert [bool(unknown.proof) for unknown in lint_unknown_settings(word)] == [True] * is_refused


def test_without_the_program_no_name_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert lint_unknown_settings("worker.actor.pading_free=true") == ()


def lint_unknown_settings(word: str) -> tuple[UnknownSetting, ...]:
    source = Source("run.sh", f"python3 -m verl.trainer.main worker.actor.model.model_path=x {word}\n", "shell")
    request = Request((source,))
    report = run.run(snapshots.h200(), request, inputs.make_model_reader(False), inputs.make_file_reader((source,)))
    return launches_of(report)[0].job.unknown_settings
