"""Whether a causal model is causal, and computes for a packed or padded document what it computes for it alone.

It knows nothing of attncheck: two documents, their logits, and the gradients of half their square by the embeddings of
the input, in float32, dropout off. Without gradients if the model has no embedding module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LENGTHS = (21, 34)  # longer than a tiny model's window and its chunks
IDS = (4, 60)  # of a vocabulary of 64; the others may mean something
Run = tuple[Tensor, ...]  # logits and gradients, (rows, tokens, …)


def judge(model: Any) -> dict[str, float | str]:
    """Return the relative error of each question, or the exception that it ended in."""
    torch.manual_seed(1)
    first, second, other = (torch.randint(*IDS, (n,)) for n in (*LENGTHS, LENGTHS[0]))
    alone = run(model, first[None]), run(model, second[None])
    mask = torch.ones(2, LENGTHS[1], dtype=torch.long)
    pad = torch.full((LENGTHS[1] - LENGTHS[0],), getattr(model.config.get_text_config(), "pad_token_id", None) or 0)
    begin, end = slice(0, LENGTHS[0]), slice(LENGTHS[0], None)
    tail = slice(len(pad), None)

    def causal() -> float:
        changed = torch.cat([second[:-1], second[-1:] % 50 + 5])
        return far(run(model, changed[None])[:1], alone[1][:1], (0, slice(-1)))

    def packed() -> float:
        packed = pack(first)
        return max(far(packed, alone[0], (0, begin), (0,)), far(packed, alone[1], (0, end), (0,)))

    def leak() -> float:
        return far(pack(first), pack(other), (0, end))

    def masked() -> float:
        own = torch.block_diag(*(torch.ones(n, n, dtype=torch.bool) for n in LENGTHS)).tril()[None, None]
        both = pack(first, attention_mask=torch.zeros(own.shape).masked_fill(~own, torch.finfo(torch.float32).min))
        return max(far(both, alone[0], (0, begin), (0,)), far(both, alone[1], (0, end), (0,)))

    def pack(document: Tensor, **options: Any) -> Run:
        positions = torch.cat([torch.arange(n) for n in LENGTHS])
        return run(model, torch.cat([document, second])[None], position_ids=positions[None], **options)

    def padded(place: slice, positions: bool) -> float:
        rows, seen = torch.stack([torch.cat([pad, first]), second]), mask.clone()
        if place is begin:
            rows[0] = torch.cat([first, pad])
        seen[0] = (torch.arange(LENGTHS[1]) < LENGTHS[0]) if place is begin else (torch.arange(LENGTHS[1]) >= len(pad))
        options = {"position_ids": (seen.cumsum(1) - 1).clamp(min=0)} if positions else {}
        both = run(model, rows, attention_mask=seen, **options)
        return max(far(both, alone[0], (0, place), (0,)), far(both, alone[1], (1,), (0,)))

    return {
        "not causal": attempt(causal),
        "packed": attempt(packed),
        "leak": attempt(leak),
        "4-D mask": attempt(masked),
        "right": attempt(lambda: padded(begin, False)),
        "left": attempt(lambda: padded(tail, False)),
        "left, positions": attempt(lambda: padded(tail, True)),
    }


def run(model: Any, input_ids: Tensor, **options: Any) -> Run:
    """Return logits, and the gradient of half their square by the input's embeddings; padding has no part in it."""
    found: list[Tensor] = []
    hook = model.get_input_embeddings().register_forward_hook(lambda module, inputs, output: found.append(output))
    try:
        logits = model(input_ids=input_ids, use_cache=False, **options).logits
    finally:
        hook.remove()
    mask = options.get("attention_mask")
    real = mask if mask is not None and mask.dim() == 2 else torch.ones_like(input_ids)
    gradient = torch.autograd.grad((logits.square().sum(-1) * real).sum() / 2, found[0])[0]
    return logits.detach(), gradient if gradient.shape[0] == len(input_ids) else gradient.transpose(0, 1)


def far(actual: Run, expected: Run, where: Any, there: Any = None) -> float:
    """Return the largest error over the largest element, of logits and gradients; not a number is infinite."""
    pairs = [(a[where], e[where if there is None else there]) for a, e in zip(actual, expected)]
    return max(float(torch.nan_to_num((a - e).abs().max() / e.abs().max(), torch.inf)) for a, e in pairs)


def attempt(question: Callable[[], float]) -> float | str:
    """Return the answer to a question, or the exception that it ended in."""
    try:
        return question()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip()[:300]}"
