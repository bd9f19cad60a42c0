"""The lines of a script that runs a context-parallel scheme on its own: shard, call, gather, with no attncheck.

The script has whole q, k, v, dout `(batch, tokens, heads, head_dim)` on every rank, `rank`, `world`, `device`, `scale`,
the sizes B, SQ, H, HK, D and `at_q`, the place of each document; the lines leave whole `out` and `grads` behind.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.attention.scripts import torch_context_parallel, ulysses
from attncheck.core.cases import Case
from attncheck.core.sharding import Sharding

_PLACES: dict[Sharding, str] = {
    "contiguous": "torch.arange(r * SQ // world, (r + 1) * SQ // world)",
    "stripe": "torch.arange(r, SQ, world)",
    "zigzag": "torch.arange(SQ).chunk(2 * world)[r], torch.arange(SQ).chunk(2 * world)[2 * world - 1 - r]",
    "contiguous_documents": "*[torch.arange(i.start, i.stop).chunk(world)[r] for _, i in at_q]",
    "zigzag_documents": "*[torch.arange(i.start, i.stop).chunk(2 * world)[c] "
    "for _, i in at_q for c in (r, 2 * world - 1 - r)]",
}


def lines(name: str, sharding: Sharding, case: Case) -> tuple[str, ...]:
    """Return the lines that shard the inputs, call the scheme `name`, and gather what it returned."""
    return (*_sharded(sharding), *_called(name, case), *_gathered(case))


def _sharded(sharding: Sharding) -> Iterator[str]:
    places = _PLACES[sharding]
    several = "documents" in sharding or sharding == "zigzag"
    yield f"places = lambda r: torch.cat(({places},))" if several else f"places = lambda r: {places}"
    yield "here = places(rank).to(device)  # the tokens that lie on this rank"
    yield "mine = [x.detach()[:, here].contiguous().requires_grad_() for x in (q, k, v)]"
    yield "dmine = dout[:, here].contiguous()"


def _called(name: str, case: Case) -> Iterator[str]:
    """Yield the call, which leaves this rank's `out` and `grads`."""
    if name == "torch_context_parallel":
        yield from torch_context_parallel.public(case)
    elif name == "torch_ring_templates":
        yield from torch_context_parallel.templates(case)
    else:
        yield from ulysses.lines(name, case) if name.startswith("ulysses") else _package(name, case)
        if case.backward:
            yield "grads = torch.autograd.grad(out, mine, dmine)"


def _package(name: str, case: Case) -> Iterator[str]:
    """Yield a call of ring-flash-attn."""
    suffix = {"split": "_func", "kvpacked": "_kvpacked_func", "qkvpacked": "_qkvpacked_func"}[case.operands]
    packed = case.layout == "packed"
    yield "# No scheme needs the package's Hugging Face adapter, whose import fails with many transformers."
    yield 'adapters = sys.modules["ring_flash_attn.adapters"] = types.ModuleType("ring_flash_attn.adapters")'
    yield "adapters.substitute_hf_flash_attn = adapters.update_ring_flash_attn_params = None"
    yield "import ring_flash_attn"
    yield ""
    yield "lq, lk, lv = " + ("(x[0] for x in mine)" if packed else "mine")
    lead = 1 if packed else 2
    arguments = {
        "split": "lq, lk, lv",
        "kvpacked": f"lq, torch.stack((lk, lv), {lead})",
        "qkvpacked": f"torch.stack((lq, lk, lv), {lead})",
    }[case.operands]
    if name.startswith("llama3"):
        yield "edges = torch.tensor([0, *(i.stop for _, i in at_q)], dtype=torch.int32, device=device)"
        yield "prepare = ring_flash_attn.llama3_flash_attn_prepare_cu_seqlens"
        yield f"*lengths, kept = prepare(edges, {case.causal}, rank, world)"
        arguments += f", *lengths, heads_k_stride={case.heads_k_stride or case.num_kv_heads}, local_k_slice=kept"
    elif packed:
        yield "lengths = [n // world for n in seqlens_q]"
        yield "edges = torch.tensor([0, *lengths], device=device).cumsum(0, dtype=torch.int32)"
        arguments += ", edges, max(lengths)"
    words = f"causal={case.causal}" + (f", window_size={case.window_size}" if case.windowed else "")
    yield f"out = ring_flash_attn.{name}{suffix}("
    yield f"    {arguments}, {words}, group=dist.group.WORLD)" + ("[None]" if packed else "")


def _gathered(case: Case) -> Iterator[str]:
    yield ""
    yield "def whole(x):"
    yield "    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(world)]"
    yield "    dist.all_gather(parts, x.detach().contiguous())"
    yield "    order = torch.cat([places(r) for r in range(world)]).to(device)"
    yield "    return torch.empty_like(torch.cat(parts, 1)).index_copy_(1, order, torch.cat(parts, 1))"
    yield ""
    yield "out = whole(out)"
    if case.backward:
        yield "grads = [whole(x) for x in grads]"
