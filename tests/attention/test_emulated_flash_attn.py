"""The emulated flash-attn: the signatures of the genuine one, and its arithmetic, judged as any kernel's."""

from __future__ import annotations

import importlib.util
import inspect
import subprocess
import sys
import textwrap
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest

from attncheck.attention.backend import Outputs
from attncheck.core import codec
from attncheck.core.cases import Case, with_name
from attncheck.core.verdicts import Run, judge_run
from tests.ring.on_ranks import run_items

torch = pytest.importorskip("torch")
from attncheck.attention.emulated_flash_attn.interface import make_block_functions  # noqa: E402
from attncheck.attention.emulated_flash_attn.public import make_public_functions  # noqa: E402
from attncheck.attention.emulated_flash_attn.signatures import GENERATIONS, PUBLIC, REQUIRED, function_parameters  # noqa: E402
from attncheck.attention.inputs import Inputs, make_inputs  # noqa: E402
from attncheck.attention.reference.oracle import compute_reference  # noqa: E402
from attncheck.attention.reference.score import score_outputs  # noqa: E402

# Read in flash_attn/flash_attn_interface.py of flash-attn 2.5.8, 2.6.3, 2.7.4.post1 (as 2.8.3's) and 2.8.3; "=" marks a
# default.
GENUINE = {
    ("_flash_attn_forward", "2.5"): "q k v dropout_p softmax_scale causal window_size alibi_slopes return_softmax",
    (
        "_flash_attn_forward",
        "2.6",
    ): "q k v dropout_p softmax_scale causal window_size softcap alibi_slopes return_softmax",
    ("_flash_attn_forward", "2.8"): (
        "q k v dropout_p softmax_scale causal window_size_left window_size_right softcap alibi_slopes return_softmax"
    ),
    ("_flash_attn_varlen_forward", "2.5"): (
        "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p softmax_scale causal window_size "
        "alibi_slopes return_softmax block_table"
    ),
    ("_flash_attn_varlen_forward", "2.6"): (
        "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p softmax_scale causal window_size= "
        "softcap= alibi_slopes= return_softmax= block_table= leftpad_k= seqused_k="
    ),
    ("_flash_attn_varlen_forward", "2.8"): (
        "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p softmax_scale causal window_size_left= "
        "window_size_right= softcap= alibi_slopes= return_softmax= block_table= leftpad_k= seqused_k= zero_tensors="
    ),
    ("_flash_attn_backward", "2.5"): (
        "dout q k v out softmax_lse dq dk dv dropout_p softmax_scale causal window_size alibi_slopes deterministic "
        "rng_state="
    ),
    ("_flash_attn_backward", "2.6"): (
        "dout q k v out softmax_lse dq dk dv dropout_p softmax_scale causal window_size softcap alibi_slopes "
        "deterministic rng_state="
    ),
    ("_flash_attn_backward", "2.8"): (
        "dout q k v out softmax_lse dq dk dv dropout_p softmax_scale causal window_size_left window_size_right softcap "
        "alibi_slopes deterministic rng_state="
    ),
    ("_flash_attn_varlen_backward", "2.5"): (
        "dout q k v out softmax_lse dq dk dv cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p "
        "softmax_scale causal window_size alibi_slopes deterministic rng_state="
    ),
    ("_flash_attn_varlen_backward", "2.6"): (
        "dout q k v out softmax_lse dq dk dv cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p "
        "softmax_scale causal window_size softcap alibi_slopes deterministic rng_state="
    ),
    ("_flash_attn_varlen_backward", "2.8"): (
        "dout q k v out softmax_lse dq dk dv cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p "
        "softmax_scale causal window_size_left window_size_right softcap alibi_slopes deterministic rng_state= "
        "zero_tensors="
    ),
}


