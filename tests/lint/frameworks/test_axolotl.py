"""axolotl's launches: read, judged and corrected; the corrected ones are validated with axolotl's own schema."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from attncheck.core.facts import Known
from attncheck.core.job import Job
from attncheck.lint.fields.releases import list_releases
from attncheck.lint.frameworks.axolotl import FRAMEWORK
from attncheck.lint.names import load_table
from tests import snapshots, wheels
from tests.lint.framework_launches import (
    CORPUS,
    apply_edits,
    find_problem,
    load_launch,
    parse_launch,
    read_corpus_header,
    read_job,
)
from tests.lint.frameworks.ranges import check_range

CONFIG = """\
base_model: Qwen/Qwen2.5-7B  # the model
datasets:
  - {path: tatsu-lab/alpaca, type: alpaca}
micro_batch_size: 1
gradient_accumulation_steps: 4
sequence_len: 2048
num_epochs: 1
learning_rate: 1e-5
bf16: auto
"""
FLASH_PACKING = "attn_implementation: flash_attention_2\nsample_packing: true\n"
QWEN3_NEXT = {"model_type": "qwen3_next", "layer_types": ("linear_attention",) * 3 + ("full_attention",)}


def complete_config(more: str) -> str:
    """Return the configuration with more settings, each key once."""
    keys = {line.split(":")[0] for line in more.splitlines() if line[:1].isalpha()}
    kept = [line for line in CONFIG.splitlines(keepends=True) if line.split(":")[0] not in keys]
    return "".join(kept) + more


def read_config_job(more: str, version: str = "0.19.0", **model: Any) -> Job:
    snapshot = snapshots.with_model(snapshots.h200(), **model)
    return FRAMEWORK.read(parse_launch(complete_config(more), "yaml"), version, snapshot)


def rewrite_config(more: str, version: str, sets: dict[str, str]) -> str:
    launch = parse_launch(complete_config(more), "yaml")
    edits = FRAMEWORK.write(launch, read_job(FRAMEWORK, launch, version), sets)
    return apply_edits(launch, edits)["config.yaml"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("axolotl train config.yaml", "sft"),
        ("axolotl train config.yaml --rl dpo", "dpo"),
        ("accelerate launch -m axolotl.cli.train config.yaml", "sft"),
        ("torchrun --nproc-per-node 4 -m axolotl.cli.train config.yaml", "sft"),
        ("axolotl preprocess config.yaml", ""),
        ("python train.py config.yaml", ""),
    ],
)
def test_commands_are_recognised(text: str, expected: str) -> None:
    launch = parse_launch(text, "command", {"config.yaml": CONFIG})
    assert FRAMEWORK.trainer(launch) == expected
    if expected:
        assert FRAMEWORK.model(launch) == "Qwen/Qwen2.5-7B"


def test_a_file_is_recognised_by_its_keys() -> None:
    assert FRAMEWORK.trainer(parse_launch(CONFIG, "yaml")) == "sft"
    assert FRAMEWORK.trainer(parse_launch(CONFIG + "rl: kto\n", "yaml")) == "kto"
    assert FRAMEWORK.trainer(parse_launch("base_model: x\nmerge_method: slerp\n", "yaml")) == ""  # mergekit's
    assert FRAMEWORK.trainer(parse_launch("model_name_or_path: x\npacking: true\n", "yaml")) == ""  # TRL's


def test_what_a_plan_is() -> None:
    plan = read_config_job(
        FLASH_PACKING + "gradient_checkpointing: true\ncontext_parallel_size: 2\nheads_k_stride: 2\n"
    ).plan
    assert (plan.attn_implementation, plan.packing, plan.precision) == ("flash_attention_2", "position_ids", "bf16")
    assert (plan.max_length, plan.batch, plan.accumulation) == (2048, 1, 4)
    assert (plan.ring_size, plan.heads_k_stride, plan.gradient_checkpointing) == (2, 2, True)
    long = read_config_job(FLASH_PACKING.replace("flash_attention_2", "flex_attention") + "micro_batch_size: 4\n").plan
    assert (long.batch, long.max_length) == (1, 8192), "the rows of a packed batch are one"
    sdpa = read_config_job("attn_implementation: sdpa\nsample_packing: true\nmicro_batch_size: 4\n").plan
    assert (sdpa.batch, sdpa.max_length, sdpa.packing) == (4, 2048, "position_ids")
    assert read_config_job("bf16: false\nfp16: true\n").plan.precision == "fp16"
    assert read_config_job("bf16: false\n").plan.precision == "fp32"
    plugin = "plugins:\n  - axolotl.integrations.liger.LigerPlugin\nliger_rope: true\n"
    assert read_config_job(plugin).plan.liger and not read_config_job("liger_rope: true\n").plan.liger


def test_the_ring_of_a_job() -> None:
    packed = read_config_job(FLASH_PACKING + "context_parallel_size: 2\n")
    assert (packed.scheme, packed.hooked) == ("llama3", ("flash_attention_2",))
    assert read_config_job("attn_implementation: flash_attention_2\ncontext_parallel_size: 2\n").scheme == "ring"
    old = read_config_job("flash_attention: true\nsample_packing: true\nsequence_parallel_degree: 4\n", "0.9.2")
    assert (old.plan.ring_size, old.scheme) == (4, "llama3")
    assert read_config_job(FLASH_PACKING + "context_parallel_size: 4\n", "0.11.0").plan.ring_size == 1, "unknown there"


def test_options_of_the_command_come_before_the_file() -> None:
    launch = parse_launch("axolotl train c.yaml --sample-packing --micro-batch-size 2", "command", {"c.yaml": CONFIG})
    job = read_job(FRAMEWORK, launch, "0.19.0")
    assert job.plan.packed and job.locations["packing"].source == "command line"
    off = parse_launch("axolotl train c.yaml --no-sample-packing", "command", {"c.yaml": CONFIG + FLASH_PACKING})
    assert not read_job(FRAMEWORK, off, "0.19.0").plan.packed


def test_processes_are_those_of_the_launcher() -> None:
    launch = parse_launch("torchrun --nproc-per-node 4 -m axolotl.cli.train c.yaml", "command", {"c.yaml": CONFIG})
    assert read_job(FRAMEWORK, launch, "0.19.0").world_size == Known(4)
    alone = parse_launch("axolotl train c.yaml", "command", {"c.yaml": CONFIG})
    assert not isinstance(read_job(FRAMEWORK, alone, "0.19.0").world_size, Known)


BOOLEAN_PACKING = "flash_attention: true\nsample_packing: true\n"
NAMED = FLASH_PACKING
RING = FLASH_PACKING + "context_parallel_size: 2\n"
LIGER = "plugins:\n  - axolotl.integrations.liger.LigerPlugin\nliger_rms_norm: true\n"
CUT = "plugins:\n  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin\n"
SDPA = "attn_implementation: sdpa\nsample_packing: true\n"
LLAMA3 = RING + "ring_attn_func: varlen_llama3\n"
CUT_ON = CUT + "cut_cross_entropy: true\n"
PROBLEM_CASES = [  # version, settings, consequence, a fragment of the message, and valid settings
    ("0.19.0", BOOLEAN_PACKING + "attn_implementation: sdpa\n", "refuses", "alongside flash_attention", NAMED),
    ("0.19.0", "attn_implementation: flash\n", "refuses", "'flash'", NAMED),
    ("0.16.1", "attn_implementation: eager\nflash_attention: true\n", "replaces", "eager is loaded", BOOLEAN_PACKING),
    ("0.16.1", "sdp_attention: true\nflash_attention: true\n", "refuses", "at once", BOOLEAN_PACKING),
    ("0.19.0", "sdp_attention: true\nflash_attention: true\n", "replaces", "of flash_attention and", NAMED),
    ("0.19.0", BOOLEAN_PACKING, "replaces", "flash_attention is deprecated", NAMED),
    ("0.12.2", "flash_attention: true\nsequence_parallel_degree: 2\n", "replaces", "is deprecated", BOOLEAN_PACKING),
    ("0.19.0", "s2_attention: true\n", "refuses", "s2_attention: true", "s2_attention: false\n"),
    ("0.16.1", BOOLEAN_PACKING + "s2_attention: true\n", "refuses", "s2_attention with", BOOLEAN_PACKING),
    ("0.13.2", "flash_attention: true\ns2_attention: true\n", "refuses", "and s2_attention at once", BOOLEAN_PACKING),
    ("0.16.1", "sdp_attention: true\nsample_packing: true\n", "wrong", "with sdpa keeps", BOOLEAN_PACKING),
    ("0.16.1", NAMED, "wrong", "for its attention flags", BOOLEAN_PACKING),
    ("0.17.0", "attn_implementation: sdpa\nsample_packing: true\n", "wrong", "with sdpa keeps", NAMED),
    ("0.19.0", "sample_packing: true\n", "wrong", "no implementation", SDPA),
    ("0.19.0", NAMED + "rl: dpo\n", "refuses", "with rl: dpo", NAMED),
    ("0.19.0", NAMED + "batch_flattening: true\n", "refuses", "batch_flattening with sample", NAMED),
    ("0.19.0", "attn_implementation: sdpa\nbatch_flattening: true\n", "refuses", "batch_flattening with sdpa", NAMED),
    ("0.19.0", "attn_implementation: sdpa\ncontext_parallel_size: 2\n", "refuses", "with sdpa: only", RING),
    ("0.16.1", RING, "refuses", "requires flash_attention: true", BOOLEAN_PACKING + "context_parallel_size: 2\n"),
    ("0.19.0", RING.replace("\ncontext", "\nmicro_batch_size: 2\ncontext"), "refuses", "one packed row", RING),
    ("0.19.0", RING + "ring_attn_func: batch_zigzag\n", "refuses", "batch_zigzag", LLAMA3),
    ("0.19.0", RING + "ring_attn_func: batch_ring\n", "wrong", "ignores document boundaries", RING),
    ("0.19.0", LIGER + "tensor_parallel_size: 2\n", "refuses", "liger_rms_norm with", LIGER),
    ("0.19.0", "liger_rope: true\n", "ignores", "no effect without", LIGER),
    ("0.19.0", CUT_ON + "bf16: false\n", "refuses", "without bf16", CUT_ON),
    ("0.19.0", CUT + "chunked_cross_entropy: true\n", "refuses", "chunked_cross_entropy", CUT),
    ("0.19.0", "tensor_parallel_size: 2\noptimizer: adamw_8bit\n", "refuses", "adamw_8bit", "optimizer: adamw_8bit\n"),
    (
        "0.19.0",
        "rl: grpo\ntrl: {use_liger_loss: true}\nattn_implementation: flash_attention_2\ncontext_parallel_size: 2\n",
        "refuses",
        "Liger's loss over a ring",
        "rl: grpo\ntrl: {use_liger_loss: true}\n",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("version", "more", "consequence", "fragment", "valid"), PROBLEM_CASES)
def test_objections(version: str, more: str, consequence: str, fragment: str, valid: str) -> None:
    problem = find_problem(read_config_job(more, version), consequence, fragment)
    assert problem is not None, read_config_job(more, version).problems
    assert problem.evidence[0].startswith("axolotl 0.1") and problem.location.source == "config.yaml"
    assert find_problem(read_config_job(valid, version), consequence, fragment) is None
    if problem.sets:
        fixed = parse_launch(rewrite_config(more, version, dict(problem.sets)), "yaml")
        again = FRAMEWORK.read(fixed, version, snapshots.with_model(snapshots.h200()))
        assert find_problem(again, consequence, fragment) is None, "its own settings do not fix it"


OLD_RING = BOOLEAN_PACKING + "sequence_parallel_degree: 2\nmicro_batch_size: 2\n"
UNPACKED_RING = "flash_attention: true\nsequence_parallel_degree: 2\nmicro_batch_size: 2\n"
GRPO_LIGER = "rl: grpo\ntrl: {use_liger_loss: true}\nflash_attention: true\nsequence_parallel_degree: 2\n"


@pytest.mark.parametrize(
    ("more", "fragment", "since", "until"),
    [
        ("flash_attention: true\nattn_implementation: sdpa\n", "alongside flash_attention", "0.12.0", ""),
        ("flash_attention: true\nattn_implementation: sdpa\n", "is loaded", "0.12.0", "0.17.0"),
        ("attn_implementation: flash\n", "'flash'", "0.17.0", ""),
        ("sdp_attention: true\nflash_attention: true\n", "at once", "0.8.1", "0.17.0"),
        ("sdp_attention: true\nflash_attention: true\n", "of flash_attention and", "0.17.0", ""),
        (BOOLEAN_PACKING, "flash_attention is deprecated", "0.17.0", ""),
        ("flash_attention: true\nsequence_parallel_degree: 2\n", "degree is deprecated", "0.12.0", ""),
        ("s2_attention: true\n", "s2_attention: true", "0.17.0", ""),
        (BOOLEAN_PACKING + "s2_attention: true\n", "s2_attention with", "0.10.0", "0.17.0"),
        ("sdp_attention: true\nsample_packing: true\n", "with sdpa keeps", "", "0.18.0"),
        (BOOLEAN_PACKING + "rl: dpo\n", "with rl: dpo", "", ""),
        (BOOLEAN_PACKING + "batch_flattening: true\n", "batch_flattening with sample", "", ""),
        ("sdp_attention: true\nbatch_flattening: true\n", "batch_flattening with sdpa", "", ""),
        ("sdp_attention: true\nsequence_parallel_degree: 2\n", "with sdpa: only", "", ""),
        (OLD_RING, "one packed row", "0.8.1", ""),
        (UNPACKED_RING, "one packed row", "0.8.1", "0.9.0"),
        (OLD_RING + "ring_attn_func: batch_zigzag\n", "batch_zigzag", "0.9.0", ""),
        (OLD_RING + "ring_attn_func: batch_ring\n", "ignores document boundaries", "0.9.0", ""),
        (UNPACKED_RING, "2 times too small", "0.9.0", "0.10.0"),
        (LIGER + "tensor_parallel_size: 2\n", "liger_rms_norm with", "0.12.0", ""),
        (CUT_ON + "bf16: false\n", "without bf16", "", ""),
        (CUT + "chunked_cross_entropy: true\n", "chunked_cross_entropy with", "0.12.0", ""),
        ("tensor_parallel_size: 2\noptimizer: adamw_8bit\n", "2 with adamw_8bit", "0.12.0", ""),
        (GRPO_LIGER, "Liger's loss over a ring", "0.9.2", ""),
    ],
)
def test_objections_hold_in_their_releases_alone(more: str, fragment: str, since: str, until: str) -> None:
    def fires(version: str) -> bool:
        return any(fragment in problem.message for problem in read_config_job(more, version).problems)

    check_range(fires, list_releases("axolotl"), since, until)


def test_recurrent_layers_leak_before_they_are_patched() -> None:
    def fires(version: str) -> bool:
        problems = read_config_job(BOOLEAN_PACKING, version, **QWEN3_NEXT).problems
        return any("recurrent layers" in problem.message for problem in problems)

    check_range(fires, list_releases("axolotl"), until="0.13.1")


def test_gpus_that_an_implementation_asks_for() -> None:
    old = snapshots.with_model(snapshots.with_gpus(snapshots.h200(), (8, 0)))
    for name in ("fp8", "sage"):
        launch = parse_launch(CONFIG + f"attn_implementation: {name}\n", "yaml")
        assert (find_problem(FRAMEWORK.read(launch, "0.19.0", old), "refuses", name) is None) == (name == "sage")
        assert find_problem(FRAMEWORK.read(launch, "0.19.0", snapshots.h200()), "refuses", name) is None
    volta = snapshots.with_gpus(snapshots.h200(), (7, 0))
    sage = parse_launch(CONFIG + "attn_implementation: sage\n", "yaml")
    assert find_problem(FRAMEWORK.read(sage, "0.19.0", volta), "refuses", "sm_70") is not None
    sdpa = parse_launch(CONFIG + "attn_implementation: sdpa\nsample_packing: true\n", "yaml")
    assert find_problem(FRAMEWORK.read(sdpa, "0.19.0", old), "wrong", "loss may be 0.0") is not None
    assert find_problem(FRAMEWORK.read(sdpa, "0.19.0", snapshots.h200()), "wrong") is None


def test_flash_attention_4_takes_the_place_where_it_is_installed() -> None:
    with_four = snapshots.with_package(snapshots.h200(), "flash-attn-4", "4.0.0")
    launch = parse_launch(CONFIG + FLASH_PACKING, "yaml")
    job = FRAMEWORK.read(launch, "0.19.0", with_four)
    assert job.plan.attn_implementation == "flash_attention_4" and find_problem(job, "replaces", "FlashAttention 4")
    assert FRAMEWORK.read(launch, "0.16.1", with_four).plan.attn_implementation == "flash_attention_2"
    assert find_problem(FRAMEWORK.read(launch, "0.15.0", with_four), "replaces", "FlashAttention 4") is None
    ringed = FRAMEWORK.read(parse_launch(CONFIG + RING, "yaml"), "0.19.0", with_four)
    assert ringed.plan.attn_implementation == "flash_attention_2", "only flash_attention_2 supports the ring"


def test_recurrent_layers_are_patched_in_three_families() -> None:
    assert find_problem(read_config_job(FLASH_PACKING, "0.19.0", **QWEN3_NEXT), "wrong") is None
    assert (
        find_problem(
            read_config_job(BOOLEAN_PACKING, "0.12.2", **QWEN3_NEXT), "wrong", "recurrent layers of qwen3_next"
        )
        is not None
    )
    other = {**QWEN3_NEXT, "model_type": "kimi_linear"}
    assert find_problem(read_config_job(FLASH_PACKING, "0.19.0", **other), "wrong", "kimi_linear") is not None
    assert find_problem(read_config_job("attn_implementation: sdpa\n", "0.19.0", **other), "wrong") is None, (
        "nothing is packed"
    )


def test_underscores_are_no_options_of_the_command() -> None:
    launch = parse_launch("axolotl train c.yaml --micro_batch_size 2", "command", {"c.yaml": CONFIG})
    assert find_problem(read_job(FRAMEWORK, launch, "0.19.0"), "refuses", "--micro_batch_size") is not None
    right = parse_launch("axolotl train c.yaml --micro-batch-size 2", "command", {"c.yaml": CONFIG})
    assert find_problem(read_job(FRAMEWORK, right, "0.19.0"), "refuses") is None
    fire = parse_launch(
        "accelerate launch -m axolotl.cli.train c.yaml --micro_batch_size=2", "command", {"c.yaml": CONFIG}
    )
    assert find_problem(read_job(FRAMEWORK, fire, "0.19.0"), "refuses") is None
    assert read_job(FRAMEWORK, fire, "0.19.0").plan.batch == 2


def test_names_that_a_release_does_not_know() -> None:
    by_name = {
        unknown.name: unknown
        for unknown in read_config_job("context_parallel_size: 2\nunsloth_lora_mlp: true\n", "0.11.0").unknown_settings
    }
    assert by_name["context_parallel_size"].now == ("sequence_parallel_degree: 2",)
    assert by_name["context_parallel_size"].since == "0.12.0" and "unsloth_lora_mlp" not in by_name
    (gone,) = read_config_job("unsloth_lora_mlp: true\n").unknown_settings
    assert (gone.now, gone.since) == (("lora_mlp_kernel: true",), "0.17.0")
    (typo,) = read_config_job(
        "context_parapllel_size: 2\n"
    ).unknown_settings  # of axolotl's own examples/alst in 0.18.0
    assert (typo.near, typo.now) == ("context_parallel_size", ())
    assert read_config_job("plugins: [my.own.Plugin]\nmy_own_setting: 1\n").unknown_settings == ()
    (implementation,) = read_config_job("attn_implementation: flash_attention_2\n", "0.11.0").unknown_settings
    assert implementation.now == ("flash_attention: true",)


def test_a_key_that_is_dropped_without_a_word() -> None:
    (typo,) = read_config_job("hub_private_repos: true\n", "0.9.2").unknown_settings
    assert "model_dump" in typo.dropped
    # https://github.com/axolotl-ai-cloud/axolotl/blob/main/examples: many have `debug:`, which drops nothing
    assert read_config_job("debug:\nhub_private_repos: null\n", "0.9.2").unknown_settings == ()
    (refused,) = read_config_job("unsloth_lora_mlp: true\n", "0.19.0").unknown_settings
    assert not refused.dropped  # ValueError
    (older,) = read_config_job("hub_private_repos: true\n", "0.4.1").unknown_settings
    assert not older.dropped  # what that release has was not read
    launch = parse_launch("axolotl train c.yaml --sequence-lenght 2", "command", {"c.yaml": CONFIG})
    assert not any(unknown.dropped for unknown in read_job(FRAMEWORK, launch, "0.19.0").unknown_settings)


def test_edits_keep_comments_and_change_nothing_else() -> None:
    more = "# attention\nflash_attention: true  # fast\nsample_packing: true\n"
    text = rewrite_config(more, "0.19.0", {"attn_implementation": "sdpa", "batch": "2"})
    assert text == (CONFIG + more).replace(
        "flash_attention: true  # fast", "attn_implementation: sdpa  # fast"
    ).replace("micro_batch_size: 1", "micro_batch_size: 2")
    assert rewrite_config(more, "0.16.1", {}) == CONFIG + more


@pytest.mark.parametrize(
    ("version", "more", "sets", "expected"),
    [
        ("0.11.0", "attn_implementation: sdpa\n", {}, {"sdp_attention": True}),
        ("0.16.1", "sdp_attention: true\n", {"attn_implementation": "flash_attention_2"}, {"flash_attention": True}),
        ("0.16.1", "", {"attn_implementation": "flash_attention_3"}, {"attn_implementation": "flash_attention_3"}),
        ("0.9.2", "", {"ring_size": "2"}, {"sequence_parallel_degree": 2}),
        ("0.19.0", "sequence_parallel_degree: 2\n", {"ring_size": "4"}, {"context_parallel_size": 4}),
        ("0.19.0", "", {"precision": "fp16"}, {"fp16": True, "bf16": False}),
        ("0.19.0", "eval_sample_packing: true\n", {"packing": "off"}, {"sample_packing": False}),
        ("0.19.0", "", {"max_length": "512", "heads_k_stride": "2"}, {"sequence_len": 512, "heads_k_stride": 2}),
        ("0.19.0", "", {"global_batch": "32"}, {"gradient_accumulation_steps": 32}),
        ("0.19.0", LIGER, {"liger": "off"}, {"liger_rms_norm": False}),
        ("0.19.0", "unsloth_lora_mlp: true\n", {}, {"lora_mlp_kernel": True}),
    ],
)
def test_settings_are_written_in_the_names_of_the_release(
    version: str, more: str, sets: dict[str, str], expected: dict[str, Any]
) -> None:
    before, after = load_yaml(complete_config(more)), load_yaml(rewrite_config(more, version, sets))
    assert {name: after.get(name) for name in expected} == expected
    kept = {"base_model", "datasets", "num_epochs", "learning_rate"}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    gone = {"eval_sample_packing", "unsloth_lora_mlp", "sequence_parallel_degree"} & set(before)
    assert not {name for name in gone if expected.get(name) is None} & set(after)


def test_what_is_new_goes_into_the_file_that_the_command_names() -> None:
    launch = parse_launch("axolotl train c.yaml --sample-packing", "command", {"c.yaml": CONFIG})
    edits = FRAMEWORK.write(
        launch, read_job(FRAMEWORK, launch, "0.19.0"), {"attn_implementation": "sdpa", "packing": "off"}
    )
    texts = apply_edits(launch, edits)
    assert texts["command line"] == "axolotl train c.yaml --no-sample-packing"
    assert load_yaml(texts["c.yaml"]) == {**load_yaml(CONFIG), "attn_implementation": "sdpa"}


def load_yaml(text: str) -> dict[str, Any]:
    content: dict[str, Any] = YAML(typ="safe", pure=True).load(text)
    return content


CORPUS_FILES = sorted((CORPUS / "axolotl").glob("*"))


@pytest.mark.parametrize("path", CORPUS_FILES, ids=lambda path: path.stem)
def test_the_corpus_is_known_to_its_own_release(path: Path) -> None:
    framework, version = read_corpus_header(path)
    job = read_job(FRAMEWORK, load_launch(path), version)
    assert framework == "axolotl" and job.trainer
    assert [unknown.name for unknown in job.unknown_settings if unknown.now or unknown.since] == []


def validate_configs(version: str, texts: list[str]) -> list[tuple[str, str]]:
    """Return the refusal of axolotl's own schema, and what it logs, for each configuration."""
    pytest.importorskip("pydantic")
    try:
        wheel = wheels.fetch_wheel("axolotl", version)
    except (subprocess.SubprocessError, OSError, IndexError):
        pytest.skip("no wheel to be had")
    script = Path(__file__).parents[1] / "axolotl_schema.py"
    configs = json.dumps([{"num_epochs": 1, "learning_rate": 1e-5, **load_yaml(text)} for text in texts], default=str)
    process = subprocess.run(
        [sys.executable, str(script), str(wheel.path)], input=configs, capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 0, process.stderr[-2000:]
    return [(refusal, logged) for refusal, logged in json.loads(process.stdout)]


@pytest.mark.parametrize("version", ["0.17.0", "0.19.0"])
def test_axolotls_own_schema_agrees(version: str) -> None:
    """The schema refuses what we say it refuses, takes valid settings, and takes the corrected text."""
    cases = [row for row in PROBLEM_CASES if row[0] == "0.19.0" and row[2] in ("refuses", "wrong")]
    skipped = ("Liger", "liger_rms_norm", "without bf16", "chunked", "adamw_8bit", "ignores document boundaries")
    cases = [row for row in cases if not any(word in row[3] for word in skipped)]
    wrong = [complete_config(row[1]) for row in cases]
    fixed = [rewrite_config(row[1], version, dict(_fixing_sets(row, version))) for row in cases]
    valid = [complete_config(row[4]) for row in cases]
    answers = validate_configs(version, [*wrong, *fixed, *valid])
    for index, row in enumerate(cases):
        refusal, logged = answers[index]
        if row[2] == "refuses":
            assert refusal, row
        else:
            assert not refusal and "does not handle cross-sample decontamination" in logged, row
        for kind in (1, 2):
            refusal, logged = answers[index + kind * len(cases)]
            assert not refusal, (kind, row, refusal)
            # 0.17 separates documents under flash and flex alone
            assert "decontamination" not in logged or (version == "0.17.0" and kind == 2) or row[2] == "refuses", row


def _fixing_sets(row: tuple[str, str, str, str, str], version: str) -> dict[str, str]:
    problem = find_problem(read_config_job(row[1], version), row[2], row[3])
    return dict(problem.sets) if problem is not None else {}


def test_the_corpus_is_taken_by_axolotls_own_schema_after_correction() -> None:
    """Old files, brought to the newest release: refused or warned of before if we say so, taken after."""
    version = "0.19.0"
    before, after, jobs = [], [], []
    for path in CORPUS_FILES:
        launch = load_launch(path)
        job = read_job(FRAMEWORK, launch, version)
        sets = {key: value for problem in job.problems for key, value in problem.sets.items()}
        before.append(launch.source.text)
        after.append(apply_edits(launch, FRAMEWORK.write(launch, job, sets))[launch.source.name])
        jobs.append(job)
    answers = validate_configs(version, [*before, *after])
    for index, job in enumerate(jobs):
        (refusal, logged), (still, after_logged) = answers[index], answers[index + len(jobs)]
        assert bool(refusal) == any(problem.consequence == "refuses" for problem in job.problems), CORPUS_FILES[index]
        leaks = find_problem(job, "wrong", "keeps the attention mask") is not None
        assert ("cross-sample decontamination" in logged) == (leaks and not refusal), CORPUS_FILES[index]
        deprecated = find_problem(job, "replaces", "is deprecated") is not None
        assert ("is deprecated and will be removed" in logged) == (deprecated and not refusal), CORPUS_FILES[index]
        assert not still and "decontamination" not in after_logged, (CORPUS_FILES[index], still)


def test_the_table_of_names_says_what_the_wheel_says() -> None:
    try:
        wheel = wheels.fetch_wheel("axolotl", "0.19.0")
    except (subprocess.SubprocessError, OSError, IndexError):
        pytest.skip("no wheel to be had")
    from tools.names.axolotl import read_base_fields
    from tools.names.class_fields import read_package as read_archive

    fields = read_base_fields(read_archive(wheel.path, "axolotl"))
    known = {name: spans[-1] for name, spans in load_table("axolotl")["names"].items() if spans[-1][1] == "0.19.0"}
    assert {name: row[2:] for name, row in known.items()} == fields


@pytest.mark.parametrize(
    "text", ["", "base_model:\nsample_packing: [1, 2\n", "base_model: {a: 1}\nrl: 3\n", "base_model: 5\nplugins: 7\n"]
)
def test_strange_files_give_an_answer(text: str) -> None:
    from attncheck.core.io.errors import BadUsage

    try:
        launch = parse_launch(text, "yaml")
    except BadUsage:
        return
    job = read_job(FRAMEWORK, launch, "0.19.0")
    FRAMEWORK.write(launch, job, {"attn_implementation": "sdpa", "packing": "on", "ring_size": "1"})
