"""What verl does with settings that it cannot honour, read in its wheels (file:line of the release in each entry)."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.facts import Absent, Known, value_or
from attncheck.core.job import Job, SettingProblem
from attncheck.core.snapshot import Snapshot
from attncheck.lint.frameworks.verl.batches import find_batch_problems
from attncheck.lint.frameworks.verl.roles import ACTOR, FLASH_IMPLEMENTATIONS, REF, ULYSSES_SIZE, LaunchConfig

MUST_PACK = "you must enable `use_remove_padding`"
CRITIC_OVERRIDE = "critic.model.override_config.attn_implementation"


def find_setting_problems(config: LaunchConfig, job: Job, snapshot: Snapshot) -> Iterator[SettingProblem]:
    """Yield the settings that verl will refuse, replace or ignore, or compute wrongly with."""
    yield from _unread_implementation(config, job)
    yield from _critic_implementation(config, job, snapshot)
    yield from _sequence_parallel_problems(config, job, snapshot)
    yield from _recurrent_state_leaks(config, job, snapshot)
    yield from _packing_without_effect(config, job)
    yield from _switches_without_effect(config)
    yield from find_batch_problems(config, job)


def _unread_implementation(config: LaunchConfig, job: Job) -> Iterator[SettingProblem]:
    """Yield where the requested implementation is not read."""
    key = f"{config.model_key}.override_config.attn_implementation"
    requested = config.values.text(key)
    if requested and requested != "flash_attention_2" and not config.reads_attn_override and config.is_fsdp:
        source = "workers/fsdp_workers.py:319 (0.6.0)"
        if config.is_old_sft:
            source = "trainer/fsdp_sft_trainer.py:244 (0.7.0)"
        yield SettingProblem(
            "ignores",
            f"verl {job.version} trains with flash_attention_2 whatever {key} says: {requested} is not read",
            (
                f'verl {source}: attn_implementation="flash_attention_2"',
                "read from 0.6.1 on (workers/fsdp_workers.py:318)",
            ),
            config.values.locate(key),
            advice="verl 0.6.1 or newer, or a machine with flash-attn",
        )
    nested = f"{config.model_key}.override_config.model_config.attn_implementation"
    if config.values.text(nested) and not requested:
        yield SettingProblem(
            "ignores",
            f"{nested} is not read: verl takes attn_implementation from override_config itself",
            ('verl 0.9.1 workers/config/model.py:185: self.override_config.get("attn_implementation", …)',),
            config.values.locate(nested),
            {"attn_implementation": config.values.text(nested)},
        )


def _critic_implementation(config: LaunchConfig, job: Job, snapshot: Snapshot) -> Iterator[SettingProblem]:
    """Yield where the value model, which is always loaded with flash_attention_2, is configured with something else."""
    if not config.has_critic or not config.is_fsdp:
        return
    implementation = config.values.text(CRITIC_OVERRIDE) or job.plan.attn_implementation
    # The override may be there for lack of a flash kernel: with another one the critic stops the job.
    if implementation == "flash_attention_2":
        return
    devices = snapshot.visible_devices()
    before_ampere = [device for device in devices if value_or(device.compute_capability, (8, 0)) < (8, 0)]
    is_usable = bool(devices) and not before_ampere and not isinstance(snapshot.package("flash-attn"), Absent)
    yield SettingProblem(
        "replaces" if is_usable else "refuses",
        f"the critic (algorithm.adv_estimator=gae) is loaded with flash_attention_2, not with {implementation}",
        (
            'verl 0.9.1 utils/model.py:649, 674 (load_valuehead_model): attn_implementation="flash_attention_2"; '
            "0.2.0.post2 workers/fsdp_workers.py:683",
            "where flash-attn does not run it ends in “… is not a value head model, please install trl to make it "
            "valid” (utils/model.py:656)",
        ),
        config.values.locate(CRITIC_OVERRIDE, config.attn_implementation_key, "algorithm.adv_estimator"),
        advice="an estimator without a critic (algorithm.adv_estimator=grpo), or a machine with flash-attn",
        mild=is_usable,
    )


def _sequence_parallel_problems(config: LaunchConfig, job: Job, snapshot: Snapshot) -> Iterator[SettingProblem]:
    """Yield settings and models with which Ulysses stops or computes something else."""
    size = job.plan.ring_size
    if config.is_fsdp and size > 1:
        yield from _ulysses_without_packing(config, job, size)
        yield from _models_broken_by_ulysses(config, job, snapshot, size)
    yield from _critic_ulysses_without_packing(config)
    yield from _unread_ulysses_size(config)
    yield from _reference_without_ulysses(config)


def _reference_without_ulysses(config: LaunchConfig) -> Iterator[SettingProblem]:
    """Yield where the reference policy does not follow the actor's size, which is set in `fsdp_config` alone."""
    if not (config.is_fsdp and config.is_reinforcement and config.has_reference) or config.has_legacy_workers:
        return
    tables = (ACTOR, f"{ACTOR}.fsdp_config", REF, f"{REF}.fsdp_config")
    actor_size, fsdp_size, *reference_sizes = (
        config.values.number(f"{table}.{ULYSSES_SIZE}", default=1) for table in tables
    )
    if fsdp_size > 1 and actor_size == 1 and max(reference_sizes) == 1:
        yield SettingProblem(
            "ignores",
            f"the reference policy stays at sequence parallel 1: it follows {ACTOR}.{ULYSSES_SIZE}, "
            f"and {fsdp_size} is set in fsdp_config alone",
            (f"verl 0.9.1 trainer/config/ref/dp_ref.yaml:39: ${{oc.select:{ACTOR}.{ULYSSES_SIZE},1}}",),
            config.values.locate(f"{ACTOR}.fsdp_config.{ULYSSES_SIZE}"),
            {f"{REF}.{ULYSSES_SIZE}": str(fsdp_size)},
            mild=True,
        )


