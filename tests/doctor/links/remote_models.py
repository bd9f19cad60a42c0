"""Small modules that take from transformers and flash-attn what the remote code of well-known models takes.

They were written for these tests after the public files of each family: the same names, taken at the same depth and
behind the same guards, and nothing of what the models compute. `load_truth` is what importing each of them gave.
"""

from __future__ import annotations

import json
from pathlib import Path

DATA = Path(__file__).parents[2] / "data" / "links" / "remote_models.json"

PHI3 = '''
import inspect
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_attn_mask_utils import _prepare_4d_causal_attention_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import (
    add_code_sample_docstrings, add_start_docstrings, add_start_docstrings_to_model_forward,
    is_flash_attn_2_available, is_flash_attn_greater_or_equal_2_10, logging, replace_return_docstrings,
)

logger = logging.get_logger(__name__)

try:
    from flash_attn import flash_attn_func, flash_attn_varlen_func
    from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input

    _flash_supports_window_size = "window_size" in list(inspect.signature(flash_attn_func).parameters)
except ImportError as error:
    logger.warning(f"flash-attention is not there: {error}")


def cache_of(past_key_values, length):
    """Two methods that later releases of the cache do not have: only a call fails."""
    cache = DynamicCache.from_legacy_cache(past_key_values)
    return cache, cache.get_usable_length(length)
'''

DEEPSEEK_V2 = """
import torch
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_attn_mask_utils import (
    AttentionMaskConverter, _prepare_4d_attention_mask, _prepare_4d_causal_attention_mask,
)
from transformers.modeling_utils import PreTrainedModel
from transformers.pytorch_utils import ALL_LAYERNORM_LAYERS, is_torch_greater_or_equal_than_1_13
from transformers.utils import (
    add_start_docstrings, is_flash_attn_2_available, is_flash_attn_greater_or_equal_2_10, logging,
)
from transformers.utils.import_utils import is_torch_fx_available

if is_flash_attn_2_available():
    from flash_attn import flash_attn_func, flash_attn_varlen_func
    from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input

if is_torch_fx_available():
    if not is_torch_greater_or_equal_than_1_13:
        import torch.fx

    _prepare_4d_causal_attention_mask = torch.fx.wrap(_prepare_4d_causal_attention_mask)

ALL_LAYERNORM_LAYERS.append(torch.nn.LayerNorm)
"""

MINICPM = """
import torch.nn as nn
from transformers.modeling_attn_mask_utils import _prepare_4d_causal_attention_mask_for_sdpa
from transformers.modeling_utils import PreTrainedModel
from transformers.pytorch_utils import ALL_LAYERNORM_LAYERS, is_torch_greater_or_equal_than_1_13
from transformers.utils import is_flash_attn_2_available, is_flash_attn_greater_or_equal_2_10
from transformers.utils.import_utils import is_torch_fx_available

try:
    from flash_attn import flash_attn_func
    from flash_attn.bert_padding import unpad_input
except:
    pass


class Attention(nn.Module):
    def __init__(self):
        self._flash_attn_uses_top_left_mask = not is_flash_attn_greater_or_equal_2_10()
"""

QWEN_VL = """
import torch
from typing import TYPE_CHECKING
from transformers import GenerationConfig, PreTrainedTokenizer, StoppingCriteriaList
from transformers.generation.logits_process import LogitsProcessorList

if TYPE_CHECKING:
    from transformers.generation.streamers import NoSuchStreamer
from transformers.generation.utils import GenerateOutput
from transformers.modeling_utils import PreTrainedModel

try:
    from einops import rearrange
except ImportError:
    rearrange = None

SUPPORT_CUDA = torch.cuda.is_available()


def import_flash_attention():
    global apply_rotary_emb_func, flash_attn_unpadded_func
    try:
        from flash_attn.layers.rotary import apply_rotary_emb_func as rotary
        apply_rotary_emb_func = rotary
    except ImportError:
        apply_rotary_emb_func = None
    from flash_attn.flash_attn_interface import flash_attn_unpadded_func
"""

