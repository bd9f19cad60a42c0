"""The releases of verl in which each objection holds, read in the wheels 0.2.0.post2 to 0.9.1."""

from __future__ import annotations

from attncheck.lint.fields.constraints import Constraint

MUST_PACK = "you must enable `use_remove_padding`"
FLASH_2 = 'attn_implementation="flash_attention_2"'
MICRO_BATCH = "Please set at least one of … or …_per_gpu"
FIRST = "0.2.0.post2"  # the oldest release that was read

# Attention -----------------------------------------------------------------------------------------------------------
UNREAD_IMPLEMENTATION = (Constraint("verl 0.6.0 workers/fsdp_workers.py:319", FIRST, "0.6.1", FLASH_2),)
UNREAD_IMPLEMENTATION_OF_OLD_SFT = (Constraint("verl 0.7.0 trainer/fsdp_sft_trainer.py:244", FIRST, "0.7.1", FLASH_2),)
NESTED_IMPLEMENTATION = (  # 0.6.0 for the new workers alone
    Constraint(
        "verl 0.9.1 workers/config/model.py:185", "0.6.0", quote='self.override_config.get("attn_implementation", …)'
    ),
)
CRITIC_IMPLEMENTATION = (
    Constraint("verl 0.4.1 workers/fsdp_workers.py:910", FIRST, "0.5.0", FLASH_2),
    Constraint("verl 0.9.1 utils/model.py:649, 674 (load_valuehead_model)", "0.5.0", quote=FLASH_2),
)
VALUE_HEAD = "“… is not a value head model, please install trl to make it valid” (verl 0.9.1 utils/model.py:656)"

FUSED_KERNELS_PADDED = (  # read in 0.7.1, whose actor is another class, 0.8.0, 0.9.0 and 0.9.1
    Constraint("verl 0.8.0 workers/engine/fsdp/transformer_impl.py:1189, utils/padding.py:131", "0.8.0", "0.9.0",
               "assert sequence_offsets[-1].item() == values.shape[0]"),
)  # fmt: skip

# Ulysses -------------------------------------------------------------------------------------------------------------
ULYSSES_UNPACKED = (  # of the size alongside `fsdp_config`; strategy "fsdp" alone before 0.5.0
    Constraint("verl 0.4.1 trainer/ppo/ray_trainer.py:463", FIRST, "0.6.0", MUST_PACK),
    Constraint("verl 0.6.0 workers/config/actor.py:246", "0.6.0", "0.8.0", MUST_PACK),
    Constraint("verl 0.9.1 workers/config/actor.py:340, workers/engine/fsdp/transformer_impl.py:151", "0.8.0",
               quote=MUST_PACK),
)  # fmt: skip
ENGINE_ULYSSES_UNPACKED = (  # of the training engine's own size: in `fsdp_config`, or `engine` in fine-tuning
    Constraint("verl 0.9.1 workers/engine/fsdp/transformer_impl.py:151", "0.8.0", quote=MUST_PACK),
)
OLD_SFT_ULYSSES_UNPACKED = (
    Constraint("verl 0.4.1 trainer/fsdp_sft_trainer.py:182", FIRST, "0.7.1",
               "Sequence parallel is only supported when remove_padding is enabled"),
)  # fmt: skip
CRITIC_ULYSSES_UNPACKED = (
    Constraint("verl 0.4.1 trainer/ppo/ray_trainer.py:467", FIRST, "0.6.0", MUST_PACK),
    Constraint("verl 0.6.0 workers/config/critic.py:206", "0.6.0", "0.8.0", MUST_PACK),
)
CRITIC_ENGINE_ULYSSES_UNPACKED = ENGINE_ULYSSES_UNPACKED  # 0.8.0 on: `critic.fsdp` is the engine's table
FSDP2_MUST_PACK_SINCE = "0.5.0"  # trainer/ppo/ray_trainer.py:530; 0.4.1:462 compares with "fsdp" alone
REFERENCE_WITHOUT_ULYSSES = (
    Constraint("verl 0.9.1 trainer/config/ref/dp_ref.yaml:39", "0.8.0",
               quote="${oc.select:actor_rollout_ref.actor.ulysses_sequence_parallel_size,1}"),
)  # fmt: skip
UNREAD_ULYSSES_SIZE = (
    Constraint("verl 0.7.1 workers/fsdp_workers.py:178", "0.6.0", "0.8.0",
               'self.config.actor.get("ulysses_sequence_parallel_size", 1)'),
)  # fmt: skip
FUSED_KERNELS_UNDER_ULYSSES = (  # read in 0.4.1, 0.5.0, 0.6.0, 0.6.1, 0.7.0, 0.7.1; 0.8.0 hands shift_labels in
    Constraint("verl 0.7.1 models/transformers/dense_common.py", "0.4.1", "0.8.0",
               "rolled_labels = torch.roll(input_ids, shifts=-1, dims=-1), of a rank's slice"),
)  # fmt: skip
ULYSSES_SINKS = (  # before 0.6.0 the wrapper does not go with the transformers that have gpt_oss, 4.55 and newer
    Constraint("verl 0.9.1 models/transformers/monkey_patch.py:87-160", "0.6.0",
               quote="heads are scattered, s_aux is passed on whole"),
)  # fmt: skip
ULYSSES_VISION = (
    Constraint("verl 0.7.1 workers/fsdp_workers.py:402", "0.6.0", "0.8.0",
               'vision_config._attn_implementation = "eager"'),
)  # fmt: skip
RECURRENT_STATE = (
    Constraint("verl 0.7.1 models/transformers/monkey_patch.py", FIRST, "0.8.0", "no qwen3_next in it"),
    Constraint("verl 0.8.0 models/transformers/monkey_patch.py:495", "0.8.0", "0.9.0",
               "patches qwen3_5 and qwen3_5_moe alone"),
    Constraint("verl 0.9.1 models/transformers/monkey_patch.py:500-532, workers/engine/fsdp/transformer_impl.py:594",
               "0.9.0", quote="qwen3_5 and qwen3_5_moe are patched, cu_seqlens go to a forward that names them"),
)  # fmt: skip

