"""The releases of axolotl in which each objection holds, read in its wheels and sdists from 0.8.0 to 0.19.0.

Before 0.10.0 what utils/schemas/validation.py holds today stood in utils/schemas/config.py.
"""

from collections.abc import Mapping

from attncheck.lint.fields.constraints import Constraint, Constraints
from attncheck.lint.frameworks.axolotl.tables import (
    ATTN_IMPLEMENTATION_SINCE,
    CONTEXT_PARALLEL_SINCE,
    DROPS_MASK_SINCE,
    FLAGS_DEPRECATED_SINCE,
    FLASH_4_NAMED_SINCE,
    FLASH_4_SINCE,
    RING_FUNCTION_SINCE,
)

FIRST = "0.8.0"  # the oldest release that was read
NEW = "axolotl 0.19.0 utils/schemas"
OLD = "axolotl 0.16.1 utils/schemas"
ONE_ROW = "micro_batch_size must be set to 1"

# Names ---------------------------------------------------------------------------------------------------------------
NAMED_TWICE = (
    Constraint(f"{NEW}/config.py:1569", FLAGS_DEPRECATED_SINCE, quote="cannot be combined with legacy attention flags"),
)
NAMED_TWICE_LOADED = (
    Constraint("axolotl 0.16.1 loaders/model.py:627", ATTN_IMPLEMENTATION_SINCE, FLAGS_DEPRECATED_SINCE,
               "attn_implementation goes before every boolean"),
)  # fmt: skip
UNKNOWN_IMPLEMENTATION = (
    Constraint(f"{NEW}/config.py:1624", FLAGS_DEPRECATED_SINCE, quote="is not accepted, or a recognized backend"),
)
SEVERAL_BOOLEANS = (
    Constraint(f"{NEW}/config.py:1576", FLAGS_DEPRECATED_SINCE,
               quote="specific backends beat generic flash/sdp/eager fallbacks"),
)  # fmt: skip
SEVERAL_BOOLEANS_REFUSED = (
    Constraint(f"{OLD}/validation.py:176", "0.8.1", FLAGS_DEPRECATED_SINCE, "Only one of … must be set"),
)
DEPRECATED_BOOLEAN = (
    Constraint(f"{NEW}/config.py:1582", FLAGS_DEPRECATED_SINCE,
               quote="is deprecated and will be removed in a future release"),
)  # fmt: skip
DEPRECATED_DEGREE = (
    Constraint(f"{NEW}/validation.py:1783", CONTEXT_PARALLEL_SINCE, quote="`sequence_parallel_degree` is deprecated"),
)
REMOVED = (Constraint(f"{NEW}/deprecated.py:127", FLAGS_DEPRECATED_SINCE, quote="is no longer supported"),)
SHIFTED_SPARSE_PACKING = (
    Constraint(f"{OLD}/validation.py:201", "0.10.0", FLAGS_DEPRECATED_SINCE,
               "shifted-sparse attention does not currently support sample packing"),
)  # fmt: skip
MISSING_PLUGIN = (
    Constraint("axolotl 0.19.0 integrations/config.py:25", FIRST,
               quote="fields of plugins that are not registered are not in the schema"),
)  # fmt: skip
PASSED_ON_OPTION = (
    Constraint("axolotl 0.19.0 cli/main.py:96 ignore_unknown_options, cli/utils/args.py:172", "0.12.0",
               quote="options have dashes"),
)  # fmt: skip
UNDERSCORED_OPTION = (Constraint("axolotl 0.10.0 cli/utils.py:87-95", FIRST, "0.12.0", "options have dashes"),)

# Packing -------------------------------------------------------------------------------------------------------------
PACKING_LEAKS = (
    Constraint("axolotl 0.10.0 utils/collators/batching.py", FIRST, DROPS_MASK_SINCE,
               "numbers the documents in the mask, which flash attention's unpadding alone is patched to read"),
    Constraint("axolotl 0.16.1 core/builders/causal.py:261", DROPS_MASK_SINCE, FLAGS_DEPRECATED_SINCE,
               "sample_packing_drop_attention_mask for flash, xformers and flex alone"),
    Constraint(f"{NEW}/validation.py:188; core/builders/causal.py:275", FLAGS_DEPRECATED_SINCE,
               quote="does not handle cross-sample decontamination"),
)  # fmt: skip
PACKING_WITH_RL = (
    Constraint(f"{OLD}/validation.py:710", FIRST, FLAGS_DEPRECATED_SINCE, "does not work with RLHF training"),
    Constraint(f"{NEW}/validation.py:708", FLAGS_DEPRECATED_SINCE, quote="does not work with RLHF training"),
)
FLATTENING_WITH_PACKING = (
    Constraint(f"{OLD}/validation.py:836", FIRST, FLAGS_DEPRECATED_SINCE, "not compatible with sample_packing"),
    Constraint(f"{NEW}/validation.py:1089", FLAGS_DEPRECATED_SINCE, quote="not compatible with sample_packing"),
)
FLATTENING_WITHOUT_FLASH = (
    Constraint(f"{OLD}/validation.py:834", FIRST, FLAGS_DEPRECATED_SINCE, "batch_flattening requires flash attention"),
    Constraint(
        f"{NEW}/validation.py:1084", FLAGS_DEPRECATED_SINCE, quote="requires a varlen-capable attention backend"
    ),
)
RECURRENT_LAYERS = (
    Constraint("axolotl 0.12.2 loaders/patch_manager.py", FIRST, "0.13.1", "patches none of them"),
    Constraint("axolotl 0.14.0 loaders/patch_manager.py", "0.13.1", "0.15.0", "qwen3_next is patched"),
    Constraint("axolotl 0.19.0 loaders/patch_manager.py:574", "0.15.0",
               quote="qwen3_next, qwen3_5 and qwen3_5_moe are patched"),
)  # fmt: skip

