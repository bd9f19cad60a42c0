"""The releases of ms-swift in which each objection holds, read in its wheels 2.0.0 to 4.6.0.

4.0.0 moved llm/argument/ to arguments/ and trainers/sequence_parallel/ to sequence_parallel/.
"""

from attncheck.lint.fields.constraints import Constraint
from attncheck.lint.frameworks.ms_swift.tables import (
    CONFIG_OPTION_RANGE,
    DERIVED_RING_SINCE,
    HUGGING_FACE_SINCE,
    LAZY_PACKING_REFUSED_SINCE,
    LEFT_ROW_REFUSED_SINCE,
    LIGER_GRPO_REFUSED_SINCE,
    OWN_ULYSSES_SINCE,
    PACKING_REFUSED_SINCE,
    PADDING_FREE_TYPES_SINCE,
    QWEN3_5_KERNEL_REQUIRED_SINCE,
    QWEN3_5_SEQUENCE_PARALLEL_SINCE,
    SEQUENCE_PARALLEL_TYPES_SINCE,
)

FIRST = "3.8.0"  # the oldest release in which some of them were read
MOVED = "4.0.0"
FLASH_FOR_PACKING = "requires a flash attention implementation"
NO_PACKING = "The current rlhf_type … does not support padding_free/packing"
NO_SEQUENCE_PARALLEL = "The current rlhf_type … does not support sequence_parallel"
NO_LIGER = "Liger loss does not support sequence parallel, padding free yet"
NEEDS_PADDING_FREE = "needs ulysses/ring-attention, which needs --padding_free true"
NO_SDPA_RING = "SDPA does not support Ring attention"
WINDOW = "window_size=sliding_window, a number where flash-attn unpacks a pair"
INCOMPATIBLE = "Packing and lazy_tokenize are incompatible"