# Loss ----------------------------------------------------------------------------------------------------------------
BALANCED_TOKENS_UNDER_ULYSSES = (  # torch distributed/device_mesh.py: 2.4.0:582 to 2.13.0:1150 take a number
    Constraint("verl 0.5.0 trainer/fsdp_sft_trainer.py:438", FIRST, "0.7.1",
               'self.ulysses_device_mesh.size("dp"), which DeviceMesh.size does not take'),
)  # fmt: skip
SUM_OF_MICRO_BATCHES = (  # of fsdp_sft_trainer; what is logged is divided
    Constraint("verl 0.5.0 trainer/fsdp_sft_trainer.py:442-461", FIRST, "0.6.0",
               "loss.backward() comes before / n_micro_batches"),
)  # fmt: skip
LOSS_OF_MICRO_BATCHES = (  # of fsdp_sft_trainer; of sft_trainer in 0.6.0 (workers/roles/utils/losses.py:40)
    Constraint("verl 0.6.0 trainer/fsdp_sft_trainer.py:446-469", "0.6.0", "0.7.1",
               "each micro-batch's mean / n_micro_batches"),
)  # fmt: skip
TARGETS_EARLY = (  # of fsdp_sft_trainer's rows of a prompt and a response, whose mask is shifted already
    Constraint("verl 0.6.0 trainer/fsdp_sft_trainer.py:361, utils/dataset/sft_dataset.py:174-179", "0.6.0", "0.7.1",
               'batch.pop("loss_mask")[:, 1:]'),
)  # fmt: skip
TARGETS_LATE = (  # of fsdp_sft_trainer's conversations, whose mask is not
    Constraint("verl 0.4.1 trainer/fsdp_sft_trainer.py:305, utils/dataset/multiturn_sft_dataset.py:170", "0.4.0",
               "0.6.0", 'batch.pop("loss_mask")[:, :-1]'),
)  # fmt: skip
LOSS_OF_MICRO_BATCHES_OF_NEW_SFT = (
    Constraint("verl 0.6.0 workers/roles/utils/losses.py:30-46", "0.6.0", "0.6.1", "masked_mean of each micro-batch"),
)
LOSS_OF_MICRO_BATCHES_OF_ACTOR = (
    Constraint("verl 0.7.1 workers/actor/dp_actor.py:583-663", "0.3.0.post1", "0.8.0",
               "policy_loss * loss_scale_factor, agg_loss(…) without batch_num_tokens"),
)  # fmt: skip

# Switches ------------------------------------------------------------------------------------------------------------
OLD_SFT_PACKING = (
    Constraint("verl 0.4.1 trainer/fsdp_sft_trainer.py:299-306", FIRST, "0.7.1",
               "use_sp = self.use_remove_padding and … > 1"),
)  # fmt: skip
PREFIX_GROUPER = (
    Constraint("verl 0.9.1 workers/engine/fsdp/transformer_impl.py:324", "0.8.0",
               quote="apply_monkey_patch(…), no use_prefix_grouper"),
)  # fmt: skip
UNREAD_DETERMINISM = (
    Constraint("verl 0.7.1 workers/engine/fsdp/transformer_impl.py:128 reads it, workers/fsdp_workers.py does not",
               "0.7.0", "0.8.0"),
)  # fmt: skip

