"""What verl does with settings that it cannot serve, read in its wheels (file:line of the release in each entry)."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.facts import Known, value_or
from attncheck.core.job import Job, SettingProblem
from attncheck.core.snapshot import Snapshot
from attncheck.lint.frameworks.verl.batches import batches
from attncheck.lint.frameworks.verl.roles import ACTOR, FLASH, REF, SIZE, Roles

MUST_PACK = "you must enable `use_remove_padding`"
CRITIC_OVERRIDE = "critic.model.override_config.attn_implementation"


def objections(roles: Roles, job: Job, snapshot: Snapshot) -> Iterator[SettingProblem]:
    """Yield what verl will do otherwise than the launch says."""
    yield from _implementation(roles, job)
    yield from _critic(roles, job, snapshot)
    yield from _sequence_parallel(roles, job, snapshot)
    yield from _recurrent(roles, job, snapshot)
    yield from _old_trainer(roles, job)
    yield from _switches(roles)
    yield from batches(roles, job)


def _implementation(roles: Roles, job: Job) -> Iterator[SettingProblem]:
    """Yield where the implementation that is asked for is not heard."""
    key = f"{roles.model}.override_config.attn_implementation"
    asked = roles.values.text(key)
    if asked and asked != "flash_attention_2" and not roles.override_honoured and roles.fsdp:
        where = "trainer/fsdp_sft_trainer.py:244 (0.7.0)" if roles.old_sft else "workers/fsdp_workers.py:319 (0.6.0)"
        yield SettingProblem(
            "ignores",
            f"verl {job.version} trains with flash_attention_2 whatever {key} says: {asked} is not read",
            (
                f'verl {where}: attn_implementation="flash_attention_2"',
                "read from 0.6.1 on (workers/fsdp_workers.py:318)",
            ),
            roles.values.place(key),
            advice="verl 0.6.1 or newer, or a machine with flash-attn",
        )
    nested = f"{roles.model}.override_config.model_config.attn_implementation"
    if roles.values.text(nested) and not asked:
        yield SettingProblem(
            "ignores",
            f"{nested} is not read: verl takes attn_implementation from override_config itself",
            ('verl 0.9.1 workers/config/model.py:185: self.override_config.get("attn_implementation", …)',),
            roles.values.place(nested),
            {"attn_implementation": roles.values.text(nested)},
        )


def _critic(roles: Roles, job: Job, snapshot: Snapshot) -> Iterator[SettingProblem]:
    """Yield where the value model, which is always loaded with flash_attention_2, is asked for something else."""
    if not roles.critic or not roles.fsdp:
        return
    own = roles.values.text(CRITIC_OVERRIDE)
    policy = job.plan.attn_implementation
    # The override may be there for lack of a flash kernel: with another one the critic stops the job.
    if (own or policy) == "flash_attention_2":
        return
    devices = snapshot.visible_devices()
    old = [device for device in devices if value_or(device.compute_capability, (8, 0)) < (8, 0)]
    usable = bool(devices) and not old and snapshot.has("flash-attn")
    yield SettingProblem(
        "replaces" if usable else "refuses",
        f"the critic (algorithm.adv_estimator=gae) is loaded with flash_attention_2, not with {own or policy}",
        (
            'verl 0.9.1 utils/model.py:649, 674 (load_valuehead_model): attn_implementation="flash_attention_2"; '
            "0.2.0.post2 workers/fsdp_workers.py:683",
            "where flash-attn does not run it ends in “… is not a value head model, please install trl to make it "
            "valid” (utils/model.py:656)",
        ),
        roles.values.place(CRITIC_OVERRIDE, roles.implementation, "algorithm.adv_estimator"),
        advice="an estimator without a critic (algorithm.adv_estimator=grpo), or a machine with flash-attn",
        mild=usable,
    )


def _sequence_parallel(roles: Roles, job: Job, snapshot: Snapshot) -> Iterator[SettingProblem]:
    """Yield what stops or spoils Ulysses."""
    size = job.plan.ring_size
    if roles.fsdp and size > 1:
        yield from _padded(roles, job, size)
        yield from _models(roles, job, snapshot, size)
    yield from _critic_padded(roles)
    yield from _unread_size(roles)
    own, inner = (roles.values.number(key, default=1) for key in (f"{ACTOR}.{SIZE}", f"{ACTOR}.fsdp_config.{SIZE}"))
    reference = max(
        roles.values.number(f"{REF}.{SIZE}", default=1), roles.values.number(f"{REF}.fsdp_config.{SIZE}", default=1)
    )
    if (
        roles.fsdp
        and not roles.legacy
        and roles.reinforcement
        and inner > 1
        and own == 1
        and reference == 1
        and roles.reference
    ):
        yield SettingProblem(
            "ignores",
            f"the reference policy stays at sequence parallel 1: it follows {ACTOR}.{SIZE}, "
            f"and {inner} is set in fsdp_config alone",
            (f"verl 0.9.1 trainer/config/ref/dp_ref.yaml:39: ${{oc.select:{ACTOR}.{SIZE},1}}",),
            roles.values.place(f"{ACTOR}.fsdp_config.{SIZE}"),
            {f"{REF}.{SIZE}": str(inner)},
            mild=True,
        )


def _padded(roles: Roles, job: Job, size: int) -> Iterator[SettingProblem]:
    """Yield where Ulysses meets padded rows."""
    if roles.values.on(*roles.keys("packing")):
        return
    written = roles.keys("packing")[0]
    place = roles.values.place(written, *roles.sizes())
    if roles.old_sft:
        yield SettingProblem(
            "wrong",
            f"{SIZE}={size} without use_remove_padding: the ranks of a group get the same rows, and the exchange "
            "between them joins whole rows as if they were parts of one",
            (
                "verl 0.4.1 trainer/fsdp_sft_trainer.py:299: use_sp = self.use_remove_padding and "
                "self.config.ulysses_sequence_parallel_size > 1; :196 patches attention where either is set",
            ),
            place,
            {"packing": "on"},
        )
        return
    evidence = {
        "0.8.0": f"workers/engine/fsdp/transformer_impl.py:148 (0.9.1): …, {MUST_PACK}.",
        "0.6.0": f"workers/config/actor.py:246 (0.6.0): When using sequence parallelism …, {MUST_PACK}.",
        "0": "trainer/ppo/ray_trainer.py:462 (0.4.1): assert config.actor_rollout_ref.model.use_remove_padding",
    }
    first = next(release for release in evidence if roles.since(release))
    yield SettingProblem(
        "refuses",
        f"Ulysses over {size} ranks needs {written}=True",
        (f"verl {evidence[first]}",),
        place,
        {"packing": "on"},
    )


def _critic_padded(roles: Roles) -> Iterator[SettingProblem]:
    """Yield where the critic's own Ulysses meets padded rows."""
    if not (roles.critic and roles.fsdp):
        return
    size = roles.values.number(f"critic.{SIZE}", default=1)
    if size > 1 and not roles.values.on("critic.model.use_remove_padding"):
        yield SettingProblem(
            "refuses",
            f"critic.{SIZE}={size} needs critic.model.use_remove_padding=True",
            (f"verl 0.6.0 workers/config/critic.py:206: When using sequence parallelism for critic, {MUST_PACK}.",),
            roles.values.place(f"critic.{SIZE}"),
            {"critic.model.use_remove_padding": "True"},
        )


