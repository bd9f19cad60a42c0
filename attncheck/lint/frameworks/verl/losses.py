"""Releases of verl with an unintended loss: because of the number of micro-batches, their weights, or a mask's shift.

With Ulysses, a global batch goes to fewer groups of ranks, and each group has more micro-batches. If each micro-batch's
mean has the same weight, documents of unequal length get other weights than on a single rank (verl-project/verl#2857).
"""

from collections.abc import Iterator

from attncheck.lint.fields import Constraint, Job, Known, SettingProblem
from attncheck.lint.frameworks.verl import constraints
from attncheck.lint.frameworks.verl.roles import ACTOR, LaunchConfig

BALANCE, CONVERSATIONS, TEMPERATURE = (
    "data.balance_dp_token",
    "data.multiturn.enable",
    "actor_rollout_ref.rollout.temperature",
)
# Losses that use loss_agg_mode; geo_mean and gspo take the mean over rows (verl 0.5.0 trainer/ppo/core_algos.py).
TOKEN_MEAN_LOSSES = ("vanilla", "gpg", "clip_cov", "kl_cov")


def find_loss_problems(config: LaunchConfig, job: Job) -> Iterator[SettingProblem]:
    """Yield the problem if the loss depends on the number of ranks or micro-batches, or the mask shifts the targets."""
    if config.values.is_on("trainer.val_only"):  # it only evaluates (verl 0.9.1 trainer/ppo/ray_trainer.py:1443)
        return
    yield from _find_summed_micro_batches(config, job)
    yield from _find_moved_targets(config)
    divided = config.find_constraint(constraints.DIVIDED_BY_TEMPERATURE) if config.has_legacy_workers else None
    if divided and config.is_fsdp and config.values.get(TEMPERATURE) == 0:
        yield SettingProblem(
            "wrong",
            f"{TEMPERATURE}=0: logits are divided by it, so log-probabilities are not finite",
            (divided.evidence,),
            config.values.find_location(TEMPERATURE),
            advice="sample with a temperature above 0; validation has its own, val_kwargs.temperature",
        )
    size = job.plan.ring_size
    if size < 2 or not (config.is_fsdp and job.plan.packed):
        return
    unbalanced = config.find_constraint(constraints.BALANCED_TOKENS_UNDER_ULYSSES)
    if unbalanced and config.is_old_sft and config.values.is_on(BALANCE):
        yield SettingProblem(
            "refuses",
            f"{BALANCE}=True with Ulysses over {size} ranks: the first step raises an error",
            (unbalanced.evidence,),
            config.values.find_location(BALANCE, *config.sequence_parallel_keys()),
            {BALANCE: "False"},
        )
    weighted = _find_weighting(config)
    if weighted is not None:
        yield SettingProblem(
            "wrong",
            f"Ulysses over {size} ranks: the loss is the mean of the micro-batches' means, "
            f"so it changes with the number of ranks",
            (weighted.evidence, "micro-batches with fewer tokens count as much as full ones"),
            config.values.find_location(*config.sequence_parallel_keys()),
            advice=_advise(config),
            mild=True,
        )


def _find_summed_micro_batches(config: LaunchConfig, job: Job) -> Iterator[SettingProblem]:
    """Check whether gradients sum over a step's micro-batches instead of averaging.

    Ulysses leaves fewer groups of ranks for a batch, so each group has correspondingly more micro-batches.
    """
    summed = config.find_constraint(constraints.SUM_OF_MICRO_BATCHES)
    count, size = job.plan.accumulation, job.plan.ring_size
    if summed is None or not config.is_old_sft:
        return
    if count > 1:
        message = (
            f"{count} micro-batches per step: gradients are not divided by their number, so they "
            f"are {count} times too large"
        )
    elif size > 1 and not isinstance(job.world_size, Known):
        message = (
            f"Ulysses over {size} ranks: gradients are not divided by the number of micro-batches, "
            f"so they grow with the number of ranks"
        )
    else:
        return
    keys = (*config.batch_keys(), "data.train_batch_size", *config.sequence_parallel_keys())
    yield SettingProblem(
        "wrong",
        message,
        (summed.evidence, "the logged loss is still the mean"),
        config.values.find_location(*keys),
        advice=f"{_advise(config)}; or use one micro-batch per rank and step",
        mild=True,
    )


def _find_moved_targets(config: LaunchConfig) -> Iterator[SettingProblem]:
    """Check whether the mask of the targets is shifted twice, or not at all (verl-project/verl#3287, #3562)."""
    if not config.is_old_sft or config.values.get_text("data.custom_cls.path"):
        return
    has_conversations = config.values.is_on(CONVERSATIONS)
    moved = config.find_constraint(constraints.TARGETS_LATE if has_conversations else constraints.TARGETS_EARLY)
    if moved is None:
        return
    what = (
        "conversations (data.multiturn.enable): the loss mask is off by one: the first token of each "
        "answer is not learned, but the token after its end is"
        if has_conversations
        else "prompt-response rows: the loss mask is off by one: the end of each response is "
        "not learned, but the prompt's last token is"
    )
    advice = "rows of a prompt and a response" if has_conversations else f"{CONVERSATIONS}=True, with conversations"
    yield SettingProblem(
        "wrong",
        f"fsdp_sft_trainer with {what}",
        (moved.evidence,),
        config.values.find_location(CONVERSATIONS, "data.prompt_key", "data.response_key", "data.train_files"),
        advice=f"{advice}; or {_advise(config).partition(',')[0]}",
    )


def _find_weighting(config: LaunchConfig) -> Constraint | None:
    """Return the constraint by which micro-batches weight the loss; None if all tokens have the same weight."""
    if config.is_old_sft:
        return config.find_constraint(constraints.LOSS_OF_MICRO_BATCHES)
    if not config.is_reinforcement:
        return config.find_constraint(constraints.LOSS_OF_MICRO_BATCHES_OF_NEW_SFT)
    mode = config.values.get_text(f"{ACTOR}.loss_agg_mode") or "token-mean"
    policy_loss = config.values.get_text(f"{ACTOR}.policy_loss.loss_mode") or "vanilla"
    is_weighted = config.has_legacy_workers and mode == "token-mean" and policy_loss in TOKEN_MEAN_LOSSES
    return config.find_constraint(constraints.LOSS_OF_MICRO_BATCHES_OF_ACTOR) if is_weighted else None


def _advise(config: LaunchConfig) -> str:
    """Return the advice: a release that divides by the tokens of the whole batch (0.6.1, 0.8.0 workers/…/losses.py)."""
    if config.is_reinforcement:
        return "verl 0.8.0 or newer, whose workers divide by the tokens of the whole batch (not tried here)"
    return "verl 0.6.1 or newer with verl.trainer.sft_trainer, which divides by the tokens of the whole batch"
