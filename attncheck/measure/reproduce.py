"""Writes a script that reproduces one case of one backend with only torch and the backend, for an upstream report.

Its inputs are bitwise identical to parity's inputs on the same kind of device with the same torch; a test runs both and
compares. Context-parallel schemes have no script: `attncheck parity --case` reproduces their cases.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from attncheck import __version__
from attncheck.attention.backend import Backend
from attncheck.core.cases import (
    FIRST_KEY_LOGIT,
    NEGATIVE_LOGIT,
    SINK_LEVELS,
    STRIDE_LETTERS,
    UNLIMITED,
    Case,
    iter_segments,
    sampled_rows,
    visible_bounds,
)
from attncheck.core.io.errors import BadUsage
from attncheck.core.snapshot import Snapshot
from attncheck.measure import discovery
from attncheck.measure.parity import Request
from attncheck.measure.suites import SUITES, make_model_cases, make_suite
from attncheck.workers.execution import ExecutionTarget

UNSCRIPTED_PROBES = ("dropout",)


def make_script(snapshot: Snapshot, request: Request, name: str, target: ExecutionTarget) -> str:
    """Return the script for the case `name`. Raises `BadUsage` for an unknown case or without one --backend."""
    backend, case = _get_backend(request), _find_case(snapshot, request, name)
    return "\n".join(script_lines(case, backend, _choose_device(target))) + "\n"


def _get_backend(request: Request) -> Backend:
    if len(request.backends) != 1:
        raise BadUsage("--explain-case needs one --backend")
    return discovery.get_backend(request.backends[0])


def _choose_device(target: ExecutionTarget) -> str:
    return ("cuda" if target.uses_gpu else "cpu") if target.device == "auto" else target.device


def _find_case(snapshot: Snapshot, request: Request, name: str) -> Case:
    seed, base_name = request.seed, name
    if "-seed" in name:
        base_name, _, number = name.rpartition("-seed")
        seed = int(number) if number.isdecimal() else seed
    for cases in _iter_suites(snapshot, request, seed):
        for case in cases:
            if case.name in (name, f"{base_name}-seed{seed}"):
                if case.probe in UNSCRIPTED_PROBES:
                    raise BadUsage(f"{name} is judged by statistics, so no script can show it")
                return case
    raise BadUsage(
        f"there is no case {name!r}; `attncheck parity --list` prints all names; add MODEL for a model's cases"
    )


def _iter_suites(snapshot: Snapshot, request: Request, seed: int) -> Iterator[tuple[Case, ...]]:
    """Yield the suites in which a case is searched by name."""
    model = discovery.requested_model(snapshot)
    if model is None:
        yield from (make_suite(name, seed) for name in SUITES)
    else:
        yield make_model_cases(model, request.max_seqlen, seed)


def script_lines(case: Case, backend: Backend, device: str) -> Iterator[str]:
    """Yield the parts of the script, of one or more lines. Raises `BadUsage` for a backend that has none."""
    if backend.script_lines is None:
        raise BadUsage(f"{backend.name} has no script")
    yield f"# {backend.name} on {case.name}, against float64; written by attncheck {__version__}"
    yield from ("import math", "", "import torch", "")
    yield from _size_lines(case, device)
    yield from _input_lines(case)
    yield from _mask_lines(case)
    yield from _stride_lines(case)
    yield "q, k, v = (x.detach().requires_grad_() for x in (q, k, v))"
    yield from backend.script_lines(case)
    if case.backward:
        yield "grads = torch.autograd.grad(out, (q, k, v), dout)"
    yield from _reference_lines(case)


def _size_lines(case: Case, device: str) -> Iterator[str]:
    sizes = (
        case.batch,
        case.seqlen_q,
        case.seqlen_k,
        case.num_heads,
        case.num_kv_heads,
        case.head_dim,
        case.v_head_dim,
    )
    yield f"B, SQ, SK, H, HK, D, DV = {', '.join(map(str, sizes))}"
    yield f'device, dtype, scale = "{device}", torch.{case.dtype}, {case.scale or "D**-0.5"}'
    yield f"seqlens_q, seqlens_k = {case.seqlens_q}, {case.seqlens_k}"
    sequences = list(iter_segments(case))
    for side in "qk":
        slices = ", ".join(
            f"({s.batch}, slice({getattr(s, side + '_start')}, {getattr(s, side + '_stop')}))" for s in sequences
        )
        yield f"at_{side} = [{slices}]  # (row of the batch, its tokens) of each sequence"


def _input_lines(case: Case) -> Iterator[str]:
    yield f"""\
