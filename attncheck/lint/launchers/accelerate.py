"""accelerate launch.

Options as in accelerate 1.15.0 commands/launch.py:156-985, with hyphens or underscores (:142) and never abbreviated
(:145). `--num_processes` counts the processes of all machines (utils/launch.py:217, 489). It defaults to every GPU if
neither an option nor a configuration sets it (commands/launch.py:1324).
"""

from collections.abc import Mapping, Sequence

from attncheck.lint.launchers import Absent, Fact, Known, Launcher, ParsedLauncher, Word
from attncheck.lint.launchers.options import (
    EVERY_GPU,
    LeadingOptions,
    parse_count,
    parse_leading_options,
    program_name,
    split_names,
)

SWITCHES = split_names(
    "--quiet -q --cpu --multi_gpu --tpu --enable_cpu_affinity --dynamo_use_fullgraph --dynamo_use_dynamic "
    "--dynamo_use_regional_compilation --use_deepspeed --use_fsdp --use_parallelism_config --use_megatron_lm "
    "--same_network -m --module --no_python --tpu_cluster --no_tpu_cluster --tpu_use_sudo --downcast_bf16 "
    "--fp8_use_autocast_during_eval --debug -h --help"
)
VALUE_OPTIONS = split_names(
    "--config_file --mixed_precision --num_processes --num_machines --num_cpu_threads_per_process --dynamo_backend "
    "--dynamo_mode --gpu_ids --machine_rank --main_process_ip --main_process_port -t --tee --log_dir --role "
    "--rdzv_backend --rdzv_conf --max_restarts --monitor_interval --vm --env --main_training_function "
    "--deepspeed_config_file --zero_stage --offload_optimizer_device --offload_param_device "
    "--offload_optimizer_nvme_path --offload_param_nvme_path --gradient_accumulation_steps --gradient_clipping "
    "--zero3_init_flag --zero3_save_16bit_model --deepspeed_hostfile --deepspeed_exclusion_filter "
    "--deepspeed_inclusion_filter --deepspeed_multinode_launcher --deepspeed_moe_layer_cls_names --fsdp_version "
    "--fsdp_offload_params --fsdp_min_num_params --fsdp_sharding_strategy --fsdp_reshard_after_forward "
    "--fsdp_auto_wrap_policy --fsdp_transformer_layer_cls_to_wrap --fsdp_backward_prefetch --fsdp_state_dict_type "
    "--fsdp_forward_prefetch --fsdp_use_orig_params --fsdp_cpu_ram_efficient_loading --fsdp_sync_module_states "
    "--fsdp_activation_checkpointing --fsdp_activation_checkpointing_offload --megatron_lm_tp_degree "
    "--megatron_lm_use_custom_fsdp --megatron_lm_no_load_optim --megatron_lm_eod_mask_loss "
    "--megatron_lm_overlap_cpu_optimizer_d2h_h2d --megatron_lm_no_save_optim --megatron_lm_optimizer_cpu_offload "
    "--megatron_lm_use_precision_aware_optimizer --megatron_lm_decoder_last_pipeline_num_layers "
    "--megatron_lm_pp_degree --megatron_lm_num_micro_batches --megatron_lm_sequence_parallelism "
    "--megatron_lm_recompute_activations --megatron_lm_use_distributed_optimizer --megatron_lm_gradient_clipping "
    "--megatron_lm_recompute_granularity --megatron_lm_recompute_method --megatron_lm_recompute_num_layers "
    "--megatron_lm_attention_backend --megatron_lm_expert_model_parallel_size --megatron_lm_context_parallel_size "
    "--megatron_lm_attention_dropout --megatron_lm_hidden_dropout --megatron_lm_attention_softmax_in_fp32 "
    "--megatron_lm_expert_tensor_parallel_size --megatron_lm_calculate_per_token_loss "
    "--megatron_lm_use_rotary_position_embeddings --fp8_backend --fp8_margin --fp8_interval --fp8_format "
    "--fp8_amax_history_len --fp8_amax_compute_algo --fp8_override_linear_precision --fp8_opt_level "
    "--fp8_enable_fsdp_float8_all_gather --fp8_pad_inner_dim --aws_access_key_id --aws_secret_access_key "
    "--mpirun_hostfile --parallelism_config_dp_replicate_size --parallelism_config_dp_shard_size "
    "--parallelism_config_tp_size --parallelism_config_cp_size --parallelism_config_cp_backend "
    "--parallelism_config_cp_comm_strategy --parallelism_config_sp_size --parallelism_config_sp_backend "
    "--parallelism_config_sp_seq_length --parallelism_config_sp_seq_length_is_variable "
    "--parallelism_config_sp_attn_implementation"
)
NAMES = ("accelerate.commands.launch", "accelerate-launch")


def parse(words: Sequence[Word]) -> ParsedLauncher | None:
    """Return the parsed `accelerate launch`; None for any other command."""
    arguments = _find_arguments(words)
    if arguments is None:
        return None
    options = parse_leading_options(arguments, VALUE_OPTIONS, SWITCHES, fold_hyphens=True, allow_abbrev=False)
    nodes, processes = _combine_counts(options, {})
    return ParsedLauncher(
        words=options.rest,
        nodes=nodes,
        processes=processes,
        config_file=options.text("--config_file"),
        notes=options.notes,
    )


def parse_counts(words: Sequence[Word], config_values: Mapping[str, str]) -> tuple[Fact[int], Fact[int]]:
    """Return nodes and processes per node, with the values of accelerate's configuration file; options win."""
    options = parse_leading_options(
        _find_arguments(words) or (), VALUE_OPTIONS, SWITCHES, fold_hyphens=True, allow_abbrev=False
    )
    return _combine_counts(options, config_values)


def _find_arguments(words: Sequence[Word]) -> Sequence[Word] | None:
    name = program_name(words[0]) if words else ""
    if name in NAMES:
        return words[1:]
    if name in ("accelerate", "accelerate.commands.accelerate_cli") and len(words) > 1 and words[1].text == "launch":
        return words[2:]
    return None


def _combine_counts(options: LeadingOptions, config_values: Mapping[str, str]) -> tuple[Fact[int], Fact[int]]:
    file = options.text("--config_file")
    nodes = parse_count(
        options.values.get("--num_machines"),
        "--num_machines",
        _read_config_count(config_values, "num_machines", file, 1),
    )
    total_processes = parse_count(
        options.values.get("--num_processes"),
        "--num_processes",
        _read_config_count(config_values, "num_processes", file, 0),
    )
    if not isinstance(total_processes, Known):
        return nodes, total_processes
    if not isinstance(nodes, Known):
        return nodes, Absent(
            f"--num_processes {total_processes.value} counts all machines, and their number is unknown"
        )
    return nodes, Known(max(total_processes.value // nodes.value, 1))


def _read_config_count(config_values: Mapping[str, str], name: str, file: str, default: int) -> Fact[int]:
    text = config_values.get(name, "")
    if text.isascii() and text.isdecimal() and len(text) < 7 and int(text):
        return Known(int(text))
    if file and not config_values:
        return Absent(f"{file} says it")
    return Known(default) if default else Absent(f"accelerate without --num_processes: {EVERY_GPU}")


LAUNCHER = Launcher("accelerate", parse)
