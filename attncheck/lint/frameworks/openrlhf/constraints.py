"""The releases of OpenRLHF in which each objection holds, read in all its wheels from 0.5.0 to 0.11.2.

Line numbers are those of the release that is named; a range is that of the assertion's own text in every wheel.
"""

from collections.abc import Mapping

from attncheck.lint.fields.constraints import Constraint, Constraints

FIRST = "0.5.0"  # the oldest release that was read
PPO_CLI = "openrlhf 0.11.2 cli/train_ppo_ray.py"
STRATEGY = "openrlhf 0.11.2 utils/deepspeed/deepspeed.py"

# Sizes and packing --------------------------------------------------------------------------------------------------
SIZE_BELOW_ONE = (Constraint(f"{STRATEGY}:102-116", FIRST),)
SAMPLES_BELOW_ONE = (Constraint(f"{PPO_CLI}:757", "0.7.2"),)
RING_WITHOUT_PACKING: Mapping[str, Constraints] = {
    trainer: (Constraint(f"openrlhf 0.11.2 cli/train_{trainer}.py:{line}", since,
                         quote="packing_samples must be enabled when using ring attention"),)
    for trainer, line, since in (("sft", 322, "0.5.4"), ("rm", 334, FIRST), ("dpo", 357, FIRST))
}  # fmt: skip
# 0.6.0 and 0.9.2 pass ring_attn_group to the model (OpenRLHF/OpenRLHF#1168, #1182).
REWARD_MODEL_WITHOUT_RING = (
    Constraint("openrlhf 0.9.0 trainer/rm_trainer.py, concatenated_forward", "0.7.0", "0.9.2",
               "model(input_ids, attention_mask=att_masks, return_output=True), without ring_attn_group"),
)  # fmt: skip
RING_TURNS_PACKING_ON = (
    Constraint(f"{PPO_CLI}:688", "0.8.4", quote="--ring_attn_size > 1 requires --packing_samples"),
)
PPO_RING_WITHOUT_PACKING = (
    Constraint("openrlhf 0.6.4 models/actor.py:209-220", "0.6.0", "0.7.0",
               "convert_ring_attn_params under packing alone"),
    Constraint("openrlhf 0.7.0 models/actor.py:222-226", "0.7.0", "0.8.4",
               "unpad_and_slice_tensor under packing alone"),
)  # fmt: skip
FLASH_FOR_PACKING = "Please --flash_attn to accelerate when --packing_samples is enabled"
IMPLEMENTATION_FOR_PACKING = "Please use --attn_implementation with flash_attention to accelerate"
IMPLEMENTATION_REPLACED: Mapping[str, Constraints] = {
    trainer: (
        Constraint(f"openrlhf 0.8.9.post1 cli/train_{file}.py:{old_line}", FIRST, "0.8.10", FLASH_FOR_PACKING),
        Constraint(f"openrlhf 0.11.2 cli/train_{file}.py:{line}", "0.8.10", quote=IMPLEMENTATION_FOR_PACKING),
    )
    for trainer, file, old_line, line in (
        *(("sft", "sft", 273, 326), ("rm", "rm", 283, 338), ("dpo", "dpo", 300, 361)),
        ("ppo", "ppo_ray", 514, 702),
    )
}
PACKING_OF_ONE_ROW = (
    Constraint("openrlhf 0.6.4 cli/train_sft.py:86, packing_collate_fn", FIRST, "0.7.0", "joins a micro batch's rows"),
    Constraint("openrlhf 0.11.2 models/ring_attn_utils.py:103-148, unpad_and_slice_tensor", "0.7.0",
               quote="packs the rows of one micro batch"),
)  # fmt: skip
RECURRENT_PACKING = (
    Constraint(
        "openrlhf 0.6.4 models/actor.py:220", FIRST, "0.7.0", "position_ids = reset_position_ids(attention_mask)"
    ),
    Constraint("openrlhf 0.11.2 models/actor.py:236-265", "0.7.0", quote="unpad_and_slice_tensor gives position_ids"),
)