TAIL = "dropout_p= softmax_scale= causal= window_size= softcap= alibi_slopes= deterministic= return_attn_probs="
LENGTHS = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
GENUINE_PUBLIC = {
    "flash_attn_func": f"q k v {TAIL}",
    "flash_attn_kvpacked_func": f"q kv {TAIL}",
    "flash_attn_qkvpacked_func": f"qkv {TAIL}",
    "flash_attn_varlen_func": f"q k v {LENGTHS} {TAIL} block_table=",
    "flash_attn_varlen_kvpacked_func": f"q kv {LENGTHS} {TAIL}",
    "flash_attn_varlen_qkvpacked_func": f"qkv cu_seqlens max_seqlen {TAIL}",
}


def format_parameters(parameters: dict[str, Any]) -> str:
    return " ".join(name if default is REQUIRED else f"{name}=" for name, default in parameters.items())


@pytest.mark.parametrize(("name", "generation"), GENUINE)
def test_signatures_are_the_genuine_ones(name: str, generation: str) -> None:
    parameters = function_parameters(name, generation)
    assert format_parameters(parameters) == GENUINE[name, generation]
    assert generation != "2.8" or parameters == function_parameters(name, "2.7"), "2.7.4.post1 and 2.8.3 are alike"
    function = make_block_functions(generation)[name]
    plain = getattr(function, "_init_fn", function)
    assert inspect.isfunction(plain)
    assert inspect.getfullargspec(plain).args == list(parameters), "as ring-flash-attn looks at it"
    if generation >= "2.7":
        assert isinstance(function, torch.library.CustomOpDef)
        schema = str(getattr(torch.ops.flash_attn, name).default._schema)
        assert schema.count("!") == (3 if "backward" in name else 0), "dq, dk and dv are written, nothing else"
    else:
        assert function is plain


@pytest.mark.parametrize("name", PUBLIC)
def test_public_signatures_are_the_genuine_ones(name: str) -> None:
    for generation in GENERATIONS:
        function = make_public_functions(generation, make_block_functions(generation))[name]
        parameters = {
            parameter_name: parameter.default
            for parameter_name, parameter in inspect.signature(function).parameters.items()
        }
        expected = GENUINE_PUBLIC[name] if generation >= "2.6" else GENUINE_PUBLIC[name].replace("softcap= ", "")
        assert format_parameters(parameters) == expected


def make_cases() -> list[Case]:
    dense = Case("dense", (200,), (200,), num_heads=4, num_kv_heads=2)
    packed = replace(dense, seqlens_q=(65, 1, 130, 4), seqlens_k=(65, 1, 130, 4), layout="packed")
    variants = [
        dense,
        packed,
        replace(dense, causal=False),
        replace(dense, dtype="float16"),
        replace(dense, seqlens_q=(100, 100), seqlens_k=(164, 164), num_kv_heads=4),
        replace(dense, seqlens_q=(164,), seqlens_k=(100,)),
        replace(dense, window_size=(30, 0)),
        replace(dense, window_size=(20, 40), causal=False),
        replace(dense, softcap=30.0, values="large"),
        replace(dense, alibi=True),
        replace(dense, alibi=True, causal=False),
        replace(dense, num_kv_heads=1, head_dim=128, v_head_dim=128),
        replace(dense, seqlens_q=(600,), seqlens_k=(600,), causal=False, num_heads=2),
        replace(dense, values="ramp"),
        replace(packed, causal=False, dtype="float16", head_dim=128, v_head_dim=128),
        replace(packed, seqlens_q=(64, 0, 136), seqlens_k=(70, 0, 200)),
    ]
    return [with_name(case) for case in variants]


@pytest.mark.parametrize("case", make_cases(), ids=lambda case: case.name)
@pytest.mark.parametrize("generation", GENERATIONS)
def test_its_error_is_that_of_an_ideal_kernel(case: Case, generation: str) -> None:
    if case.softcap and generation < "2.6":
        pytest.skip("no softcap before 2.6")
    inputs = make_inputs(case, "cpu")
    outputs = run_emulated(inputs, generation)
    if inputs.slopes is not None and case.causal:  # the kernels' bias is slope · key: LSE is moved by slope · query
        shift = inputs.slopes[:, None] * torch.arange(case.seqlen_q)
        outputs = replace(outputs, lse=outputs.lse - shift)
    case_scores = tuple(score_outputs(outputs, compute_reference(inputs)))
    assert {score.tensor for score in case_scores} == {"out", "lse", "dq", "dk", "dv"}
    verdict = judge_run(Run("emulated", case, "ok", scores=case_scores))
    assert verdict.answer == "pass" and verdict.budget_ratio < 0.8, verdict
    z_rms = [score.z_rms for score in case_scores if score.tensor in ("dq", "dk", "dv")]
    assert max(z_rms) > 0.5, "it rounds if the kernels do"


