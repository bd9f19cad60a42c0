"""Scales down a launch of EasyR1, or of a fork of it, to the actor's update, and determines its objective.

The launch's own command composes its configuration. Then `attncheck.rehearsal.drivers.easyr1` replaces Ray, the rollout
engine and the reward: it builds the actor of the tree next to the launch and passes it rollouts.

Sources, EasyR1 b44b311: examples/config.yaml, workers/actor/config.py (keys), trainer/core_algos.py (`average_loss`,
`compute_policy_loss`), workers/actor/dp_actor.py:268 (a micro-batch's mean has the weight of its tokens; earlier
releases give each the same weight).
"""

import os

from attncheck.lint.fields import Job, Launch
from attncheck.lint.fields.cutting import (
    LEARNING_RATE,
    WITHOUT_CUDA,
    JobCut,
    Materials,
    Normalisation,
    Objective,
    PolicyGradient,
    is_number,
)
from attncheck.lint.frameworks.easyr1.settings import ACTOR, MODEL_PATH
from attncheck.lint.frameworks.verl.policy_rehearsal import LENGTH, OLD_ACTOR, ROWS, find_tree, read_value

RATIO_LOSSES, LOG_LOSSES = ("default", "gspo", "gspo_token"), ("cispo",)
WEIGHTED = "total_response_tokens"  # in the source of an actor that weights micro-batches by their tokens
CPU_DEVICE = {"ATTNCHECK_WITHOUT_GPU": "1", "TORCHDYNAMO_DISABLE": "1"}
STANDS_FOR = (
    "only EasyR1's actor is updated, with synthetic rollouts: no rollout engine, reward or Ray",
    "the actor runs without its worker: DDP replaces FSDP, autocast its mixed precision, and Ulysses is left out",
)


def cut(launch: Launch, job: Job, materials: Materials) -> JobCut | str:
    """Return the scaled-down launch of `verl.trainer.main`; or why it is not rehearsed."""
    tree = os.path.abspath(find_tree(launch) or "")
    source = os.path.join(tree, "verl", OLD_ACTOR)
    if not os.path.isfile(source):
        return "the verl of EasyR1, which is not released, is not next to the launch"
    loss, mean = read_value(job, f"{ACTOR}.loss_type", "default"), read_value(job, f"{ACTOR}.loss_avg_mode", "token")
    temperature = read_value(job, "worker.rollout.temperature", "1.0")
    if loss not in (*RATIO_LOSSES, *LOG_LOSSES) or mean != "token":
        return f"EasyR1's loss {loss} with the mean {mean} is not rehearsed yet"
    if not is_number(temperature):
        return f"worker.rollout.temperature={temperature}: known only at run time, so the loss cannot be rehearsed"
    ranks = min(getattr(job.world_size, "value", 1), materials.processes)
    responses = 1 if read_value(job, "worker.rollout.n", "1") == "1" else 2  # per prompt
    prompts = str(ROWS * ranks // responses)
    sets = {
        MODEL_PATH: materials.model,
        "data.rollout_batch_size": prompts,
        "data.max_prompt_length": str(LENGTH),
        "data.max_response_length": str(LENGTH),
        f"{ACTOR}.global_batch_size": prompts,
        f"{ACTOR}.micro_batch_size_per_device_for_update": str(materials.batch),
        f"{ACTOR}.micro_batch_size_per_device_for_experience": str(materials.batch),
        f"{ACTOR}.optim.lr": LEARNING_RATE,
        "worker.rollout.n": str(responses),
        "trainer.nnodes": "1",
        "trainer.n_gpus_per_node": str(ranks),
        "trainer.save_checkpoint_path": materials.output,
    }
    with open(source, encoding="utf-8", errors="replace") as stream:
        means: tuple[Normalisation, ...] = ("step_tokens",) if WEIGHTED in stream.read() else ("batch_tokens",)
    policy = PolicyGradient(of_ratio=loss in RATIO_LOSSES, temperature=float(temperature))
    return JobCut(
        sets,
        "messages",
        Objective("assistant", means, f"the launch's EasyR1, trainer/core_algos.py: {loss}, {mean}", policy),
        environ={"PYTHONPATH": tree} if materials.uses_gpu else {**WITHOUT_CUDA, **CPU_DEVICE, "PYTHONPATH": tree},
        emulates_flash_attn=not materials.uses_gpu,  # flash_attention_2 is fixed in the worker's code
        driver="easyr1",
        whole_rows="the actor's worker is not run",
        remarks=STANDS_FOR,
    )