def _unread_size(roles: Roles) -> Iterator[SettingProblem]:
    """Yield where the size stands in `fsdp_config`, which the workers before 0.8.0 do not read."""
    key = f"{ACTOR}.fsdp_config.{SIZE}"
    inner = roles.values.number(key, default=1)
    if roles.legacy and roles.fsdp and inner > 1 and roles.values.number(f"{ACTOR}.{SIZE}", default=1) == 1:
        yield SettingProblem(
            "ignores",
            f"{key}={inner} does nothing: the workers of verl {roles.names.release} read {ACTOR}.{SIZE}",
            ('verl 0.7.1 workers/fsdp_workers.py: self.config.actor.get("ulysses_sequence_parallel_size", 1)',),
            roles.values.place(key),
            {f"{ACTOR}.{SIZE}": str(inner)},
        )


def _models(roles: Roles, job: Job, snapshot: Snapshot, size: int) -> Iterator[SettingProblem]:
    """Yield what Ulysses does to some models."""
    if not isinstance(snapshot.model, Known):
        return
    model = snapshot.model.value
    place = roles.values.place(*roles.sizes())
    if model.sinks and job.plan.attn_implementation in FLASH:
        yield SettingProblem(
            "wrong",
            f"Ulysses over {size} ranks gives each rank a part of the heads and all of {model.model_type}'s sinks",
            ("verl 0.9.1 models/transformers/monkey_patch.py:126-148: heads are scattered, s_aux is passed on whole",),
            place,
            {"ring_size": "1"},
        )
    if model.towers and roles.legacy and roles.since("0.6.0"):
        yield SettingProblem(
            "replaces",
            f"the vision tower of {model.model_type} runs with eager attention under Ulysses",
            ('verl 0.7.1 workers/fsdp_workers.py:402: …vision_config._attn_implementation = "eager"',),
            place,
            advice="verl 0.8.0 or newer",
            mild=True,
        )


