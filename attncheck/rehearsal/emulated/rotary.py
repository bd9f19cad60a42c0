"""The source of `flash_attn/layers/rotary.py`: the functions that transformers 4.48 to 4.55 imports.

As in flash-attn 2.8.3. `modeling_flash_attention_utils.py` there imports `apply_rotary_emb` whenever it finds
flash-attn, for any model.
"""

import torch
from torch import Tensor


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> Tensor:
    """Return x (batch, seqlen, heads, head_dim), or (tokens, heads, head_dim) with `cu_seqlens`, rotated by position.

    `cos` and `sin` are (positions, rotary_dim / 2); elements beyond rotary_dim are unchanged. Pairs are the two
    halves, or neighbours if `interleaved`.
    """
    positions = _list_positions(x, seqlen_offsets, cu_seqlens)
    cos, sin = (table[positions].unsqueeze(-2).to(x.dtype) for table in (cos, sin))
    width = 2 * cos.shape[-1]
    rotated, rest = x[..., :width], x[..., width:]
    if interleaved:
        first, second = rotated[..., ::2], rotated[..., 1::2]
        pairs = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
    else:
        first, second = rotated.chunk(2, dim=-1)
        pairs = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    result = torch.cat((pairs, rest), dim=-1)
    return x.copy_(result) if inplace else result


def _list_positions(x: Tensor, offsets: int | Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Return the position of every token: (batch, seqlen), or (tokens,) if documents are packed."""
    if cu_seqlens is None:
        batch, seqlen = x.shape[:2]
        starts = torch.as_tensor(offsets, device=x.device).reshape(-1, 1).expand(batch, 1)
        return starts + torch.arange(seqlen, device=x.device)
    lengths = cu_seqlens.diff().long()
    starts = torch.as_tensor(offsets, device=x.device).expand(len(lengths)).repeat_interleave(lengths)
    begins = cu_seqlens[:-1].long().repeat_interleave(lengths)
    return torch.arange(len(x), device=x.device) - begins + starts
