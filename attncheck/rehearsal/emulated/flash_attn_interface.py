"""The source of `flash_attn/flash_attn_interface.py`: emulated block and public functions, without decoding.

float32 is refused, as by the kernels, except under the CPU's autocast. Under CUDA's autocast, transformers casts q, k
and v before the call (5.17 integrations/flash_attention.py `get_target_dtype`); it does not check the CPU's autocast.
"""

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch


def flash_attn_with_kvcache(*arguments: Any, **options: Any) -> Any:
    """Raise an error, because training does not decode."""
    raise NotImplementedError("the emulated flash-attn has no flash_attn_with_kvcache")


def _cast_under_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if torch.is_autocast_enabled("cpu"):
            arguments = tuple(_cast(value) for value in arguments)
            options = {name: _cast(value) for name, value in options.items()}
        return function(*arguments, **options)

    return call


def _cast(value: Any) -> Any:
    is_float32 = torch.is_tensor(value) and value.dtype == torch.float32 and value.dim() > 2  # not alibi_slopes
    return value.to(torch.get_autocast_dtype("cpu")) if is_float32 else value


_blocks = import_module(".emulation.interface", __package__).make_block_functions("2.8")
_public = import_module(".emulation.public", __package__).make_public_functions("2.8", _blocks)
globals().update(_blocks, **{name: _cast_under_autocast(function) for name, function in _public.items()})