generator = torch.Generator(device).manual_seed({case.seed + 1})
randn = lambda *shape: torch.randn(*shape, generator=generator, device=device)"""
    draw_line = "draw = randn"
    if not case.probe or case.probe in ("prefix", "poison", "nan_poison"):
        if case.values == "outlier":
            draw_line = "draw = lambda *s: randn(*s) + 10.0 * randn(*s) * (randn(*s).abs() > 3.2905)"
        elif case.values == "long_tail":
            draw_line = "draw = lambda *s: randn(*s) / (sum(randn(*s).square() for _ in range(3)) / 3.0).sqrt()"
    yield draw_line
    yield "q, k, v, dout = draw(B, SQ, H, D), draw(B, SK, HK, D), draw(B, SK, HK, DV), draw(B, SQ, H, DV)"
    yield from _probe_lines(case) if case.probe in _VALUE_PROBES else _distribution_lines(case)
    if case.dout_exponent and case.probe not in _VALUE_PROBES:
        yield f"dout = dout * 2.0**{case.dout_exponent}"
    if not case.every_row:
        yield f"""\
rows = {list(sampled_rows(case))}  # the query rows that are compared
kept = torch.zeros(SQ, dtype=torch.bool, device=device)
kept[rows] = True
dout = dout * kept[None, :, None, None]"""
    else:
        yield "rows = list(range(SQ))"
    if case.sinks:
        yield f"""\
levels = torch.tensor({SINK_LEVELS}, device=device).repeat(H)[:H]
sinks = (randn(H) + levels).to(torch.bfloat16).float()"""
    if case.alibi:
        yield "slopes = torch.tensor([2.0 ** (-8.0 * (h + 1) / H) for h in range(H)], device=device)"
    yield "q, k, v, dout = (x.to(dtype) for x in (q, k, v, dout))"
    yield from _edit_lines(case)


def _distribution_lines(case: Case) -> Iterator[str]:
    lines = {
        "large": "q, k = q * 4.0, k * 2.0",
        "ramp": "k = k * torch.linspace(41.0, 1.0, SK, device=device)[None, :, None, None]",
        "rising": "k = k * torch.linspace(1.0, 41.0, SK, device=device)[None, :, None, None]",
        "negative": f"q[..., 0], k[..., 0] = ({NEGATIVE_LOGIT} / scale)**0.5, -(({NEGATIVE_LOGIT} / scale)**0.5)",
        "first_key": "q, k = q * 0.5, k * 0.5\n"
        f"q[..., 0], k[..., 0], k[:, 0, :, 0] = 4.0, 0.0, {FIRST_KEY_LOGIT / 4.0} / scale",
        "cancelling": """\
