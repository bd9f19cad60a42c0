"""verl's arithmetic of batches, token budgets and parallel sizes: what it asserts, before or in the first step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attncheck.core.arithmetic import largest_divisor
from attncheck.core.facts import Known
from attncheck.core.job import Job, SettingProblem
from attncheck.lint.frameworks.verl.roles import ACTOR, REF, SIZE, Roles

ROLLOUT = "actor_rollout_ref.rollout"
APART = ("one_step_off_ppo", "fully_async_ppo")


def batches(roles: Roles, job: Job) -> Iterator[SettingProblem]:
    """Yield the assertions that the sizes of the launch fail."""
    world = job.world_size.value if isinstance(job.world_size, Known) else 0
    if not roles.reinforcement:
        yield from _fine_tuning(roles, job, world)
        return
    yield from _micro_batches_given(roles)
    yield from _train_batch(roles)
    yield from _budgets(roles, job)
    if world > 0 and not roles.given.config.startswith(APART):
        yield from _real_batch(roles, world)
        yield from _mini_batch(roles, job, world)
        yield from _parallel(roles, world)


def _refuses(message: str, evidence: str, roles: Roles, *keys: str, **more: object) -> SettingProblem:
    sets = more.get("sets")
    return SettingProblem(
        "refuses",
        message,
        (evidence,),
        roles.values.place(*keys),
        dict(sets) if isinstance(sets, Mapping) else {},
        str(more.get("advice", "")),
        mild=bool(more.get("mild", False)),
    )


def _dynamic(roles: Roles, owner: str = ACTOR) -> bool:
    return roles.values.on(f"{owner}.use_dynamic_bsz")


def _micro_batches_given(roles: Roles) -> Iterator[SettingProblem]:
    """Yield where neither form of a micro batch is given, or both are."""
    wanted = [(ACTOR, "ppo_micro_batch_size", ACTOR), (ROLLOUT, "log_prob_micro_batch_size", ACTOR)]
    if roles.reference:
        wanted.append((REF, "log_prob_micro_batch_size", ACTOR))
    if roles.critic:
        wanted.append(("critic", "ppo_micro_batch_size", "critic"))
    for owner, name, decides in wanted:
        plain, each = f"{owner}.{name}", f"{owner}.{name}_per_gpu"
        if _dynamic(roles, decides) or plain not in roles.values.held:
            continue
        given = [key for key in (plain, each) if roles.values.get(key) is not None]
        if len(given) == 1:
            continue
        yield _refuses(
            f"{plain} and {each} are both {'set' if given else 'unset'}: one is wanted",
            f"verl 0.9.1 workers/config/actor.py:199, utils/config.py:148: Please set at least one of '{plain}' or …",
            roles,
            *given,
            f"{decides}.use_dynamic_bsz",
            advice=f"{each} alone" if given else f"{each}=1, or {decides}.use_dynamic_bsz=True",
        )


def _train_batch(roles: Roles) -> Iterator[SettingProblem]:
    """Yield where a mini batch is larger than the batch."""
    train = roles.values.known("data.train_batch_size")
    for owner in (ACTOR, *(["critic"] if roles.critic else [])):
        mini = roles.values.known(f"{owner}.ppo_mini_batch_size")
        if train is None or mini is None or _dynamic(roles, owner) or train >= mini:
            continue
        yield _refuses(
            f"data.train_batch_size={train} is less than {owner}.ppo_mini_batch_size={mini}",
            "verl 0.9.1 workers/config/actor.py:225: train_batch_size (…) must be >= actor.ppo_mini_batch_size (…)",
            roles,
            f"{owner}.ppo_mini_batch_size",
            "data.train_batch_size",
            sets={f"{owner}.ppo_mini_batch_size": str(train)},
        )


def _real_batch(roles: Roles, world: int) -> Iterator[SettingProblem]:
    """Yield where prompts times answers do not divide among the GPUs."""
    held = roles.values
    rows = held.number("data.train_batch_size") * held.number(f"{ROLLOUT}.n", default=1)
    least = world
    if roles.strategy == "megatron":
        product = _product(roles)
        if world % product:
            return
        least = world // product * max(held.number(*roles.batches(), default=1), 1)
    if rows < 1 or rows % least == 0 or (_dynamic(roles) and roles.since("0.6.0")):
        return
    yield _refuses(
        f"data.train_batch_size × {ROLLOUT}.n = {rows} does not divide by {least}",
        "verl 0.9.1 utils/config.py:117: real_train_batch_size (…) must be divisible by minimal possible batch size",
        roles,
        "data.train_batch_size",
        f"{ROLLOUT}.n",
        "trainer.n_gpus_per_node",
    )


def _mini_batch(roles: Roles, job: Job, world: int) -> Iterator[SettingProblem]:
    """Yield where the mini batch of one rank does not divide into micro batches."""
    yield from _mini_batch_of(roles, ACTOR, world, job.plan.ring_size)
    if roles.critic:
        yield from _mini_batch_of(roles, "critic", world, max(roles.values.number(f"critic.{SIZE}", default=1), 1))


def _mini_batch_of(roles: Roles, owner: str, world: int, size: int) -> Iterator[SettingProblem]:
    held = roles.values
    mini, answers = held.known(f"{owner}.ppo_mini_batch_size"), held.known(f"{ROLLOUT}.n")
    micro = held.number(f"{owner}.ppo_micro_batch_size_per_gpu")
    if not roles.fsdp or mini is None or answers is None or world % size:
        return
    ranks = world // size
    rows, uneven = divmod(mini * answers, ranks)
    named = f"{owner}.ppo_mini_batch_size={mini} × {ROLLOUT}.n={answers} over {ranks} data-parallel ranks"
    keys = (f"{owner}.ppo_mini_batch_size", f"{owner}.ppo_micro_batch_size_per_gpu", f"{ROLLOUT}.n")
    if rows == 0 or (uneven and roles.since("0.8.0")):
        where = "workers/engine_workers.py:267" if roles.since("0.8.0") else "workers/fsdp_workers.py:251 (0.7.1)"
        yield _refuses(
            f"{named}: not a whole number of rows on each", f"verl {where}: assert mini_batch_size …", roles, *keys
        )
    elif micro > 0 and rows % micro and (not _dynamic(roles, owner) or not roles.since("0.8.0")):
        where = "workers/engine/utils.py:127 (0.9.1)" if roles.since("0.8.0") else "workers/fsdp_workers.py:263 (0.7.1)"
        best = largest_divisor(rows, micro)
        yield _refuses(
            f"{named}: {rows} rows on each do not divide into micro batches of {micro}",
            f"verl {where}: assert … % micro_batch_size_per_gpu == 0",
            roles,
            *(keys[1], keys[0]),
            sets={f"{owner}.ppo_micro_batch_size_per_gpu": str(best)},
        )


def _budgets(roles: Roles, job: Job) -> Iterator[SettingProblem]:
    """Yield token budgets that the longest row does not fit into."""
    if not roles.fsdp:
        return
    size = job.plan.ring_size
    budgets = [(ACTOR, f"{ACTOR}.ppo_max_token_len_per_gpu", size, f"{ACTOR}.use_dynamic_bsz")]
    budgets += [
        (owner, f"{owner}.log_prob_max_token_len_per_gpu", size, f"{owner}.log_prob_use_dynamic_bsz")
        for owner in (REF, ROLLOUT)
        if roles.values.written(f"{owner}.log_prob_max_token_len_per_gpu")
    ]
    if roles.critic:
        own = max(roles.values.number(f"critic.{SIZE}", default=1), 1)
        budgets.append(("critic", "critic.ppo_max_token_len_per_gpu", own, "critic.use_dynamic_bsz"))
    for _, key, ranks, switch in budgets:
        budget = roles.values.known(key)
        length = job.plan.max_length
        if budget is None or not roles.values.on(switch) or budget * ranks >= length:
            continue
        times = f" × {ranks} ranks of Ulysses" if ranks > 1 else ""
        late = roles.since("0.8.0")
        yield _refuses(
            f"{key}={budget}{times} holds no row of {length} tokens (prompt and response)"
            + ("; it stops at the first one as long as that" if late else ""),
            "verl 0.9.1 utils/seqlen_balancing.py:384: max_token_len must be greater than the sequence length; the "
            "budget is the value times the ranks (workers/engine/utils.py:112)",
            roles,
            key,
            "data.max_response_length",
            sets={key: str(-(-length // ranks))},
            mild=late,
        )


def _parallel(roles: Roles, world: int) -> Iterator[SettingProblem]:
    """Yield parallel sizes that do not divide the GPUs."""
    held = roles.values
    product = _product(roles)
    if roles.strategy == "megatron" and world % product:
        yield _refuses(
            f"{world} GPUs do not divide by tensor × pipeline × context parallel = {product}",
            "verl 0.9.1 utils/config.py:103-110: n_gpus (…) must be divisible by model_parallel_size (…) times …",
            roles,
            *(f"{roles.engine}.{name}" for name in MEGATRON),
            "trainer.n_gpus_per_node",
        )
    names = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")
    rollout = 1
    for name in names:
        rollout *= max(held.number(f"{ROLLOUT}.{name}", default=1), 1)
    if world % rollout and held.get("actor_rollout_ref.hybrid_engine") is not False:
        fits = largest_divisor(world, rollout)
        yield _refuses(
            f"{ROLLOUT}.tensor_model_parallel_size (the rollout takes {rollout} GPUs) does not divide {world} GPUs",
            "verl 0.9.1 workers/engine_workers.py:659: rollout world_size: … is not divisible by infer_world_size: …",
            roles,
            f"{ROLLOUT}.tensor_model_parallel_size",
            "trainer.n_gpus_per_node",
            sets={f"{ROLLOUT}.tensor_model_parallel_size": str(fits)},
        )


MEGATRON = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


def _product(roles: Roles) -> int:
    product = 1
    for name in MEGATRON:
        product *= max(roles.values.number(f"{roles.engine}.{name}", default=1), 1)
    return product


def _fine_tuning(roles: Roles, job: Job, world: int) -> Iterator[SettingProblem]:
    """Yield where the batch of fine-tuning does not divide among ranks and micro batches."""
    held, size = roles.values, job.plan.ring_size
    batch, micro = held.known("data.train_batch_size"), held.known("data.micro_batch_size_per_gpu")
    if batch is None or micro is None or micro < 1 or world < 1 or world % size or not roles.fsdp:
        return
    ranks = world // size
    rows, uneven = divmod(batch, ranks)
    named = f"data.train_batch_size={batch} over {ranks} data-parallel ranks"
    if rows == 0 or (uneven and roles.old_sft):
        where = "trainer/fsdp_sft_trainer.py:112 (0.4.1)" if roles.old_sft else "trainer/sft_trainer.py:241"
        text = (
            "is not divisible by dp size" if roles.old_sft else "train_batch_size_per_dp = global_batch_size // dp_size"
        )
        yield _refuses(
            f"{named}: not a whole number of rows on each", f"verl {where}: {text}", roles, "data.train_batch_size"
        )
    elif rows % micro and (roles.old_sft or not held.on("data.use_dynamic_bsz")):
        where = "trainer/fsdp_sft_trainer.py:116 (0.4.1)" if roles.old_sft else "workers/engine/utils.py:127 (0.9.1)"
        best = largest_divisor(rows, micro)
        yield _refuses(
            f"{named}: {rows} rows on each do not divide into micro batches of {micro}",
            f"verl {where}: assert … % micro_batch_size_per_gpu == 0",
            roles,
            "data.micro_batch_size_per_gpu",
            "data.train_batch_size",
            sets={"batch": str(best)},
        )