def _recurrent(roles: Roles, job: Job, snapshot: Snapshot) -> Iterator[SettingProblem]:
    """Yield where qwen3_next's gated delta rule runs over the borders of documents or of ranks."""
    model = snapshot.model.value if isinstance(snapshot.model, Known) else None
    if model is None or model.model_type != "qwen3_next" or not roles.fsdp:
        return
    size = job.plan.ring_size
    if not job.plan.packed and size == 1:
        return
    over = "documents of a packed row" if size == 1 else f"documents of a packed row and the {size} ranks of Ulysses"
    sets = {"packing": "off"} if size == 1 else {"packing": "off", "ring_size": "1"}
    yield SettingProblem(
        "wrong",
        f"the linear attention of qwen3_next carries its state across {over}: verl has no patch for it",
        (
            "verl 0.9.1 models/transformers/monkey_patch.py:500-532 patches qwen3_5 and qwen3_5_moe alone; "
            "workers/engine/fsdp/transformer_impl.py:594 gives cu_seqlens only to a forward that names it",
        ),
        roles.values.place(*roles.keys("packing"), *roles.sizes()),
        sets,
    )


def _old_trainer(roles: Roles, job: Job) -> Iterator[SettingProblem]:
    """Yield what `fsdp_sft_trainer` does with packing."""
    if roles.old_sft and roles.values.on("use_remove_padding") and job.plan.ring_size == 1:
        yield SettingProblem(
            "ignores",
            f"use_remove_padding=True does nothing without {SIZE} above 1: rows stay padded",
            ("verl 0.4.1 trainer/fsdp_sft_trainer.py:299-306: use_sp = self.use_remove_padding and … > 1",),
            roles.values.place("use_remove_padding"),
            advice="verl.trainer.sft_trainer, from 0.6.0 on, packs by itself",
            mild=True,
        )


def _switches(roles: Roles) -> Iterator[SettingProblem]:
    """Yield switches that do nothing, or less than they say."""
    prefix = f"{ACTOR}.use_prefix_grouper"
    if roles.values.on(prefix) and roles.since("0.8.0"):
        yield SettingProblem(
            "ignores",
            "use_prefix_grouper shares no prefix in attention: the training engine never hands it to the model",
            ("verl 0.9.1 workers/engine/fsdp/transformer_impl.py:324: apply_monkey_patch(…), no use_prefix_grouper",),
            roles.values.place(prefix),
            advice="leave it out; in 0.7.1 it worked, with use_remove_padding=False",
            mild=True,
        )
    key = f"{roles.engine}.full_determinism"
    if roles.values.on(key) and roles.reinforcement and roles.legacy:
        yield SettingProblem(
            "ignores",
            f"{key}=True does nothing: the workers of verl {roles.names.release} never read it",
            ("verl 0.7.1: not in workers/fsdp_workers.py; in workers/engine/fsdp/transformer_impl.py:128",),
            roles.values.place(key),
            {"trainer.use_legacy_worker_impl": "disable"},
        )
