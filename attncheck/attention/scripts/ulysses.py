"""The lines of a script that runs Ulysses on its own: its two all-to-alls, and the attention between them."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.cases import Case


def lines(name: str, case: Case) -> Iterator[str]:
    """Yield the lines that run `name`, "ulysses_sdpa" or "ulysses_flash_attn", on this rank's shard `mine`."""
    yield from _all_to_all()
    times = case.context_parallel_size // case.num_kv_heads
    kv = f"x[:, :, :, None].expand(-1, -1, -1, {times}, -1).flatten(2, 3)" if times > 1 else "x"
    yield f"repeated = [mine[0], *({kv} for x in mine[1:])]"
    yield "lq, lk, lv = (AllToAll.apply(x, True) for x in repeated)"
    yield from _sdpa(case) if name == "ulysses_sdpa" else _flash_attn(case)
    yield "out = AllToAll.apply(out, False)"


def _all_to_all() -> Iterator[str]:
    """Yield the two all-to-alls of Ulysses, each the other's gradient."""
    yield "class AllToAll(torch.autograd.Function):"
    yield "    @staticmethod"
    yield "    def forward(ctx, x, to_heads):"
    yield "        ctx.to_heads, (b, t, h, d) = to_heads, x.shape"
    yield "        if to_heads:  # (b, t / world, h, d) -> (b, t, h / world, d)"
    yield "            sent = x.reshape(b, t, world, h // world, d).permute(2, 0, 1, 3, 4).contiguous()"
    yield "        else:"
    yield "            sent = x.reshape(b, world, t // world, h, d).transpose(0, 1).contiguous()"
    yield "        got = torch.empty_like(sent)"
    yield "        dist.all_to_all_single(got, sent)"
    yield "        if to_heads:"
    yield "            return got.transpose(0, 1).reshape(b, world * t, h // world, d)"
    yield "        return got.permute(1, 2, 0, 3, 4).reshape(b, t // world, world * h, d)"
    yield "    @staticmethod"
    yield "    def backward(ctx, grad):"
    yield "        return AllToAll.apply(grad, not ctx.to_heads), None"
    yield ""


def _sdpa(case: Case) -> Iterator[str]:
    grouped = case.num_heads // case.num_kv_heads > 1
    yield "heads = [x.transpose(1, 2) for x in (lq, lk, lv)]"
    masked = f"attn_mask={'mask' if case.needs_mask else None}, is_causal={case.causal and not case.needs_mask}"
    kernel = "SDPBackend.FLASH_ATTENTION"
    if case.needs_mask:
        kernel += ' if device == "cpu" else SDPBackend.EFFICIENT_ATTENTION'
    if grouped and case.needs_mask:
        yield "if device != 'cpu':  # EFFICIENT_ATTENTION does not share kv heads by itself"
        yield "    heads[1:] = [x.repeat_interleave(lq.shape[2] // lk.shape[2], 1) for x in heads[1:]]"
    yield "from torch.nn.attention import SDPBackend, sdpa_kernel"
    yield f"with sdpa_kernel([{kernel}]):"
    yield "    out = torch.nn.functional.scaled_dot_product_attention("
    yield f"        *heads, {masked}, scale=scale, enable_gqa=heads[0].shape[1] != heads[1].shape[1]).transpose(1, 2)"


def _flash_attn(case: Case) -> Iterator[str]:
    words = f"softmax_scale=scale, causal={case.causal}"
    words += f", window_size={case.window_size}" if case.windowed else ""
    words += f", softcap={case.softcap}" if case.softcap else ""
    if case.layout != "packed":
        yield "from flash_attn import flash_attn_func"
        yield f"out = flash_attn_func(lq, lk, lv, {words})"
        return
    yield "from flash_attn import flash_attn_varlen_func"
    yield "edges = torch.tensor([0, *(i.stop for _, i in at_q)], dtype=torch.int32, device=device)"
    yield "longest = max(seqlens_q)"
    yield f"out = flash_attn_varlen_func(lq[0], lk[0], lv[0], edges, edges, longest, longest, {words})[None]"
