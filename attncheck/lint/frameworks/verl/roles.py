"""Maps settings to verl's keys, by trainer, training engine and release."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from attncheck.lint.fields import Constraint, Constraints, Key, find_constraint
from attncheck.lint.fields.releases import parse_version
from attncheck.lint.frameworks.verl.given import HydraInputs
from attncheck.lint.frameworks.verl.tables import Release
from attncheck.lint.frameworks.verl.values import Values

FLASH_IMPLEMENTATIONS = ("flash_attention_2", "flash_attention_3", "flash_attention_4")
ACTOR, MODEL, REF = "actor_rollout_ref.actor", "actor_rollout_ref.model", "actor_rollout_ref.ref"
ULYSSES_SIZE = "ulysses_sequence_parallel_size"


@dataclass(frozen=True)
class LaunchConfig:
    """One launch's configuration in one release: its values, and the key of each setting; "" if there is none."""

    release: Release
    inputs: HydraInputs
    values: Values

    def is_at_least(self, boundary: str) -> bool:
        """Return whether this release is `boundary` or newer."""
        return parse_version(self.release.version) >= parse_version(boundary)

    def find_constraint(self, constraints: Constraints) -> Constraint | None:
        """Return the constraint that applies in this release; None if there is none."""
        return find_constraint(constraints, self.release.version)

    @cached_property
    def is_reinforcement(self) -> bool:
        """Return whether this is reinforcement learning; otherwise it is fine-tuning."""
        return not self.inputs.config_name.startswith("sft_trainer")

    @property
    def is_old_sft(self) -> bool:
        """Return whether this is `fsdp_sft_trainer`."""
        return self.inputs.config_name == "sft_trainer"

    @property
    def model_key(self) -> str:
        """Return the key of the model's table."""
        return MODEL if self.is_reinforcement else "model"

    @cached_property
    def strategy(self) -> str:
        """Return the training engine: "fsdp", "fsdp2", "megatron", "veomni", "torchtitan", "automodel"."""
        keys = (f"{ACTOR}.strategy",) if self.is_reinforcement else ("engine.strategy", "model.strategy")
        chosen = "" if self.is_reinforcement else self.inputs.group_choices.get("engine", "")
        return self.values.get_text(*keys) or chosen or "fsdp"  # workers/config/engine.py: each class's own default

    @property
    def is_fsdp(self) -> bool:
        """Return whether the training engine is PyTorch's FSDP."""
        return self.strategy.startswith("fsdp")

    @cached_property
    def engine_key(self) -> str:
        """Return the key of the training engine's table."""
        if self.is_old_sft:
            return "model.fsdp_config"
        if not self.is_reinforcement:
            return "engine"
        return f"{ACTOR}.fsdp_config" if self.is_fsdp else f"{ACTOR}.{self.strategy}"

    @cached_property
    def has_legacy_workers(self) -> bool:
        """Return whether workers from before 0.8.0 run, which read no size in `fsdp_config` (0.7.1 main_ppo.py:182)."""
        choice = self.values.get_text("trainer.use_legacy_worker_impl")
        return self.is_reinforcement and not self.is_at_least("0.8.0") and choice != "disable"

    @property
    def reads_attn_override(self) -> bool:
        """Return whether `override_config.attn_implementation` is read.

        workers/fsdp_workers.py 0.6.1:318, workers/config/model.py 0.6.0:118; `fsdp_sft_trainer` never reads it
        (0.7.0:244).
        """
        if self.is_old_sft:
            return False
        return self.is_at_least("0.6.1") or (self.is_at_least("0.6.0") and not self.has_legacy_workers)

    @property
    def has_critic(self) -> bool:
        """Return whether a value model is trained (trainer/ppo/utils.py 0.9.1, need_critic)."""
        if "use_critic=False" in (self.inputs.calls or ()):
            return False
        is_enabled = self.values.get("critic.enable")
        if isinstance(is_enabled, bool):
            return self.is_reinforcement and is_enabled
        return self.is_reinforcement and self.values.get_text("algorithm.adv_estimator") == "gae"

    @property
    def is_validated(self) -> bool:
        """Return whether the program checks sizes of batches that are known: verl's own does, and what calls that."""
        calls, name = self.inputs.calls, "validate_config" if self.is_at_least("0.6.0") else "RayPPOTrainer"
        return not self.inputs.is_unread and (calls is None or name in calls)

    @property
    def has_reference(self) -> bool:
        """Return whether a reference policy is loaded (trainer/ppo/utils.py 0.9.1, need_reference_policy)."""
        return self.values.is_on(f"{ACTOR}.use_kl_loss") or self.values.is_on("algorithm.use_kl_in_reward")

    def sequence_parallel_keys(self) -> tuple[str, ...]:
        """Return the keys of the sequence-parallel size, the deciding one first."""
        if self.is_old_sft:
            return (ULYSSES_SIZE,)
        if self.strategy == "megatron":
            return (f"{self.engine_key}.context_parallel_size",)
        if self.strategy == "veomni":
            return (f"{self.engine_key}.ulysses_parallel_size",)
        if not self.is_fsdp:
            return (f"{self.engine_key}.context_parallel_size", f"{self.engine_key}.cp_size")
        actor = (f"{ACTOR}.{ULYSSES_SIZE}", f"{self.engine_key}.{ULYSSES_SIZE}")
        return actor if self.is_reinforcement else (f"engine.{ULYSSES_SIZE}",)

    def sequence_parallel_size(self) -> int:
        """Return the sequence-parallel size that takes effect.

        If the key next to `fsdp_config` is above 1, it is copied into it (workers/config/actor.py 0.9.1:328). It is the
        only key that the workers before 0.8.0 read (workers/fsdp_workers.py 0.7.1).
        """
        keys = self.sequence_parallel_keys()
        if self.is_reinforcement and self.is_fsdp:
            actor_size = self.values.get_int(keys[0], fallback=1)
            is_actor = actor_size > 1 or self.has_legacy_workers
            return max(actor_size if is_actor else self.values.get_int(keys[1], fallback=1), 1)
        return max(self.values.get_int(*keys, fallback=1), 1)

    @property
    def critic_sequence_parallel_key(self) -> str:
        """Return the key of the critic's sequence-parallel size; the one outside the engine's table ended in 0.8.0.

        workers/config/critic.py 0.9.1:220 passes `critic.fsdp` to the engine and, unlike the actor's code, copies no
        size into it.
        """
        return f"critic.fsdp.{ULYSSES_SIZE}" if self.is_at_least("0.8.0") else f"critic.{ULYSSES_SIZE}"

    def find_keys(self, key: str) -> tuple[str, ...]:
        """Return verl's own keys of a `Key`, the one to write first; () if there are none."""
        return self._keys.get(key, ())

    @cached_property
    def _keys(self) -> Mapping[str, tuple[str, ...]]:
        engine, is_megatron = self.engine_key, self.strategy == "megatron"
        keys: dict[Key, tuple[str, ...]] = {
            "attn_implementation": (self.attn_implementation_key,) if self.attn_implementation_key else (),
            "packing": self.packing_keys(),
            "precision": self.precision_keys(),
            "ring_size": self.sequence_parallel_keys(),
            "deterministic": (f"{engine}.full_determinism",) if self.has_determinism_switch else (),
            "liger": (f"{self.model_key}.use_liger",),
            "gradient_checkpointing": (f"{self.model_key}.enable_gradient_checkpointing",),
            "max_length": ("data.max_response_length",) if self.is_reinforcement else ("data.max_length",),
            "batch": self.batch_keys(),
            "global_batch": (f"{ACTOR}.ppo_mini_batch_size",) if self.is_reinforcement else ("data.train_batch_size",),
            "tensor_parallel": (f"{engine}.tensor_model_parallel_size",) if is_megatron else (),
        }
        return {str(name): own_keys for name, own_keys in keys.items()}

    def packing_keys(self) -> tuple[str, ...]:
        """Return the key of packing. Megatron's own decides in 0.7; before, Megatron always packs.

        workers/actor/megatron_actor.py 0.7.0:658; models/mcore 0.6.1 has no alternative.
        """
        if self.is_old_sft:
            return ("use_remove_padding",)
        if self.strategy != "megatron" or self.is_at_least("0.8.0"):
            return (f"{self.model_key}.use_remove_padding",)
        return (f"{self.engine_key}.use_remove_padding",) if self.is_at_least("0.7.0") else ()

    @cached_property
    def attn_implementation_key(self) -> str:
        """Return the key of the implementation; "" if this release has none."""
        if self.strategy in ("veomni", "automodel"):
            return f"{self.engine_key}.attn_implementation"
        if self.strategy == "torchtitan":
            return f"{self.engine_key}.attn_type"
        if self.strategy == "megatron":
            key = f"{self.engine_key}.override_transformer_config.attention_backend"
            return key if self.is_at_least("0.6.0") else ""
        return f"{self.model_key}.override_config.attn_implementation" if self.reads_attn_override else ""

    @property
    def has_determinism_switch(self) -> bool:
        """Return whether this release has a switch for determinism in the engine's table."""
        return f"{self.engine_key}.full_determinism" in self.values.by_key

    def precision_keys(self) -> tuple[str, ...]:
        """Return the keys of the precision: that of the arithmetic, then that of the weights.

        The workers of 0.6.1 to 0.7.1 read autocast's from a third key (workers/actor/dp_actor.py 0.7.1:92).
        """
        if not self.is_fsdp or self.is_old_sft:
            return (f"{self.engine_key}.dtype",) if f"{self.engine_key}.dtype" in self.values.by_key else ()
        autocast = (f"{self.engine_key}.dtype",) if self.has_legacy_workers and self.is_at_least("0.6.1") else ()
        return (f"{self.engine_key}.mixed_precision.param_dtype", *autocast)

    def batch_keys(self) -> tuple[str, ...]:
        """Return the keys of the number of rows on a device."""
        if not self.is_reinforcement:
            return ("data.micro_batch_size_per_gpu",)
        return (f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.ppo_micro_batch_size")
