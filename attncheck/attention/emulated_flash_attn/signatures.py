"""The parameters of flash-attn's functions, generation by generation, as `inspect` shows them.

- 2.5: `window_size` is a pair; a packed LSE is (documents, heads, max_seqlen).
- 2.6: `softcap` is new; a packed LSE is (heads, tokens).
- 2.7 and 2.8: the window of the block functions is two numbers.

Source: Dao-AILab/flash-attention, flash_attn/flash_attn_interface.py of 2.5.8, 2.6.3, 2.7.4.post1 and 2.8.3. Within a
generation: `block_table` is missing before 2.5.7, 2.6.0 has no defaults, `zero_tensors` is missing in 2.7.0.
"""

import inspect
from typing import Any, Optional, Tuple

from torch import Tensor

GENERATIONS = ("2.5", "2.6", "2.7", "2.8")
REQUIRED = inspect.Parameter.empty
_VARLEN = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
_WINDOW_SIDES = ("window_size_left", "window_size_right")
_PAGED_KEYS = {"block_table": None, "leftpad_k": None, "seqused_k": None}
_GRADIENTS = ("dq", "dk", "dv")
BLOCKS = ("_flash_attn_forward", "_flash_attn_backward", "_flash_attn_varlen_forward", "_flash_attn_varlen_backward")
PUBLIC: dict[str, tuple[str, ...]] = {
    "flash_attn_func": ("q", "k", "v"),
    "flash_attn_kvpacked_func": ("q", "kv"),
    "flash_attn_qkvpacked_func": ("qkv",),
    "flash_attn_varlen_func": ("q", "k", "v", *_VARLEN),
    "flash_attn_varlen_kvpacked_func": ("q", "kv", *_VARLEN),
    "flash_attn_varlen_qkvpacked_func": ("qkv", "cu_seqlens", "max_seqlen"),
}
_TYPES: dict[str, Any] = (
    dict.fromkeys(("dropout_p", "softmax_scale", "softcap"), float)
    | dict.fromkeys(("max_seqlen_q", "max_seqlen_k", *_WINDOW_SIDES), int)
    | dict.fromkeys(("causal", "deterministic", "return_softmax", "zero_tensors"), bool)
    | dict.fromkeys((*_GRADIENTS, "alibi_slopes", "rng_state", *_PAGED_KEYS), Optional[Tensor])
    | {"window_size": Tuple[int, int]}  # noqa: UP006
)


def function_parameters(name: str, generation: str) -> dict[str, Any]:
    """Return the parameters of a function in order, with their defaults (`REQUIRED`: no default)."""
    return _public_parameters(name, generation) if name in PUBLIC else _block_parameters(name, generation)


def make_signature(name: str, generation: str) -> inspect.Signature:
    """Return the signature of a function; a block function's is annotated, as a custom operator must be."""
    is_block = name in BLOCKS
    parameters = [
        inspect.Parameter(
            parameter,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=default,
            annotation=_TYPES.get(parameter, Tensor) if is_block else REQUIRED,
        )
        for parameter, default in function_parameters(name, generation).items()
    ]
    return_type: Any = Tensor if "backward" in name else Tuple[Tensor, Tensor, Tensor, Tensor]  # noqa: UP006
    return inspect.Signature(parameters, return_annotation=return_type if is_block else inspect.Signature.empty)


def _block_parameters(name: str, generation: str) -> dict[str, Any]:
    varlen, backward = "varlen" in name, "backward" in name
    tensors = ("dout", "q", "k", "v", "out", "softmax_lse", *_GRADIENTS) if backward else ("q", "k", "v")
    leading = (*tensors, *(_VARLEN if varlen else ()), "dropout_p", "softmax_scale", "causal")
    mask: dict[str, Any] = {"window_size": (-1, -1)} if generation < "2.7" else dict.fromkeys(_WINDOW_SIDES, -1)
    mask |= {"softcap": 0.0} if generation >= "2.6" else {}
    mask |= {"alibi_slopes": None} | ({"deterministic": REQUIRED} if backward else {"return_softmax": False})
    if backward or not varlen or generation < "2.6":  # only the others have defaults for the mask
        mask = dict.fromkeys(mask, REQUIRED)
    parameters = dict.fromkeys(leading, REQUIRED) | mask
    if backward:
        parameters |= {"rng_state": None}
    elif varlen:
        parameters |= _PAGED_KEYS if generation >= "2.6" else {"block_table": REQUIRED}
    return parameters | ({"zero_tensors": False} if varlen and generation >= "2.7" else {})


def _public_parameters(name: str, generation: str) -> dict[str, Any]:
    parameters: dict[str, Any] = dict.fromkeys(PUBLIC[name], REQUIRED)
    parameters |= {"dropout_p": 0.0, "softmax_scale": None, "causal": False, "window_size": (-1, -1)}
    parameters |= {"softcap": 0.0} if generation >= "2.6" else {}
    parameters |= {"alibi_slopes": None, "deterministic": False, "return_attn_probs": False}
    return parameters | ({"block_table": None} if name == "flash_attn_varlen_func" else {})
