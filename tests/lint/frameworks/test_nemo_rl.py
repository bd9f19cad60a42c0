"""NeMo-RL's launches, after NVIDIA-NeMo/RL examples/configs/grpo_math_1B.yaml, and what it refuses."""

from __future__ import annotations

import pytest

from attncheck.core.facts import Absent, Known
from attncheck.core.job import Job
from attncheck.core.launch import Launch, Source
from attncheck.lint import frameworks
from attncheck.lint.files import editing
from attncheck.lint.frameworks import nemo_rl
from attncheck.lint.launches import find_launches
from tests import snapshots
from tests.lint.framework_launches import parse_launch

PARENT = """
policy:
  model_name: Qwen/Qwen2.5-1.5B
  train_global_batch_size: 512
  train_micro_batch_size: 4
  logprob_batch_size: ${policy.train_micro_batch_size}
  max_total_sequence_length: 512
  precision: bfloat16
  dtensor_cfg: {enabled: true, tensor_parallel_size: 1, context_parallel_size: 1, activation_checkpointing: false}
  megatron_cfg: {enabled: false, tensor_model_parallel_size: 2, context_parallel_size: 1}
  dynamic_batching: {enabled: false}
  sequence_packing: {enabled: true}
grpo: {num_prompts_per_step: 32}
cluster: {gpus_per_node: 8, num_nodes: 1}
"""
CHILD = "defaults: base.yaml\npolicy:\n  model_name: Qwen/Qwen2.5-7B\n  max_total_sequence_length: 4096\n"
FILES = {"configs/base.yaml": PARENT, "configs/run.yaml": CHILD}
COMMAND = "uv run examples/run_grpo.py --config configs/run.yaml "


def parse_command(more: str = "", script: str = "run_grpo", before: str = "") -> Launch:
    return parse_launch(before + COMMAND.replace("run_grpo", script) + more + "\n", "shell", FILES)


def read_command(more: str = "", script: str = "run_grpo", version: str = "0.7.0", before: str = "") -> Job:
    return nemo_rl.FRAMEWORK.read(parse_command(more, script, before), version, snapshots.h200())


def find_name(launch: Launch) -> str:
    return next((framework.name for framework in frameworks.load() if framework.trainer(launch)), "")


def test_a_file_is_read_with_those_that_it_inherits_from() -> None:
    job = read_command("++policy.dtensor_cfg.activation_checkpointing=true cluster.num_nodes=2")
    plan = job.plan
    assert (job.trainer, job.model, job.world_size) == ("grpo", "Qwen/Qwen2.5-7B", Known(16))
    assert (plan.attn_implementation, plan.packing, plan.precision) == ("flash_attention_2", "cu_seqlens", "bf16")
    assert (plan.max_length, plan.batch, plan.gradient_checkpointing) == (4096, 4, True)
    assert job.problems == () and job.reinforcement


def test_the_backend_and_context_parallelism_decide_the_attention() -> None:
    megatron = read_command("policy.megatron_cfg.enabled=true policy.dtensor_cfg.enabled=false")
    assert (megatron.plan.attn_implementation, megatron.tensor_parallel) == ("transformer_engine", 2)
    ring = read_command("policy.dtensor_cfg.context_parallel_size=2 policy.sequence_packing.enabled=false")
    assert (ring.plan.attn_implementation, ring.plan.packing, ring.scheme) == ("sdpa", "padding", "torch")
    split = read_command("policy.generation.colocated.enabled=false")
    assert isinstance(split.world_size, Absent)


