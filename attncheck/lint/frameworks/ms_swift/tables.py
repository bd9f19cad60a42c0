"""The names of ms-swift's settings, and the features of each release.

Source: the wheels of ms-swift 2.0.0 to 4.6.0: arguments/ (in 3.x llm/argument/, in 2.x llm/utils/argument.py),
sequence_parallel/ (in 3.x trainers/sequence_parallel/), cli/main.py. The names are in `lint/names/ms_swift.json`.
"""

from collections.abc import Mapping
from functools import cache

from attncheck.lint.fields.releases import Row, is_at_least, read_fields
from attncheck.lint.names import load_table

HUGGING_FACE_SINCE = "3.0.0"  # its arguments inherit transformers'; model, train_type, attn_impl, torch_dtype
PACKED_POSITIONS_SINCE = "2.3.1"  # positions restart in each document (llm/utils/utils.py:216, `position_ids`)
OWN_ULYSSES_SINCE = "3.4.1"  # trainers/sequence_parallel/ulysses.py; before, and up to 3.6.4 by a variable, xtuner's
RING_VARIABLE_SINCE = "3.6.0"  # SEQUENCE_PARALLEL_IMPL=ring_attention (trainers/sequence_parallel/__init__.py:11)
PACKING_TYPES_SINCE = "3.8.0"
FLASH_NAMES_SINCE = "3.7.0"  # transformers' names alongside flash_attn (llm/argument/train_args.py:142)
LEFT_ROW_REFUSED_SINCE = "4.3.1"  # under sequence parallelism; before, one row may be padded on the left
DERIVED_RING_SINCE = "3.9.0"  # Ulysses over gcd(key/value heads, size) ranks, a ring over the rest
FLASH_4_SINCE = "4.2.0"  # flash_attention_4 also supports packing (arguments/sft_args.py:190)
CONFIG_OPTION_RANGE = ("3.10.0", "4.1.0")  # --config file.yaml; since, the file is the first argument (cli/main.py:41)
QWEN3_5_PACKED_SINCE = "4.3.1"  # the patch takes cu_seq_lens_q without sequence parallelism too
QWEN3_5_SEQUENCE_PARALLEL_SINCE = "4.2.0"  # Qwen3.5's recurrent layers under Ulysses (model/models/qwen.py)

FLASH_IMPLEMENTATIONS = ("flash_attn", "flash_attention_2", "flash_attention_3", "flash_attention_4")
PADDING_FREE_TYPES = ("grpo", "dpo", "kto", "gkd")  # arguments/rlhf_args.py:713; kto since 3.9.0
SEQUENCE_PARALLEL_TYPES = ("grpo", "dpo")  # arguments/rlhf_args.py:721
LEFT_PADDED_TRAINERS = ("ppo", "gkd")  # arguments/rlhf_args.py:467: padding_side
VERBS = ("sft", "pt", "rlhf")
RLHF_VERBS = ("dpo", "orpo", "simpo")  # verbs of 2.x; `swift rlhf --rlhf_type …` since 2.2 (cli/main.py:49)
OLD_SCRIPTS: Mapping[str, str] = {  # scripts of the examples of 2.x (examples/pytorch/llm/)
    "llm_sft": "sft", "llm_pt": "pt", "llm_dpo": "rlhf", "llm_orpo": "rlhf", "llm_simpo": "rlhf", "llm_rlhf": "rlhf",
}  # fmt: skip

OLD_NAMES: Mapping[str, str] = {  # field of newer releases -> its name in 2.x
    "attn_impl": "use_flash_attn", "torch_dtype": "dtype", "per_device_train_batch_size": "batch_size",
    "use_liger_kernel": "use_liger", "model": "model_id_or_path",
}  # fmt: skip


@cache
def read_option_rows(version: str, is_rlhf: bool) -> Mapping[str, Row]:
    """Return the options of a trainer in a release, including those of transformers' arguments."""
    rows = {
        **read_fields("ms_swift", "names", version),
        **(read_fields("ms_swift", "rlhf", version) if is_rlhf else {}),
    }
    return {**_read_transformers_rows(), **rows} if is_at_least(version, HUGGING_FACE_SINCE) else rows


@cache
def _read_transformers_rows() -> Mapping[str, Row]:
    """Return transformers' training arguments of all releases; the installed one decides which of them exist."""
    classes = load_table("transformers").get("classes", {})
    rows = {**classes.get("TrainingArguments", {}), **classes.get("Seq2SeqTrainingArguments", {})}
    return {name: (str(spans[-1][2]), spans[-1][3]) for name, spans in rows.items()}


def packing_implementations(version: str) -> tuple[str, ...]:
    """Return the implementations that support packing in a release; one of them must be set by name."""
    if not is_at_least(version, FLASH_NAMES_SINCE):
        return FLASH_IMPLEMENTATIONS[:1]
    return FLASH_IMPLEMENTATIONS if is_at_least(version, FLASH_4_SINCE) else FLASH_IMPLEMENTATIONS[:3]
