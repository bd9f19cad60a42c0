"""The lines of a script that runs torch's ring attention on its own."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.cases import Case


def public(case: Case) -> Iterator[str]:
    """Yield the lines that run `context_parallel` on this rank's shard `mine`, forward and backward."""
    grouped = case.num_heads != case.num_kv_heads
    yield "from torch.distributed.device_mesh import init_device_mesh"
    yield "from torch.distributed.tensor.experimental import context_parallel"
    yield "from torch.nn.attention import SDPBackend, sdpa_kernel"
    yield "tokens = torch.arange(SQ, device=device)"
    yield "mesh = init_device_mesh(device, (world,))"
    yield "with context_parallel(mesh, buffers=[tokens], buffer_seq_dims=[0]):"
    yield '    assert tokens.equal(here), "torch shards otherwise"'
    yield "    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):"
    yield "        out = torch.nn.functional.scaled_dot_product_attention("
    yield f"            *(x.transpose(1, 2) for x in mine), is_causal=True, scale=scale, enable_gqa={grouped})"
    yield "    out = out.transpose(1, 2)"
    if case.backward:
        yield "    grads = torch.autograd.grad(out, mine, dmine)"


def templates(case: Case) -> Iterator[str]:
    """Yield the lines that run the private templates around the CPU's operator, forward and backward."""
    yield "from torch.distributed.tensor.experimental._context_parallel import _attention as ring"
    yield "heads = [x.detach().transpose(1, 2) for x in mine]"
    yield "heads[1:] = [x.repeat_interleave(H // HK, 1) for x in heads[1:]]"
    yield "operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu"
    yield "out, lse = ring._templated_ring_attention("
    yield "    dist.group.WORLD, 2, operator, *heads, is_causal=True, dropout_p=0.0, scale=scale)"
    if case.backward:
        yield "back = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default"
        yield "dq, dk, dv = ring._templated_ring_attention_backward("
        yield "    dist.group.WORLD, 2, back, dmine.transpose(1, 2).contiguous(), 'grad_out', *heads, out, lse, True,"
        yield "    dropout_p=0.0, scale=scale)"
        yield "grads = [dq.transpose(1, 2)]"
        yield "grads += [x.unflatten(1, (HK, H // HK)).sum(2).transpose(1, 2) for x in (dk, dv)]"
    yield "out = out.transpose(1, 2)"
