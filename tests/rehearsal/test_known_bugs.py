"""Faults of released frameworks, each rehearsed in the release that has it: the finding names what goes wrong.

ATTNCHECK_REHEARSAL_PYTHONS names a folder of virtual environments with torch and accelerate; those that are missing are
skipped: "trl" with TRL 1.16.0 and transformers 5.17.0; "hf445", "hf446", "hf448" with transformers 4.45.2, 4.46.3 and
4.48.3; "lf093" with LLaMA-Factory 0.9.3 and transformers 4.53.3; "verl041" with verl 0.4.1, transformers 4.52.4,
tensordict 0.8.3, einops and setuptools 79 (it imports pkg_resources), "verl060" with verl 0.6.0 and the same;
"axolotl092" with axolotl 0.9.2, transformers 4.51.3, accelerate 1.6.0, trl 0.17.0, peft 0.15.2, ring-flash-attn 0.1.4
and numpy 2.0.1, and a torchrun next to its python. More are in `test_trl.py` (TRL 0.22.2) and `test_frameworks.py`
(axolotl, LLaMA-Factory 0.9.5). No GPU is needed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
ENVIRONMENTS = os.environ.get("ATTNCHECK_REHEARSAL_PYTHONS", "")
SCRIPT = Path(__file__).parent / "scripts" / "trainer.py"
SIZES = (
    "--output_dir out --per_device_train_batch_size 4 --gradient_accumulation_steps 8 --learning_rate 2e-5 "
    "--max_length 2048"
)
TRAINER = f"python trainer.py --model_name_or_path MODEL --data_path data.jsonl {SIZES}"
TWO_RANKS = TRAINER.replace("python ", "python -m torch.distributed.run --nproc-per-node 2 --standalone ")
TRL = f"trl sft --model_name_or_path MODEL --dataset_name own/data {SIZES}"
PACKED_TRL = f"{TRL} --packing --attn_implementation"
QWEN = "Qwen/Qwen2.5-7B"
NEAT_PACKING = """\
model_name_or_path: Qwen/Qwen2.5-0.5B
stage: sft
do_train: true
finetuning_type: full
dataset: alpaca_en_demo
template: qwen
cutoff_len: 2048
output_dir: out
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-5
bf16: true
packing: true
neat_packing: true
flash_attn: ATTENTION
"""
ULYSSES = (
    "python -m torch.distributed.run --standalone --nproc-per-node 2 -m verl.trainer.fsdp_sft_trainer "
    "data.train_files=train.parquet data.val_files=test.parquet data.prompt_key=question data.response_key=answer "
    "data.train_batch_size=2 data.micro_batch_size_per_gpu=2 model.partial_pretrain=MODEL optim.lr=1e-5 "
    "ulysses_sequence_parallel_size=2 use_remove_padding=true"
)
WHOLE_ROWS = ULYSSES.replace("per-node 2", "per-node 1").replace("size=2 use", "size=1 use")
AXOLOTL_RING = """\
base_model: Qwen/Qwen2.5-0.5B
datasets:
  - path: teknium/GPT4-LLM-Cleaned
    type: alpaca
output_dir: out
sequence_len: 2048
sample_packing: true
micro_batch_size: 1
gradient_accumulation_steps: 1
optimizer: adamw_torch
learning_rate: 1.0e-5
bf16: true
flash_attention: true
sequence_parallel_degree: 2
ring_attn_func: batch_ring
"""
PADDED_RING = AXOLOTL_RING.replace("sample_packing: true", "sample_packing: false\npad_to_sequence_len: true")
LEAK, LOSS, GRADIENTS, RUN = "ATN432", "ATN433", "ATN434", "ATN435"
SEES = "tokens attend to earlier documents in the row"
KNOWN_MODEL = r"known: .* packed: packed documents see each other.* \(ATN357\)"


@dataclass(frozen=True)
class Bug:
    """A release, the model's type ("": any), the launch, and what must be said: the code, and patterns in its lines."""

    environment: str
    model_type: str
    launch: str
    code: str
    patterns: tuple[str, ...]
    fix: str = ""