# Precision and devices ----------------------------------------------------------------------------------------------
LIGER_ON_VISION = (
    Constraint(
        "openrlhf 0.11.2 models/actor.py:132", "0.10.0", quote="use_liger_kernel is not compatible with VLM models"
    ),
)
FOUR_BIT_WITHOUT_BF16 = (
    Constraint("openrlhf 0.11.2 models/actor.py:116", FIRST, quote="we only support bnb_4bit_compute_dtype = bf16"),
)
TENSOR_PARALLEL_PRECISION = (
    Constraint(f"{STRATEGY}:78", "0.7.4", quote="BF16 is required for tensor parallel training"),
)
TENSOR_PARALLEL_DEEPSPEED = (
    Constraint(f"{STRATEGY}:77", "0.7.4", quote="DeepSpeed version must be >= 0.16.4 for tensor parallel training"),
)
INDIVISIBLE_BATCH = (
    Constraint("openrlhf 0.6.4 utils/deepspeed; deepspeed 0.19.6 runtime/config.py:935-938", FIRST, "0.7.0"),
    Constraint(f"{STRATEGY}:456 and :499; deepspeed 0.19.6 runtime/config.py:935-938", "0.7.0"),
)
TOO_FEW_SAMPLES = (
    Constraint("openrlhf 0.11.2 trainer/sft_trainer.py:111", "0.11.2",
               quote="Training must contain at least one complete gradient-accumulation window"),
)  # fmt: skip
NO_STEP_OF_TOO_FEW_SAMPLES = (
    Constraint("openrlhf 0.11.1 cli/train_sft.py:102", FIRST, "0.11.2", "len(train_dataset) // args.train.batch_size"),
)
DETERMINISTIC_G = (
    Constraint(f"{STRATEGY}:87", "0.6.2",
               quote="deterministic_g = True; the Triton cross-entropy (models/utils.py:180) has no switch at all"),
)  # fmt: skip
MUON_DEEPSPEED = (Constraint(f"{STRATEGY}:156", "0.10.2", quote="Muon optimizer requires deepspeed >= 0.18.9"),)
MULTITURN = (
    Constraint("openrlhf 0.11.2 cli/train_sft.py:309", "0.5.7",
               quote="apply_chat_template must be enabled when using multiturn format"),
)  # fmt: skip

