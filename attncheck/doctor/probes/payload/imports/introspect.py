"""Collects facts from inside imported packages; each `collect_…` function runs in a child and covers one package.

Every query is guarded separately, so that an exception in one does not affect the others.
"""

from __future__ import annotations

import re
import sys

from ..facts import absent, describe_error, known, unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict

    Facts = Dict[str, Any]

SDPA_SWITCHES = {
    "FLASH_ATTENTION": "flash_sdp_enabled",
    "EFFICIENT_ATTENTION": "mem_efficient_sdp_enabled",
    "MATH": "math_sdp_enabled",
    "CUDNN_ATTENTION": "cudnn_sdp_enabled",
}
PREDICATES = (
    "is_torch_available",
    "is_torch_cuda_available",
    "is_torch_sdpa_available",
    "is_torch_flex_attn_available",
    "is_flash_attn_2_available",
    "is_flash_attn_3_available",
    "is_flash_attn_4_available",
    "is_flash_attn_greater_or_equal_2_10",
    "is_kernels_available",
    "is_liger_kernel_available",
    "is_peft_available",
    "is_accelerate_available",
)
_UTILS = "transformers.modeling_flash_attention_utils"
_HUB_KERNEL = re.compile(r'applicable_attn_implementation = "(kernels-community/[\w-]*flash-attn[\w-]*)"')
# Symbols that show how flash-attn was built; the linker reads which names packages import from each other.
FLASH_SYMBOLS = (
    "flash_attn.bert_padding:unpad_input",
    "flash_attn.ops.triton.cross_entropy:cross_entropy_loss",
)
TRANSFORMERS_SIGNATURES = (
    _UTILS + ":_flash_attention_forward",
    _UTILS + ":_is_packed_sequence",
    "transformers.integrations.flash_attention:flash_attention_forward",
)
FLASH_SIGNATURES = (
    "flash_attn:flash_attn_func",
    "flash_attn:flash_attn_varlen_func",
    "flash_attn.flash_attn_interface:_flash_attn_forward",
    "flash_attn.flash_attn_interface:_flash_attn_varlen_forward",
    "flash_attn.flash_attn_interface:_flash_attn_varlen_backward",
    "flash_attn.bert_padding:unpad_input",
)


def query_fact(query: Callable[[], Any]) -> Facts:
    """Return the result of `query` as a fact; None is absent, an exception makes it unreadable."""
    try:
        value = query()
    except Exception as error:
        return unreadable(describe_error(error))
    return absent("not in this version") if value is None else known(value)


def collect_torch_facts() -> Facts:
    """Return torch's facts that need no GPU, without starting CUDA."""
    import torch

    switches = torch.backends.cuda
    return {
        "arch_list": query_fact(lambda: _read_arch_list(torch)),
        "cudnn": query_fact(lambda: _read_cudnn_version(torch)),
        "nccl": query_fact(lambda: _read_nccl_version(torch)),
        "sdpa_switches": query_fact(
            lambda: {
                key: bool(getattr(switches, name)()) for key, name in SDPA_SWITCHES.items() if hasattr(switches, name)
            }
        ),
    }


def _read_arch_list(torch: Any) -> list[str]:
    """Return the architectures that this build was compiled for; torch.cuda.get_arch_list() is empty without a GPU."""
    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
    return flags.split() if flags else list(torch.cuda.get_arch_list())


def _read_cudnn_version(torch: Any) -> Any:
    """Return the version of the loaded library; torch.backends.cudnn.version() would start CUDA."""
    native = getattr(torch._C, "_cudnn", None)
    return ".".join(map(str, native.getRuntimeVersion()[:3])) if native is not None else None


def _read_nccl_version(torch: Any) -> Any:
    if not hasattr(torch._C, "_nccl_version"):
        return None
    version = torch.cuda.nccl.version()
    return ".".join(map(str, version[:3])) if isinstance(version, tuple) else str(version)


def collect_cuda_facts() -> Facts:
    """Return whether CUDA starts, and torch's own message if it does not."""
    import warnings

    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = bool(torch.cuda.is_available())
    if available:
        return {"cuda_available": known(True), "cuda_error": absent("CUDA starts")}
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return {"cuda_available": known(False), "cuda_error": absent("torch is built without CUDA")}
    messages = [str(warning.message) for warning in caught]
    if not messages:
        messages = [_read_cuda_init_error(torch)]
    return {"cuda_available": known(False), "cuda_error": known(" ".join(" ".join(messages).split())[:1000])}


