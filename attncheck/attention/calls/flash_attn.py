"""Calls functions of the flash-attn family, whose signatures and results differ between releases.

If a function lacks an argument, the argument is omitted if that changes nothing; otherwise the case is refused. The
result is out, (out, lse), or (out, lse, more).
"""

import contextlib
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.backend import Outputs, Refused, SinksArgument
from attncheck.attention.calls import hub_kernels
from attncheck.attention.calls.common import backward, make_leaves, repad, unpad
from attncheck.attention.inputs import Inputs
from attncheck.attention.masks import build_cu_seqlens, hand_over
from attncheck.core.cases import UNBOUNDED, Case
from attncheck.core.lists import list_applying

LIMIT_PATTERN = "not support|only support|is only |should be a multiple|head dimension at most|requires fp16"


def supported_kwargs(function: Callable[..., Any], title: str, **kwargs: Any) -> dict[str, Any]:
    """Return the `kwargs` that `function` accepts. Raises `Refused` if it lacks one that matters."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return kwargs
    for name, value in kwargs.items():
        if name not in parameters and not _can_omit(name, value):
            raise Refused(f"this release of {title} has no argument {name}")
    return {name: value for name, value in kwargs.items() if name in parameters}


def _can_omit(name: str, value: Any) -> bool:
    """Return whether omitting the argument changes nothing: it has the default value, or only requests the LSE."""
    if isinstance(value, tuple):
        return all(side in (UNBOUNDED, None) for side in value)
    return name.startswith("return_") or value is None or (not isinstance(value, Tensor) and not value)


def split_output(result: Any) -> tuple[Tensor, Tensor | None]:
    """Return out and, if the result has it, LSE."""
    if isinstance(result, Tensor):
        return result, None
    out, *others = result
    lse = others[0] if others and isinstance(others[0], Tensor) and others[0].dtype == torch.float32 else None
    return out, lse


@contextlib.contextmanager
def limits_as_refusals(title: str) -> Iterator[None]:
    """Turn a function's errors about unsupported arguments into `Refused`; other errors pass unchanged."""
    try:
        yield
    except (AssertionError, NotImplementedError) as error:
        if not str(error):
            raise
        raise Refused(f"{title}: {_first_line(error)}") from None
    except (RuntimeError, ValueError) as error:
        if isinstance(error, torch.OutOfMemoryError) or not re.search(LIMIT_PATTERN, _first_line(error)):
            raise
        raise Refused(f"{title}: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]


def run(source: str, packed: bool, inputs: Inputs, title: str, sinks: SinksArgument | None, **kwargs: Any) -> Outputs:
    """Run a case with the dense or the packed function of `source`, a module's name or a Hub repository."""
    module = hub_kernels.load(source) if "/" in source else importlib.import_module(source)
    call = run_packed if packed else run_dense
    return call(getattr(module, _function_name(packed)), inputs, title, sinks, **kwargs)


def _function_name(packed: bool) -> str:
    return "flash_attn_varlen_func" if packed else "flash_attn_func"


def run_dense(
    function: Callable[..., Any], inputs: Inputs, title: str, sinks: SinksArgument | None, **kwargs: Any
) -> Outputs:
    """Run a dense case with a function on (batch, seqlen, heads, head_dim)."""
    case = inputs.case
    q, k, v = make_leaves(inputs)
    sinks_leaf = _make_sinks_leaf(inputs, sinks)
    kwargs = {"softmax_scale": case.softmax_scale, "causal": case.causal, **kwargs, **_sinks_kwargs(sinks, sinks_leaf)}
    with limits_as_refusals(title):
        out, lse = split_output(function(q, k, v, **supported_kwargs(function, title, **kwargs)))
        if lse is not None:
            lse = lse[:, :, : case.seqlen_q] if lse.dim() == 3 else None
        return backward(inputs, out, (q, k, v, *_trainable_sinks(sinks, sinks_leaf)), lse)


def run_packed(
    function: Callable[..., Any], inputs: Inputs, title: str, sinks: SinksArgument | None, **kwargs: Any
) -> Outputs:
    """Run any case with a function on (tokens, heads, head_dim) and cu_seqlens; padding is removed and restored."""
    case, unpadded = inputs.case, unpad(inputs)
    q, k, v = make_leaves(unpadded)
    sinks_leaf = _make_sinks_leaf(inputs, sinks)
    kwargs = {
        "cu_seqlens_q": build_cu_seqlens(case.seqlens_q, inputs.device),
        "cu_seqlens_k": build_cu_seqlens(case.seqlens_k, inputs.device),
        "max_seqlen_q": max(case.seqlens_q),
        "max_seqlen_k": max(case.seqlens_k),
        "softmax_scale": case.softmax_scale,
        "causal": case.causal,
        **kwargs,
        **_sinks_kwargs(sinks, sinks_leaf),
    }
    with limits_as_refusals(title):
        out, lse = split_output(function(q[0], k[0], v[0], **supported_kwargs(function, title, **kwargs)))
        if lse is not None:  # before flash-attn 2.6 it was (documents, heads, longest)
            lse = lse[None, :, : out.shape[0]] if lse.dim() == 2 else None
        return repad(inputs, backward(unpadded, out[None], (q, k, v, *_trainable_sinks(sinks, sinks_leaf)), lse))


def _make_sinks_leaf(inputs: Inputs, sinks: SinksArgument | None) -> Tensor | None:
    if inputs.sinks is None or sinks is None:
        return None
    leaf = inputs.sinks.detach().to(getattr(torch, sinks.dtype), copy=True)
    return hand_over("sinks", leaf.requires_grad_(sinks.has_gradient and inputs.case.backward))


def _sinks_kwargs(sinks: SinksArgument | None, leaf: Tensor | None) -> dict[str, Tensor]:
    return {} if sinks is None or leaf is None else {sinks.name: leaf}


def _trainable_sinks(sinks: SinksArgument | None, leaf: Tensor | None) -> tuple[Tensor, ...]:
    return (leaf,) if sinks is not None and sinks.has_gradient and leaf is not None else ()


def format_kwargs(case: Case, open_side: int | None = UNBOUNDED, sinks: SinksArgument | None = None) -> str:
    """Return the keyword arguments of a script's call that differ from the function's defaults, as source."""
    window = tuple(open_side if side == UNBOUNDED else side for side in case.window_size)
    kwargs = {
        f"causal={case.causal}": True,
        f"softmax_scale={case.scale}": case.scale,
        f"attention_chunk={case.attention_chunk}": case.attention_chunk,
        f"window_size={window}": case.windowed,
        f"softcap={case.softcap}": case.softcap,
        "alibi_slopes=slopes": case.alibi,
    }
    if case.sinks and sinks is not None:
        kwargs[f"{sinks.name}=sinks" + (f".to(torch.{sinks.dtype})" if sinks.dtype != "float32" else "")] = True
    return ", ".join(list_applying(kwargs))


def script_lines(source: str, packed: bool, kwargs: str) -> tuple[str, ...]:
    """Return the lines of a script that calls the dense or the packed function of a module or Hub repository."""
    name = _function_name(packed)
    load_lines = hub_kernels.load_lines(source, name) if "/" in source else (f"from {source} import {name}",)
    if not packed:
        call_lines = (f"out = flash_attn_func(q, k, v, {kwargs})", "out = out[0] if isinstance(out, tuple) else out")
        return (*load_lines, *call_lines)
    return (
        *load_lines,
        "lengths = (torch.tensor([0, *x], device=device) for x in (seqlens_q, seqlens_k))",
        "cu_q, cu_k = (x.cumsum(0, dtype=torch.int32) for x in lengths)",
        "packed = [torch.cat([x[b, p] for b, p in places]) for x, places in ((q, at_q), (k, at_k), (v, at_k))]",
        "flat = flash_attn_varlen_func(*packed, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_seqlen_q=max(seqlens_q),",
        f"    max_seqlen_k=max(seqlens_k), {kwargs})",
        "flat = flat[0] if isinstance(flat, tuple) else flat",
        "out = torch.zeros(*q.shape[:3], DV, dtype=q.dtype, device=device)",
        "for (b, p), part in zip(at_q, flat.split(seqlens_q)):",
        "    out[b, p] = part",
    )
