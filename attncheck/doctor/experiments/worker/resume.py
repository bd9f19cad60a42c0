"""Measures whether training that resumes from a checkpoint continues as if it had not been interrupted.

It runs in a child of the examined interpreter, knows nothing of attncheck, and writes to a temporary folder alone.
"""

from __future__ import annotations

from typing import Any

from .frameworks import Maker

DOCUMENTS = [[(5 * number + 3 * place) % 50 for place in range(6)] for number in range(6)]  # of one length
SAVED, LAST = 8, 12  # steps: the checkpoint is inside the second epoch, which has another order than the first


def measure_resume(make: Maker, folder: str) -> dict[str, float]:
    """Return the share of steps after the checkpoint that get the same documents as without an interruption ("same").

    And the distance between the final weights of the two runs, over the distance that these steps moved them ("drift").
    """
    whole = make(folder, DOCUMENTS, "padded", "sdpa", 1, 1)
    expected, saved, end = _train(whole)
    resumed = make(folder, DOCUMENTS, "padded", "sdpa", 1, 1)
    documents, _, other_end = _train(resumed, f"{whole.args.output_dir}/checkpoint-{SAVED}")
    return {
        "same": sum(a == b for a, b in zip(expected[SAVED:], documents)) / (LAST - SAVED),
        "drift": float((other_end - end).norm() / (end - saved).norm()),
    }


def _train(trainer: Any, checkpoint: str | None = None) -> tuple[list[list[int]], Any, Any]:
    """Train to the last step, from a checkpoint if there is one.

    Return the tokens of each step, and the weights before step SAVED + 1 (if it is taken) and at the end.
    """
    seen: list[list[int]] = []
    saved: list[Any] = []

    def record(module: Any, arguments: Any, inputs: dict[str, Any]) -> None:
        if len(seen) == SAVED:
            saved.append(_read_weights(trainer))
        seen.append(inputs["input_ids"].flatten().tolist())

    settings = {
        "max_steps": LAST, "save_strategy": "steps", "save_steps": SAVED, "save_only_model": False,
        "max_epochs": None,  # read by a callback that importing ms-swift installs for every Trainer
    }  # fmt: skip
    for name, value in settings.items():
        setattr(trainer.args, name, value)
    trainer.model.register_forward_pre_hook(record, with_kwargs=True)
    trainer.train(resume_from_checkpoint=checkpoint)
    return seen, saved[0] if saved else None, _read_weights(trainer)


def _read_weights(trainer: Any) -> Any:
    import torch

    return torch.cat([parameter.detach().float().flatten() for parameter in trainer.model.parameters()])
