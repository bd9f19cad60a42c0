"""The part of the judge that runs in the job's own process: the reference by a model of the job's own class."""

import copy
import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from attncheck.core import codec
from attncheck.core.rehearsal import Objective
from attncheck.rehearsal.worker.reading import DEVIATIONS, REFERENCE, name_class, read_evidence

CHECKS = "attncheck.rehearsal.worker.checks"
ANSWERED = ("documents", "loss", "gradients")  # checks whose reference only the job's own process has
OTHER_VALUES = "{} computes other values than transformers' {} with the same weights, intentionally or not: {}"


def answer_questions(path: str, model: Any, recorder: Any) -> bool:
    """Write the answers of a job's own model to the questions about its first step, in the job's process.

    Return whether it did: not if the judge can build the model, whose parameters are those of the one in the folder. A
    copy of transformers' class, which has the same names, answers only if it computes other values in isolation; a
    model that the script built from its own configuration has its own sizes.
    """
    from attncheck.rehearsal.worker import adapters, first_module, records, truth

    message, watch = json.loads(Path(path).read_text()), Path(recorder.folder)
    if message["full_model"]:
        return False
    folder, objective = Path(message["stage"]), codec.read(Objective, message["objective"])
    memories: dict[str, Any] = {}

    def supply(kind: torch.dtype, autocast: bool) -> dict[str, Any]:
        own = copy.deepcopy(model, {id(recorder): recorder}).to("cpu", kind).eval()
        own.forward = getattr(own, "_original_forward", own.forward)  # accelerate 1.15.0 accelerator.py: autocast
        return {"model": own, "memory": memories.setdefault(f"{kind} {autocast}", {})}

    with torch.random.fork_rng(devices=[]), without_ranks():
        own_ranks = records.read_ranks(watch)
        small = truth.TruthModel(folder / "model", used=name_class(own_ranks)).model
        weights = adapters.merge_adapters(own_ranks[0].weights, ())
        is_built = any(model is own for own in recorder.built)
        if not is_built and {name for name, _ in small.named_parameters()} <= weights.keys():
            evidence = read_evidence(folder, watch, objective, message)
            piece, error, _ = max(  # of the call whose modules were recorded
                evidence.hidden_errors, key=lambda item: (item[0].call is evidence.step.ranks[0].calls[0], item[1])
            )
            own = truth.TruthModel(folder / "model", **supply(torch.float32, False))
            own.begin(own_ranks[0], own_ranks[0].weights, 0.0, False)
            errors = truth.token_errors(own.describe(piece.tokens).hidden, evidence.describe(piece).hidden)
            if min(error, float(errors.max())) <= evidence.hidden_limit:
                return False
            texts = type(model).__name__, type(small).__name__, *first_module.name_first_module(evidence, piece), "-"
            memories[DEVIATIONS] = [OTHER_VALUES.format(*texts)]
        evidence = read_evidence(folder, watch, objective, message, supply)
        for name in ANSWERED:
            with suppress(Exception):  # the judge comes to the same question
                importlib.import_module(f"{CHECKS}.{name}").run(evidence)
    torch.save(memories, watch / REFERENCE)
    return True


@contextmanager
def without_ranks() -> Iterator[None]:
    """Let a process compute without the other ranks, which go on: it is alone, and no collective waits for them."""
    from torch.distributed import distributed_c10d

    def refuse(*_: Any) -> bool:
        raise NotImplementedError("the other ranks do not compute a reference")

    alone = patch.object(torch.distributed, "is_initialized", lambda: False)
    with alone, patch.object(distributed_c10d, "_rank_not_in_group", refuse):
        yield
