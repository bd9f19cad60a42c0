"""What ms-swift calls its settings in each release, and what each release can do.

Source: the wheels of ms-swift 3.8.0 to 4.6.0: arguments/ (in 3.x llm/argument/), sequence_parallel/ (in 3.x
trainers/sequence_parallel/), cli/main.py; the names themselves are `knowledge/names/ms_swift.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from attncheck.lint.fields.releases import Row, fields, reaches
from attncheck.lint.names import table

FOUR = "4.0.0"  # llm/argument/ became arguments/, train_type became tuner_type
DERIVED_RING = "3.9.0"  # Ulysses over gcd(key/value heads, size) ranks, a ring over the rest
FLASH_4 = "4.2.0"  # flash_attention_4 is among those that pack (arguments/sft_args.py:190)
CONFIG_OPTION = ("3.10.0", "4.1.0")  # --config file.yaml; since, the file is the first argument (cli/main.py:41)
QWEN3_5_SEQUENCE = "4.2.0"  # Qwen3.5's recurrent layers under Ulysses (model/models/qwen.py)
QWEN3_5_REFUSES = "4.5.0"  # several documents in a row without flash-linear-attention (model/models/qwen.py:1296)

FLASH = ("flash_attn", "flash_attention_2", "flash_attention_3", "flash_attention_4")
PADDING_FREE = ("grpo", "dpo", "kto", "gkd")  # arguments/rlhf_args.py:713; kto since 3.9.0
SEQUENCE_PARALLEL = ("grpo", "dpo")  # arguments/rlhf_args.py:721
LEFT = ("ppo", "gkd")  # arguments/rlhf_args.py:467: padding_side
TRAINERS = ("sft", "pt", "rlhf")

RENAMED: Mapping[str, str] = {
    "train_type": "tuner_type",
    "tuner_type": "train_type",
    "metric": "eval_metric",
    "tensor_parallel_size": "vllm_tensor_parallel_size",
    "data_parallel_size": "vllm_data_parallel_size",
    "gpu_memory_utilization": "vllm_gpu_memory_utilization",
    "limit_mm_per_prompt": "vllm_limit_mm_per_prompt",
    "use_async_engine": "vllm_use_async_engine",
    "multi_turn_func": "multi_turn_scheduler",
    "swanlab_lark_webhook_url": "swanlab_webhook_url",
    "swanlab_lark_secret": "swanlab_secret",
}


@cache
def names(version: str, rlhf: bool) -> Mapping[str, Row]:
    """Return the options that a trainer of a release has, those of transformers' own arguments with them."""
    own = {**fields("ms_swift", "names", version), **(fields("ms_swift", "rlhf", version) if rlhf else {})}
    return {**_transformers(), **own}


@cache
def _transformers() -> Mapping[str, Row]:
    """Return transformers' training arguments of any release: which of them there are depends on what is installed."""
    classes = table("transformers").get("classes", {})
    rows = {**classes.get("TrainingArguments", {}), **classes.get("Seq2SeqTrainingArguments", {})}
    return {name: (str(spans[-1][2]), spans[-1][3]) for name, spans in rows.items()}


def packs_with(version: str) -> tuple[str, ...]:
    """Return the implementations with which a release packs; it asks for one by name."""
    return FLASH if reaches(version, FLASH_4) else FLASH[:3]