BUGS = {
    # transformers/modeling files of 5.17.0, each under its implementation: see doctor/knowledge/wrong_models.py.
    "gpt_oss packed under eager": Bug("trl", "gpt_oss", f"{PACKED_TRL} eager", LEAK, (SEES, KNOWN_MODEL)),
    "afmoe packed": Bug("trl", "afmoe", f"{PACKED_TRL} sdpa", LEAK, (SEES, KNOWN_MODEL)),
    "falcon packed": Bug("trl", "falcon", f"{PACKED_TRL} sdpa", LEAK, (SEES, KNOWN_MODEL)),
    "opt packed": Bug("trl", "opt", f"{PACKED_TRL} sdpa", LEAK, (SEES, KNOWN_MODEL)),
    "biogpt packed": Bug("trl", "biogpt", f"{PACKED_TRL} sdpa", LEAK, (KNOWN_MODEL,)),
    "xglm packed under eager": Bug("trl", "xglm", f"{PACKED_TRL} eager", LEAK, (KNOWN_MODEL,)),
    "bloom packed": Bug("trl", "bloom", f"{PACKED_TRL} eager", LEAK, (KNOWN_MODEL,)),
    # 5.17.0 integrations/sdpa_attention.py has no softcap (models/gemma2/modeling_gemma2.py hands it on).
    "gemma2 without its softcap": Bug(
        "trl", "gemma2", f"{TRL} --attn_implementation sdpa --bf16 false", LEAK,
        ("its scores are not capped", r"known: .* \(ATN310\)"), "--attn_implementation eager",
    ),
    # doge's load-balancing loss reads router logits that the model does not return: a first step is never taken.
    "doge trains not at all": Bug("trl", "doge", TRL, "ATN435", (r"IndexError: tuple index out of range",)),
    # 4.45.2 trainer.py `training_step`: each batch's mean over gradient_accumulation_steps (huggingface#34191).
    "accumulation before 4.46": Bug(
        "hf445", "", TRAINER, LOSS, (r"the mean over each batch's target tokens", r"known: .* \(ATN429\)")
    ),
    # 4.46.3 trainer.py `training_step`: no division for a model whose forward takes no loss arguments (4.47 divides).
    "accumulation of a model without loss arguments": Bug(
        "hf446", "opt", TRAINER, LOSS, (r"too large by the number of accumulation steps",)
    ),
    # 4.48.3 training_args.py: `average_tokens_across_devices` is off.
    "ranks divide by their own labels": Bug(
        "hf448", "", TWO_RANKS, LOSS, (r"over target tokens divided by its number of labels, averaged across ranks",),
        "--average_tokens_across_devices",
    ),
    # 4.48.3: nothing but flash attention keeps the documents of DataCollatorWithFlattening apart (4.53.1 does).
    "flattened under sdpa before 4.53": Bug(
        "hf448", "", f"{TRAINER} --flattening", LEAK, (SEES, "explains 100% of the difference")
    ),
    # llamafactory 0.9.3 model/model_utils/packing.py counts the mask's numbers, which 4.53 made booleans.
    "neat packing under flash attention": Bug(
        "lf093", "", NEAT_PACKING.replace("ATTENTION", "fa2"), LEAK, (r"\d+ of \d+ documents differ from "
        "the same documents",)
    ),
    # verl 0.4.1 trainer/fsdp_sft_trainer.py:378-397 (0.2.0.post2 to 0.5.0): backward, then / n_micro_batches, of which
    # Ulysses makes more (verl-project/verl#2857).
    "verl sums micro-batches under Ulysses": Bug(
        "verl041", "", ULYSSES.replace("train_batch_size=2", "train_batch_size=4"), LOSS,
        ("too large by the number of acc", r"known: 2 micro-batches per step: .* 2 times too large \(ATN444\)"),
    ),
    "verl sums micro-batches": Bug(
        "verl041", "", ULYSSES.replace("train_batch_size=2", "train_batch_size=8").replace("size=2 use", "size=1 use"),
        LOSS, ("too large by the number of accumulation steps", r"known: 2 micro-batches a step"),
    ),
    # :374 (to 0.7.0): ulysses_device_mesh.size("dp"), where torch's DeviceMesh.size takes a number.
    "verl balances tokens under Ulysses": Bug(
        "verl041", "", f"{ULYSSES} data.balance_dp_token=True", RUN,
        ("TypeError: tuple indices must be integers", r"written: data.balance_dp_token=True with Ulysses .*\(ATN441\)"),
    ),
    # 0.6.0 (to 0.7.0) :361 shifts a mask that utils/dataset/sft_dataset.py:177 has shifted (verl-project/verl#3562).
    "verl learns no end of responses": Bug(
        "verl060", "", WHOLE_ROWS, LOSS,
        ("the targets are one token early: they include the last token of each prompt and miss the end of each answer",
         r"known: .* the end of each response is not learned, .*\(ATN444\)"),
    ),
    # 0.4.1 (0.4.0 to 0.5.0) :305 takes a mask that utils/dataset/multiturn_sft_dataset.py:170 leaves unshifted (#3287).
    "verl learns conversations one token late": Bug(
        "verl041", "", f"{WHOLE_ROWS} data.multiturn.enable=true", GRADIENTS,
        ("the targets are one token late: they miss the first token of each answer and include the one after its end",
         r"known: .* the first token of each answer is not learned, .*\(ATN444\)"),
    ),
    # axolotl 0.9.2 monkeypatch/attention/ring_attn/adapters/batch.py: position_ids "Not used in this implementation".
    "axolotl packs under batch_ring": Bug(
        "axolotl092", "", AXOLOTL_RING, LEAK, (SEES, r"known: ring_attn_func batch_ring with sample_packing.*ATN444")
    ),
    # 0.19.0 monkeypatch/ring_attn/adapters/batch.py:90, the same (axolotl-ai-cloud/axolotl#3608).
    "axolotl packs under batch_ring to this day": Bug(
        "axolotl", "", AXOLOTL_RING.replace("sequence_parallel_degree", "context_parallel_size"), LEAK,
        (SEES, r"known: ring_attn_func batch_ring with sample_packing.*ATN444"),
    ),
    # 0.9.2 core/trainers/mixins/sequence_parallel.py:240: the loss is summed over a row's ranks, gradients averaged.
    "axolotl divides gradients by the ring": Bug(
        "axolotl092", "", PADDED_RING, GRADIENTS,
        (r"0\.(49|50)\d* times those of the loss: one over the size", r"known: .* 2 times too small.*\(ATN444\)"),
    ),
    # :62: labels are cut before the model shifts them.
    "axolotl shifts labels within slices": Bug(
        "axolotl092", "", AXOLOTL_RING.replace("batch_ring", "varlen_llama3"), LOSS,
        ("labels are shifted within each rank's slice: its last token has no target", r"known: .*\(ATN444\)"),
    ),
}  # fmt: skip
# What folklore calls broken, and is right.
RIGHT = {
    "falcon padded": ("trl", "falcon", TRL),
    "opt padded": ("trl", "opt", TRL),
    "flattened under sdpa": ("trl", "", f"{TRAINER} --flattening"),
    "two ranks": ("trl", "", TWO_RANKS),
    "accumulation since 4.47": ("hf448", "opt", TRAINER),
    "verl under Ulysses": ("verl041", "", ULYSSES),
    "verl's conversations since 0.6": ("verl060", "", f"{WHOLE_ROWS} data.multiturn.enable=true"),
    "neat packing under sdpa": ("lf093", "", NEAT_PACKING.replace("ATTENTION", "sdpa")),
}


