"""Problems with settings that verl cannot honour; `constraints` says which releases have each and where it was read."""

from collections.abc import Iterator

from attncheck.lint.fields import Absent, Constraint, Job, Known, SettingProblem, Snapshot, value_or
from attncheck.lint.frameworks.verl import constraints
from attncheck.lint.frameworks.verl.batches import find_batch_problems
from attncheck.lint.frameworks.verl.losses import find_loss_problems
from attncheck.lint.frameworks.verl.roles import ACTOR, FLASH_IMPLEMENTATIONS, REF, ULYSSES_SIZE, LaunchConfig

CRITIC_OVERRIDE = "critic.model.override_config.attn_implementation"


def find_setting_problems(config: LaunchConfig, job: Job, snapshot: Snapshot) -> Iterator[SettingProblem]:
    """Yield the settings that verl refuses, replaces or ignores, or with which it computes wrong results."""
    yield from _unread_implementation(config, job)
    yield from _critic_implementation(config, job, snapshot)
    yield from _sequence_parallel_problems(config, job, snapshot)
    yield from find_loss_problems(config, job)
    yield from _recurrent_state_leaks(config, job, snapshot)
    yield from _packing_without_effect(config, job)
    yield from _fused_kernels_over_padding(config)
    yield from _switches_without_effect(config)
    yield from find_batch_problems(config, job)


def _unread_implementation(config: LaunchConfig, job: Job) -> Iterator[SettingProblem]:
    """Check for a requested implementation that is not read."""
    key = f"{config.model_key}.override_config.attn_implementation"
    requested = config.values.get_text(key)
    if requested and requested != "flash_attention_2" and not config.reads_attn_override and config.is_fsdp:
        old_sft, others = constraints.UNREAD_IMPLEMENTATION_OF_OLD_SFT, constraints.UNREAD_IMPLEMENTATION
        constraint = config.find_constraint(old_sft if config.is_old_sft else others)
        if constraint is None:
            return
        yield SettingProblem(
            "ignores",
            f"verl {job.version} always trains with flash_attention_2: {key}={requested} is ignored",
            (constraint.evidence, "read since 0.6.1 (workers/fsdp_workers.py:318)"),
            config.values.find_location(key),
            advice="verl 0.6.1 or newer, or a machine with flash-attn",
        )
    nested = f"{config.model_key}.override_config.model_config.attn_implementation"
    constraint = config.find_constraint(constraints.NESTED_IMPLEMENTATION)
    if (
        constraint
        and config.is_fsdp
        and config.reads_attn_override
        and config.values.get_text(nested)
        and not requested
    ):
        yield SettingProblem(
            "ignores",
            f"{nested} is ignored: verl reads attn_implementation directly from override_config",
            (constraint.evidence,),
            config.values.find_location(nested),
            {"attn_implementation": config.values.get_text(nested)},
        )


def _critic_implementation(config: LaunchConfig, job: Job, snapshot: Snapshot) -> Iterator[SettingProblem]:
    """Check for a value model configured with another implementation: flash_attention_2 is always loaded."""
    constraint = config.find_constraint(constraints.CRITIC_IMPLEMENTATION)
    if constraint is None or not config.has_critic or not config.is_fsdp:
        return
    implementation = config.values.get_text(CRITIC_OVERRIDE) or job.plan.attn_implementation
    # Another implementation may be set because no flash kernel is installed; the critic then stops the job.
    if implementation == "flash_attention_2":
        return
    devices = snapshot.visible_devices()
    before_ampere = [device for device in devices if value_or(device.compute_capability, (8, 0)) < (8, 0)]
    is_usable = bool(devices) and not before_ampere and not isinstance(snapshot.package("flash-attn"), Absent)
    yield SettingProblem(
        "replaces" if is_usable else "refuses",
        f"the critic (algorithm.adv_estimator=gae) is loaded with flash_attention_2, not with {implementation}",
        (constraint.evidence, f"without a working flash-attn it ends in {constraints.VALUE_HEAD}")
        if config.is_at_least("0.4.1")
        else (constraint.evidence,),
        config.values.find_location(CRITIC_OVERRIDE, config.attn_implementation_key, "algorithm.adv_estimator"),
        advice="use an estimator without a critic (algorithm.adv_estimator=grpo), or a machine with flash-attn",
        mild=is_usable,
    )


def _sequence_parallel_problems(config: LaunchConfig, job: Job, snapshot: Snapshot) -> Iterator[SettingProblem]:
    """Yield settings and models with which Ulysses stops or computes wrong results."""
    size = job.plan.ring_size
    if config.is_fsdp and size > 1:
        yield from _ulysses_without_packing(config, size)
        yield from _models_broken_by_ulysses(config, job, snapshot, size)
    yield from _critic_ulysses_without_packing(config)
    yield from _unread_ulysses_size(config)
    yield from _reference_without_ulysses(config)


