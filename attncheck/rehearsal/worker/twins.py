"""The task that compares the first steps of a launch with its twin's: the same rows, and a change that is neutral.

transformers 5.17.0 training_args.py: `gradient_accumulation_steps` "simulates larger batch sizes without additional
memory". TRL 1.16.0 trainer/dpo_config.py: `padding_free` and `precompute_ref_log_probs` "reduce memory usage".
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attncheck.core import codec
from attncheck.core.experiments import HALVES
from attncheck.core.results.smoke import CheckResult, judge_result
from attncheck.rehearsal.worker import records
from attncheck.rehearsal.worker.records import RankRecord

# Relative errors that rounding may cause at a step, in float32 and otherwise: Adam enlarges those of the first.
EXACT, LIMITS = ("torch.float32", ""), {1: (1e-3, 1e-2), 2: (1e-2, 5e-2)}
# How near a factor on a gradient is to a number of batches, and the cosine of its direction; no gradient.
FACTOR, NEARLY, NONE = 0.1, 0.9, 1e-12


def compare(message: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
    """Handle a job of the item "twin": compare the records of a launch and its twin in `message["folders"]`.

    The first step that differs is the answer: a running mean differs at the second.
    """
    send({"started": "twin"})
    results = [
        compare_steps([records.read_ranks(Path(folder), step) for folder in message["folders"]], step, **message["how"])
        for step in LIMITS
    ]
    faulty = [result for result in results if judge_result(result) in ("fail", "warn")]
    send({"item": "twin", "answer": codec.to_plain((faulty or results)[0])})


def compare_steps(ranks: Sequence[Sequence[RankRecord]], step: int, change: str, is_defined: bool) -> CheckResult:
    """Return whether a launch's step has the gradient of its twin's, and the first part that differs.

    `is_defined`: the documented loss of a row depends on its micro-batch.
    """
    first, twin = ranks
    (tokens, labels, norms), others = map(_list_tokens, ranks)
    if not len(tokens) or not tokens.equal(others[0]):
        return CheckResult("twin", "skipped", f"{change}: the step of the twin takes other rows")
    limit = LIMITS[step][(first[0].calls[0].description["dtype"], first[0].calls[0].description["autocast"]) != EXACT]
    weights, gradients = ([_join(getattr(own[0], name)) for own in ranks] for name in ("weights", "gradients"))
    given, norm = (float(gradient.norm()) for gradient in gradients)
    if _differs(weights[0], weights[1], limit / 10) or len(gradients[0]) != len(gradients[1]) or not norm > NONE:
        return CheckResult("twin", "skipped", f"{change}: the twin has other weights, or no gradient")
    ratio, cosine = given / norm, float(gradients[0] @ gradients[1]) / (norm * given or 1.0)
    losses = [sum(sum(record.losses) for record in own) / len(own) for own in ranks]
    differ = (
        not labels.equal(others[1]),
        _differs(norms, others[2], limit),
        abs(losses[0] - losses[1]) > limit * abs(losses[1]),
        abs(ratio - 1) > limit or cosine < 1 - limit / 10,
    )
    text = f"{change}: the same rows of step {step} give {ratio:.3g} times the gradient (cosine {cosine:.4f})"
    notes = tuple(f"the trainer's loss: {place}" for place in first[0].code.get("trainer", ()))
    if not differ[-1]:
        return CheckResult("twin", notes=(text, *notes))
    text += ("; labels", "; hidden states", "; losses", "; gradients")[differ.index(True)] + " differ first"
    count = len(first[0].losses) / max(1, len(twin[0].losses))
    if change != HALVES or (cosine > NEARLY and min(abs(ratio / count - 1), abs(ratio * count - 1)) < FACTOR):
        return CheckResult("twin", violations=(text,), notes=notes)
    text += ": a row's part depends on the other rows of its micro-batch"
    return CheckResult("twin", warnings=() if is_defined else (text,), notes=(text,) * is_defined + notes)


def _list_tokens(ranks: Sequence[RankRecord]) -> list[Tensor]:
    """Return a step's tokens, its predicted labels, and the norms of its hidden states, each sorted.

    So it is the same whether rows are padded, or joined.
    """
    parts: list[list[Tensor]] = [[torch.zeros(0)], [torch.zeros(0)], [torch.zeros(0)]]
    for call in (call for record in ranks for call in record.calls):
        ids = call.input_ids
        given = {name: value for name, value in call.tensors.items() if value.shape == ids.shape}
        seen, labels = given.get("attention_mask", torch.ones_like(ids)).bool(), given.get("labels", ids[:, :0])[:, 1:]
        norms = call.hidden.norm(dim=-1) if call.hidden is not None else ids[:0]
        own = (ids[seen], labels[labels >= 0], norms[seen] if norms.shape == ids.shape else ids[:0, 0])
        parts = [[*part, values] for part, values in zip(parts, own)]
    return [torch.cat(part).sort().values for part in parts]


def _differs(own: Tensor, other: Tensor, limit: float) -> bool:
    """Return whether two tensors differ; they do not if one was not recorded."""
    return own.shape == other.shape and float((own - other).norm()) > limit * float(other.norm())


def _join(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([torch.zeros(0), *(tensors[key].double().flatten() for key in sorted(tensors))])
