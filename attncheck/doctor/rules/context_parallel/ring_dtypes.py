"""Ring attention does not preserve the model's dtype.

What it checks: ring-flash-attn on a model whose checkpoint is float16 or float32.

Why it matters: `ring_flash_attn_func` and `ring_flash_attn_varlen_func` always return `dq.to(torch.bfloat16)`, so
float16 training gets query gradients with 8 bits of mantissa instead of 11 (`attncheck parity --ring-size 2` shows
it). zigzag, stripe and llama3 keep the dtype. flash-attn's kernels refuse float32. If they are replaced by other
kernels, the package's own buffers alias (`block_dq_buffer.to(torch.float32)` is the buffer itself) and gradients are
wrong.

What to do: train in bfloat16, or use the zigzag or llama3 scheme with float16.

Source: ring_flash_attn 0.1.8, ring_flash_attn.py and ring_flash_attn_varlen.py, the last line of `…_backward`; the
measurement in benchmarks/RESULTS.md.
"""

from attncheck.doctor.queries.models import is_ring_ruled_out, requested_model
from attncheck.doctor.rules import Fix, Problem, Problems, Rule, Snapshot, value_or

MESSAGES = {
    "float16": ("ring attention gives float16 queries gradients of bfloat16's precision", "dq.to(torch.bfloat16)"),
    "float32": ("ring attention supports float16 and bfloat16 only", "flash-attn's kernels refuse float32"),
}


def check(snapshot: Snapshot) -> Problems:
    model = requested_model(snapshot)
    dtype = "" if model is None else value_or(model.dtype, "").removeprefix("torch.")
    if model is None or dtype not in MESSAGES or not snapshot.has("ring-flash-attn") or is_ring_ruled_out(model):
        return
    message, evidence = MESSAGES[dtype]
    yield Problem(
        message=f"{message}; the checkpoint of {model.source} is {dtype}",
        evidence=(evidence, "static lane: dtype in config.json"),
        fixes=(Fix("train in bfloat16", "setting", "dtype=torch.bfloat16"),),
        subject=model.source,
    )


RULE = Rule("ATN513", "note", check, needs=frozenset({"ring"}))
