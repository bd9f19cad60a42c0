"""The source of the emulation of the Hub's vllm-flash-attn3: FlashAttention-3 with sinks, `s_aux`.

By huggingface/kernels-community at 5b37f389, vllm-flash-attn3/torch-ext/vllm_flash_attn3/flash_attn_interface.py.
"""

from flash_attn import flash_attn_3
from flash_attn.sinks import take_sinks

flash_attn_with_kvcache = flash_attn_3.flash_attn_with_kvcache
flash_attn_func = take_sinks("s_aux")(flash_attn_3.flash_attn_func)
flash_attn_varlen_func = take_sinks("s_aux")(flash_attn_3.flash_attn_varlen_func)
