"""Which keys of verl say what, by trainer, training engine and release."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version

from attncheck.core.job import Key
from attncheck.lint.frameworks.verl.given import Given
from attncheck.lint.frameworks.verl.tables import Names
from attncheck.lint.frameworks.verl.values import Values

FLASH = ("flash_attention_2", "flash_attention_3", "flash_attention_4")
ACTOR, MODEL, REF = "actor_rollout_ref.actor", "actor_rollout_ref.model", "actor_rollout_ref.ref"
SIZE = "ulysses_sequence_parallel_size"


@dataclass(frozen=True)
class Roles:
    """The keys of one launch in one release; a key "" is none."""

    names: Names
    given: Given
    values: Values

    def since(self, release: str) -> bool:
        """Say whether this release is `release` or newer."""
        return Version(self.names.release) >= Version(release)

    @property
    def reinforcement(self) -> bool:
        """Say whether this is reinforcement learning; else it is fine-tuning."""
        return not self.given.config.startswith("sft_trainer")

    @property
    def old_sft(self) -> bool:
        """Say whether this is `fsdp_sft_trainer`."""
        return self.given.config == "sft_trainer"

    @property
    def model(self) -> str:
        """Return the key of the model's table."""
        return MODEL if self.reinforcement else "model"

    @property
    def strategy(self) -> str:
        """Return the training engine: "fsdp", "fsdp2", "megatron", "veomni", "torchtitan", "automodel"."""
        keys = (f"{ACTOR}.strategy",) if self.reinforcement else ("engine.strategy", "model.strategy")
        return self.values.text(*keys) or "fsdp"

    @property
    def fsdp(self) -> bool:
        """Say whether PyTorch's FSDP trains."""
        return self.strategy.startswith("fsdp")

    @property
    def engine(self) -> str:
        """Return the key of the training engine's table."""
        if self.old_sft:
            return "model.fsdp_config"
        if not self.reinforcement:
            return "engine"
        return f"{ACTOR}.fsdp_config" if self.fsdp else f"{ACTOR}.{self.strategy}"

    @property
    def legacy(self) -> bool:
        """Say whether the workers of before 0.8.0 run, which know no `fsdp_config` size (main_ppo.py, 0.7.1:182)."""
        chosen = self.values.text("trainer.use_legacy_worker_impl")
        return self.reinforcement and not self.since("0.8.0") and chosen != "disable"

    @property
    def override_honoured(self) -> bool:
        """Say whether `override_config.attn_implementation` is read.

        workers/fsdp_workers.py 0.6.1:318, workers/config/model.py 0.6.0:118; `fsdp_sft_trainer` never does (0.7.0:244).
        """
        return not self.old_sft and (self.since("0.6.1") or (self.since("0.6.0") and not self.legacy))

    @property
    def critic(self) -> bool:
        """Say whether a value model is trained (trainer/ppo/utils.py 0.9.1, need_critic)."""
        enabled = self.values.get("critic.enable")
        if isinstance(enabled, bool):
            return self.reinforcement and enabled
        return self.reinforcement and self.values.text("algorithm.adv_estimator") == "gae"

    @property
    def reference(self) -> bool:
        """Say whether a reference policy is loaded (trainer/ppo/utils.py 0.9.1, need_reference_policy)."""
        return self.values.on(f"{ACTOR}.use_kl_loss") or self.values.on("algorithm.use_kl_in_reward")

    def sizes(self) -> tuple[str, ...]:
        """Return the keys of the sequence-parallel size, the one that decides first."""
        if self.old_sft:
            return (SIZE,)
        if self.strategy == "megatron":
            return (f"{self.engine}.context_parallel_size",)
        if self.strategy == "veomni":
            return (f"{self.engine}.ulysses_parallel_size",)
        if not self.fsdp:
            return (f"{self.engine}.context_parallel_size", f"{self.engine}.cp_size")
        return (f"{ACTOR}.{SIZE}", f"{self.engine}.{SIZE}") if self.reinforcement else (f"engine.{SIZE}",)

    def size(self) -> int:
        """Return the size of sequence parallelism as it takes effect.

        The key beside `fsdp_config` is pushed into it where it is above 1 (workers/config/actor.py 0.9.1:328), and is
        the only one that the workers before 0.8.0 read (workers/fsdp_workers.py 0.7.1).
        """
        keys = self.sizes()
        if self.reinforcement and self.fsdp:
            own = self.values.number(keys[0], default=1)
            return own if own > 1 or self.legacy else self.values.number(keys[1], default=1)
        return max(self.values.number(*keys, default=1), 1)

    def keys(self, key: str) -> tuple[str, ...]:
        """Return verl's own names of a `Key`, the one to write first; () where there is none."""
        found: dict[Key, tuple[str, ...]] = {
            "attn_implementation": (self.implementation,) if self.implementation else (),
            "packing": self.packing(),
            "precision": self.precisions(),
            "ring_size": self.sizes(),
            "deterministic": (f"{self.engine}.full_determinism",) if self.deterministic else (),
            "liger": (f"{self.model}.use_liger",),
            "gradient_checkpointing": (f"{self.model}.enable_gradient_checkpointing",),
            "max_length": ("data.max_response_length",) if self.reinforcement else ("data.max_length",),
            "batch": self.batches(),
            "global_batch": (f"{ACTOR}.ppo_mini_batch_size",) if self.reinforcement else ("data.train_batch_size",),
            "tensor_parallel": (f"{self.engine}.tensor_model_parallel_size",) if self.strategy == "megatron" else (),
        }
        return next((names for name, names in found.items() if name == key), ())

    def packing(self) -> tuple[str, ...]:
        """Return the key of packing; Megatron's own decides in 0.7, and before that it always packs.

        workers/actor/megatron_actor.py 0.7.0:658; models/mcore 0.6.1 knows no other way.
        """
        if self.old_sft:
            return ("use_remove_padding",)
        if self.strategy != "megatron" or self.since("0.8.0"):
            return (f"{self.model}.use_remove_padding",)
        return (f"{self.engine}.use_remove_padding",) if self.since("0.7.0") else ()

    @property
    def implementation(self) -> str:
        """Return the key of the implementation, "" where this release has none."""
        if self.strategy in ("veomni", "automodel"):
            return f"{self.engine}.attn_implementation"
        if self.strategy == "torchtitan":
            return f"{self.engine}.attn_type"
        if self.strategy == "megatron":
            return f"{self.engine}.override_transformer_config.attention_backend" if self.since("0.6.0") else ""
        return f"{self.model}.override_config.attn_implementation" if self.override_honoured else ""

    @property
    def deterministic(self) -> bool:
        """Say whether this release has a switch for determinism here."""
        return f"{self.engine}.full_determinism" in self.values.held

    def precisions(self) -> tuple[str, ...]:
        """Return the keys of the precision: of what is computed, then of the weights.

        The workers of 0.6.1 to 0.7.1 take autocast's from a third one (workers/actor/dp_actor.py 0.7.1:92).
        """
        if not self.fsdp or self.old_sft:
            return (f"{self.engine}.dtype",) if f"{self.engine}.dtype" in self.values.held else ()
        third = (f"{self.engine}.dtype",) if self.legacy and self.since("0.6.1") else ()
        return (f"{self.engine}.mixed_precision.param_dtype", *third)

    def batches(self) -> tuple[str, ...]:
        """Return the keys of the rows on a device."""
        if not self.reinforcement:
            return ("data.micro_batch_size_per_gpu",)
        return (f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.ppo_micro_batch_size")
