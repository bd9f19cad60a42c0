"""The releases of verl to which each constraint applies, read in the wheels 0.2.0.post2 to 0.9.1."""

from attncheck.lint.fields.constraints import Constraint, read_table

MUST_PACK = "you must enable `use_remove_padding`"
FIRST = "0.2.0.post2"  # the oldest release that was read

VALUE_HEAD = "“… is not a value head model, please install trl to make it valid” (verl 0.9.1 utils/model.py:656)"


ENGINE_ULYSSES_UNPACKED = (  # for the engine's own size: in `fsdp_config`, or in `engine` for fine-tuning
    Constraint("verl 0.9.1 workers/engine/fsdp/transformer_impl.py:151", "0.8.0", quote=MUST_PACK),
)
CRITIC_ENGINE_ULYSSES_UNPACKED = ENGINE_ULYSSES_UNPACKED  # since 0.8.0 `critic.fsdp` is the engine's table
FSDP2_MUST_PACK_SINCE = "0.5.0"  # trainer/ppo/ray_trainer.py:530; 0.4.1:462 compares with "fsdp" alone


REFERENCE_CHECKED_UNTIL = "0.4.0"  # even if it is not used: trainer/ppo/ray_trainer.py 0.3.0.post1:325
ROLLOUT_SIZES = (
    Constraint("verl 0.5.0 workers/fsdp_workers.py:466", FIRST, "0.6.0", "is not divisible by infer_tp"),
    Constraint("verl 0.7.1 workers/fsdp_workers.py:700", "0.6.0", "0.8.0", "is not divisible by infer_world_size"),
    Constraint("verl 0.9.1 workers/engine_workers.py:660", "0.8.0", quote="is not divisible by infer_world_size"),
)
MEGATRON_ROLLOUT_SIZES = (  # in 0.3.0.post1 the rollout computes its own sizes
    Constraint("verl 0.5.0 workers/megatron_workers.py:290", "0.4.0", "0.6.0", "is not divisible by infer_tp"),
    Constraint("verl 0.7.1 workers/megatron_workers.py:521", "0.6.0", "0.8.0", "is not divisible by infer_world_size"),
    *ROLLOUT_SIZES[2:],
)


__getattr__ = read_table(__file__)  # the constraints of a name in constraints.toml
