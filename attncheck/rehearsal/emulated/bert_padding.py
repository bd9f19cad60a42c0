"""The source of `flash_attn/bert_padding.py`: removes padding from a batch and restores it (flash-attn 2.8.3)."""

import dis
import math
import os
import re
import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad


def index_first_axis(states: Tensor, indices: Tensor) -> Tensor:
    """Return the rows of `states` (rows, …) at `indices`."""
    return states[indices]


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Return `first_axis_dim` rows that are zero except for `values` (len(indices), …) at `indices`."""
    return values.new_zeros(first_axis_dim, *values.shape[1:]).index_put((indices,), values)


def unpad_input(hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None) -> tuple[Any, ...]:
    """Return the tokens (tokens, …) of (batch, seqlen, …), their indices, cu_seqlens, max_seqlen and used seqlens."""
    all_masks = attention_mask if unused_mask is None else attention_mask + unused_mask
    seqlens = all_masks.sum(dim=-1, dtype=torch.int32)
    used_seqlens = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(all_masks.flatten(), as_tuple=False).flatten()
    cu_seqlens = pad(torch.cumsum(seqlens, dim=0, dtype=torch.int32), (1, 0))
    return (hidden_states.flatten(0, 1)[indices], indices, cu_seqlens, int(seqlens.max()), used_seqlens)[
        : _count_taken(sys._getframe(1))
    ]


def _count_taken(caller: Any) -> int:
    """Return the number of values that the caller unpacks if it is four, as flash-attn before 2.7 returned, or five."""
    following = (step for step in dis.get_instructions(caller.f_code) if step.offset > caller.f_lasti)
    if next(((step.opname, step.argval) for step in following), None) != ("UNPACK_SEQUENCE", 4):
        return 5
    open(os.path.join(os.environ["ATTNCHECK_WATCH"], "absent-padding-unpad_input"), "a").close()
    return 4


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Return tokens (tokens, …) as (batch, seqlen, …), with zeros in the padding."""
    padded: Tensor = index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
    return padded


def join_axes(states: Tensor, pattern: str) -> Tensor:
    """Return `states` with reordered and joined axes, as einops' `rearrange` does: "c b s ... -> (b s) c ..."."""
    left, right = pattern.split("->")
    names, others = left.split(), states.dim() - len(left.replace("...", "").split())
    rest = [str(number) for number in range(others)] if "..." in names else []
    place = names.index("...") if rest else len(names)
    names = [*names[:place], *rest, *[name for name in names[place:] if name != "..."]]
    groups = [group.strip("()").split() for group in re.findall(r"\([^()]*\)|\S+", right)]
    groups = [own for group in groups for own in ([[name] for name in rest] if group == ["..."] else [group])]
    sizes = dict(zip(names, states.shape))
    ordered = states.permute([names.index(name) for group in groups for name in group])
    return ordered.reshape([math.prod(sizes[name] for name in group) for group in groups])


def __getattr__(name: str) -> object:
    """Return einops' functions, which the real module imports; flash-attn requires it, and its emulation does not."""
    if name not in ("rearrange", "repeat"):
        raise AttributeError(name)
    try:
        import einops  # type: ignore[import-not-found]
    except ModuleNotFoundError:
        if name == "rearrange":
            return join_axes
        raise
    return getattr(einops, name)
