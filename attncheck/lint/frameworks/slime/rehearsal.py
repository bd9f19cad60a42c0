"""Scales down a launch of slime to its loss of synthetic rollouts, and determines its objective.

`attncheck.rehearsal.drivers.slime` replaces Ray, the rollout engine and Megatron: slime's own options and loss run on a
small model of transformers. Therefore only the loss and its gradients are judged.

Sources, slime v0.3.1 (v0.2.2 and v0.3.0 are the same): backends/megatron_utils/loss.py (`policy_loss_function`,
`sft_loss_function`; `loss_function`: the mean over samples of each one's mean, or with --calculate-per-token-loss over
the tokens of all), utils/ppo_utils.py (`compute_policy_loss`, `compute_cispo_loss`), utils/arguments.py.
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
from attncheck.lint.frameworks.easyr1.rehearsal import CPU_DEVICE
from attncheck.lint.frameworks.megatron.options import parse_launch_options
from attncheck.lint.frameworks.verl.policy_rehearsal import ROWS, find_tree

LOSS = os.path.join("backends", "megatron_utils", "loss.py")
OWN_CODE = (  # the launch's own functions, or a file of options, decide the loss
    *("custom-loss-function-path", "custom-pg-loss-reducer-function-path", "custom-tis-function-path"),
    *("custom-config-path", "custom-advantage-function-path"),
)
DECISIVE = ("rollout-temperature", "loss-type", "advantage-estimator")
STANDS_FOR = (
    "only slime's loss is computed, with synthetic rollouts and advantages: no Megatron, rollout engine, reward or Ray",
    "the loss is judged without its KL term, its entropy and top-p, which are off in the rehearsal",
)


def cut(launch: Launch, job: Job, materials: Materials) -> JobCut | str:
    """Return the scaled-down launch of slime's `train.py`; or why it is not rehearsed."""
    options, tree = parse_launch_options(launch), find_tree(launch, "slime", LOSS)
    advice = "attncheck lint judges its settings, attncheck parity its attention"
    if tree is None or options.get_text("train-backend") == "fsdp":
        reason = f"slime/{LOSS} is not next to the launch" if tree is None else "slime's FSDP backend is not rehearsed"
        return f"{reason}, which a rehearsal drives; {advice}"
    unclear = [*filter(options.has_any, OWN_CODE)]
    unclear += [name for name in DECISIVE if options.has_any(name) and not options.get_text(name)]
    if unclear:
        return f"--{unclear[0]}: only the launch knows its loss, so it cannot be rehearsed; {advice}"
    ranks = min(getattr(job.world_size, "value", 1), materials.processes)
    sizes = (size for size in range(min(materials.batch + 1, ROWS), ROWS) if ROWS % size == 0)
    is_policy, is_mean = job.trainer != "sft", not options.is_on("calculate-per-token-loss")
    written = options.get_text("rollout-temperature")
    temperature = float(written) if is_number(written) else 1.0  # slime's parser refuses other values
    means: tuple[Normalisation, ...] = ("document_tokens",) if is_mean else ("step_tokens",)
    policy = PolicyGradient(of_ratio=job.trainer != "cispo", temperature=temperature) if is_policy else None
    return JobCut(
        {
            "--hf-checkpoint": materials.model,
            "--actor-num-nodes": "1",
            "--actor-num-gpus-per-node": str(ranks),
            "batch": str(next(sizes, ROWS)),
            "global_batch": str(ROWS * ranks),
            "lr": LEARNING_RATE,
        },
        "messages",
        Objective("assistant", means, f"the launch's slime, {LOSS}: {job.trainer}", policy),
        environ={**({} if materials.uses_gpu else {**WITHOUT_CUDA, **CPU_DEVICE}), "PYTHONPATH": os.path.abspath(tree)},
        program="attncheck_drivers.slime",
        driver="slime",
        whole_rows="Megatron does not run",
        remarks=STANDS_FOR,
    )
