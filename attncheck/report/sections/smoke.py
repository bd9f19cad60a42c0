"""What smoke proved: a plan, its questions and their answers, the training run; then the mended plan and settings.

Not a format of its own: `text` prints it, above and below the findings; `markdown` takes its figures.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.plan import Plan
from attncheck.core.report import Report
from attncheck.core.results.smoke import CheckResult, PlanRun, Step, answer, deciding_reason, describe, worst_first
from attncheck.report.sections.parity import STYLES, Row

BARS = "▁▂▃▄▅▆▇█"
COLUMN = 24  # of a question's name
SHOWN = 40  # steps of a curve


def rows(report: Report, verbose: bool, width: int) -> Iterator[Row]:
    """Yield the attempts of a report for a terminal `width` columns wide."""
    on = report.measured_on
    parts = [on.name or on.device, f"torch {on.torch}" if on.torch else "", f"seed {on.seed}", f"{on.seconds:.0f} s"]
    yield Row(((" · ".join(part for part in parts if part), "bold"),))
    if on.emulated:
        yield Row(
            (("flash-attn's kernels are emulated over ranks; one device runs transformers' own attention", "dim"),)
        )
    for attempt in report.attempts:
        yield Row()
        yield Row(((_title(attempt), "bold"),))
        yield Row(((plan(attempt.plan), ""),))
        for proof in attempt.results:
            yield from _proof(proof, verbose, width)


def _title(attempt: PlanRun) -> str:
    return f"{attempt.model}, mended: {attempt.reason}" if attempt.reason else attempt.model


def plan(given: Plan) -> str:
    """Return a plan in one line."""
    rows_of = f"{given.batch} × {given.max_length} tokens"
    parts = [
        given.attn_implementation or "transformers' default attention",
        packing(given),
        given.precision,
        rows_of if given.packed else f"padded on the {given.padding_side}",
        f"{given.accumulation} batches a step",
        *(["cache on"] * given.use_cache),
        *(["gradient checkpointing"] * given.gradient_checkpointing),
        *(["liger"] * given.liger),
        *([f"{given.cross_entropy} cross entropy"] * (given.cross_entropy != "torch")),
        *(["deterministic"] * given.deterministic),
        *(["compiled"] * given.compile),
        *([f"{given.scheme} over {given.ring_size} ranks"] * (given.ring_size > 1)),
        *(f"{name}={value}" for name, value in given.environ),
        *(f"shim {name}" for name in given.shims),
    ]
    return " · ".join(parts)


def packing(given: Plan) -> str:
    """Return in words how a plan keeps documents apart."""
    kinds = {"running": ", positions that run on", "reset_3d": ", positions in 3-D", "reset_4d": ", positions in 4-D"}
    running = kinds.get(given.positions, "") if given.packed else ""
    words = {
        "position_ids": "packed by position_ids",
        "cu_seqlens": "packed by cu_seqlens",
        "mask_2d": "packed beside a 2-D mask",
        "mask_4d": "packed by a 4-D mask",
        "padding": "not packed",
    }
    return words[given.packing] + running


def _proof(proof: CheckResult, verbose: bool, width: int) -> Iterator[Row]:
    found = answer(proof)
    head = ((f"  {found:<8}", STYLES.get(found, "dim")), (f"{name(proof):<{COLUMN}}", ""))
    room = max(20, width - 10 - COLUMN)
    lines = _wrapped(told(proof), room)
    yield Row((*head, (lines[0], "")))
    more = [*lines[1:]]
    if proof.steps and not verbose:
        more += [line for note in proof.notes for line in _wrapped(note, room)]
    if proof.steps:
        more.append(curve(proof.steps))
    if verbose:
        others = [describe(measure) for measure in worst_first(proof) if describe(measure) != told(proof)]
        more += [line for words in others for line in _wrapped(words, room)]
        notes = [note for note in (*proof.reservations, *proof.notes) if note != told(proof)]
        more += [line for note in notes for line in _wrapped(note, room)]
        more += layers(proof)
        more += steps(proof.steps)
    for line in dict.fromkeys(more):
        yield Row(((" " * (10 + COLUMN), ""), (line, "dim")))


def name(proof: CheckResult) -> str:
    """Return a question's short name."""
    return proof.check.replace("_", " ")


def told(proof: CheckResult) -> str:
    """Return what decided a proof; a training run in its own words."""
    if answer(proof) == "pass" and proof.steps:
        return training(proof)
    if answer(proof) == "pass" and not proof.measures:
        return (proof.notes or ("as expected",))[0]
    return deciding_reason(proof)


def training(proof: CheckResult) -> str:
    """Return a training run in one line."""
    losses = [step.loss for step in proof.steps]
    speed = sorted(step.tokens_per_s for step in proof.steps)[len(proof.steps) // 2]
    peak = max(step.peak_memory_bytes for step in proof.steps)
    parts = [
        f"loss {losses[0]:.2f} → {losses[-1]:.2f} in {len(losses)} steps, wanted below {proof.bound:.2f}, "
        f"cannot be below {proof.floor:.2f}",
        f"{speed:,.0f} tokens/s",
        *([f"{peak / (1 << 20):,.0f} MiB"] * bool(peak)),
    ]
    return " · ".join(parts)


def curve(found: tuple[Step, ...]) -> str:
    """Return the losses of a run as a line of bars."""
    losses = [step.loss for step in found if step.loss == step.loss and abs(step.loss) < 1e30]
    if not losses:
        return ""
    stride = max(1, -(-len(losses) // SHOWN))
    shown = losses[::stride]
    low, high = min(shown), max(shown)
    span = (high - low) or 1.0
    return "".join(BARS[min(len(BARS) - 1, int((loss - low) / span * len(BARS)))] for loss in shown)


def layers(proof: CheckResult) -> Iterator[str]:
    """Yield what each layer was asked for and ran."""
    for layer in proof.layers:
        kind = f", {layer.kind}" if layer.kind else ""
        ran = " and ".join(layer.ran) or "nothing that is known"
        yield f"{layer.name}{kind}: {layer.requested or 'default'} → {layer.dispatched or '?'} → {ran}"


def steps(found: tuple[Step, ...]) -> Iterator[str]:
    """Yield the steps of a training run, a line each."""
    for number, step in enumerate(found, 1):
        memory = f" · {step.peak_memory_bytes / (1 << 20):,.0f} MiB" if step.peak_memory_bytes else ""
        speed = f"{step.tokens_per_s:,.0f} tokens/s"
        yield f"step {number:>3} · loss {step.loss:.4f} · grad norm {step.grad_norm:.3f} · {speed}{memory}"


def settings(report: Report) -> Iterator[Row]:
    """Yield what the user pastes: the plan, mended where something was, as transformers and frameworks write it."""
    mended = any(attempt.reason for attempt in report.attempts)
    for each in report.settings:
        yield Row()
        yield Row(((f"{'the mended plan' if mended else 'the plan'} for {each.framework}", "bold"),))
        for line in each.text.splitlines():
            yield Row((("    ", ""), (line, "")))


def _wrapped(text: str, room: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, room) or [""]
