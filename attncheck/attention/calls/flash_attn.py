"""Calls functions of the flash-attn family, whose signatures and answers differ between releases.

What a function does not take is left out where it would change nothing, and refused by name where it would. An answer
is out alone, (out, lse), or (out, lse, more).
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs, Refused
from attncheck.attention.calls.common import finish, leaves, padded, unpadded
from attncheck.attention.inputs import Inputs
from attncheck.attention.masks import cu_seqlens
from attncheck.core.cases import ANY, Case

LIMITS = "not support|only support|is only |should be a multiple|head dimension at most|requires fp16"


@dataclass(frozen=True)
class Sinks:
    """How a function takes attention sinks: the argument's name, its dtype, and whether it returns their gradient."""

    word: str
    dtype: str = "float32"
    learned: bool = True


def fitted(function: Callable[..., Any], title: str, **words: Any) -> dict[str, Any]:
    """Return those of `words` that `function` takes. Raises `Refused` where one that matters is not among them."""
    known = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        return words
    for name, value in words.items():
        if name not in known and not _changes_nothing(name, value):
            raise Refused(f"this release of {title} has no argument {name}")
    return {name: value for name, value in words.items() if name in known}


def _changes_nothing(name: str, value: Any) -> bool:
    """Say whether leaving the argument out comes to the same: nothing asked for, or the LSE, which is a wish."""
    if isinstance(value, tuple):
        return all(side in (ANY, None) for side in value)
    return name.startswith("return_") or value is None or (not isinstance(value, Tensor) and not value)


def parted(answer: Any) -> tuple[Tensor, Tensor | None]:
    """Return out and, where the answer holds it, LSE."""
    if isinstance(answer, Tensor):
        return answer, None
    out, *more = answer
    found = more[0] if more and isinstance(more[0], Tensor) and more[0].dtype == torch.float32 else None
    return out, found


@contextlib.contextmanager
def limits(title: str) -> Iterator[None]:
    """Turn what a function itself says it cannot do into a refusal; other errors are left to be what they are."""
    try:
        yield
    except (AssertionError, NotImplementedError) as error:
        if not str(error):
            raise
        raise Refused(f"{title}: {_first_line(error)}") from None
    except (RuntimeError, ValueError) as error:
        if isinstance(error, torch.OutOfMemoryError) or not re.search(LIMITS, _first_line(error)):
            raise
        raise Refused(f"{title}: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]


def dense(function: Callable[..., Any], inputs: Inputs, title: str, sinks: Sinks | None, **words: Any) -> Outputs:
    """Run a dense case with a function on (batch, seqlen, heads, head_dim)."""
    case = inputs.case
    q, k, v = leaves(inputs)
    given = _sinks(inputs, sinks)
    words = {"softmax_scale": case.softmax_scale, "causal": case.causal, **words, **_named(sinks, given)}
    with limits(title):
        out, lse = parted(function(q, k, v, **fitted(function, title, **words)))
        if lse is not None:
            lse = lse[:, :, : case.seqlen_q] if lse.dim() == 3 else None
        return finish(inputs, out, (q, k, v, *_learned(sinks, given)), lse)


def packed(function: Callable[..., Any], inputs: Inputs, title: str, sinks: Sinks | None, **words: Any) -> Outputs:
    """Run any case with a function on (tokens, heads, head_dim) and cu_seqlens; padding is taken out and put back."""
    case, flat = inputs.case, unpadded(inputs)
    q, k, v = leaves(flat)
    given = _sinks(inputs, sinks)
    words = {
        "cu_seqlens_q": cu_seqlens(case.seqlens_q, inputs.device),
        "cu_seqlens_k": cu_seqlens(case.seqlens_k, inputs.device),
        "max_seqlen_q": max(case.seqlens_q),
        "max_seqlen_k": max(case.seqlens_k),
        "softmax_scale": case.softmax_scale,
        "causal": case.causal,
        **words,
        **_named(sinks, given),
    }
    with limits(title):
        out, lse = parted(function(q[0], k[0], v[0], **fitted(function, title, **words)))
        if lse is not None:  # before flash-attn 2.6 it was (documents, heads, longest)
            lse = lse[None, :, : out.shape[0]] if lse.dim() == 2 else None
        return padded(inputs, finish(flat, out[None], (q, k, v, *_learned(sinks, given)), lse))


def _sinks(inputs: Inputs, sinks: Sinks | None) -> Tensor | None:
    if inputs.sinks is None or sinks is None:
        return None
    given = inputs.sinks.detach().to(getattr(torch, sinks.dtype), copy=True)
    return given.requires_grad_(sinks.learned and inputs.case.backward)


def _named(sinks: Sinks | None, given: Tensor | None) -> dict[str, Tensor]:
    return {} if sinks is None or given is None else {sinks.word: given}


def _learned(sinks: Sinks | None, given: Tensor | None) -> tuple[Tensor, ...]:
    return (given,) if sinks is not None and sinks.learned and given is not None else ()


def arguments(case: Case, open_side: int | None = ANY, sinks: Sinks | None = None) -> str:
    """Return the keywords of a script's call that differ from the function's defaults."""
    words = [f"causal={case.causal}"]
    if case.windowed:
        words.append(f"window_size={tuple(open_side if side == ANY else side for side in case.window_size)}")
    if case.softcap:
        words.append(f"softcap={case.softcap}")
    if case.alibi:
        words.append("alibi_slopes=slopes")
    if case.sinks and sinks is not None:
        words.append(f"{sinks.word}=sinks" + (f".to(torch.{sinks.dtype})" if sinks.dtype != "float32" else ""))
    return ", ".join(words)


def dense_script(origin: str, words: str) -> tuple[str, ...]:
    """Return the lines of a script that calls a dense function; `origin` makes `flash_attn_func` known."""
    return (
        origin,
        f"out = flash_attn_func(q, k, v, {words})",
        "out = out[0] if isinstance(out, tuple) else out",
    )


def packed_script(origin: str, words: str) -> tuple[str, ...]:
    """Return the lines of a script that calls a packed function; `origin` makes `flash_attn_varlen_func` known."""
    return (
        origin,
        "lengths = (torch.tensor([0, *x], device=device) for x in (seqlens_q, seqlens_k))",
        "cu_q, cu_k = (x.cumsum(0, dtype=torch.int32) for x in lengths)",
        "packed = [torch.cat([x[b, p] for b, p in places]) for x, places in ((q, at_q), (k, at_k), (v, at_k))]",
        "flat = flash_attn_varlen_func(*packed, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_seqlen_q=max(seqlens_q),",
        f"    max_seqlen_k=max(seqlens_k), {words})",
        "flat = flat[0] if isinstance(flat, tuple) else flat",
        "out = torch.zeros(*q.shape[:3], DV, dtype=q.dtype, device=device)",
        "for (b, p), part in zip(at_q, flat.split(seqlens_q)):",
        "    out[b, p] = part",
    )