INTERNLM2 = """
from transformers.activations import ACT2FN
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import add_start_docstrings, add_start_docstrings_to_model_forward, logging

try:
    from transformers.generation.streamers import BaseStreamer
except:  # an old release
    BaseStreamer = None

flash_attn_func = None


def import_flash_attention():
    global flash_attn_func
    from flash_attn import flash_attn_func
"""

BAICHUAN = """
from transformers import PreTrainedModel, PretrainedConfig
from transformers.activations import ACT2FN
from transformers.generation.utils import GenerationConfig
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils import ContextManagers, logging

try:
    from xformers import ops as xops
except ImportError:
    xops = None
"""

CHATGLM3 = """
import sys
import torch
from torch.nn.utils import skip_init
from transformers.generation.logits_process import LogitsProcessor
from transformers.generation.utils import GenerationConfig, LogitsProcessorList, ModelOutput, StoppingCriteriaList
from transformers.modeling_utils import PreTrainedModel

if sys.platform != "darwin":
    torch._C._jit_set_profiling_mode(False)

try:
    from flash_attn.flash_attn_interface import flash_attn_unpadded_func
except ImportError:
    try:
        from flash_attn.flash_attn_interface import flash_attn_varlen_func as flash_attn_unpadded_func
    except ImportError:
        flash_attn_unpadded_func = None
"""

DEEPSEEK_VL2 = """
from transformers.cache_utils import Cache
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaFlashAttention2

ATTENTION_CLASSES = {"mha_eager": LlamaAttention, "mha_flash_attention_2": LlamaFlashAttention2}
"""

PHI4_MULTIMODAL = """
import transformers
from transformers.cache_utils import Cache, DynamicCache, SlidingWindowCache, StaticCache
from transformers.modeling_flash_attention_utils import FlashAttentionKwargs
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.utils import LossKwargs


class KwargsForCausalLM(FlashAttentionKwargs, LossKwargs): ...
"""

# What later releases took away, behind guards that work: none of it may be called missing.
GUARDED = """
import importlib
import transformers
import transformers.utils

try:
    from transformers.utils.import_utils import is_torch_fx_available
except (ImportError, AttributeError):
    is_torch_fx_available = lambda: False

try:
    from transformers.cache_utils import HybridCache
except Exception:
    from transformers.cache_utils import DynamicCache as HybridCache

if hasattr(transformers.utils, "LossKwargs"):
    from transformers.utils import LossKwargs
else:
    LossKwargs = dict

is_new = int(transformers.__version__.split(".")[0]) >= 5
if not is_new:
    from transformers import AutoModelForVision2Seq as AutoModel
else:
    from transformers import AutoModelForImageTextToText as AutoModel

if not hasattr(transformers.utils, "is_flash_attn_greater_or_equal_2_10"):
    transformers.utils.is_flash_attn_greater_or_equal_2_10 = lambda: True
from transformers.utils import is_flash_attn_greater_or_equal_2_10
"""

# An attribute of a module, taken at import time, and one that only a call takes.
ATTRIBUTES = """
import transformers
import transformers.pytorch_utils as pytorch_utils

BASE = transformers.PreTrainedModel
AT_LEAST_1_13 = pytorch_utils.is_torch_greater_or_equal_than_1_13


def load(path):
    return transformers.AutoModelForVision2Seq.from_pretrained(path)
"""

MODELS = {
    "phi3": PHI3,
    "deepseek_v2": DEEPSEEK_V2,
    "minicpm": MINICPM,
    "qwen_vl": QWEN_VL,
    "internlm2": INTERNLM2,
    "baichuan": BAICHUAN,
    "chatglm3": CHATGLM3,
    "deepseek_vl2": DEEPSEEK_VL2,
    "phi4_multimodal": PHI4_MULTIMODAL,
    "guarded": GUARDED,
    "attributes": ATTRIBUTES,
}


def write_models(folder: Path) -> list[Path]:
    """Write each of them as its own file, and return the files."""
    paths = [folder / f"{name}.py" for name in MODELS]
    for path in paths:
        path.write_text(MODELS[path.stem])
    return paths


def load_truth() -> dict[str, dict[str, str]]:
    """Return, by release of transformers, the models whose import failed: "module:name" that was missing."""
    truth: dict[str, dict[str, str]] = json.loads(DATA.read_text(encoding="utf-8"))
    return truth