def rehearse(attncheck: Run, folder: Path, environment: str, model_type: str, launch: str, fix: bool) -> dict[str, Any]:
    """Return the report on a launch, in the environment, from a folder that holds the script and the model's config."""
    python = Path(ENVIRONMENTS) / environment / "bin" / "python"
    if not ENVIRONMENTS or not python.exists():
        pytest.skip(f"ATTNCHECK_REHEARSAL_PYTHONS names no folder with {environment}/bin/python")
    shutil.copy(SCRIPT, folder / "trainer.py")
    model = QWEN
    if model_type:
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps({"model_type": model_type}))
        model = str(folder / "model")
    options = ["--python", str(python), "--device", "cpu", "--timeout", "110", "--format", "json"]
    options += [] if fix else ["--no-fix"]
    if launch.startswith(("model_name", "base_model")):
        (folder / "launch.yaml").write_text(launch)
        words = ["launch.yaml"]
    else:
        words = ["--", *launch.replace("MODEL", model).split()]
    process = attncheck("smoke", *options, *words, timeout=900, env={**os.environ, "DISABLE_VERSION_CHECK": "1"})
    assert process.stdout, process.stderr
    report: dict[str, Any] = json.loads(process.stdout)
    return report


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_of_a_release_is_named(name: str, attncheck: Run, tmp_path: Path, marker: str) -> None:
    bug = BUGS[name]
    report = rehearse(attncheck, tmp_path, bug.environment, bug.model_type, bug.launch, bool(bug.fix))
    findings = [finding for finding in report["findings"] if finding["code"] == bug.code]
    assert len(findings) == 1, report["findings"]
    lines = "\n".join((findings[0]["message"], *findings[0]["evidence"]))
    for pattern in bug.patterns:
        assert re.search(pattern, lines), lines
    if bug.fix:
        [fix] = findings[0]["fixes"]
        assert fix["title"] == bug.fix and "off by" in fix["proven"]


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_called_right(name: str, attncheck: Run, tmp_path: Path, marker: str) -> None:
    report = rehearse(attncheck, tmp_path, *RIGHT[name], fix=False)
    assert report["findings"] == []
    assert {result["outcome"] for result in report["rehearsal"]["launches"][0]["results"]} == {"ok"}