def _reference_without_ulysses(config: LaunchConfig) -> Iterator[SettingProblem]:
    """Check for a reference policy without the actor's Ulysses size, because only `fsdp_config` sets it."""
    constraint = config.find_constraint(constraints.REFERENCE_WITHOUT_ULYSSES)
    if constraint is None or not (config.is_fsdp and config.is_reinforcement and config.has_reference):
        return
    tables = (ACTOR, f"{ACTOR}.fsdp_config", REF, f"{REF}.fsdp_config")
    actor_size, fsdp_size, *reference_sizes = (
        config.values.get_int(f"{table}.{ULYSSES_SIZE}", fallback=1) for table in tables
    )
    if fsdp_size > 1 and actor_size == 1 and max(reference_sizes) == 1:
        yield SettingProblem(
            "ignores",
            f"the reference policy keeps a sequence-parallel size of 1: it follows {ACTOR}.{ULYSSES_SIZE}, "
            f"and {fsdp_size} is set only in fsdp_config",
            (constraint.evidence,),
            config.values.find_location(f"{ACTOR}.fsdp_config.{ULYSSES_SIZE}"),
            {f"{REF}.{ULYSSES_SIZE}": str(fsdp_size)},
            mild=True,
        )


def _ulysses_without_packing(config: LaunchConfig, size: int) -> Iterator[SettingProblem]:
    """Check for Ulysses with padded rows."""
    constraint = _find_packing_constraint(config)
    if constraint is None or config.values.is_on(*config.find_keys("packing")):
        return
    packing_key = config.find_keys("packing")[0]
    yield SettingProblem(
        "refuses",
        f"Ulysses over {size} ranks needs {packing_key}=True",
        (constraint.evidence,),
        config.values.find_location(packing_key, *config.sequence_parallel_keys()),
        {"packing": "on"},
    )


def _find_packing_constraint(config: LaunchConfig) -> Constraint | None:
    """Return the constraint that refuses Ulysses with padded rows; None if there is none. The size's key decides."""
    if config.is_old_sft:
        return config.find_constraint(constraints.OLD_SFT_ULYSSES_UNPACKED)
    if not config.is_reinforcement or config.values.get_int(f"{ACTOR}.{ULYSSES_SIZE}", fallback=1) < 2:
        return config.find_constraint(constraints.ENGINE_ULYSSES_UNPACKED)
    if config.strategy == "fsdp2" and not config.is_at_least(constraints.FSDP2_MUST_PACK_SINCE):
        return None
    return config.find_constraint(constraints.ULYSSES_UNPACKED)


def _critic_ulysses_without_packing(config: LaunchConfig) -> Iterator[SettingProblem]:
    """Check for the critic's own Ulysses with padded rows."""
    is_new = config.is_at_least("0.8.0")
    ranges = constraints.CRITIC_ENGINE_ULYSSES_UNPACKED if is_new else constraints.CRITIC_ULYSSES_UNPACKED
    constraint, strategy = config.find_constraint(ranges), config.values.get_text("critic.strategy") or config.strategy
    is_checked = strategy == "fsdp" or (strategy == "fsdp2" and config.is_at_least(constraints.FSDP2_MUST_PACK_SINCE))
    if constraint is None or not (config.has_critic and is_checked):
        return
    key = config.critic_sequence_parallel_key
    size = config.values.get_int(key, fallback=1)
    if size > 1 and not config.values.is_on("critic.model.use_remove_padding"):
        yield SettingProblem(
            "refuses",
            f"{key}={size} needs critic.model.use_remove_padding=True",
            (constraint.evidence,),
            config.values.find_location(key),
            {"critic.model.use_remove_padding": "True"},
        )


def _unread_ulysses_size(config: LaunchConfig) -> Iterator[SettingProblem]:
    """Check for a size in `fsdp_config`, which workers before 0.8.0 do not read."""
    key = f"{ACTOR}.fsdp_config.{ULYSSES_SIZE}"
    size, actor_size = (config.values.get_int(name, fallback=1) for name in (key, f"{ACTOR}.{ULYSSES_SIZE}"))
    constraint = config.find_constraint(constraints.UNREAD_ULYSSES_SIZE)
    if constraint and config.has_legacy_workers and config.is_fsdp and size > 1 and actor_size == 1:
        yield SettingProblem(
            "ignores",
            f"{key}={size} has no effect: the workers of verl {config.release.version} read {ACTOR}.{ULYSSES_SIZE}",
            (constraint.evidence,),
            config.values.find_location(key),
            {f"{ACTOR}.{ULYSSES_SIZE}": str(size)},
        )