# Reinforcement learning ---------------------------------------------------------------------------------------------
PACKING_WITHOUT_VLLM = (
    Constraint(f"{PPO_CLI}:705", FIRST,
               quote="Only support `--packing_samples` with vLLM; without the flag: TypeError, None > 0"),
)  # fmt: skip
NOTHING_GENERATES = (  # 0.7.5 trainer/ppo_utils/experience_maker.py:632 generates on its own
    Constraint("openrlhf 0.11.2 trainer/ppo_utils/samples_generator.py:213-219", "0.8.0",
               quote="an empty heap of engines"),
)  # fmt: skip
DYNAMIC_TURNS_PACKING_ON = (
    Constraint(f"{PPO_CLI}:693", "0.8.6",
               quote="Please --packing_samples to accelerate when --use_dynamic_batch is enabled"),
)  # fmt: skip
DYNAMIC_WITHOUT_STEP = (
    Constraint("openrlhf 0.11.2 trainer/ppo_utils/replay_buffer.py:102-114", "0.8.6", quote="num_steps = 0"),
)
DYNAMIC_ROW_OVER_BUDGET = (Constraint("openrlhf 0.11.2 utils/seqlen_balancing.py:234-247", "0.8.6"),)
IMAGES_WITH_CRITIC = (
    Constraint(f"{PPO_CLI}:664", "0.10.0",
               quote="VLM training does not support critic model. Use --advantage_estimator other than 'gae'"),
)  # fmt: skip
IMAGES_WITH_PACKING = (
    Constraint(f"{PPO_CLI}:668", "0.10.0",
               quote="VLM training does not support --packing_samples. Packing collapses the batch dimension"),
)  # fmt: skip
IMAGES_BEFORE_PACKING = (
    Constraint(f"{PPO_CLI}:668", "0.10.0",
               quote="the check runs before :688 and :693; packing parts image tokens from their pixel_values"),
)  # fmt: skip
COLOCATED_WITH_VLLM = (
    Constraint(f"{PPO_CLI}:56", "0.5.9", quote="actor_num_nodes * actor_num_gpus_per_node must be equal to "
               "vllm_num_engines * vllm_tensor_parallel_size"),
)  # fmt: skip
COLOCATED_ACTOR = (
    Constraint(f"{PPO_CLI}:41", FIRST,
               quote="num_nodes and num_gpus_per_node must be the same when colocate actor and ref model"),
)  # fmt: skip
COLOCATED_CRITIC = (
    Constraint(f"{PPO_CLI}:105", FIRST,
               quote="num_nodes and num_gpus_per_node must be the same when colocate critic and reward model"),
)  # fmt: skip
COLOCATE_ALL_SINCE = "0.5.8"  # cli/train_ppo_ray.py:54
BASELINE_SINCE = {"rloo": "0.5.3", "reinforce_baseline": "0.6.0", "group_norm": "0.6.0", "dr_grpo": "0.11.0"}
BASELINE: Mapping[str, Constraints] = {
    estimator: (Constraint(f"{PPO_CLI}:656", since, quote=f"{estimator} requires n_samples_per_prompt > 1"),)
    for estimator, since in BASELINE_SINCE.items()
}
ADVANTAGE_OF_ZERO = (
    Constraint("openrlhf 0.10.4 cli/train_ppo_ray.py asserts it of others alone; rewards - rewards.mean(-1)",
               "0.6.3.post2", "0.11.0"),
)  # fmt: skip
SAMPLE_BATCHES = (
    Constraint(f"{PPO_CLI}:763", "0.7.2", quote="The number of sample batches must be greater than or equal to "
               "the effective number of actor processes"),
)  # fmt: skip
SLEEP_WITHOUT_COLOCATION = (
    Constraint(f"{PPO_CLI}:708", "0.5.8", quote="Set … enable_sleep to False when … colocate_all … is disabled"),
)
SLEEP_WITH_ASYNC = (Constraint(f"{PPO_CLI}:715", "0.8.0", quote="Async RLHF is not supported with … enable_sleep"),)
COLOCATION_WITH_ASYNC = (
    Constraint(f"{PPO_CLI}:712", "0.8.0",
               quote="Using --colocate_all_models in async RLHF only colocates DeepSpeed models"),
)  # fmt: skip
PARTIAL_WITHOUT_ASYNC = (Constraint(f"{PPO_CLI}:718", "0.9.7", quote="partial_rollout … requires … async"),)
SLEEP_OF_DEEPSPEED = (  # from 0.6.0.post1 to 0.8.9.post1 whatever the version of deepspeed
    Constraint("openrlhf 0.11.2 utils/deepspeed/deepspeed_utils.py:159-161", "0.8.10",
               quote="Only Zero stage 3 is currently supported when using DeepSpeed version 0.17.5 or lower"),
)  # fmt: skip
PRECISION_UNLIKE_VLLM = (
    Constraint("openrlhf 0.11.2 trainer/ray/vllm_engine.py:273 dtype bfloat16; trainer/ray/vllm_worker_wrap.py:39",
               FIRST, quote="mismatch dtype"),
)  # fmt: skip
VLLM_TOO_OLD = (
    Constraint("openrlhf 0.11.2 trainer/ray/vllm_engine.py:93", "0.9.1",
               quote="Streaming VLLM version must be greater than 0.8.5"),
)  # fmt: skip
VLLM_TOO_OLD_FOR_CORRECTION = (
    Constraint("openrlhf 0.11.2 trainer/ray/vllm_engine.py:297", "0.8.9",
               quote="vLLM > 0.10.0 is required for logprobs_mode"),
)  # fmt: skip
CLIP_OF_SEQUENCES = (
    Constraint("openrlhf 0.11.2 models/loss.py:168", "0.11.2",
               quote="is_correction_mode=clip requires is_correction_level=token and is_correction_gating=ratio"),
)  # fmt: skip
THREE_THRESHOLDS = (
    Constraint(f"{PPO_CLI}:642", "0.11.2", quote="--algo.advantage.is_correction_threshold takes HIGH or LOW HIGH"),
)
LOWER_BOUND_OF_DIVERGENCE = (
    Constraint("openrlhf 0.11.2 models/loss.py:172", "0.11.2",
               quote="is_correction_gating takes an upper bound only (a single delta)"),
)  # fmt: skip
CRITIC_WITHOUT_REWARD_MODEL = (
    Constraint(f"{PPO_CLI}:648", FIRST, quote="args.reward.model_name_or_path.split on None"),
)
EVALUATION_WITHOUT_REWARD = (
    Constraint("openrlhf 0.10.0 cli/train_ppo_ray.py:620", "0.7.0", "0.10.2",
               "`--eval_dataset` is only supported with `--remote_rm_url`"),
    Constraint(f"{PPO_CLI}:722", "0.10.2",
               quote="`--eval_dataset` requires either `--remote_rm_url` or `--agent_func_path`"),
)  # fmt: skip
FILTERING_WITHOUT_REWARD = (
    Constraint(f"{PPO_CLI}:752", "0.8.1",
               quote="remote_rm_url or agent_func_path must be specified when using dynamic filtering"),
)  # fmt: skip
FILTERING_OF_ONE_ANSWER = (
    Constraint(f"{PPO_CLI}:755", "0.8.1",
               quote="n_samples_per_prompt must be greater than 1 when using dynamic filtering"),
)  # fmt: skip
OVERSAMPLING_WITHOUT_ASYNC = (
    Constraint(f"{PPO_CLI}:743", "0.10.0", quote="over-sampling needs async queue to buffer extra batches"),
)
