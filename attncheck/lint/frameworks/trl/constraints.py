"""The releases of TRL in which each objection holds, read in 0.9.6 and in a wheel of each minor from 0.12 to 1.16.

A boundary is a minor release: "0.19" was read as 0.19.1.
"""

from attncheck.lint.fields.constraints import Constraint

FIRST = "0.9.6"  # the oldest release that was read
SFT = "trl 1.16.0 trainer/sft_trainer.py"
VISION = "not supported for vision"

# Packing -------------------------------------------------------------------------------------------------------------
WRAPPED_STRATEGY = (Constraint(f"trl 1.16.0 data_utils.py:820, _pack_wrapped; {SFT}:916, no padding_free", "0.19"),)
JOINED_DOCUMENTS = (
    Constraint("trl 0.14.0 trainer/utils.py, ConstantLengthDataset", FIRST, "0.15"),
    Constraint("trl 0.18.2 data_utils.py:475, pack_dataset", "0.15", "0.19", "trl 0.19.1 brings packing_strategy"),
)
REQUEUED_PACKING = (Constraint("trl 0.29.1 trainer/sft_trainer.py:798", "0.29", "1.0", "padding_free only for bfd"),)
MISSING_POSITIONS = (  # read in 0.19.1, 0.20.0, 0.21.0, 0.22.0, 0.22.2, 0.23.0, 0.23.1 and 0.24.0
    Constraint("trl 0.20.0 trainer/sft_trainer.py:486", "0.19", "0.21",
               'return_position_ids=model.config._attn_implementation == "flash_attention_2"'),
    Constraint("trl 0.21.0 trainer/sft_trainer.py:440, 490", "0.21", "0.22", "return_position_ids=use_flash_attention"),
    Constraint("trl 0.22.2 trainer/sft_trainer.py:703, 756", "0.22", "0.23.1",
               "return_position_ids=use_flash_attention"),
)  # fmt: skip
UNREAD_POSITIONS = (  # positions are given, which transformers reads under flash attention alone until 4.53
    Constraint("trl 0.18.2 trainer/sft_trainer.py:317", "0.16", "0.19", "data_collator = DataCollatorWithFlattening()"),
)
DENSE_MASK_WITH_WARNING = (
    Constraint("trl 1.15.0 trainer/sft_trainer.py:86-99, 981-989", FIRST, "1.16",
               "Padding-free training is enabled, but the attention implementation is not set to a supported …"),
)  # fmt: skip
DENSE_MASK = (Constraint(f"{SFT}:916, no warning", "1.16"),)
PADDING_FREE_MAX_LENGTH = (Constraint(f"{SFT}:999-1004", "1.0"),)
PACKING_WITHOUT_MAX_LENGTH = (
    Constraint(f"{SFT}:1468", "0.16", quote="When packing is enabled, `max_length` can't be `None`."),
)
PACKED_VISION_MODEL = (
    Constraint("trl 1.9.2 trainer/sft_trainer.py:1016-1024", "0.22", "1.10", f"{VISION}-language models"),
)
PACKED_VISION_DATASET = (Constraint(f"{SFT}:779-787", "1.10", quote=f"{VISION} datasets"),)
DPO_PADS = (Constraint("trl 1.16.0 trainer/dpo_trainer.py:732-739", "0.29", quote="temporarily unavailable"),)

# Parallelism ---------------------------------------------------------------------------------------------------------
PACKING_WITH_CP_REFUSED = (
    Constraint(f"{SFT}:1155-1161", "1.11", quote="Packing is not compatible with context parallelism"),
)
PACKING_WITH_CP_WRONG = (  # before 0.19 packing has no borders, with a mask or without
    Constraint("trl 1.11.0 trainer/sft_trainer.py:1370, which refuses it since", "0.19", "1.11",
               "context parallelism drops that mask"),
)  # fmt: skip
ONLINE_PARALLELISM_REFUSED = (
    Constraint("trl 1.16.0 trainer/grpo_config.py:1068-1076, rloo_config.py:643, distillation_config.py:415", "1.4",
               quote="does not support sequence-dim parallelism, where the configuration says it"),
)  # fmt: skip
ONLINE_PARALLELISM = (
    Constraint("transformers 5.23.0 trainer.py:2393-2440", FIRST,
               quote="a generation's batch is a list, not input_ids"),
)  # fmt: skip
ULYSSES_WITHOUT_POSITIONS = (  # accelerate has sp_size since 1.12; read in 1.9.2, 1.10.0 and 1.11.0
    Constraint("trl 1.10.0 trainer/sft_trainer.py:484; 1.11.0:1390-1398 gives them", FIRST, "1.11",
               "Sequence parallelism (Ulysses/ALST) … requires `position_ids` in every batch"),
)  # fmt: skip
CUT_IMAGE_TOKENS = (  # since 0.24 TRL's own examples set max_length to None
    Constraint("trl 0.23.0 trainer/sft_trainer.py:384-388 (input_ids[:, : self.max_length])", "0.22", "0.24",
               "Image features and image tokens do not match"),
)  # fmt: skip
DATA_PARALLEL_TRAINERS = ("sft", "dpo", "kto", "grpo", "rloo", "distillation")
DATA_PARALLEL = (Constraint(f"{SFT}:1118, and in each of these trainers", "1.15", quote="`nn.DataParallel`"),)
DATA_PARALLEL_OF_REWARD = (Constraint("trl 1.16.0 trainer/reward_trainer.py", "1.16", quote="`nn.DataParallel`"),)

# Generations ---------------------------------------------------------------------------------------------------------
GRPO_GENERATIONS = (
    Constraint("trl 0.17.0 trainer/grpo_trainer.py:592", "0.15", "0.18", "n_gen for n_gen in range(2, …)"),
    Constraint("trl 1.16.0 trainer/grpo_config.py:1137-1140", "0.18", quote="requires at least 2 generations"),
)
RLOO_GENERATIONS = (
    Constraint("trl 1.16.0 trainer/rloo_config.py:702", "0.22", quote="requires at least 2 generations per prompt"),
)
GRPO_BATCH_OF_ONE_STEP = (
    Constraint("trl 0.16.1 trainer/grpo_trainer.py:428", "0.15", "0.17",
               "The global train batch size must be evenly divisible by the number of generations per prompt"),
)  # fmt: skip
GRPO_BATCH = (
    Constraint("trl 0.17.0 trainer/grpo_trainer.py:602", "0.17", "0.18",
               "The effective train batch size must be evenly divisible by the number of generations per prompt"),
    Constraint("trl 1.16.0 trainer/grpo_config.py:1097-1134", "0.18",
               quote="generation_batch_size must be divisible by num_generations"),
)  # fmt: skip
RLOO_BATCH = (
    Constraint("trl 1.16.0 trainer/rloo_config.py:694", "0.22",
               quote="generation_batch_size must be divisible by num_generations"),
)  # fmt: skip

# Layers --------------------------------------------------------------------------------------------------------------
RECURRENT_POSITIONS = (Constraint("trl 1.15.0 trainer/sft_trainer.py", FIRST, "1.16", "position_ids alone"),)
RECURRENT_CU_SEQLENS = (Constraint(f"{SFT}:212-222", "1.16"),)
LIGER_LOSS = (
    Constraint(f"{SFT}:1127-1140", "1.15", quote="`use_liger_kernel=True` is deprecated and will be removed in v2.0.0"),
)
