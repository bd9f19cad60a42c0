"""ms-swift's renames: every name that a release dropped has a successor or is said to have none."""

from __future__ import annotations

import pytest

from attncheck.lint.fields.releases import list_releases
from attncheck.lint.frameworks.ms_swift import FRAMEWORK
from attncheck.lint.frameworks.ms_swift import tables as ms_swift
from attncheck.lint.frameworks.ms_swift.renames import GONE, RENAMES, translate_setting
from attncheck.lint.names import load_table
from tests.lint.framework_launches import apply_edits, parse_launch, read_job

OLD_SCRIPT = """swift sft \\
  --model_id_or_path $MODEL \\
  --sft_type lora --use_flash_attn true \\
  --dtype bf16 --batch_size "$BATCH" \\
  --lora_target_modules ALL \\
  --dataset x
"""


def rewrite(text: str, version: str) -> str:
    launch = parse_launch(text, "shell")
    job = read_job(FRAMEWORK, launch, version)
    return apply_edits(launch, FRAMEWORK.write(launch, job, {}))["run.sh"]


def test_a_script_of_2_x_keeps_its_model_and_its_attention() -> None:
    launch = parse_launch(OLD_SCRIPT, "shell")
    job = read_job(FRAMEWORK, launch, "4.6.0")
    assert (job.plan.attn_implementation, job.plan.precision) == ("flash_attention_2", "bf16")
    assert all(unknown.now for unknown in job.unknown_settings)
    text = rewrite(OLD_SCRIPT, "4.6.0")
    assert "--model $MODEL" in text, "a variable stays a variable"
    assert '--per_device_train_batch_size "$BATCH"' in text
    assert "--tuner_type lora --attn_impl flash_attn" in text
    assert "--torch_dtype bfloat16" in text and "--target_modules all-linear" in text
    assert "--train_type lora" in rewrite(OLD_SCRIPT, "3.8.0")
    assert not read_job(FRAMEWORK, parse_launch(text, "shell"), "4.6.0").unknown_settings


def test_a_script_of_3_x_is_written_for_2_x() -> None:
    text = rewrite("swift sft --model x --train_type full --attn_impl flash_attn --torch_dtype bfloat16\n", "2.6.1")
    assert text == "swift sft --model_id_or_path x --sft_type full --use_flash_attn true --dtype bf16\n"


def test_a_setting_beside_its_successor_is_left_alone() -> None:
    text = "swift sft --model x --custom_train_dataset_path a.jsonl --dataset b\n"
    assert rewrite(text, "4.6.0") == text, "2.x joins the two: neither may go"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("use_flash_attn", "false", ("attn_impl", "sdpa")),
        ("use_flash_attn", "True", ("attn_impl", "flash_attn")),
        ("dtype", "AUTO", None),
        ("quantization_bit", "0", None),
        ("lora_target_modules", "q_proj", ("target_modules", "q_proj")),
        ("lora_target_modules", "DEFAULT", None),
        ("test_oom_error", "true", None),
    ],
)
def test_values_are_those_of_the_new_name(name: str, value: str, expected: tuple[str, str] | None) -> None:
    assert translate_setting(name, value, ms_swift.read_option_rows("4.6.0", False)) == expected


def list_dropped_names() -> set[str]:
    releases, table = list_releases("ms_swift"), load_table("ms_swift")
    newest = ms_swift.read_option_rows(releases[-1], True)
    return {
        name
        for part in ("names", "rlhf")
        for name, spans in table[part].items()
        if spans[-1][1] != releases[-1] and name not in newest
    }


def test_every_dropped_name_has_a_successor_or_is_gone() -> None:
    assert list_dropped_names() <= RENAMES.keys() | GONE
    assert not RENAMES.keys() & GONE
