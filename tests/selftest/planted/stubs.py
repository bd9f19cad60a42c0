"""Stub packages of the throwaway environment: quick to import, with the answers of a healthy H200 job's packages."""

from __future__ import annotations

from tests.selftest.planted import compiled

ERROR_SYMBOL = "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
EXPORTS = {
    "libc10.so": (ERROR_SYMBOL, "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"),
    "libtorch_cpu.so": ("_ZN2at4_ops5empty4callEv", "_ZN2at10TensorBase8__dispatchEv"),
    "libtorch_python.so": ("THPVariableClass",),
    "libc10_cuda.so": ("_ZN3c104cuda20getCurrentCUDAStreamEa",),
    "libtorch_cuda.so": ("_ZN2at4cuda24getCurrentDevicePropertiesEv",),
}
EXTENSION_SYMBOLS = tuple(name for names in EXPORTS.values() for name in names)  # what an extension imports from torch

TORCH = """
__version__ = "2.11.0+cu130"

class _Fixed:
    def __init__(self, **answers):
        for name, answer in answers.items():
            setattr(self, name, lambda *args, answer=answer, **kwargs: answer)

from . import version
import ctypes, glob, os
for _path in sorted(glob.glob(os.path.join(os.path.dirname(__file__), "lib", "*.so"))):
    ctypes.CDLL(_path, mode=ctypes.RTLD_GLOBAL)
_C = _Fixed(_cuda_getArchFlags="sm_75 sm_80 sm_86 sm_90 sm_100 sm_120", _nccl_version=None, _cuda_isInBadFork=False)
_C._cudnn = _Fixed(getRuntimeVersion=(9, 19, 0))
cuda = _Fixed(
    is_available=True, is_initialized=False, device_count=2, init=None, can_device_access_peer=True,
    get_arch_list=["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"],
)
cuda.nccl = _Fixed(version=(2, 28, 9))
backends = _Fixed()
backends.cuda = _Fixed(
    flash_sdp_enabled=True, mem_efficient_sdp_enabled=True, math_sdp_enabled=True, cudnn_sdp_enabled=True
)
"""
IMPORT_UTILS = """
import os
from importlib.util import find_spec
def _yes():
    return True
is_torch_cuda_available = is_torch_flex_attn_available = _yes
def is_torch_available():
    return os.environ.get("USE_TF", "AUTO").upper() not in ("1", "ON", "YES", "TRUE")
def is_flash_attn_2_available():
    return find_spec("flash_attn_2_cuda") is not None
is_flash_attn_greater_or_equal_2_10 = is_flash_attn_2_available
def is_flash_attn_3_available():
    return False
"""
FLASH_UTILS = """
def _flash_attention_forward(
    query_states, key_states, value_states, attention_mask, query_length, is_causal, dropout=0.0, position_ids=None,
    softmax_scale=None, sliding_window=None, use_top_left_mask=False, softcap=None, deterministic=None,
    cu_seq_lens_q=None, cu_seq_lens_k=None, max_length_q=None, max_length_k=None, target_dtype=None,
    attn_implementation=None, **kwargs,
):
    raise NotImplementedError
def is_flash_attn_greater_or_equal(version):
    return True
def flash_attn_supports_top_left_mask():
    return False
def fa_peft_integration_check(*args):
    return args
def is_flash_attn_greater_or_equal_2_10():
    return True
"""
MODELING = """
class _Names(dict):
    def valid_keys(self):
        return list(self)
ALL_ATTENTION_FUNCTIONS = _Names.fromkeys(("eager", "sdpa", "flash_attention_2", "flex_attention"))
class PreTrainedModel:
    pass
"""
FLASH_FUNCTIONS = (
    "_flash_attn_forward",
    "_flash_attn_backward",
    "_flash_attn_varlen_forward",
    "_flash_attn_varlen_backward",
    "flash_attn_func",
    "flash_attn_varlen_func",
)


def _function_stubs(*names: str) -> str:
    return "".join(f"def {name}(*args, **kwargs):\n    raise NotImplementedError\n" for name in names)


MODULES: dict[str, dict[str, str]] = {
    "torch": {
        "torch/__init__.py": TORCH,
        "torch/version.py": "__version__ = '2.11.0+cu130'\ncuda = '13.0'\nhip = None\n",
    },
    "triton": {"triton/__init__.py": "__version__ = '3.6.0'\n"},
    "transformers": {
        "transformers/__init__.py": "__version__ = '4.57.6'\n",
        "transformers/utils/__init__.py": "from .import_utils import *\n",
        "transformers/utils/import_utils.py": IMPORT_UTILS,
        "transformers/modeling_flash_attention_utils.py": FLASH_UTILS,
        "transformers/modeling_utils.py": MODELING,
        "transformers/masking_utils.py": (
            "ALL_MASK_ATTENTION_FUNCTIONS = {'eager': 0, 'sdpa': 0, 'flash_attention_2': 0, 'flex_attention': 0}\n"
        ),
    },
    "flash-attn": {
        "flash_attn/__init__.py": "__version__ = '2.8.3'\nimport flash_attn_2_cuda\n"
        "from flash_attn.flash_attn_interface import *\n",
        "flash_attn/flash_attn_interface.py": _function_stubs(*FLASH_FUNCTIONS),
        "flash_attn/bert_padding.py": "import einops\n"
        + _function_stubs("index_first_axis", "pad_input", "unpad_input"),
        "flash_attn/ops/triton/cross_entropy.py": "import triton\n" + _function_stubs("cross_entropy_loss"),
        "flash_attn_2_cuda.py": "",  # a compiled module of the same name goes before it
    },
    "ring-flash-attn": {
        "ring_flash_attn/__init__.py": "__version__ = '0.1.8'\nimport flash_attn\n"
        "from transformers.modeling_flash_attention_utils import is_flash_attn_greater_or_equal_2_10\n"
    },
    "liger-kernel": {
        "liger_kernel/__init__.py": "",
        "liger_kernel/transformers/__init__.py": "",
        "liger_kernel/transformers/monkey_patch.py": "MODEL_TYPE_TO_APPLY_LIGER_FN = {'llama': None}\n",
    },
    "trl": {"trl/__init__.py": "__version__ = '0.24.0'\n"},
    "einops": {"einops/__init__.py": ""},
}
REQUIRES = {
    "torch": ('triton==3.6.0; platform_system == "Linux"',),
    "flash-attn": ("torch", "einops"),
}


def build_libraries() -> dict[str, bytes]:
    """Return torch's libraries by file name, each with a few of the symbols that extensions import from it."""
    if not compiled.is_supported():
        return {}
    return {name: compiled.build_library(exports=exports, soname=name) for name, exports in EXPORTS.items()}