# Parallelism ---------------------------------------------------------------------------------------------------------
RING_WITHOUT_FLASH = (
    Constraint(f"{OLD}/validation.py:1419", FIRST, FLAGS_DEPRECATED_SINCE, "flash_attention: true must be set"),
    Constraint(f"{NEW}/validation.py:1804", FLAGS_DEPRECATED_SINCE,
               quote="requires attn_implementation: flash_attention_2"),
)  # fmt: skip
RING_ROWS = (Constraint("axolotl 0.8.1 utils/schemas/config.py:1161", "0.8.1", RING_FUNCTION_SINCE, ONE_ROW),)
RING_PACKED_ROWS = (
    Constraint(f"{OLD}/validation.py:1424", RING_FUNCTION_SINCE, FLAGS_DEPRECATED_SINCE, ONE_ROW),
    Constraint(f"{NEW}/validation.py:1811", FLAGS_DEPRECATED_SINCE, quote=ONE_ROW),
)
# In transformers' trainer since 4.56.0; 0.13.1 takes it out (monkeypatch/transformers/trainer_context_parallel.py).
RING_REFUSED_BY_TRAINER = (
    Constraint("transformers 4.56.0 trainer.py:3888; axolotl 0.12.2 loaders/model.py:199", CONTEXT_PARALLEL_SINCE,
               "0.13.1", "Context parallelism is supported only with SDPA attention, you are using flash_attention_2"),
)  # fmt: skip
UNKNOWN_RING_FUNCTION = (Constraint(f"{NEW}/enums.py:195", RING_FUNCTION_SINCE),)
BATCH_RING_PACKED = (
    Constraint("axolotl 0.19.0 monkeypatch/ring_attn/adapters/batch.py:90", RING_FUNCTION_SINCE,
               quote="position_ids and cu_seq_lens are not used"),
)  # fmt: skip
RING_GRADIENTS = (  # the same file in 0.9.0 and 0.9.2; 0.10.0 divides by each slice's labels
    Constraint("axolotl 0.9.2 core/trainers/mixins/sequence_parallel.py:62, 240", RING_FUNCTION_SINCE, "0.10.0",
               "labels are cut before they are shifted; the loss is summed across ranks, gradients are averaged"),
)  # fmt: skip
GRPO_LIGER_RING = (
    Constraint(
        f"{OLD}/validation.py:733", "0.9.2", FLAGS_DEPRECATED_SINCE, "GRPO + SP + Liger not currently supported"
    ),
    Constraint(f"{NEW}/validation.py:731", FLAGS_DEPRECATED_SINCE, quote="GRPO + SP + Liger not currently supported"),
)
LIGER_TENSOR_PARALLEL: Mapping[str, Constraints] = {
    "liger_rms_norm": (
        Constraint("axolotl 0.19.0 integrations/liger/args.py:118", "0.12.0",
                   quote="`liger_rms_norm` is incompatible with tensor parallelism"),
    ),
    "liger_fused_linear_cross_entropy": (
        Constraint("axolotl 0.19.0 integrations/liger/args.py:139", "0.12.0",
                   quote="Tensor parallelism is not compatible with liger losses"),
    ),
}  # fmt: skip
TENSOR_PARALLEL_8_BIT = (
    Constraint(f"{NEW}/validation.py:1930", "0.12.0", quote="tensor_parallel_size is not supported with … 8bit"),
)

# Losses and GPUs -----------------------------------------------------------------------------------------------------
CUT_CROSS_ENTROPY_PRECISION = (
    Constraint("axolotl 0.19.0 integrations/cut_cross_entropy/args.py:40", FIRST,
               quote="requires fp16/bf16 training for backward pass"),
)  # fmt: skip
CHUNKED_CROSS_ENTROPY = (Constraint("axolotl 0.19.0 integrations/cut_cross_entropy/args.py:52", "0.12.0"),)
FP8_GPUS = (Constraint(f"{NEW}/config.py:1910", "0.17.0", quote="requires compute capability sm_90 or higher"),)
SAGE_GPUS = (Constraint(f"{NEW}/config.py:1894", "0.15.0", quote="SageAttention supports compute capability"),)
PACKED_SDPA_IN_BF16 = (Constraint(f"{NEW}/config.py:1880", FIRST, quote="is unsupported may results in 0.0 loss"),)
FLASH_4_REPLACES = (
    Constraint("axolotl 0.16.1 loaders/patch_manager.py:249, patch_flash_attn_4", FLASH_4_SINCE, FLASH_4_NAMED_SINCE),
    Constraint("axolotl 0.19.0 loaders/model.py:857", FLASH_4_NAMED_SINCE, quote="upgraded from flash_attention_2"),
)