@pytest.mark.parametrize(
    ("more", "script", "words"),
    [
        ("policy.dtensor_cfg.context_parallel_size=2", "run_grpo", "with sequence packing"),
        ("policy.dynamic_batching.enabled=true", "run_grpo", "dynamic_batching.enabled"),
        ("", "run_dpo", "with DPO"),
        ("policy.megatron_cfg.enabled=true", "run_sft", "both enabled"),
        ("policy.dtensor_cfg.enabled=false", "run_sft", "neither"),
        ("policy.dtensor_cfg.tensor_parallel_size=3", "run_sft", "8 GPUs are not a multiple"),
        ("policy.dtensor_cfg.tensor_parallel_size=4 policy.logprob_batch_size=2", "run_grpo", "logprob_batch_size 2"),
        ("policy.megatron_cfg.enabled=true policy.dtensor_cfg.enabled=false policy.sequence_packing.enabled=false "
         "policy.megatron_cfg.context_parallel_size=2", "run_grpo", "without sequence packing"),
    ],
)  # fmt: skip
def test_what_it_refuses(more: str, script: str, words: str) -> None:
    [problem] = read_command(more, script).problems
    assert words in problem.message and problem.consequence == "refuses"


@pytest.mark.parametrize(
    ("more", "version", "before"),
    [
        ("", "0.7.0", ""),
        ("policy.dtensor_cfg.tensor_parallel_size=4", "0.7.0", ""),
        ("policy.dtensor_cfg.tensor_parallel_size=4 policy.logprob_batch_size=2", "0.5.0", ""),
        ("policy.dtensor_cfg.tensor_parallel_size=4 policy.logprob_batch_size=2", "0.7.0",
         "export NRL_IGNORE_TP_ACCURACY_CHECK=1\n"),
        ("policy.dtensor_cfg.context_parallel_size=2 policy.sequence_packing.enabled=$PACK", "0.7.0", ""),
        ("policy.dtensor_cfg.tensor_parallel_size=3", "0.3.0", ""),
    ],
)  # fmt: skip
def test_what_it_takes(more: str, version: str, before: str) -> None:
    assert read_command(more, version=version, before=before).problems == ()


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("cd /opt/nemo-rl && python examples/run_grpo.py --config /w/c.yaml", "nemo-rl"),
        ("/opt/nemo_rl_venv/bin/python examples/run_grpo_math.py --config /w/c.yaml", "nemo-rl"),
        ('O=$(ssh pod "cd /opt/nemo-rl && python examples/run_sft.py --config /w/c.yaml")', "nemo-rl"),
        ("python examples/run_grpo.py --config /w/c.yaml", "trl"),
    ],
)
def test_where_its_script_runs_tells_whose_it_is(command: str, name: str) -> None:
    assert find_name(find_launches(Source("run.sh", command, "shell"), lambda path: None)[-1]) == name


def test_it_is_told_from_other_programs() -> None:
    assert find_name(parse_command()) == "nemo-rl"
    assert find_name(parse_launch(PARENT, "yaml")) == "nemo-rl"
    assert find_name(parse_launch("python -m nemo_rl.algorithms.grpo --config $CONFIG", "command")) == "nemo-rl"
    for text in ("python run_grpo.py --config x.yaml", "python -m verl.trainer.main_ppo data.train_batch_size=8"):
        assert find_name(parse_launch(text, "command")) != "nemo-rl"


def test_a_parent_that_is_not_there_is_said_and_may_set_more() -> None:
    [launch] = find_launches(Source("run.yaml", CHILD, "yaml"), lambda name: None)
    assert launch.open_ends == ("the configuration file base.yaml",)


def test_a_table_may_replace_that_of_the_parent() -> None:
    files = {**FILES, "configs/run.yaml": CHILD + "  dtensor_cfg: {_override_: true, enabled: true}\n"}
    launch = parse_launch(COMMAND, "shell", files)
    names = [entry.name for entry in launch.entries]
    assert "policy.dtensor_cfg.enabled" in names and "policy.dtensor_cfg.tensor_parallel_size" not in names


def test_what_a_parent_sets_is_set_in_the_child() -> None:
    launch = parse_command()
    job = nemo_rl.FRAMEWORK.read(launch, "0.7.0", snapshots.h200())
    [edit] = nemo_rl.FRAMEWORK.write(launch, job, {"packing": "off"})
    assert launch.file is not None and edit.source == "configs/run.yaml"
    text = editing.apply_edits(launch.file, [edit])
    assert "sequence_packing:" in text and "enabled: false" in text