def _ulysses_without_packing(config: LaunchConfig, job: Job, size: int) -> Iterator[SettingProblem]:
    """Yield where Ulysses meets padded rows."""
    if config.values.is_on(*config.find_keys("packing")):
        return
    packing_key = config.find_keys("packing")[0]
    location = config.values.locate(packing_key, *config.sequence_parallel_keys())
    if config.is_old_sft:
        yield SettingProblem(
            "wrong",
            f"{ULYSSES_SIZE}={size} without use_remove_padding: the ranks of a group get the same rows, and the "
            "exchange between them joins whole rows as if they were parts of one",
            (
                "verl 0.4.1 trainer/fsdp_sft_trainer.py:299: use_sp = self.use_remove_padding and "
                "self.config.ulysses_sequence_parallel_size > 1; :196 patches attention where either is set",
            ),
            location,
            {"packing": "on"},
        )
        return
    evidence = {
        "0.8.0": f"workers/engine/fsdp/transformer_impl.py:148 (0.9.1): …, {MUST_PACK}.",
        "0.6.0": f"workers/config/actor.py:246 (0.6.0): When using sequence parallelism …, {MUST_PACK}.",
        "0": "trainer/ppo/ray_trainer.py:462 (0.4.1): assert config.actor_rollout_ref.model.use_remove_padding",
    }
    first_release = next(release for release in evidence if config.is_at_least(release))
    yield SettingProblem(
        "refuses",
        f"Ulysses over {size} ranks needs {packing_key}=True",
        (f"verl {evidence[first_release]}",),
        location,
        {"packing": "on"},
    )


def _critic_ulysses_without_packing(config: LaunchConfig) -> Iterator[SettingProblem]:
    """Yield where the critic's own Ulysses meets padded rows."""
    if not (config.has_critic and config.is_fsdp):
        return
    size = config.values.number(f"critic.{ULYSSES_SIZE}", default=1)
    if size > 1 and not config.values.is_on("critic.model.use_remove_padding"):
        yield SettingProblem(
            "refuses",
            f"critic.{ULYSSES_SIZE}={size} needs critic.model.use_remove_padding=True",
            (f"verl 0.6.0 workers/config/critic.py:206: When using sequence parallelism for critic, {MUST_PACK}.",),
            config.values.locate(f"critic.{ULYSSES_SIZE}"),
            {"critic.model.use_remove_padding": "True"},
        )


def _unread_ulysses_size(config: LaunchConfig) -> Iterator[SettingProblem]:
    """Yield where the size stands in `fsdp_config`, which the workers before 0.8.0 do not read."""
    key = f"{ACTOR}.fsdp_config.{ULYSSES_SIZE}"
    size, actor_size = (config.values.number(name, default=1) for name in (key, f"{ACTOR}.{ULYSSES_SIZE}"))
    if config.has_legacy_workers and config.is_fsdp and size > 1 and actor_size == 1:
        yield SettingProblem(
            "ignores",
            f"{key}={size} does nothing: the workers of verl {config.release.version} read {ACTOR}.{ULYSSES_SIZE}",
            ('verl 0.7.1 workers/fsdp_workers.py: self.config.actor.get("ulysses_sequence_parallel_size", 1)',),
            config.values.locate(key),
            {f"{ACTOR}.{ULYSSES_SIZE}": str(size)},
        )


