"""The source of `flash_attn/bert_padding.py`: removes padding from a batch and restores it (flash-attn 2.8.3)."""

import torch
from torch import Tensor
from torch.nn.functional import pad


def index_first_axis(states: Tensor, indices: Tensor) -> Tensor:
    """Return the rows of `states` (rows, …) at `indices`."""
    return states[indices]


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Return `first_axis_dim` rows that are zero except for `values` (len(indices), …) at `indices`."""
    return values.new_zeros(first_axis_dim, *values.shape[1:]).index_put((indices,), values)


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Return the tokens (tokens, …) of (batch, seqlen, …), their indices, cu_seqlens, max_seqlen and used seqlens."""
    all_masks = attention_mask if unused_mask is None else attention_mask + unused_mask
    seqlens = all_masks.sum(dim=-1, dtype=torch.int32)
    used_seqlens = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(all_masks.flatten(), as_tuple=False).flatten()
    cu_seqlens = pad(torch.cumsum(seqlens, dim=0, dtype=torch.int32), (1, 0))
    return hidden_states.flatten(0, 1)[indices], indices, cu_seqlens, int(seqlens.max()), used_seqlens


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Return tokens (tokens, …) as (batch, seqlen, …), with zeros in the padding."""
    padded: Tensor = index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
    return padded


def __getattr__(name: str) -> object:
    """Return einops' functions, which the real module imports."""
    if name in ("rearrange", "repeat"):
        import einops  # type: ignore[import-not-found]

        return getattr(einops, name)
    raise AttributeError(name)
