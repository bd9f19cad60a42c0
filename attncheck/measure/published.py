"""Published speeds of attention kernels: context for a measurement, never a measurement.

The table is `published_speeds.json`: kernel, GPU, shape, pass and TFLOP/s of each anchor, with its source, version and
date. Operations are counted as in `flops`: only visible pairs, the backward 2.5 times the forward. An anchor represents
cases with its mask, head size and a 16-bit dtype on the same kind of GPU; the nearest seqlen is used.
"""

import functools
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from attncheck.core.cases import Case
from attncheck.core.results.timings import Anchor, PublishedShare, Timing
from attncheck.measure.flops import BACKWARD_FACTOR

TABLE = Path(__file__).with_name("published_speeds.json")
SHAPE = ("seqlen", "num_heads", "num_kv_heads", "head_dim", "causal")
MAX_SEQLEN_RATIO = 4.0  # between a case and its anchor


@functools.cache
def _load_table() -> Any:
    return json.loads(TABLE.read_text(encoding="utf-8"))


@functools.cache
def load_anchors() -> tuple[Anchor, ...]:
    """Return every anchor of the table; a kernel with both passes also has one of forward and backward."""
    table = _load_table()
    anchors = []
    for row in table["anchors"]:
        source = table["sources"][row["source"]]
        where = f"{source['title']}, {source['version']}, {source['date']}"
        anchors.append(Anchor(**{**row, "source": where, "url": source["url"]}))
    return (*anchors, *_combine_passes(anchors))


def _combine_passes(anchors: list[Anchor]) -> Iterator[Anchor]:
    """Yield the rate of forward and backward together of each kernel and shape that has both."""
    backwards = {replace(a, passes="forward", tflops=0.0): a.tflops for a in anchors if a.passes == "backward"}
    for anchor in anchors:
        backward = backwards.get(replace(anchor, tflops=0.0), 0.0) if anchor.passes == "forward" else 0.0
        if backward:
            both = (1.0 + BACKWARD_FACTOR) / (1.0 / anchor.tflops + BACKWARD_FACTOR / backward)
            yield replace(anchor, passes="forward_backward", tflops=round(both, 1))


def find_best(case: Case, gpu: str, gpus: int = 1) -> Anchor | None:
    """Return the fastest anchor with the nearest seqlen for the case, None if none represents it on this `gpu`."""
    if case.dtype == "float32" or case.layout != "dense" or case.windowed or case.head_dim != case.v_head_dim:
        return None
    passes = "forward_backward" if case.backward else "forward"
    kind = (_name_kind(gpu), gpus, passes, case.head_dim, case.causal)
    fitting = [a for a in load_anchors() if (a.gpu, a.gpus, a.passes, a.head_dim, a.causal) == kind]
    distances = [abs(math.log(a.seqlen / case.seqlen_q)) for a in fitting]
    nearest = min(distances, default=math.inf)
    if nearest > math.log(MAX_SEQLEN_RATIO) + 1e-9:
        return None
    return max((a for a, distance in zip(fitting, distances) if distance == nearest), key=lambda a: a.tflops)


def _name_kind(gpu: str) -> str:
    """Return the table's name for a device, "" for a GPU without published speeds."""
    table = _load_table()
    kinds = {row["gpu"]: row["gpu"] for row in table["anchors"]} | table["same_processors"]
    return next((kind for name, kind in kinds.items() if name in gpu), "")


def shares_of(timings: tuple[Timing, ...], gpu: str) -> tuple[PublishedShare, ...]:
    """Return, for each case, the fastest correct backend's share of the best published speed."""
    fastest: dict[Case, Timing] = {}
    for timing in timings:
        if timing.outcome == "ok" and timing.answer in ("pass", "warn"):
            fastest[timing.case] = max(timing, fastest.get(timing.case, timing), key=lambda t: t.tflops)
    pairs = [(timing, find_best(case, gpu)) for case, timing in fastest.items()]
    return tuple(
        PublishedShare(t.backend, t.passes, t.case.seqlen_q, round(t.tflops / anchor.tflops, 4), anchor)
        for t, anchor in pairs
        if anchor is not None
    )


def published_shape() -> dict[str, Any]:
    """Return the seqlen, heads and mask of the fastest anchor on one GPU, as a request's fields."""
    best = max((a for a in load_anchors() if a.gpus == 1), key=lambda a: a.tflops)
    return {name: getattr(best, name) for name in SHAPE}