def _models_broken_by_ulysses(
    config: LaunchConfig, job: Job, snapshot: Snapshot, size: int
) -> Iterator[SettingProblem]:
    """Yield models whose sinks or vision towers do not go with Ulysses."""
    if not isinstance(snapshot.model, Known):
        return
    model = snapshot.model.value
    location = config.values.locate(*config.sequence_parallel_keys())
    if model.sinks and job.plan.attn_implementation in FLASH_IMPLEMENTATIONS:
        yield SettingProblem(
            "wrong",
            f"Ulysses over {size} ranks gives each rank a part of the heads and all of {model.model_type}'s sinks",
            ("verl 0.9.1 models/transformers/monkey_patch.py:126-148: heads are scattered, s_aux is passed on whole",),
            location,
            {"ring_size": "1"},
        )
    if model.towers and config.has_legacy_workers and config.is_at_least("0.6.0"):
        yield SettingProblem(
            "replaces",
            f"the vision tower of {model.model_type} runs with eager attention under Ulysses",
            ('verl 0.7.1 workers/fsdp_workers.py:402: …vision_config._attn_implementation = "eager"',),
            location,
            advice="verl 0.8.0 or newer",
            mild=True,
        )


def _recurrent_state_leaks(config: LaunchConfig, job: Job, snapshot: Snapshot) -> Iterator[SettingProblem]:
    """Yield where qwen3_next's gated delta rule carries its state across the borders of documents or of ranks."""
    model = snapshot.model.value if isinstance(snapshot.model, Known) else None
    if model is None or model.model_type != "qwen3_next" or not config.is_fsdp:
        return
    size = job.plan.ring_size
    if not job.plan.packed and size == 1:
        return
    borders = "documents of a packed row" if size == 1 else f"documents of a packed row and the {size} ranks of Ulysses"
    sets = {"packing": "off"} if size == 1 else {"packing": "off", "ring_size": "1"}
    yield SettingProblem(
        "wrong",
        f"the linear attention of qwen3_next carries its state across {borders}: verl has no patch for it",
        (
            "verl 0.9.1 models/transformers/monkey_patch.py:500-532 patches qwen3_5 and qwen3_5_moe alone; "
            "workers/engine/fsdp/transformer_impl.py:594 gives cu_seqlens only to a forward that names it",
        ),
        config.values.locate(*config.find_keys("packing"), *config.sequence_parallel_keys()),
        sets,
    )


def _packing_without_effect(config: LaunchConfig, job: Job) -> Iterator[SettingProblem]:
    """Yield where `fsdp_sft_trainer` does not pack although it is told to."""
    if config.is_old_sft and config.values.is_on("use_remove_padding") and job.plan.ring_size == 1:
        yield SettingProblem(
            "ignores",
            f"use_remove_padding=True does nothing without {ULYSSES_SIZE} above 1: rows stay padded",
            ("verl 0.4.1 trainer/fsdp_sft_trainer.py:299-306: use_sp = self.use_remove_padding and … > 1",),
            config.values.locate("use_remove_padding"),
            advice="verl.trainer.sft_trainer, from 0.6.0 on, packs by itself",
            mild=True,
        )


def _switches_without_effect(config: LaunchConfig) -> Iterator[SettingProblem]:
    """Yield switches that do nothing, or less than they say."""
    grouper = f"{ACTOR}.use_prefix_grouper"
    if config.values.is_on(grouper) and config.is_at_least("0.8.0"):
        yield SettingProblem(
            "ignores",
            "use_prefix_grouper shares no prefix in attention: the training engine never hands it to the model",
            ("verl 0.9.1 workers/engine/fsdp/transformer_impl.py:324: apply_monkey_patch(…), no use_prefix_grouper",),
            config.values.locate(grouper),
            advice="leave it out; in 0.7.1 it worked, with use_remove_padding=False",
            mild=True,
        )
    key = f"{config.engine_key}.full_determinism"
    if config.values.is_on(key) and config.is_reinforcement and config.has_legacy_workers:
        yield SettingProblem(
            "ignores",
            f"{key}=True does nothing: the workers of verl {config.release.version} never read it",
            ("verl 0.7.1: not in workers/fsdp_workers.py; in workers/engine/fsdp/transformer_impl.py:128",),
            config.values.locate(key),
            {"trainer.use_legacy_worker_impl": "disable"},
        )