PACKING_WITHOUT_FLASH = (
    Constraint("ms-swift 3.8.0 llm/argument/train_args.py:139", PACKING_REFUSED_SINCE, MOVED, FLASH_FOR_PACKING),
    Constraint("ms-swift 4.6.0 arguments/sft_args.py:194", MOVED, quote=FLASH_FOR_PACKING),
)
PACKING_OF_RLHF = (  # kto packs since 3.9.0
    Constraint("ms-swift 3.8.0 llm/argument/rlhf_args.py:368", PADDING_FREE_TYPES_SINCE, MOVED, NO_PACKING),
    Constraint("ms-swift 4.6.0 arguments/rlhf_args.py:713", MOVED, quote=NO_PACKING),
)
SEQUENCE_PARALLEL_OF_RLHF = (
    Constraint(
        "ms-swift 3.8.0 llm/argument/rlhf_args.py:376", SEQUENCE_PARALLEL_TYPES_SINCE, MOVED, NO_SEQUENCE_PARALLEL
    ),
    Constraint("ms-swift 4.6.0 arguments/rlhf_args.py:721", MOVED, quote=NO_SEQUENCE_PARALLEL),
)  # fmt: skip
LIGER_OF_GRPO = (
    Constraint("ms-swift 3.8.0 llm/argument/rlhf_args.py:306-308", LIGER_GRPO_REFUSED_SINCE, MOVED, NO_LIGER),
    Constraint("ms-swift 4.6.0 arguments/rlhf_args.py:551-554", MOVED, quote=NO_LIGER),
)
QWEN3_5_DERIVED_RING = (
    Constraint("ms-swift 4.6.0 model/models/qwen.py:1602", QWEN3_5_SEQUENCE_PARALLEL_SINCE,
               quote="does not support derived ring attention"),
)  # fmt: skip
RING_WITHOUT_PACKING = (
    Constraint("ms-swift 3.9.0 trainers/sequence_parallel/ulysses.py:399", DERIVED_RING_SINCE, MOVED,
               NEEDS_PADDING_FREE),
    Constraint("ms-swift 4.6.0 sequence_parallel/sequence_parallel.py:378", MOVED, quote=NEEDS_PADDING_FREE),
)  # fmt: skip
RING_OF_SDPA = (
    Constraint("ms-swift 3.9.0 trainers/sequence_parallel/ulysses.py:302", DERIVED_RING_SINCE, MOVED, NO_SDPA_RING),
    Constraint("ms-swift 4.6.0 sequence_parallel/sequence_parallel.py:264", MOVED, quote=NO_SDPA_RING),
)
RING_WITH_WINDOW = (
    Constraint("ms-swift 3.9.0 trainers/sequence_parallel/ulysses.py:277", DERIVED_RING_SINCE, MOVED, WINDOW),
    Constraint("ms-swift 4.6.0 sequence_parallel/sequence_parallel.py:218", MOVED, quote=WINDOW),
)
INDIVISIBLE_HEADS = (
    Constraint("ms-swift 3.8.3 trainers/sequence_parallel/ulysses.py:41", OWN_ULYSSES_SINCE, DERIVED_RING_SINCE,
               "Number of heads must be divisible"),
)  # fmt: skip
LEFT_PADDING = (  # of one row too
    Constraint("ms-swift 4.6.0 template/base.py:2078", LEFT_ROW_REFUSED_SINCE,
               quote='padding_side must be "right" when use_megatron or sequence_parallel_size > 1'),
)  # fmt: skip
LEFT_PADDING_OF_ROWS = (
    Constraint("ms-swift 3.8.0 llm/template/base.py:1759", HUGGING_FACE_SINCE, LEFT_ROW_REFUSED_SINCE,
               "Sequence parallel only support padding_side=right"),
    *LEFT_PADDING,
)  # fmt: skip
LAZY_PACKING = (
    Constraint(
        "ms-swift 3.8.0 llm/argument/base_args/base_args.py:117", LAZY_PACKING_REFUSED_SINCE, MOVED, INCOMPATIBLE
    ),
    Constraint("ms-swift 4.6.0 arguments/base_args/base_args.py:168", MOVED, quote=INCOMPATIBLE),
)  # fmt: skip
LINEAR_ATTENTION_MISSING = (
    Constraint("ms-swift 4.4.2 model/models/qwen.py:1190", "4.3.1", QWEN3_5_KERNEL_REQUIRED_SINCE,
               "padding free/sequence parallel requires flash-linear-attention"),
    Constraint("ms-swift 4.6.0 model/models/qwen.py:1296", QWEN3_5_KERNEL_REQUIRED_SINCE,
               quote="with multiple sequences requires flash-linear-attention"),
)  # fmt: skip
RECURRENT_LAYERS = (
    Constraint("ms-swift 4.1.3 model/models/qwen.py", FIRST, QWEN3_5_SEQUENCE_PARALLEL_SINCE,
               "no recurrent layers are patched, and rows have position_ids alone"),
    Constraint("ms-swift 4.6.0 template/base.py:2075 gives position_ids alone; model/models/qwen.py",
               QWEN3_5_SEQUENCE_PARALLEL_SINCE, quote="Qwen3.5's layers alone are patched"),
)  # fmt: skip
NO_CONFIG_OPTION_YET = (Constraint("ms-swift 3.9.3 cli/main.py reads no file", FIRST, CONFIG_OPTION_RANGE[0]),)
CONFIG_IS_FIRST_ARGUMENT = (
    Constraint("ms-swift 4.6.0 cli/main.py:41-45", CONFIG_OPTION_RANGE[1],
               quote="argv[0].endswith('.yaml'); the parser refuses remaining_argv"),
)  # fmt: skip
SEQUENCE_PARALLEL_IMPORT = (  # 3.4.1 as the first with its own Ulysses; 3.5.3 to 4.6.0 were read
    Constraint("ms-swift 3.6.4 trainers/sequence_parallel/ulysses.py", OWN_ULYSSES_SINCE,
               quote="from transformers.modeling_flash_attention_utils import is_flash_attn_available"),
)  # fmt: skip
RLHF_SEQUENCE_PARALLEL = (
    Constraint("ms-swift 3.3.1 llm/argument/rlhf_args.py:211", "3.3.0", OWN_ULYSSES_SINCE,
               "RLHF do not support sequence parallel"),
)  # fmt: skip
VISION_PACKING_PATCH = (  # 3.3.1 to 3.7.3; 3.8.0 hands text positions over on its own from transformers 4.53 on
    Constraint("ms-swift 3.6.4 llm/template/template/qwen.py:309, llm/template/base.py:1845", "3.3.0", "3.8.0",
               "modeling_module._flash_attention_forward, which transformers 4.53.0 took out of these modules"),
)  # fmt: skip