heads = (torch.arange(HK, device=device) % 2 == 0)[:, None]
q_heads = heads.repeat_interleave(H // HK, 0)
q, k = torch.where(q_heads, 1.0 + 0.5 * q, q), torch.where(heads, 1.0 + 0.5 * k, k)
wave = lambda n: 3.0 * torch.cos(torch.linspace(0.0, torch.pi, n, device=device))[:, None, None]
v = v + torch.where(heads, wave(SK), 1.0)
dout = dout + torch.where(q_heads, wave(SQ), 1.0)""",
        "small": "q, k, v, dout = q * 0.05, k * 0.05, v * 0.05, dout * 0.05",
    }
    yield from lines.get(case.values, "").splitlines()


_VALUE_PROBES = ("code", "heads", "retrieve")


def _probe_lines(case: Case) -> Iterator[str]:
    if case.probe == "code":
        yield "q, k, v = q * 0, k * 0, torch.where(v > 0, 1.0, -1.0)"
    elif case.probe == "heads":
        yield """\
q, k, kv = q * 0, k * 0, torch.arange(HK, device=device)
v = torch.stack((1.0 + kv % 16, 1.0 + kv // 16), -1).repeat(1, (DV + 1) // 2)[:, :DV].expand_as(v)"""
    else:
        from attncheck.attention.reference.structured_targets import retrieval_targets

        digits = max(1, (case.seqlen_k - 1).bit_length())
        yield f"""\
wanted = torch.tensor({retrieval_targets(case)}, device=device)  # the key that each query looks up
codes = torch.where(k > 0, 1.0, -1.0)
picked = codes.gather(1, wanted[:, :, None, None].expand(-1, -1, HK, D))
q, k, v = 2.0 * picked.repeat_interleave(H // HK, 2), 2.0 * codes, v.sign()
numbers = torch.arange(SK, device=device)[:, None] >> torch.arange({digits}, device=device)
v[..., :{digits}] = ((numbers & 1) * 2.0 - 1.0)[None, :, None, :]"""


def _edit_lines(case: Case) -> Iterator[str]:
    """Yield the part with which the prefix and poison probes change the inputs for their second run."""
    from attncheck.attention.reference.structured_targets import (
        kv_poison_factor,
        prefix_split,
        q_poison_factor,
        tested_documents,
    )

    kv_factor = kv_poison_factor(case)
    if case.probe == "prefix":
        yield f"""\
k[:, {prefix_split(case)}:] *= {kv_factor}
v[:, {prefix_split(case)}:] *= {kv_factor}"""
    elif case.probe in ("poison", "nan_poison"):
        tested, q_factor = tested_documents(case)[0], q_poison_factor(case)
        yield f"""\
tested = {[s.index for s in tested]}  # the sequences that must not change; the others are scaled
for x, at, factor in ((q, at_q, {q_factor}), (k, at_k, {kv_factor}), (v, at_k, {kv_factor})):
    inside = torch.zeros(x.shape[:2], dtype=torch.bool, device=device)
    for b, place in [at[i] for i in tested]:
        inside[b, place] = True
    x[~inside] *= factor"""


def _mask_lines(case: Case) -> Iterator[str]:
    low, high = visible_bounds(replace(case, alignment="top_left"), 0, 0)
    shift = "m - n" if case.alignment == "bottom_right" else "0"
    yield "mask = torch.zeros(B, 1, len(rows), SK, dtype=torch.bool, device=device)"
    if case.mask == "additive":
        yield f"bias = torch.zeros(B, {'H' if case.per_head else 1}, len(rows), SK, device=device)"
    yield f"""\
at = torch.tensor(rows, device=device)
for (b, i), (_, j) in zip(at_q, at_k):
    n, m, inside = i.stop - i.start, j.stop - j.start, (at >= i.start) & (at < i.stop)
    d = torch.arange(m, device=device) - (at[inside] - i.start)[:, None] - ({shift})"""
    conditions = []
    if low != -UNLIMITED:
        conditions.append(f"(d >= {low})")
    if high != UNLIMITED:
        conditions.append(f"(d <= {high})")
    if case.attention_chunk:
        chunk = case.attention_chunk
        conditions.append(
            f"((at[inside] - i.start + ({shift}))[:, None] // {chunk} == torch.arange(m, device=device) // {chunk})"
        )
    yield "    mask[b, 0, inside, j] = " + (
        " & ".join(conditions) if conditions else "torch.ones_like(d, dtype=torch.bool)"
    )
    if case.mask == "additive":
        yield """\
    places = 5 * (at[inside] - i.start)[:, None] + 7 * torch.arange(m, device=device)
    heads = torch.arange(bias.shape[1], device=device)[:, None, None]
    bias[b][:, inside, j] = ((3 * heads + places) % 17 - 8) / 4"""
    if case.every_row:
        yield "dout = dout * mask.any(-1).transpose(1, 2)[..., None]  # ignore queries without visible keys"
    if case.alibi:
        offset = "SK - SQ" if case.alignment == "bottom_right" else "0"
        yield f"""\
d = (at[:, None] + ({offset}) - torch.arange(SK, device=device)).abs()
bias = (-slopes[:, None, None] * d)[None]"""


def _stride_lines(case: Case) -> Iterator[str]:
    if case.strides == "sliced":
        yield "q, k, v = torch.cat((q, k, v), 2).split((H, HK, HK), 2)  # slices of one tensor"
    elif case.strides == "expanded":
        yield """\
k, v = (x[:, :, :1].expand(-1, -1, HK, -1) for x in (k, v))
dout = dout[:, :, :1].expand_as(dout)"""
    elif case.strides == "scalar_dout":
        yield "dout = dout.new_ones(()).expand_as(dout)  # the gradient of out.sum()"
    letters = STRIDE_LETTERS.get(case.strides, case.strides if len(case.strides) == 4 else "")
    for laid_out, letter, note in (
        ("x.transpose(1, 2).contiguous().transpose(1, 2)", "t", ""),
        ("torch.cat((x[:, :, :1], x), 2)[:, :, 1:]", "s", "  # slices of tensors with more heads"),
        ("torch.cat((x[:, :1], x), 1)[:, 1:]", "r", "  # slices of tensors with longer rows"),
        ("x.transpose(2, 3).contiguous().transpose(2, 3)", "e", ""),
    ):
        names = [name for name, own in zip(("q", "k", "v", "dout"), letters) if own == letter]
        if names:
            listed = ", ".join(names) + "," * (len(names) == 1)
            yield f"{listed} = ({laid_out} for x in ({listed})){note}"


def _reference_lines(case: Case) -> Iterator[str]:
    yield """
wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
Q, K, V = (x.transpose(1, 2) for x in wide)
K, V = (x.repeat_interleave(H // HK, 1) for x in (K, V))
S = Q[:, :, rows] @ K.transpose(2, 3) * scale"""
    if case.softcap:
        yield f"S = torch.tanh(S / {case.softcap}) * {case.softcap}"
    if case.alibi or case.mask == "additive":
        yield "S = S + bias.double()"
    yield "S = S.masked_fill(~mask, -math.inf)"
    if case.sinks:
        yield "S = torch.cat((S, sinks.double()[None, :, None, None].expand(*S.shape[:3], 1)), -1)"
    yield "P = torch.softmax(S, -1).nan_to_num(0.0)" + ("[..., :-1]" if case.sinks else "")
    yield """\
exact = (P @ V).transpose(1, 2)
seen = mask.any(-1).transpose(1, 2)[..., None]
pairs = [("out", out[:, rows] * seen, exact * seen)]"""
    if case.backward:
        yield """\
exact_grads = torch.autograd.grad(exact, wide, dout[:, rows].double())
pairs += zip(("dq", "dk", "dv"), grads, exact_grads)"""
    if case.probe in ("poison", "nan_poison"):
        yield """\
places = {"out": at_q, "dq": at_q, "dk": at_k, "dv": at_k}
pairs = [(n, *(torch.cat([x[places[n][i]] for i in tested]) for x in pair)) for n, *pair in pairs]"""
    yield """\
for name, got, want in pairs:
    want = want.detach()
    error = got.detach().double() - want
    norm, size = float(want.norm()), float(error.norm())  # a query of one key has no gradient: norm 0
    size = f"relative error {size / norm:.3e}" if norm else f"error {size:.3e} if the exact one is 0"
    print(f"{name}: {size}, largest {float(error.abs().max()):.3e} in element {int(error.abs().argmax())}")"""
    yield f'print("rounding alone makes about {_usual_error(case):.0e}")'


def _usual_error(case: Case) -> float:
    """Return the relative error of an ideal kernel on normal inputs: sqrt(2) × 0.425 units of rounding."""
    unit = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}[case.dtype]
    return math.sqrt(2.0) * 0.425 * unit
