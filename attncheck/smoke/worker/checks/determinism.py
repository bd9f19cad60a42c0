"""Is training reproducible, bit for bit; where do two runs part; what mends it, at what cost?

Rows hold one long document: with short ones a key block is never shared between two, and the order of atomic additions
cannot show (numerics §3: three key blocks at least). What is switched on is switched off again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from attncheck.attention.device import message
from attncheck.core.results.smoke import CheckResult
from attncheck.smoke.worker.data.packing import Batch
from attncheck.smoke.worker.deterministic_mode import switched, wait
from attncheck.smoke.worker.testbed import Bed
from attncheck.smoke.worker.trainer import CLIP, Trainer

LONG = 1024  # tokens of a row
STEPS = 3
RUNS = {"cpu": 2, "cuda": 6}
# What a user can switch on, the mildest first: a title, environment variables, torch's deterministic algorithms.
SWITCHES: tuple[tuple[str, Mapping[str, str], bool], ...] = (
    ("FLASH_ATTENTION_DETERMINISTIC=1", {"FLASH_ATTENTION_DETERMINISTIC": "1"}, False),
    (
        "torch.use_deterministic_algorithms(True), CUBLAS_WORKSPACE_CONFIG=:4096:8",
        {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        True,
    ),
    (
        "both",
        {"FLASH_ATTENTION_DETERMINISTIC": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        True,
    ),
)


@dataclass(frozen=True)
class Trace:
    """What a short run left: for each step a digest of the loss and of each parameter's gradient, and its time."""

    losses: tuple[str, ...]
    gradients: tuple[Mapping[str, str], ...]
    seconds: float


def prove(bed: Bed) -> CheckResult:
    """Return the proof. Without a plan for determinism, a difference is told and what mends it is tried."""
    if bed.untrainable:
        return CheckResult("reproducible", "refused", bed.untrainable)
    with switched({}, bed.plan.deterministic):
        trace(bed)  # compilers and allocators settle
        traces = [trace(bed) for _ in range(RUNS.get(bed.device.type, 2))]
    parted = first_difference(traces)
    if not parted:
        return CheckResult("reproducible", notes=(f"{len(traces)} runs of {STEPS} steps have the same bits",))
    told = f"runs part {parted}"
    notes = tuple(_mended(bed, traces))
    if bed.plan.deterministic:
        return CheckResult("reproducible", violations=(told,), notes=notes)
    return CheckResult("reproducible", notes=(f"{told}; the plan does not ask for the same bits", *notes))


def trace(bed: Bed) -> Trace:
    """Return the trace of a run of a few steps from the same seed."""
    trainer = Trainer(bed)
    parameters = dict(trainer.model.named_parameters())
    batches = _batches(bed, trainer)
    losses, gradients = [], []
    wait(bed.device)
    began = time.perf_counter()
    for batch in batches:
        trainer.optimizer.zero_grad(set_to_none=True)
        losses.append(float(trainer.backward([batch])).hex())
        gradients.append({name: _digest(p) for name, p in parameters.items() if p.grad is not None})
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), CLIP)
        trainer.optimizer.step()
    wait(bed.device)
    return Trace(tuple(losses), tuple(gradients), time.perf_counter() - began)


def _batches(bed: Bed, trainer: Trainer) -> list[Batch]:
    length = max(LONG, bed.plan.max_length)
    return [bed.batch([[trainer.source.document(length)]]) for _ in range(STEPS)]


def _digest(parameter: nn.Parameter) -> str:
    assert parameter.grad is not None
    raw = parameter.grad.detach().contiguous().view(torch.uint8)
    return hashlib.blake2b(raw.cpu().numpy().tobytes(), digest_size=8).hexdigest() if _numpy() else _sum(raw)


def _numpy() -> bool:
    try:
        import numpy  # noqa: F401
    except ImportError:
        return False
    return True


def _sum(raw: torch.Tensor) -> str:
    """Return a digest without numpy: a sum of bytes weighted by position, exact in int64."""
    flat = raw.reshape(-1).to(torch.int64)
    weights = torch.arange(1, flat.numel() + 1, device=flat.device, dtype=torch.int64) * 2654435761 % 1000003
    return str(int((flat * weights).sum()))


def first_difference(traces: Sequence[Trace]) -> str:
    """Return where runs first part, in words: the step, and the first gradient in the order of backward; "" nowhere."""
    for step in range(STEPS):
        first = traces[0]
        if any(other.losses[step] != first.losses[step] for other in traces[1:]):
            return f"at step {step + 1}, in the loss"
        differing = [
            name
            for name, digest in first.gradients[step].items()
            if any(other.gradients[step].get(name) != digest for other in traces[1:])
        ]
        if differing:
            return f"at step {step + 1}, first in the gradient of {differing[-1]}, in {len(differing)} in all"
    return ""


def _mended(bed: Bed, before: Sequence[Trace]) -> Iterator[str]:
    """Yield what each switch makes of it, until one mends it."""
    for title, variables, strict in SWITCHES:
        try:
            with switched(variables, strict or bed.plan.deterministic):
                trace(bed)  # a kernel that is new to this process is compiled or chosen now
                traces = [trace(bed) for _ in range(len(before))]
        except RuntimeError as error:
            yield f"{title} raises {message(error)}"
            continue
        parted = first_difference(traces)
        if not parted:
            cost = _median(traces) / max(_median(before), 1e-9)
            beside = " of torch's deterministic algorithms alone" if bed.plan.deterministic else ""
            yield f"{title} mends it, at {cost:.2f} × the time{beside}"
            return
        yield f"{title} does not mend it: runs part {parted}"


def _median(traces: Sequence[Trace]) -> float:
    times = sorted(trace.seconds for trace in traces)
    return times[len(times) // 2]