def _read_cuda_init_error(torch: Any) -> str:
    try:
        torch.cuda.init()
    except Exception as error:
        return str(error) or type(error).__name__
    return "torch finds no GPU"


def collect_transformers_facts() -> Facts:
    """Return the results of transformers' predicates, and its symbols, signatures and attention functions."""
    import warnings

    warnings.simplefilter("ignore")
    _try_import("transformers.masking_utils")
    _try_import("transformers.integrations.flash_attention")
    return {
        "availability": evaluate_predicates(),
        "signatures": read_signatures(TRANSFORMERS_SIGNATURES),
        "attention_functions": query_fact(
            lambda: _list_table_keys("transformers.modeling_utils", "ALL_ATTENTION_FUNCTIONS")
        ),
        "mask_functions": query_fact(
            lambda: _list_table_keys("transformers.masking_utils", "ALL_MASK_ATTENTION_FUNCTIONS")
        ),
        "kernel_fallbacks": query_fact(_read_kernel_fallbacks),
    }


def evaluate_predicates() -> dict[str, bool]:
    """Return the results of transformers' own predicates that exist in this version."""
    from importlib import import_module

    utils = import_module("transformers.utils.import_utils")

    answers = {}
    for name in PREDICATES:
        try:
            answers[name] = bool(getattr(utils, name)())
        except Exception:  # absent in this version, or broken: no result
            continue
    return answers


def _read_kernel_fallbacks() -> Any:
    """Return the Hub repositories that replace a missing flash-attn.

    They have been in a table since 5.0.0 (modeling_utils.py, since 5.4.0 modeling_flash_attention_utils.py). In 4.56
    and 4.57 the names are inside a method of modeling_utils.py.
    """
    for module in (_UTILS, "transformers.modeling_utils"):
        table = getattr(sys.modules.get(module), "FLASH_ATTN_KERNEL_FALLBACK", None)
        if table is not None:
            return {str(key): str(value) for key, value in table.items()}
    repositories = _HUB_KERNEL.findall(_read_module_source("transformers.modeling_utils"))
    return {
        "flash_attention_3" if "flash-attn3" in name else "flash_attention_2": name for name in repositories
    } or None


def _read_module_source(module: str) -> str:
    path = getattr(sys.modules.get(module), "__file__", None)
    if not path:
        return ""
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read(4 << 20)


def _list_table_keys(module: str, name: str) -> Any:
    table = getattr(sys.modules.get(module), name, None)
    if table is None:
        return None
    names = table.valid_keys() if hasattr(table, "valid_keys") else table.keys()
    return sorted(str(key) for key in names)


def collect_flash_attn_facts() -> Facts:
    """Return flash_attn's symbols and signatures; unpad_input is called on two tiny sequences."""
    _try_import("flash_attn.bert_padding")
    _try_import("flash_attn.utils.distributed")
    _try_import("flash_attn.ops.triton.cross_entropy")
    return {
        "symbols": find_symbols(FLASH_SYMBOLS),
        "signatures": read_signatures(FLASH_SIGNATURES),
        "unpad_input_arity": query_fact(_measure_unpad_input_arity),
    }


def _measure_unpad_input_arity() -> int:
    from importlib import import_module

    import torch

    padding = import_module("flash_attn.bert_padding")  # if the import fails, the fact states why
    return len(padding.unpad_input(torch.zeros(2, 3, 1), torch.tensor([[1, 1, 0], [1, 1, 1]])))


def find_symbols(references: tuple[str, ...]) -> dict[str, bool]:
    """Return whether each "module:attribute" exists; omit it if the module exists but was not imported."""
    present = {}
    for reference in references:
        module, _, name = reference.partition(":")
        if module in sys.modules:
            present[reference] = hasattr(sys.modules[module], name)
        elif module in MISSING_MODULES:
            present[reference] = False
    return present


def read_signatures(references: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the parameter names of every "module:function" that exists."""
    import inspect

    parameters = {}
    for reference in references:
        module, _, name = reference.partition(":")
        function = getattr(sys.modules.get(module), name, None)
        try:
            parameters[reference] = list(inspect.signature(function).parameters) if function is not None else []
        except (TypeError, ValueError):
            continue
        if function is None:
            del parameters[reference]
    return parameters


MISSING_MODULES: list[str] = []  # modules that do not exist, filled in by _try_import in this process


def _try_import(module: str) -> None:
    try:
        __import__(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module + ".").startswith(error.name + "."):
            MISSING_MODULES.append(module)
    except Exception:
        return
