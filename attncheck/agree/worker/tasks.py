"""The tasks of the workers: the engine generates in one process, the trainer's scoring is judged in another.

Both use one folder for the results of the first: `rollouts.pt`, and for a launch whose own code scores,
`documents.json` and its data. The results of the launch's code are there too, in `watch/`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attncheck.core import codec
from attncheck.core.agreement import Rollout, Scoring

Send = Callable[[dict[str, Any]], None]
FILE = "rollouts.pt"
DOCUMENTS = 16  # documents for a launch whose own code scores: more than one of its batches holds


def generate(message: dict[str, Any], send: Send) -> None:
    """Handle the item "generate": make the models and prompts, then start the engine and generate.

    If the engine cannot start, the answer is its error.
    """
    from attncheck.smoke.worker.models import build

    build.stay_offline()
    import torch

    from attncheck.agree.worker import engines, models
    from attncheck.attention.device import describe_exception, open_device

    device = open_device(message, send).kind
    stage = Path(message["stage"])
    rollout = codec.read(Rollout, message["rollout"])
    send({"started": "generate"})
    try:
        for name, path in message["small"]:
            models.prepare_small(name, Path(path), rollout.seed)
    except build.Unbuildable as error:
        send({"unanswered": str(error)})
        return
    documents: list[dict[str, Any]] = []
    if message["form"]:
        documents, prompts = _make_documents(Path(message["trainer_model"]), message["form"], stage, rollout.seed)
    else:
        prompts = models.make_prompts(Path(message["trainer_model"]), bool(message["small"]), rollout.seed)
    send({"step": f"{rollout.engine} starts and generates"})
    try:
        engine = engines.ENGINES[rollout.engine](message["engine_model"], rollout, device)
        generated = engine.generate(prompts)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # an engine may raise any exception
        send({"unanswered": f"the engine {rollout.engine} did not generate: {describe_exception(error)}"})
        return
    torch.save(generated, stage / FILE)
    if documents:
        responses = [list(sample.response) for sample in generated.samples]
        answered = [{**own, "response": response} for own, response in zip(documents, responses, strict=True)]
        (stage / "documents.json").write_text(json.dumps(answered))
    send({"item": "generate", "answer": {"version": generated.version}})


def _make_documents(folder: Path, form: Any, stage: Path, seed: int) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """Write a data set for the launch; return its documents, and the prompts as the launch tokenizes them."""
    from transformers import AutoTokenizer

    from attncheck.rehearsal.drivers.rollouts import make_rollout
    from attncheck.rehearsal.worker import materials

    documents, rows = materials.make_data(DOCUMENTS, seed, form)
    materials.save_rows(rows, stage)
    if form == "prompt_texts":  # without a chat template; word 5 is token 5
        return documents, [document["turns"][0][1] for document in documents]
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    rollouts = [make_rollout(number, document, tokenizer) for number, document in enumerate(documents)]
    return documents, [list(rollout.prompt) for rollout in rollouts]


def judge(message: dict[str, Any], send: Send) -> None:
    """Handle the item "judge": score the generated samples as the trainer does, and compare."""
    from attncheck.smoke.worker.models import build

    build.stay_offline()
    import torch

    from attncheck.agree.worker import judging
    from attncheck.attention.device import open_device

    device = open_device(message, send).kind
    rollout, plan = codec.read(Rollout, message["rollout"]), codec.read(Scoring, message["scoring"])
    send({"started": "judge"})
    generated = torch.load(Path(message["stage"]) / FILE, weights_only=False)
    own = judging.read_own(Path(message["stage"]) / "watch") if message["form"] else {}
    result = judging.judge(
        message["trainer_model"],
        message["other_model"],
        generated,
        own,
        rollout,
        plan,
        device,
        lambda text: send({"step": text}),
    )
    send({"item": "judge", "answer": codec.to_plain(result)})
