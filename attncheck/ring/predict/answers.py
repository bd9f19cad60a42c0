"""The conclusions from predictions: the best scheme and ring size, and the length from which a ring pays off."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from attncheck.core.results.prediction import Prediction
from attncheck.core.shares import format_share
from attncheck.ring.predict.memory import estimate_memory
from attncheck.ring.predict.prediction import Question, explain_refusal, rank_schemes, time_passes
from attncheck.ring.predict.schedules import LLAMA3, kv_elements, q_elements
from attncheck.ring.predict.simulation import Machine
from attncheck.ring.roofline import Shape

GOOD_EFFICIENCY = 0.8  # share of the ideal: one GPU's time divided by the ring size
SEARCHED_SHARES = tuple(1 << power for power in range(6, 18))  # tokens per rank, 64 to 131,072


def draw_conclusions(
    question: Question, machine: Machine, rows: Sequence[Prediction], memory_bytes: int
) -> tuple[str, ...]:
    """Return the conclusions as sentences; `memory_bytes` is a GPU's memory, 0 if unknown."""
    return (
        *_describe_fastest(question, rows),
        *_compare_ring_sizes(question, rows),
        *_describe_break_even(question, machine),
        *_compare_memory(question, rows, memory_bytes),
        *_describe_stride_costs(question, rows),
    )


def _describe_fastest(question: Question, rows: Sequence[Prediction]) -> Iterator[str]:
    ranked = rank_schemes(rows, question.ring_size, "forward_backward")
    if not ranked:
        yield f"no scheme can run {question.seqlen} tokens across {question.ring_size} ranks"
        return
    best = ranked[0]
    others = [row for row in ranked[1:] if row.low_ms < best.high_ms and row.scheme != best.scheme]
    close = f"; within the interval of {', '.join(dict.fromkeys(row.scheme for row in others))}" if others else ""
    yield (
        f"{question.seqlen} tokens on {_count_gpus(question.ring_size)}: {best.title} is the fastest, "
        f"{_format_interval(best)} forward + backward, {best.tokens_per_s:.0f} tokens/s, "
        f"{format_share(best.efficiency)} of flash / n, limited by {best.limited_by}{close}"
    )


def _compare_ring_sizes(question: Question, rows: Sequence[Prediction]) -> Iterator[str]:
    bests = [ranked[0] for size in question.ring_sizes if (ranked := rank_schemes(rows, size, "forward_backward"))]
    if len(bests) > 1:
        best = max(bests, key=lambda row: row.tokens_per_s / row.ring_size)
        yield (
            f"most tokens/s per GPU: rings of {best.ring_size} ({best.title}), "
            f"{best.tokens_per_s / best.ring_size:.0f} tokens/s per GPU, if such a row fits"
        )


def _describe_break_even(question: Question, machine: Machine) -> Iterator[str]:
    n = question.ring_size
    if n == 1:
        return
    faster, good = 0, 0
    for share in reversed(SEARCHED_SHARES):
        longer = replace(question, seqlen=share * n)
        single_ms = time_passes(machine, "", "forward_backward", longer.share(1), 1).ms
        ring_ms = _time_fastest(longer, machine)
        if not ring_ms or ring_ms >= single_ms:
            break
        faster = longer.seqlen
        if good in (0, 2 * longer.seqlen) and single_ms / n >= GOOD_EFFICIENCY * ring_ms:
            good = longer.seqlen
    if not faster:
        yield f"a ring of {n} is never faster than one GPU, up to {SEARCHED_SHARES[-1] * n} tokens"
        return
    reached = f"from {good} tokens" if good else f"at no length up to {SEARCHED_SHARES[-1] * n}"
    yield (
        f"a ring of {n} is faster than one GPU from about {faster} tokens, and reaches "
        f"{100 * GOOD_EFFICIENCY:.0f} % of one GPU's time / {n} {reached} (forward + backward)"
    )


def _time_fastest(question: Question, machine: Machine) -> float:
    """Return the milliseconds of the fastest scheme that runs, 0 if none does."""
    n, stride = question.ring_size, question.num_kv_heads
    times = [
        time_passes(machine, scheme, "forward_backward", question.share(n), n, stride * (scheme == LLAMA3)).ms
        for scheme in question.schemes
        if not explain_refusal(question, scheme, n)
    ]
    return min(times, default=0.0)


def _compare_memory(question: Question, rows: Sequence[Prediction], memory_bytes: int) -> Iterator[str]:
    ranked = rank_schemes(rows, question.ring_size, "forward_backward")
    if not ranked or not memory_bytes:
        return
    best, n = ranked[0], question.ring_size
    single = count_bytes("", question.share(1), 1)
    shared = count_bytes(best.scheme, question.share(n), n, best.heads_k_stride)
    fits = "fits into" if single <= memory_bytes else "does not fit into"
    yield (
        f"one layer's attention of the row {fits} one GPU ({_gib(single)} of {_gib(memory_bytes)}, inputs included); "
        f"on {n} GPUs it needs {_gib(shared)} per GPU; other layers and weights are extra"
    )


def count_bytes(scheme: str, shape: Shape, ring_size: int, stride: int = 0) -> int:
    """Return the bytes of one layer's attention on one GPU, including q, k, v and dout."""
    inputs = (2 * q_elements(shape) + kv_elements(shape)) * shape.bytes
    return round(inputs) + estimate_memory(scheme, "forward_backward", shape, ring_size, stride)


def _describe_stride_costs(question: Question, rows: Sequence[Prediction]) -> Iterator[str]:
    ranked = rank_schemes(rows, question.ring_size, "forward_backward")
    strides = sorted((row for row in ranked if row.scheme == LLAMA3), key=lambda row: row.heads_k_stride)
    if len(strides) > 1 and question.ring_size > 1:
        prices = ", ".join(
            f"{row.heads_k_stride}: {row.ms:.4g} ms and {row.memory_bytes / (1 << 20):.0f} MiB" for row in strides
        )
        yield f"heads_k_stride, forward + backward, memory beyond inputs: {prices}"


def _format_interval(row: Prediction) -> str:
    return f"{row.ms:.4g} ms ({row.low_ms:.4g} to {row.high_ms:.4g})"


def _count_gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count > 1)}"


def _gib(size: float) -> str:
    return f"{size / (1 << 30):.3g} GiB"
