"""Becomes `flash_attn/flash_attn_interface.py`: block functions and public ones, emulated; decoding is left out."""

from importlib import import_module
from typing import Any

_blocks = import_module(".emulation.interface", __package__).make_block_functions("2.8")
globals().update(_blocks, **import_module(".emulation.public", __package__).make_public_functions("2.8", _blocks))


def flash_attn_with_kvcache(*arguments: Any, **options: Any) -> Any:
    """Raise: training does not decode."""
    raise NotImplementedError("the emulated flash-attn has no flash_attn_with_kvcache")
