"""The task of a smoke worker: several models and plans, one question after another, each answered by a `Proof`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from attncheck.core import codec
from attncheck.core.plan import Plan
from attncheck.core.results.smoke import CheckResult
from attncheck.smoke import checks

Say = Callable[[dict[str, Any]], None]


def smoke(message: dict[str, Any], say: Say) -> None:
    """Serve a job of items "number:question"; every attempt is a model's name and a plan.

    The plans of one job have the same environment variables: they are set before torch is imported.
    """
    attempts = [(name, codec.read(Plan, plan)) for name, plan in message["attempts"]]
    os.environ.update(dict(attempts[0][1].environ))
    from attncheck.smoke.worker.data.fields import BadData
    from attncheck.smoke.worker.models import build as models

    models.stay_offline()
    from attncheck.attention.device import open_device

    device = open_device(message, say)
    known, beds = checks.load()[0], Beds(message, device.kind, say)
    for item in message["items"]:
        number, _, question = item.partition(":")
        say({"started": item})
        began = time.monotonic()
        name, plan = attempts[int(number)]
        try:
            found = answered(known[question], partial(beds.bed, name, plan))
        except (models.Unbuildable, BadData) as error:  # what the user named, not what is asked of it
            say({"unanswered": str(error)})
            return
        seconds = round(time.monotonic() - began, 3)
        say({"item": item, "answer": codec.plain(replace(found, check=question, seconds=seconds))})


class Beds:
    """The beds of a worker, each made when it is first asked for; only the last one is kept."""

    def __init__(self, message: dict[str, Any], device: str, say: Say) -> None:
        self._message, self._device, self._say = message, device, say
        self._key: tuple[str, Plan] | None = None
        self._bed: Any = None

    def bed(self, name: str, plan: Plan) -> Any:
        """Return the bed of a model under a plan. Raises `models.Unbuildable`."""
        if self._key != (name, plan):
            from attncheck.smoke.worker.models import build as models
            from attncheck.smoke.worker.testbed import Bed

            source = models.architecture(name, self._message.get("full", False))
            if self._message.get("data"):
                source, corpus, notes = self._corpus(source, plan)
                self._bed = Bed(source, plan, self._device, self._say, corpus)
                self._bed.notes = notes
            else:
                self._bed = Bed(source, plan, self._device, self._say)
            self._key = (name, plan)
        return self._bed

    def _corpus(self, source: Any, plan: Plan) -> Any:
        """Return the model with a vocabulary for the user's documents, these, and what was noticed in reading them."""
        from attncheck.smoke.worker.data import documents
        from attncheck.smoke.worker.data.corpus import Corpus
        from attncheck.smoke.worker.models import build as models

        notes: list[str] = []
        tokens = plan.max_length * plan.batch * plan.accumulation * plan.steps
        found = documents.documents(
            self._message["data"], source.name, tokens, self._message["data_field"], plan.max_length, notes.append
        )
        if source.weights:
            return source, Corpus(found, source.vocabulary), tuple(notes)
        found, words = documents.compact(found)
        vocabulary = max(models.VOCABULARY, words + models.SPECIAL)
        return replace(source, vocabulary=vocabulary), Corpus(found, words), tuple(notes)


def answered(proof: checks.Proving, bed: Callable[[], Any]) -> CheckResult:
    """Return the answer to a question; what it raises becomes an outcome. Raises `Unbuildable`, `BadData`."""
    import torch

    from attncheck.attention.device import message, out_of_memory
    from attncheck.smoke.worker.data.fields import BadData
    from attncheck.smoke.worker.models.build import Unbuildable

    try:
        return proof.prove(bed())
    except (Unbuildable, BadData):
        raise
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a model, a kernel, a compiler may raise anything
        if out_of_memory(error):
            return CheckResult(proof.name, "out_of_memory", f"{message(error)}; try --max-length or --batch smaller")
        return CheckResult(proof.name, "raised", message(error))
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
