"""The releases of LLaMA-Factory in which each objection holds, read in the wheels 0.9.0 to 0.9.5."""

from attncheck.doctor.knowledge.padding import NEAT_PACKING_BY_POSITIONS, NEAT_PACKING_REFUSES
from attncheck.lint.fields.constraints import Constraint

FIRST = "0.9.0"  # the oldest release that was read
ATTENTION = "llamafactory 0.9.5 model/model_utils/attention.py"
COLLATOR = "llamafactory 0.9.5 data/collator.py"
PARSER = "llamafactory 0.9.5 hparams/parser.py"

FLASH_3 = (Constraint(f"{ATTENTION}:85-86", "0.9.4", quote="Unknown attention type"),)
MISSING_FLASH_ATTN = (Constraint(f"{ATTENTION}:80-82", FIRST, quote="FlashAttention-2 is not installed."),)
GPT_OSS_LOADER = (
    Constraint(f"{ATTENTION}:34-35", "0.9.4",
               quote="transformers 4.55.4, 4.56.2, 4.57.6 and 5.0.0 integrations/hub_kernels.py"),
)  # fmt: skip
JOINED_TEXTS = (Constraint(f"llamafactory 0.9.5 data/processor/pretrain.py:27-50; {PARSER}:520", FIRST),)
MASK_OF_ONES = (
    Constraint("llamafactory 0.9.1 data/processors/supervised.py, preprocess_packed_supervised_dataset", FIRST, "0.9.3",
               "no position_ids either"),
    Constraint("llamafactory 0.9.5 data/processor/supervised.py:213-216; hparams/data_args.py:112", "0.9.3"),
)  # fmt: skip
NEAT_PACKING_OUTSIDE_SFT = (
    Constraint(f"{PARSER}:320-321", FIRST, quote="`neat_packing` cannot be set as True except SFT."),
)
NEAT_PACKING_OF_MANY_ROWS = (
    Constraint(f"{COLLATOR}:528", NEAT_PACKING_BY_POSITIONS, quote="bsz should be 1 for neat packing"),
)
NEAT_PACKING_REFUSED = (
    Constraint(f"{COLLATOR}:491-493", NEAT_PACKING_BY_POSITIONS,
               quote="Neat packing is not supported for gemma4, gpt_oss models for now."),
)  # fmt: skip
NUMBERED_MASKS_REFUSED = (
    Constraint("llamafactory 0.9.4 hparams/parser.py:359-360", NEAT_PACKING_REFUSES, NEAT_PACKING_BY_POSITIONS,
               "Neat packing is incompatible with transformers>=4.53.0."),
)  # fmt: skip
NUMBERED_MASKS_CAST = (
    Constraint("llamafactory 0.9.3 model/model_utils/packing.py, configure_packing", FIRST, NEAT_PACKING_REFUSES),
)
DENSE_MASK = (Constraint(f"{COLLATOR}:524-525, prepare_4d_attention_mask", FIRST),)
LINEAR_ATTENTION_MISSING = (
    Constraint("llamafactory 0.9.5 model/patcher.py:63-84, 424-425", NEAT_PACKING_BY_POSITIONS),
)
RECURRENT_LAYERS = (
    Constraint("llamafactory 0.9.4 model/patcher.py", FIRST, NEAT_PACKING_BY_POSITIONS, "patches no recurrent layers"),
    Constraint("llamafactory 0.9.5 model/patcher.py:424", NEAT_PACKING_BY_POSITIONS,
               quote="only qwen3_5 under fa2 is patched"),
)  # fmt: skip
LIGER_UNSUPPORTED = (  # older releases warn too, of other types
    Constraint("llamafactory 0.9.5 model/model_utils/liger_kernel.py:90-92", "0.9.5",
               quote="Current model does not support liger kernel."),
)  # fmt: skip
PURE_BF16_WITH_ZERO_3 = (
    Constraint(f"{PARSER}:384-385", FIRST, quote="`pure_bf16` is incompatible with DeepSpeed ZeRO-3."),
)
DEEPSPEED_WITHOUT_TORCHRUN = (
    Constraint(f"{PARSER}:353-354, launcher.py:60-62", FIRST,
               quote="Please use `FORCE_TORCHRUN=1` to launch DeepSpeed training."),
)  # fmt: skip
SINGLE_PROCESS = (  # since 0.9.4 not with use_kt
    Constraint(f"{PARSER}:350-351", FIRST,
               quote="Please launch distributed training with `llamafactory-cli` or `torchrun`."),
)  # fmt: skip
NOTHING_TRAINED = (
    Constraint("llamafactory 0.9.5 train/sft/workflow.py:120", FIRST, quote="if training_args.do_train"),
)