# Batches -------------------------------------------------------------------------------------------------------------
AMBIGUOUS_MICRO_BATCH = (
    Constraint("verl 0.5.0 trainer/ppo/ray_trainer.py:450", FIRST, "0.6.0", MICRO_BATCH),
    Constraint("verl 0.9.1 workers/config/actor.py:208, workers/config/critic.py:150, utils/config.py:155", "0.6.0",
               quote=MICRO_BATCH),
)  # fmt: skip
REFERENCE_CHECKED_UNTIL = "0.4.0"  # whether it is used or not: trainer/ppo/ray_trainer.py 0.3.0.post1:325
MINI_BATCH_OVER_TRAIN_BATCH = (
    Constraint("verl 0.5.0 trainer/ppo/ray_trainer.py:500, 522", "0.3.0.post1", "0.6.0",
               "assert config.data.train_batch_size >= config.actor_rollout_ref.actor.ppo_mini_batch_size"),
    Constraint("verl 0.9.1 workers/config/actor.py:224", "0.6.0",
               quote="train_batch_size (…) must be >= actor.ppo_mini_batch_size (…)"),
)  # fmt: skip
ROLLOUT_BATCH = (
    Constraint("verl 0.3.0.post1 trainer/ppo/ray_trainer.py:303", FIRST, "0.4.0",
               "real_train_batch_size (…) must be divisible by total n_gpus (…)"),
    Constraint("verl 0.4.1 trainer/ppo/ray_trainer.py:377", "0.4.0", "0.6.0",
               "real_train_batch_size (…) must be divisible by minimal possible batch size (…)"),
    Constraint("verl 0.9.1 utils/config.py:124", "0.6.0",  # without dynamic batches alone
               quote="real_train_batch_size (…) must be divisible by minimal possible batch size (…)"),
)  # fmt: skip
EMPTY_MINI_BATCH = (
    Constraint("verl 0.7.1 workers/fsdp_workers.py:251", "0.3.0.post1", "0.8.0",
               "ppo_mini_batch_size … should be larger than 0 after normalization"),
)  # fmt: skip
EMPTY_CRITIC_MINI_BATCH = (  # 0.3.0.post1 has no such assertion, nor does it count the answers
    Constraint("verl 0.7.1 workers/fsdp_workers.py:1338-1355", "0.4.0", "0.8.0",
               "assert … ppo_mini_batch_size // … ppo_micro_batch_size_per_gpu > 0"),
)  # fmt: skip
UNEVEN_MINI_BATCH = (  # of the new workers, since 0.7.0 with use_legacy_worker_impl=disable
    Constraint("verl 0.9.1 workers/engine_workers.py:267", "0.7.0",
               quote="assert mini_batch_size % self.engine.get_data_parallel_size() == 0"),
)  # fmt: skip
MICRO_BATCHES = (  # 0.3.0.post1 asserts of `ppo_micro_batch_size` alone
    Constraint("verl 0.7.1 workers/fsdp_workers.py:263", "0.4.0", "0.8.0",
               "normalized ppo_mini_batch_size … should be divisible by ppo_micro_batch_size_per_gpu"),
)  # fmt: skip
ENGINE_MICRO_BATCHES = (
    Constraint("verl 0.9.1 workers/engine/utils.py:125", "0.7.1",
               quote="data size must be divisible by force_group_size * micro_batch_size_per_gpu"),
)  # fmt: skip
TOKEN_BUDGET = (
    Constraint("verl 0.7.1 utils/seqlen_balancing.py:385", FIRST,
               quote="max_token_len must be greater than the sequence length; the budget is the value times the ranks"),
)  # fmt: skip
MEGATRON_SIZES = (
    Constraint("verl 0.4.1 trainer/ppo/ray_trainer.py:370", "0.4.0", "0.6.0",
               "n_gpus (…) must be divisible by model_parallel_size (…) times context_parallel_size"),
    Constraint("verl 0.9.1 utils/config.py:111", "0.6.0",
               quote="n_gpus (…) must be divisible by model_parallel_size (…) times context_parallel_size"),
)  # fmt: skip
ROLLOUT_SIZES = (
    Constraint("verl 0.5.0 workers/fsdp_workers.py:466", FIRST, "0.6.0", "is not divisible by infer_tp"),
    Constraint("verl 0.7.1 workers/fsdp_workers.py:700", "0.6.0", "0.8.0", "is not divisible by infer_world_size"),
    Constraint("verl 0.9.1 workers/engine_workers.py:660", "0.8.0", quote="is not divisible by infer_world_size"),
)
MEGATRON_ROLLOUT_SIZES = (  # in 0.3.0.post1 the rollout has sizes of its own making
    Constraint("verl 0.5.0 workers/megatron_workers.py:290", "0.4.0", "0.6.0", "is not divisible by infer_tp"),
    Constraint("verl 0.7.1 workers/megatron_workers.py:521", "0.6.0", "0.8.0", "is not divisible by infer_world_size"),
    *ROLLOUT_SIZES[2:],
)
OLD_SFT_RANKS = (
    Constraint("verl 0.4.1 trainer/fsdp_sft_trainer.py:112", FIRST, "0.7.1", "is not divisible by dp size"),
)
OLD_SFT_MICRO_BATCHES = (
    Constraint("verl 0.4.1 trainer/fsdp_sft_trainer.py:116", FIRST, "0.7.1",
               "assert … train_batch_size % … micro_batch_size_per_gpu == 0"),
)  # fmt: skip
EMPTY_SFT_BATCH = (
    Constraint("verl 0.9.1 trainer/sft_trainer.py:241", "0.6.0",
               quote="train_batch_size_per_dp = global_batch_size // dp_size, 0 of which no loader makes batches"),
)  # fmt: skip