def run_emulated(inputs: Inputs, generation: str) -> Outputs:
    """Run a case by the block functions; gradients go to the given buffers, here views with gaps."""
    case = inputs.case
    functions = make_block_functions(generation)
    packed = case.layout == "packed"
    stem = "_flash_attn_varlen_" if packed else "_flash_attn_"
    q, k, v, dout = ((x[0] if packed else x) for x in (inputs.q, inputs.k, inputs.v, inputs.dout))
    kwargs: dict[str, Any] = {"dropout_p": 0.0, "softmax_scale": case.softmax_scale, "causal": case.causal}
    kwargs["alibi_slopes"] = inputs.slopes
    if generation < "2.7":
        kwargs["window_size"] = case.window_size
    else:
        kwargs["window_size_left"], kwargs["window_size_right"] = case.window_size
    if generation >= "2.6":
        kwargs["softcap"] = case.softcap
    if packed:
        for side, lengths in (("q", case.seqlens_q), ("k", case.seqlens_k)):
            kwargs[f"cu_seqlens_{side}"] = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
            kwargs[f"max_seqlen_{side}"] = max(lengths)
    forward_kwargs = {"block_table": None} if packed and generation < "2.6" else {}
    outputs = functions[stem + "forward"](q=q, k=k, v=v, return_softmax=False, **kwargs, **forward_kwargs)
    assert len(outputs) == (8 if generation < "2.7" else 4)
    out, lse = (outputs[0], outputs[5]) if generation < "2.7" else outputs[:2]
    if packed and generation < "2.6":
        assert lse.shape == (len(case.seqlens_q), case.num_heads, max(case.seqlens_q))
    elif packed:
        assert lse.shape == (case.num_heads, case.seqlen_q)
    buffers = {name: torch.full((2 + len(x), *x.shape[1:-1], 2 * x.shape[-1]), 7.0, dtype=x.dtype) for name, x in
               (("dq", q), ("dk", k), ("dv", v))}  # fmt: skip
    views = {name: x[1:-1, ..., : x.shape[-1] // 2] for name, x in buffers.items()}
    backward_kwargs = {"dout": dout, "q": q, "k": k, "v": v, "out": out, "softmax_lse": lse, **views}
    returned = functions[stem + "backward"](**backward_kwargs, deterministic=False, **kwargs)
    assert all(bool((x[..., x.shape[-1] // 2 :] == 7.0).all()) for x in buffers.values()), "beyond the view"
    assert all(bool((x[[0, -1]] == 7.0).all()) for x in buffers.values()), "before and after the view"
    check_returned(returned, views, generation, case)
    if packed:
        flat = [lse[i, :, :n] for i, n in enumerate(case.seqlens_q)] if lse.dim() == 3 else [lse]
        lse = torch.cat(flat, 1)[None]
        return Outputs(out[None], lse, *(x[None] for x in views.values()))
    return Outputs(out, lse, *views.values())


def check_returned(returned: Any, views: dict[str, Any], generation: str, case: Case) -> None:
    """Check what a backward returns: before 2.7 its buffers too; softmax_d has room for blocks of 128 queries."""
    if generation < "2.7":
        *gradients, returned = returned
        assert all(gradient is view for gradient, view in zip(gradients, views.values(), strict=True))
    blocks = -(-max(case.seqlens_q) // 128) * 128
    shape = (len(case.seqlens_q), case.num_heads, blocks)
    if case.layout == "packed" and generation >= "2.6":
        shape = (case.num_heads, case.seqlen_q + 128 * len(case.seqlens_q))  # type: ignore[assignment]
    assert returned.shape == shape and returned.dtype == torch.float32


BLOCK_KWARGS: dict[str, Any] = {
    "dropout_p": 0.0,
    "softmax_scale": 1.0,
    "causal": True,
    "window_size_left": -1,
    "window_size_right": -1,
    "softcap": 0.0,
    "alibi_slopes": None,
}


def test_a_query_without_keys_has_zeros_and_an_infinite_lse() -> None:
    q, k = torch.randn(1, 8, 2, 32).bfloat16(), torch.randn(1, 3, 2, 32).bfloat16()
    functions = make_block_functions("2.8")
    out, lse, _, _ = functions["_flash_attn_forward"](q=q, k=k, v=k, return_softmax=False, **BLOCK_KWARGS)
    assert bool((out[0, :5] == 0).all()) and bool(torch.isposinf(lse[0, :, :5]).all())
    assert bool(torch.isfinite(lse[0, :, 5:]).all())
    dq, dk, dv = torch.full_like(q, 7.0), torch.empty_like(k), torch.empty_like(k)
    functions["_flash_attn_backward"](q, q, k, k, out, lse, dq, dk, dv, **BLOCK_KWARGS, deterministic=False)
    assert bool((dq[:, :5] == 0).all()) and bool(torch.isfinite(dq).all() and torch.isfinite(dk).all())


@pytest.mark.parametrize("lengths", [((0, 5), (4, 5)), ((3, 5), (0, 5)), ((0, 0), (0, 0))])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_an_empty_document_leaves_zeros(lengths: Any, generation: str) -> None:
    (_, cu_seqlens_q), (_, cu_seqlens_k) = ((n, torch.tensor([0, *accumulate(n)], dtype=torch.int32)) for n in lengths)
    q, k = (torch.randn(sum(n), 2, 32).half() for n in lengths)
    q.requires_grad_()
    k.requires_grad_()
    function = make_public_functions(generation, make_block_functions(generation))["flash_attn_varlen_func"]
    out, lse, _ = function(q, k, k, cu_seqlens_q, cu_seqlens_k, 5, 5, causal=True, return_attn_probs=True)
    out.sum().backward()
    no_queries_before = lengths[1][0] == 0
    assert bool((out[: lengths[0][0]] == 0).all()) and bool(torch.isfinite(q.grad).all()), "queries without keys"
    assert not lengths[0][0] or (bool((q.grad[:3] == 0).all()) and bool(torch.isposinf(lse[..., :3]).any()))
    assert no_queries_before or bool((k.grad[: lengths[1][0]] == 0).all()), "keys without queries"


def test_gradients_need_no_buffers_before_2_7() -> None:
    x = torch.randn(1, 40, 2, 32).half()
    kwargs = {"dropout_p": 0.0, "softmax_scale": 0.2, "causal": True, "window_size": (-1, -1), "alibi_slopes": None}
    functions = make_block_functions("2.5")
    outputs = functions["_flash_attn_forward"](x, x, x, return_softmax=False, **kwargs)
    buffers = [torch.empty_like(x) for _ in range(3)]
    backward = functions["_flash_attn_backward"]
    for dqkv in (buffers, (None, None, None)):
        gradients = backward(x, x, x, x, outputs[0], outputs[5], *dqkv, **kwargs, deterministic=False)
        assert all(torch.equal(actual, expected) for actual, expected in zip(gradients[:3], buffers, strict=True))


def test_lse_is_read_as_it_lies_in_memory() -> None:
    x = torch.randn(1, 40, 4, 32).half()
    functions = make_block_functions("2.8")
    out, lse, _, _ = functions["_flash_attn_forward"](x, x, x, return_softmax=False, **BLOCK_KWARGS)

    def dq(softmax_lse: Any) -> Any:
        buffers = [torch.empty_like(x) for _ in range(3)]
        functions["_flash_attn_backward"](x, x, x, x, out, softmax_lse, *buffers, **BLOCK_KWARGS, deterministic=False)
        return buffers[0]

    strided = lse.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(strided, lse) and not torch.equal(dq(strided), dq(lse)), "the kernels look at no strides"


def test_the_padding_of_a_packed_lse_holds_nothing() -> None:
    x, cu_seqlens = torch.randn(12, 2, 32).half(), torch.tensor([0, 4, 12], dtype=torch.int32)
    function = make_public_functions("2.5", make_block_functions("2.5"))["flash_attn_varlen_func"]
    _, lse, _ = function(x, x, x, cu_seqlens, cu_seqlens, 8, 8, return_attn_probs=True)
    assert lse.shape == (2, 2, 8) and bool(torch.isnan(lse[0, :, 4:]).all()) and bool(torch.isfinite(lse[1]).all())


def test_a_head_size_that_is_no_multiple_of_8_is_padded() -> None:
    x = torch.randn(1, 40, 2, 36).half().requires_grad_()
    out = make_public_functions("2.8", make_block_functions("2.8"))["flash_attn_func"](x, x, x)
    out.float().sum().backward()
    expected = torch.nn.functional.scaled_dot_product_attention(*(x.float().transpose(1, 2),) * 3).transpose(1, 2)
    assert out.shape == x.shape and x.grad.shape == x.shape
    torch.testing.assert_close(out.float(), expected, atol=2e-3, rtol=2e-3)


def test_what_the_kernels_refuse_is_refused() -> None:
    x, packed = torch.randn(1, 8, 2, 32).half(), torch.randn(8, 2, 32).half()
    cu_seqlens = torch.tensor([0, 2, 8], dtype=torch.int32)
    functions = make_block_functions("2.8")

    def dense(q: Any, k: Any, **kwargs: Any) -> None:
        functions["_flash_attn_forward"](q=q, k=k, v=k, return_softmax=False, **{**BLOCK_KWARGS, **kwargs})

    def varlen(cu_seqlens: Any, max_seqlen: int, **kwargs: Any) -> None:
        function = functions["_flash_attn_varlen_forward"]
        function(packed, packed, packed, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, **BLOCK_KWARGS, **kwargs)

    def backward(lse: Any, dq: Any) -> None:
        functions["_flash_attn_backward"](
            x, x, x, x, x, lse, dq, torch.empty_like(x), torch.empty_like(x), **BLOCK_KWARGS, deterministic=False
        )

    refused: list[tuple[Any, type[Exception], str]] = [
        (lambda: dense(x.float(), x.float()), RuntimeError, "FlashAttention only support fp16 and bf16 data type"),
        (lambda: dense(x, x.bfloat16()), RuntimeError, "query and key must have the same dtype"),
        (lambda: dense(x, x.repeat(1, 1, 2, 1)[:, :, :3]), RuntimeError, "must divide number of heads in query"),
        (lambda: dense(x[..., :30], x[..., :30]), RuntimeError, "multiple of 8"),
        (lambda: dense(*(x.repeat(1, 1, 1, 9),) * 2), RuntimeError, "forward only supports head dimension at most 256"),
        (lambda: dense(x, x, dropout_p=0.1), NotImplementedError, "no dropout"),
        (lambda: dense(x, x, window_size=(4, 0)), RuntimeError, "expected at most 11 argument"),
        (lambda: varlen(cu_seqlens.long(), 6), RuntimeError, "cu_seqlens_q must have dtype int32"),
        (lambda: varlen(cu_seqlens, 4), RuntimeError, "a document of 6 tokens, max_seqlen_q is 4"),
        (lambda: varlen(cu_seqlens, 6, block_table=cu_seqlens), NotImplementedError, "no paged"),
        (lambda: backward(torch.zeros(1, 2, 8).half(), torch.empty_like(x)), RuntimeError, "read as float32"),
        (lambda: backward(torch.zeros(1, 2, 8), x.float()), RuntimeError, "dq must have the same dtype as q"),
        (lambda: backward(torch.zeros(1, 2, 8), x[:, :4].clone()), RuntimeError, "dq must have shape"),
    ]
    for call, error, message in refused:
        with pytest.raises(error, match=message):
            call()


CHILD = """
import importlib.util, sys
from attncheck.attention import emulated_flash_attn
emulated_flash_attn.install({generation!r})
import flash_attn, torch
from flash_attn.flash_attn_interface import _flash_attn_forward
from flash_attn import flash_attn_func, flash_attn_varlen_kvpacked_func, flash_attn_qkvpacked_func
assert importlib.util.find_spec("flash_attn") is not None
assert flash_attn.__version__.endswith("+emulated")
x = torch.randn(2, 16, 3, 4, 32).bfloat16().requires_grad_()
out, lse, _ = flash_attn_qkvpacked_func(x, causal=True, return_attn_probs=True)
apart = flash_attn_func(*x.unbind(2), causal=True)
assert torch.equal(out, apart) and lse.shape == (2, 4, 16)
out.sum().backward()
cu = torch.tensor([0, 6, 16], dtype=torch.int32)
packed = flash_attn_varlen_kvpacked_func(x[0, :, 0], x[0, :, 1:], cu, cu, 10, 10, causal=True)
assert torch.equal(packed[6:], flash_attn_func(x[:1, 6:, 0], x[:1, 6:, 1], x[:1, 6:, 2], causal=True)[0])
from attncheck.attention.calls import ring_package
print(ring_package.load().__name__, "put back", *ring_package.shimmed_names())
"""


@pytest.mark.parametrize("generation", [pytest.param("2.5", marks=pytest.mark.nightly), "2.8"])
def test_it_takes_the_place_of_flash_attn_in_a_child(generation: str) -> None:
    pytest.importorskip("transformers")
    source = textwrap.dedent(CHILD).format(generation=generation)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ring_flash_attn put back is_flash_attn_greater_or_equal_2_10")


SCHEMES = {
    "dense": ("ring_flash_attn", "zigzag_ring_flash_attn", "stripe_flash_attn"),
    "packed": ("ring_flash_attn_varlen", "zigzag_ring_flash_attn_varlen", "llama3_flash_attn_varlen"),
}


AT_NIGHT = [("2.5", 1), ("2.8", 1), *((name, 2) for name in GENERATIONS if name != "2.8")]
NIGHTLY_GENERATIONS = [pytest.param(*values, marks=pytest.mark.nightly) for values in AT_NIGHT]


@pytest.mark.parametrize(("generation", "ranks"), [("2.8", 2), *NIGHTLY_GENERATIONS])
def test_the_genuine_ring_flash_attn_runs_on_it(generation: str, ranks: int) -> None:
    pytest.importorskip("transformers")
    if importlib.util.find_spec("ring_flash_attn") is None:
        pytest.skip("ring-flash-attn is not installed")
    dense = Case("dense", (64 * ranks,), (64 * ranks,), num_heads=4, num_kv_heads=2, context_parallel_size=ranks)
    lengths = (24 * ranks, 72 * ranks)
    dense = replace(dense, backward=ranks > 1)  # a backward sends to itself on a ring of one, which gloo cannot
    packed = replace(dense, family="packed", seqlens_q=lengths, seqlens_k=lengths, layout="packed")
    cases = {layout: with_name(case) for layout, case in (("dense", dense), ("packed", packed))}
    items = [(scheme, cases[layout].name) for layout, schemes in SCHEMES.items() for scheme in schemes]
    message = {"task": "attncheck.ring.worker.tasks:parity", "cases": codec.to_plain(tuple(cases.values()))}
    events = run_items(ranks, items, **message, emulate=generation)
    assert [event.kind for event in events] == ["answer"] * len(items), [event.reason for event in events]
    for event in events:
        verdict = judge_run(codec.read(Run, event.answer))
        assert verdict.answer == "pass", verdict


def test_an_unknown_generation_is_refused() -> None:
    from attncheck.attention import emulated_flash_attn

    with pytest.raises(ValueError, match=r"2\.4 is not one of 2\.5, 2\.6, 2\.7, 2\.8"):
        emulated_flash_attn.install("2.4")
