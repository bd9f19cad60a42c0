"""The source of `flash_attn/__init__.py`: the functions that flash-attn 2.8.3 exports."""

from . import flash_attn_interface

__version__ = "2.8.3"


def __getattr__(name: str) -> object:
    """Return one of the functions of `flash_attn_interface`."""
    return getattr(flash_attn_interface, name)
