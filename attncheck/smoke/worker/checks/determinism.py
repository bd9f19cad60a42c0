"""Checks whether training is bitwise reproducible; if not, where runs first differ, and which switch prevents it.

Rows hold one long document. With short ones a key block is never shared between two, and the order of atomic additions
cannot show (numerics §3: at least three key blocks). The cost of the switch is measured too. Every switch is reset
afterwards.
"""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from attncheck.attention.device import describe_exception
from attncheck.core.results.smoke import CheckResult
from attncheck.smoke.worker.data.packing import Batch
from attncheck.smoke.worker.deterministic_mode import determinism_settings, synchronize
from attncheck.smoke.worker.testbed import Testbed
from attncheck.smoke.worker.trainer import MAX_GRAD_NORM, Trainer

ROW_TOKENS = 1024  # tokens of a row
STEPS = 3
RUNS = {"cpu": 2, "cuda": 6}
# Settings for users, the least intrusive first: (title, environment variables, torch's deterministic algorithms).
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
class RunDigest:
    """The digests of a short run: for each step, one of the loss and one of each parameter's gradient; and its time."""

    losses: tuple[str, ...]
    gradients: tuple[Mapping[str, str], ...]
    is_finite: bool  # the gradients' norm, in each step
    seconds: float


def run(testbed: Testbed) -> CheckResult:
    """Compare repeated runs bit for bit. If they differ, report it, and try which switch makes them equal."""
    if testbed.no_backward_reason:
        return CheckResult("reproducible", "refused", testbed.no_backward_reason)
    with determinism_settings({}, testbed.plan.deterministic):
        digest_run(testbed)  # compilers and allocators settle
        digests = [digest_run(testbed) for _ in range(RUNS.get(testbed.device.type, 2))]
    if not all(digest.is_finite for digest in digests):
        return CheckResult("reproducible", "skipped", "gradients are not finite, so their bits cannot be compared")
    difference = describe_first_difference(digests)
    if not difference:
        return CheckResult("reproducible", notes=(f"{len(digests)} runs of {STEPS} steps are bitwise identical",))
    description = f"runs part {difference}"
    notes = tuple(_try_switches(testbed, digests))
    if testbed.plan.deterministic:
        return CheckResult("reproducible", violations=(description,), notes=notes)
    return CheckResult("reproducible", notes=(f"{description}; the plan does not require identical runs", *notes))


def digest_run(testbed: Testbed) -> RunDigest:
    """Return the digests of a run of STEPS steps from the same seed."""
    trainer = Trainer(testbed)
    parameters = dict(trainer.model.named_parameters())
    batches = _make_long_batches(testbed, trainer)
    losses, gradients, finite = [], [], []
    synchronize(testbed.device)
    started = time.perf_counter()
    for batch in batches:
        trainer.optimizer.zero_grad(set_to_none=True)
        losses.append(float(trainer.backward([batch])).hex())
        gradients.append({name: _digest_gradient(p) for name, p in parameters.items() if p.grad is not None})
        finite.append(bool(torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), MAX_GRAD_NORM).isfinite()))
        trainer.optimizer.step()
    synchronize(testbed.device)
    return RunDigest(tuple(losses), tuple(gradients), all(finite), time.perf_counter() - started)


def _make_long_batches(testbed: Testbed, trainer: Trainer) -> list[Batch]:
    length = max(ROW_TOKENS, testbed.plan.max_length)
    return [testbed.make_batch([[trainer.source.next_document(length)]]) for _ in range(STEPS)]


def _digest_gradient(parameter: nn.Parameter) -> str:
    assert parameter.grad is not None
    gradient_bytes = parameter.grad.detach().contiguous().view(torch.uint8)
    if not _has_numpy():
        return _digest_without_numpy(gradient_bytes)
    return hashlib.blake2b(gradient_bytes.cpu().numpy().tobytes(), digest_size=8).hexdigest()


def _has_numpy() -> bool:
    try:
        import numpy  # noqa: F401
    except ImportError:
        return False
    return True


def _digest_without_numpy(gradient_bytes: torch.Tensor) -> str:
    """Return a digest of bytes without numpy: their sum weighted by position, exact in int64."""
    flat = gradient_bytes.reshape(-1).to(torch.int64)
    weights = torch.arange(1, flat.numel() + 1, device=flat.device, dtype=torch.int64) * 2654435761 % 1000003
    return str(int((flat * weights).sum()))


def describe_first_difference(digests: Sequence[RunDigest]) -> str:
    """Return where runs first differ: the step, and the first gradient in the order of backward; "" if nowhere."""
    for step in range(STEPS):
        first = digests[0]
        if any(other.losses[step] != first.losses[step] for other in digests[1:]):
            return f"at step {step + 1}, in the loss"
        differing = [
            name
            for name, digest in first.gradients[step].items()
            if any(other.gradients[step].get(name) != digest for other in digests[1:])
        ]
        if differing:
            return f"at step {step + 1}, first in the gradient of {differing[-1]}, of {len(differing)} that differ"
    return ""


def _try_switches(testbed: Testbed, before: Sequence[RunDigest]) -> Iterator[str]:
    """Yield a note about the runs with each switch, until one makes them equal."""
    for title, variables, strict in SWITCHES:
        try:
            with determinism_settings(variables, strict or testbed.plan.deterministic):
                digest_run(testbed)  # kernels that are new to this process are compiled or chosen now
                digests = [digest_run(testbed) for _ in range(len(before))]
        except RuntimeError as error:
            yield f"{title} raises {describe_exception(error)}"
            continue
        difference = describe_first_difference(digests)
        if not difference:
            cost = _median_seconds(digests) / max(_median_seconds(before), 1e-9)
            baseline_note = " of torch's deterministic algorithms" if testbed.plan.deterministic else ""
            yield f"{title} fixes it, at {cost:.2f} × the time{baseline_note}"
            return
        yield f"{title} does not fix it: runs diverge {difference}"


def _median_seconds(digests: Sequence[RunDigest]) -> float:
    times = sorted(digest.seconds for digest in digests)
    return times[len(times) // 2]
