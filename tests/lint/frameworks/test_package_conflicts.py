"""Releases of a framework that fail alongside a release of another package: said with the command that fixes it."""

from __future__ import annotations

from attncheck.core.launch import Kind, Source
from attncheck.core.report import Report
from attncheck.lint import run
from attncheck.lint.context import Request
from tests import snapshots as s
from tests.lint.launches import read_no_file

AXOLOTL = """base_model: x
datasets: [{path: a, type: alpaca}]
flash_attention: true
context_parallel_size: 4
micro_batch_size: 1
bf16: true
output_dir: o
"""
SWIFT = "swift sft --model x --dataset d --attn_impl flash_attn --torch_dtype bfloat16 --packing true --max_length 4096"


def lint(text: str, version: str, transformers: str) -> Report:
    snapshot = s.with_package(s.h200(), "transformers", transformers)
    kind: Kind = "yaml" if text is AXOLOTL else "command"
    model = s.with_model(snapshot, model_type="qwen2_5_vl", mrope=True).model
    request = Request((Source("launch", text, kind),), version=version)
    return run.run(snapshot, request, lambda name: model, read_no_file)


def refusals(report: Report) -> list[str]:
    return [fix.text for finding in report.findings if finding.code == "ATN441" for fix in finding.fixes]


def test_transformers_trainer_refuses_axolotls_ring() -> None:
    assert refusals(lint(AXOLOTL, "0.12.2", "4.56.2"))[0].endswith(" transformers==4.55.2")
    assert refusals(lint(AXOLOTL, "0.12.2", "4.55.2")) == []
    assert refusals(lint(AXOLOTL, "0.13.1", "4.57.6")) == []


def test_ms_swift_patches_a_name_that_transformers_dropped() -> None:
    # 4.52.4 and 4.53.2 imported with a stub of flash_attn: the three modules have the name, then have it not.
    assert "transformers>=4.51,<4.53" in refusals(lint(SWIFT, "3.6.4", "4.53.2"))[0]
    assert refusals(lint(SWIFT, "3.6.4", "4.52.4")) == []
    assert refusals(lint(SWIFT, "3.8.0", "4.55.2")) == []
    assert refusals(lint(SWIFT.replace("--packing true", ""), "3.6.4", "4.53.2")) == []


def test_positions_that_ms_swift_replaces_are_no_crash() -> None:
    assert "ATN408" not in {finding.code for finding in lint(SWIFT, "3.6.4", "4.52.4").findings}
    assert "ATN408" in {finding.code for finding in lint(SWIFT, "3.8.0", "4.53.2").findings}


def test_ms_swifts_ulysses_imports_what_old_transformers_lack() -> None:
    ulysses = SWIFT.replace("--packing true", "--sequence_parallel_size 2")
    assert "transformers>=4.52,<4.58" in refusals(lint(ulysses, "3.9.0", "4.51.3"))[0]
    assert refusals(lint(ulysses, "3.9.0", "4.52.4")) == []
    assert refusals(lint(SWIFT.replace("--packing true", ""), "3.9.0", "4.51.3")) == []


def test_preference_learning_had_no_sequence_parallelism() -> None:
    dpo = SWIFT.replace("swift sft", "swift rlhf --rlhf_type grpo").replace("--packing true", "")
    assert refusals(lint(f"{dpo} --sequence_parallel_size 2", "3.3.1", "4.51.3")) == ["--sequence_parallel_size 1"]
    assert refusals(lint(f"{dpo} --sequence_parallel_size 2", "3.4.1", "4.52.4")) == []


def test_trls_completions_are_padded_on_the_right() -> None:
    grpo = "trl grpo --model_name_or_path x --dataset_name d --output_dir o --attn_implementation flash_attention_2"
    codes = [{finding.code for finding in lint(text, "0.15.2", "4.52.4").findings} for text in (
        grpo, f"{grpo} --gradient_checkpointing true", grpo.replace("flash_attention_2", "sdpa"),
    )]  # fmt: skip
    assert ["ATN404" in found for found in codes] == [True, False, False]
    assert "ATN404" not in {finding.code for finding in lint(grpo, "0.22.0", "4.52.4").findings}
