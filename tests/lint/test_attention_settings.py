"""Attention that no framework can serve: flash kernels in float32, eager's scores of long rows."""

from __future__ import annotations

import pytest

from attncheck.core.facts import Known
from attncheck.core.findings import Finding
from attncheck.core.launch import Source
from attncheck.lint import run
from attncheck.lint.context import Request
from tests import snapshots as s
from tests.lint import launches

FLOAT32 = "--dtype float32 --bf16 false --attn_implementation flash_attention_2"
TRL = "accelerate launch --num_processes 8 -m trl.scripts.sft --model_name_or_path m --dataset_name d"
VERL = (
    "python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=8 actor_rollout_ref.actor.fsdp_config.model_dtype=fp32 "
    "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32"
)


def lint(text: str, **fields: object) -> list[Finding]:
    snapshot = s.with_model(s.h200(), **fields) if fields else s.h200()
    request = Request((Source("run.sh", text, "shell"),))
    report = run.run(s.with_package(s.with_package(snapshot, "trl", "1.16.0"), "verl", "0.8.0"), request,
                     launches.read_model, launches.read_no_file)  # fmt: skip
    return [finding for finding in report.findings if finding.code == "ATN441" and (
        "in float32" in finding.message or finding.message.startswith("eager attention"))]  # fmt: skip


def test_flash_attention_refuses_float32() -> None:
    [finding] = lint(f"{TRL} {FLOAT32}")
    assert finding.severity == "error" and finding.fixes[0].text == "--bf16 true" and finding.fixes[0].proven
    assert "only support fp16 and bf16" in finding.evidence[0]
    [finding] = lint(VERL)
    assert finding.severity == "error"


@pytest.mark.parametrize(
    "text",
    [
        TRL.replace("launch", "launch --mixed_precision bf16") + " " + FLOAT32,
        f"export ACCELERATE_MIXED_PRECISION=bf16\n{TRL} {FLOAT32}",
        f"{TRL} {FLOAT32} --load_in_4bit true",
        f"{TRL} {FLOAT32.replace('flash_attention_2', 'sdpa')}",
        f"{TRL} --dtype float32 --bf16 true --attn_implementation flash_attention_2",  # autocast casts
        f"{TRL} --attn_implementation flash_attention_2",  # bf16 is on by default
        VERL.replace("param_dtype=fp32", "param_dtype=bf16"),
    ],
)
def test_what_is_cast_or_no_flash_kernel_is_let_be(text: str) -> None:
    assert lint(text) == []


def test_what_was_not_read_may_cast() -> None:
    [finding] = lint(f'{TRL} {FLOAT32} "$@"')
    assert finding.severity == "warning"


def test_eager_says_the_memory_of_its_scores() -> None:
    eager = f"{TRL} --attn_implementation eager --per_device_train_batch_size 1 --max_length"
    [finding] = lint(f"{eager} 65536")
    assert finding.severity == "warning" and "of each head take 8 GiB in a layer" in finding.message
    [finding] = lint(f"{eager} 65536", num_heads=Known(32))
    assert "of its 32 heads take 256 GiB in a layer" in finding.message
    assert lint(f"{eager} 4096") == [] and lint(f"{eager} 65536".replace("eager", "sdpa")) == []


def test_eager_gives_way_to_what_computes_the_same() -> None:
    eager = f"{TRL} --attn_implementation eager --per_device_train_batch_size 1 --max_length 65536"
    [finding] = lint(eager)
    assert finding.fixes[0].text == "--attn_implementation sdpa" and finding.fixes[0].proven
    [finding] = lint(eager, softcap=Known(50.0), model_type="gemma2")
    assert finding.fixes[0].text == "--attn_implementation flash_attention_2"
    [finding] = lint(eager.replace("--attn_implementation eager", ""), sinks=True, model_type="gpt_oss")
    assert "flex_attention" in finding.fixes[0].text
