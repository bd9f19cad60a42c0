"""The tasks of the workers: the engine generates in one process, the trainer's scoring is judged in another.

What the first made lies in a folder that both are given: `rollouts.pt`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from attncheck.core import codec
from attncheck.core.agreement import Rollout, Scoring

Send = Callable[[dict[str, Any]], None]
FILE = "rollouts.pt"


def generate(message: dict[str, Any], send: Send) -> None:
    """Serve the item "generate": make the models and prompts, then start the engine and generate.

    An engine that cannot start is the answer: its own error.
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
    prompts = models.make_prompts(Path(message["trainer_model"]), bool(message["small"]), rollout.seed)
    send({"step": f"{rollout.engine} starts and generates"})
    try:
        engine = engines.ENGINES[rollout.engine](message["engine_model"], rollout, device)
        generated = engine.generate(prompts)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # an engine raises what it likes
        send({"unanswered": f"the engine {rollout.engine} did not generate: {describe_exception(error)}"})
        return
    torch.save(generated, stage / FILE)
    send({"item": "generate", "answer": {"version": generated.version}})


def judge(message: dict[str, Any], send: Send) -> None:
    """Serve the item "judge": score what was generated as the trainer does, and compare."""
    from attncheck.smoke.worker.models import build

    build.stay_offline()
    import torch

    from attncheck.agree.worker import judging
    from attncheck.attention.device import open_device

    device = open_device(message, send).kind
    rollout, plan = codec.read(Rollout, message["rollout"]), codec.read(Scoring, message["scoring"])
    send({"started": "judge"})
    generated = torch.load(Path(message["stage"]) / FILE, weights_only=False)
    result = judging.judge(
        message["trainer_model"],
        message["other_model"],
        generated,
        rollout,
        plan,
        device,
        lambda text: send({"step": text}),
    )
    send({"item": "judge", "answer": codec.to_plain(result)})