def _models_broken_by_ulysses(
    config: LaunchConfig, job: Job, snapshot: Snapshot, size: int
) -> Iterator[SettingProblem]:
    """Check for models whose sinks or vision towers do not work with Ulysses."""
    if not isinstance(snapshot.model, Known):
        return
    model = snapshot.model.value
    location = config.values.find_location(*config.sequence_parallel_keys())
    constraint = config.find_constraint(constraints.ULYSSES_SINKS)
    if constraint and model.sinks and job.plan.attn_implementation in FLASH_IMPLEMENTATIONS:
        yield SettingProblem(
            "wrong",
            f"Ulysses over {size} ranks gives each rank part of the heads, but all of {model.model_type}'s sinks",
            (constraint.evidence,),
            location,
            {"ring_size": "1"},
        )
    constraint = config.find_constraint(constraints.ULYSSES_VISION)
    if constraint and model.towers and config.has_legacy_workers:
        yield SettingProblem(
            "replaces",
            f"the vision tower of {model.model_type} runs with eager attention under Ulysses",
            (constraint.evidence,),
            location,
            advice="verl 0.8.0 or newer",
            mild=True,
        )


def _recurrent_state_leaks(config: LaunchConfig, job: Job, snapshot: Snapshot) -> Iterator[SettingProblem]:
    """Check for a gated delta rule that carries state across the boundaries of documents and ranks."""
    model = snapshot.model.value if isinstance(snapshot.model, Known) else None
    name = model.model_type.removesuffix("_text") if model is not None else ""
    ranges = {
        "qwen3_next": constraints.RECURRENT_STATE,
        **dict.fromkeys(("qwen3_5", "qwen3_5_moe"), constraints.QWEN3_5_STATE),
    }
    constraint = config.find_constraint(ranges.get(name, ()))
    if constraint is None or not config.is_fsdp:
        return
    size = job.plan.ring_size
    if not job.plan.packed and size == 1:
        return
    borders = "documents of a packed row" if size == 1 else f"documents of a packed row and the {size} ranks of Ulysses"
    yield SettingProblem(
        "wrong",
        f"the linear attention of {name} carries its state across {borders}: verl passes it no boundaries",
        (constraint.evidence,),
        config.values.find_location(*config.find_keys("packing"), *config.sequence_parallel_keys()),
        {"packing": "off"} if size == 1 else {"packing": "off", "ring_size": "1"},
    )


def _packing_without_effect(config: LaunchConfig, job: Job) -> Iterator[SettingProblem]:
    """Check for requested packing that `fsdp_sft_trainer` does not support."""
    constraint = config.find_constraint(constraints.OLD_SFT_PACKING) if config.is_old_sft else None
    if constraint and config.values.is_on("use_remove_padding") and job.plan.ring_size == 1:
        yield SettingProblem(
            "ignores",
            f"use_remove_padding=True has no effect unless {ULYSSES_SIZE} is above 1: rows stay padded",
            (constraint.evidence,),
            config.values.find_location("use_remove_padding"),
            advice="verl.trainer.sft_trainer, since 0.6.0, packs on its own",
            mild=True,
        )


def _fused_kernels_over_padding(config: LaunchConfig) -> Iterator[SettingProblem]:
    """Check for fused kernels over padded rows: the engine treats their output as packed."""
    constraint, fused = (
        config.find_constraint(constraints.FUSED_KERNELS_PADDED),
        f"{config.model_key}.use_fused_kernels",
    )
    packing_keys = config.find_keys("packing")
    if constraint and config.is_fsdp and config.values.is_on(fused) and not config.values.is_on(*packing_keys):
        yield SettingProblem(
            "refuses",
            f"use_fused_kernels=True without {packing_keys[0]}: AssertionError at the first log-probabilities",
            (constraint.evidence,),
            config.values.find_location(fused),
            {fused: "False"},
            "leave use_fused_kernels out",
        )


def _switches_without_effect(config: LaunchConfig) -> Iterator[SettingProblem]:
    """Check for switches without effect, or with less effect than their names say."""
    grouper = f"{ACTOR}.use_prefix_grouper"
    constraint = config.find_constraint(constraints.PREFIX_GROUPER)
    if constraint and config.is_fsdp and config.values.is_on(grouper):
        yield SettingProblem(
            "ignores",
            "use_prefix_grouper has no effect: the training engine never passes it to the model",
            (constraint.evidence,),
            config.values.find_location(grouper),
            advice="remove it; it worked in 0.7.1, with use_remove_padding=False",
            mild=True,
        )
    key = f"{config.engine_key}.full_determinism"
    constraint = config.find_constraint(constraints.UNREAD_DETERMINISM)
    if constraint and config.is_fsdp and config.values.is_on(key) and config.has_legacy_workers:
        yield SettingProblem(
            "ignores",
            f"{key}=True has no effect: the workers of verl {config.release.version} never read it",
            (constraint.evidence,),
            config.values.find_location(key),
            {"trainer.use_legacy_worker_impl": "disable"},
        )
