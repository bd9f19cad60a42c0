"""Synthetic rollouts: a prompt and a response made of the documents' words, and the response's advantage."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

ABSENT = re.compile(r"""key "(\w+)" not found in """)  # tensordict 0.10.0 base.py:6892


@dataclass(frozen=True)
class Rollout:
    """One rollout: `prompt` and `response` are tokens; `advantage` applies to each token of the response."""

    document: int
    prompt: tuple[int, ...]
    response: tuple[int, ...]
    advantage: float


def read_documents() -> list[Mapping[str, Any]]:
    """Return the documents of the rehearsal: {"turns": [["user", [3, 17, …]], ["assistant", …]], "advantage": 0.5}.

    Documents with an engine's answer also have its tokens: "response".
    """
    with open(os.environ["ATTNCHECK_DOCUMENTS"]) as stream:
        documents: list[Mapping[str, Any]] = json.load(stream)
    return documents


def count_steps() -> int:
    """Return the number of updates of the rehearsal."""
    return int(os.environ["ATTNCHECK_STEPS"])


def make_rollout(number: int, document: Mapping[str, Any], tokenizer: Any) -> Rollout:
    """Return a document as a rollout: its question in the chat template's format, its answer with the EOS token.

    The answer is the engine's response if there is one. A word of the language is the token with the word's number.
    """
    (_, question), (_, answer) = document["turns"]
    message = {"role": "user", "content": " ".join(f"w{word}" for word in question)}
    text = tokenizer.apply_chat_template([message], add_generation_prompt=True, tokenize=False)
    prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
    response = document.get("response") or (*answer, tokenizer.eos_token_id)
    return Rollout(number, tuple(prompt), tuple(response), float(document.get("advantage", 0.0)))


def iter_steps(rows: int, rank: int, ranks: int, tokenizer: Any) -> Iterator[list[Rollout]]:
    """Yield a rank's rollouts of each update, `rows` of the next documents."""
    documents = read_documents()
    for step in range(count_steps()):
        first = (step * ranks + rank) * rows
        numbers = [number % len(documents) for number in range(first, first + rows)]
        yield [make_rollout(number, documents[number], tokenizer) for number in numbers]


def lay_padded(rollouts: Sequence[Rollout], width: int = 0, length: int = 0) -> tuple[Any, Any, Any]:
    """Return rollouts with prompts padded on the left to `width` tokens, and responses on the right to `length`.

    They are tokens and an attention mask (rows, tokens), and a mask of the responses (rows, length).
    """
    import torch

    sizes = torch.tensor([[len(own.prompt), len(own.response)] for own in rollouts])
    width, length = width or int(sizes[:, 0].max()), length or int(sizes[:, 1].max())
    rows = [(width - len(own.prompt), (*own.prompt, *own.response)) for own in rollouts]
    tokens = torch.tensor([[0] * left + [*row] + [0] * (width + length - left - len(row)) for left, row in rows])
    seen, mask = torch.arange(width) >= width - sizes[:, :1], torch.arange(length) < sizes[:, 1:]
    return tokens, torch.cat([seen, mask], dim=1).long(), mask.long()


@contextmanager
def name_absent_value() -> Iterator[None]:
    """End the process with the name of a value that an actor reads from a batch, and synthetic rollouts lack."""
    try:
        yield
    except KeyError as error:
        absent = ABSENT.search(str(error))
        if absent is None:
            raise
        sys.exit(f"error: the actor reads {absent[1]} from its batch; only the launch's own rollouts have it")


class RolloutRecord:
    """One rank's rollouts in each step, and its framework's log-probabilities of the responses."""

    def __init__(self, rank: int) -> None:
        self._path = os.path.join(os.environ["ATTNCHECK_WATCH"], f"rollouts-{rank}.json")
        self._steps: list[list[dict[str, Any]]] = []

    def add_step(self, rollouts: Sequence[Rollout], log_probabilities: Sequence[Sequence[float]]) -> None:
        """Record a step: for each rollout, the log-probability of each token of its response."""
        self._steps.append(
            [
                {**vars(rollout), "log_probabilities": list(values)}
                for rollout, values in zip(rollouts, log_probabilities)
            ]
        )
        with open(f"{self._path}.part", "w") as stream:
            json.dump({"steps": self._steps}, stream)
        os.rename(f"{self._path}.part", self._path)
