"""liger-kernel against transformers.

Source: the wheels of liger_kernel 0.5.10 to 0.8.5 (`liger_kernel/transformers/monkey_patch.py`,
MIN_SUPPORTED_TRANSFORMERS_VERSION; `model/qwen2_vl.py`), read on 2026-11-21; hiyouga/LLaMA-Factory#9387 and
linkedin/Liger-Kernel#827 for what a lagging forward does.
"""

from __future__ import annotations

# liger-kernel from this version on -> transformers under which its patches can be imported (before 0.7: unguarded).
TRANSFORMERS: dict[str, str] = {"0.7.0": ">=4.52.0", "0.8.5": ">=5.0.0"}
# The newest liger-kernel that still patches transformers 4.52 to 4.57.
LAST_FOR_TRANSFORMERS_4 = "0.8.4"
BEFORE_TRANSFORMERS_4_52 = "0.5.10"  # of the same months as transformers 4.51; not run together here
# From this transformers on, Qwen2-VL is called with mm_token_type_ids; liger's replacement of its forward
# takes it from this liger-kernel on. The first is from threads, the second from the wheels.
MM_TOKEN_TYPE_IDS = ("5.3.0", "0.8.0")
