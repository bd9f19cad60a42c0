"""What Megatron-LM refuses or silently ignores, with the releases of megatron-core that do so.

Read in the tags core_v0.6.0 to core_v0.19.0; lines are those of core_v0.15.0 unless stated otherwise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from attncheck.lint.fields import Consequence, Fact, Known, Reading, SettingProblem, Snapshot, is_at_least, value_or
from attncheck.lint.frameworks.megatron.options import MODEL_PARALLEL_OPTIONS, MegatronReading

ARGUMENTS = "megatron/training/arguments.py"
BACKEND_SINCE = "0.11.0"  # --attention-backend, which sets TE's variables and refuses other values
CONTEXT_LENGTH_SINCE = "0.8.0"
DETERMINISTIC_SINCE = "0.8.0"
DETERMINISM_MODULE_SINCE = "0.19.0"  # megatron/training/determinism.py: the variables have defaults
FUSION_REFUSED_SINCE = "0.9.0"
CONNECTIONS_SINCE = "0.12.0"
BLACKWELL = 10  # from this compute capability, the number of connections does not matter
TYPE_FILTER = (
    'Transformer Engine, get_attention_backend, "Filter: Data type": supported are torch.bfloat16 and torch.float16'
)
ALGORITHMS = ("Tree", "Ring", "CollnetDirect", "CollnetChain", "^NVLS")
NEWER_ALGORITHMS = ("Ring", "CollnetDirect", "CollnetChain", "^NVLS")
# The variables that each backend sets.
TE_SWITCHES = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")
BACKEND_SWITCHES = {"auto": "111", "flash": "100", "fused": "010", "unfused": "001", "local": "000"}


def find_problems(
    options: MegatronReading, version: str, world_size: Fact[int], snapshot: Snapshot
) -> Iterator[SettingProblem]:
    """Yield what the release refuses or ignores, judged by what the launch sets."""
    yield from find_size_problems(options, world_size)
    if is_at_least(version, CONTEXT_LENGTH_SINCE):
        yield from _length_does_not_divide(options)
    if is_at_least(version, BACKEND_SINCE):
        yield from _variables_against_backend(options)
    if options.is_on("deterministic-mode") and is_at_least(version, DETERMINISTIC_SINCE):
        yield from _deterministic_mode(options, version)
    if is_at_least(version, CONNECTIONS_SINCE):
        yield from _device_connections(options, snapshot)
    yield from _mask_is_not_read(options)
    yield from _single_precision_is_not_fused(options)


def find_size_problems(options: MegatronReading, world_size: Fact[int]) -> Iterator[SettingProblem]:
    """Yield the sizes that every release refuses."""
    yield from find_undivided_sizes(options, MODEL_PARALLEL_OPTIONS, world_size)
    yield from _heads_do_not_divide(options)
    yield from _context_parallel_without_engine(options)


def _problem(
    options: MegatronReading, consequence: Consequence, message: str, source: str, *names: str, advice: str = ""
) -> SettingProblem:
    return SettingProblem(
        consequence, message, (f"megatron-core {source}",), options.find_location(*names), advice=advice
    )


def find_undivided_sizes(reading: Reading, names: Sequence[str], world_size: Fact[int]) -> Iterator[SettingProblem]:
    """Check sizes with pipeline stages; without stages, the rule on sequence and tensor parallelism covers them.

    `names` are those of tensor, pipeline and context parallelism.
    """
    tensor, stages, context = (reading.get_int(name, 1) for name in names)
    count = value_or(world_size, 0)
    if count % (tensor * stages * context) and count % (tensor * context) == 0:
        text = f"tensor x pipeline x context parallel {tensor} x {stages} x {context} does not divide {count} processes"
        evidence = f"megatron-core 0.15.0 {ARGUMENTS}:372: world size is not divisible by total_model_size"
        yield SettingProblem("refuses", text, (evidence,), reading.find_location(names[1]))


def _heads_do_not_divide(options: MegatronReading) -> Iterator[SettingProblem]:
    size = options.get_int("tensor-model-parallel-size", 1)
    heads, groups = options.get_int("num-attention-heads"), options.get_int("num-query-groups")
    source = "0.15.0 megatron/core/transformer/transformer_config.py"
    if heads and heads % size:
        message = f"--num-attention-heads {heads} is not a multiple of --tensor-model-parallel-size {size}"
        text = "num_attention_heads must be a multiple of tensor_model_parallel_size"
        yield _problem(options, "refuses", message, f"{source}: {text}", "tensor-model-parallel-size")
    is_grouped = options.is_on("group-query-attention")
    if groups and is_grouped and groups % size and size % groups:  # newer releases also accept a divisor
        message = f"--num-query-groups {groups} and --tensor-model-parallel-size {size}: neither divides the other"
        text = "num_query_groups must be a multiple of tensor_model_parallel_size"
        yield _problem(options, "refuses", message, f"{source}: {text}", "num-query-groups")


def _length_does_not_divide(options: MegatronReading) -> Iterator[SettingProblem]:
    ranks, length = options.get_int("context-parallel-size", 1), options.get_int("seq-length")
    if ranks < 2 or not length or length % (2 * ranks) == 0:
        return
    message = f"--seq-length {length} is not a multiple of {2 * ranks}, twice --context-parallel-size {ranks}"
    source = f"0.15.0 {ARGUMENTS}:844: seq-length should be a multiple of 2 * context-parallel-size"
    yield replace(
        _problem(options, "refuses", message, source, "seq-length"),
        sets={"max_length": str(max(1, length // (2 * ranks)) * 2 * ranks)},
    )


def _context_parallel_without_engine(options: MegatronReading) -> Iterator[SettingProblem]:
    ranks = options.get_int("context-parallel-size", 1)
    if ranks < 2 or not options.is_local:
        return
    yield _problem(
        options,
        "refuses",
        f"--context-parallel-size {ranks} with Megatron's own attention: only Transformer Engine supports it",
        "0.19.0 megatron/core/transformer/dot_product_attention.py:59: only supported by TEDotProductAttention",
        "transformer-impl",
        "spec",
        "context-parallel-size",
    )


def _variables_against_backend(options: MegatronReading) -> Iterator[SettingProblem]:
    """Check for variables that the launch sets to another value than its backend does."""
    backend = options.get_text("attention-backend") or "auto"
    is_unresolved = options.has_any("attention-backend") and not options.get_text("attention-backend")
    if backend not in BACKEND_SWITCHES or is_unresolved or options.is_on("use-legacy-models"):
        return
    if options.is_open and not options.has_any("attention-backend"):
        return
    expected = dict(zip(TE_SWITCHES, BACKEND_SWITCHES[backend]))
    environ = options.launch.environ
    wrong = [
        f"{name}={environ[name]}" for name in TE_SWITCHES if environ.get(name, expected[name]) not in expected[name]
    ]
    if not wrong or any("$" in text for text in wrong):
        return
    message = f"{', '.join(wrong)} contradicts --attention-backend {backend}, which sets it itself"
    source = "0.11.0 megatron/core/models/common/language_module/language_module.py:39: set to …, but expected …"
    flags = "".join(environ.get(name, "1") for name in TE_SWITCHES)
    chosen = next((name for name, switches in BACKEND_SWITCHES.items() if switches == flags and name != "local"), "")
    yield _problem(
        options,
        "refuses",
        message,
        source,
        "attention-backend",
        advice=f"unset them and write --attention-backend {chosen}" if chosen else "unset them",
    )


def _deterministic_mode(options: MegatronReading, version: str) -> Iterator[SettingProblem]:
    is_newer = is_at_least(version, DETERMINISM_MODULE_SINCE)
    if options.is_on("use-flash-attn") and not is_newer:
        yield _problem(
            options,
            "refuses",
            "--use-flash-attn with --deterministic-mode",
            f"0.15.0 {ARGUMENTS}:1074: Flash attention can not be used in deterministic mode.",
            "use-flash-attn",
            advice="leave --use-flash-attn out",
        )
    if options.is_on("cross-entropy-loss-fusion") and is_at_least(version, FUSION_REFUSED_SINCE):
        source = f"0.15.0 {ARGUMENTS}:1075: Cross Entropy Fusion is currently not deterministic."
        message, name = "--cross-entropy-loss-fusion with --deterministic-mode", "cross-entropy-loss-fusion"
        yield _problem(options, "refuses", message, source, name, advice=f"leave --{name} out")
    yield from _deterministic_variables(options, is_newer)


def _deterministic_variables(options: MegatronReading, is_newer: bool) -> Iterator[SettingProblem]:
    """Check the variables that deterministic mode requires: set to another value or, before 0.19, not set."""
    environ = options.launch.environ
    accepted = {
        "NCCL_ALGO": NEWER_ALGORITHMS if is_newer else ALGORITHMS,
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO": ("0",) if not options.is_local else (),
        "CUBLAS_WORKSPACE_CONFIG": (":4096:8", ":16:8"),
    }
    wrong, missing = [], []
    for name, values in accepted.items():
        text = environ.get(name)
        if text is None and values and not is_newer:
            missing.append(f"{name}={'Ring' if name == 'NCCL_ALGO' else values[0]}")
        elif text is not None and values and "$" not in text:
            tokens = text.split(",") if is_newer else [text]
            wrong += [f"{name}={text}"] * any(token.strip() not in values for token in tokens)
    source = "0.19.0 megatron/training/determinism.py" if is_newer else f"0.15.0 {ARGUMENTS}:1078-1081"
    if wrong:
        yield _problem(
            options,
            "refuses",
            f"{', '.join(wrong)} with --deterministic-mode, which does not allow this value",
            source,
            "deterministic-mode",
        )
    if missing:
        yield _problem(
            options,
            "refuses",
            f"--deterministic-mode, but the launch does not set {', '.join(m.split('=')[0] for m in missing)}",
            source,
            "deterministic-mode",
            advice="export " + " ".join(missing),
        )


def _device_connections(options: MegatronReading, snapshot: Snapshot) -> Iterator[SettingProblem]:
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    text = options.launch.environ.get(name, "1")
    sizes = [options.get_int(option, 1) for option in ("tensor-model-parallel-size", "context-parallel-size")]
    is_exempt = (
        options.is_on("use-torch-fsdp2") or options.is_on("use-megatron-fsdp") or options.is_on("use-custom-fsdp")
    )
    is_exempt = is_exempt or options.is_on("overlap-moe-expert-parallel-comm")
    capabilities = [device.compute_capability for device in snapshot.visible_devices()]
    is_older = any(isinstance(fact, Known) and fact.value[0] < BLACKWELL for fact in capabilities)
    if max(sizes) < 2 or text == "1" or "$" in text or is_exempt or not is_older:
        return
    yield _problem(
        options,
        "refuses",
        f"{name}={text} with tensor or context parallelism, which requires 1 on this GPU",
        f"0.15.0 {ARGUMENTS}:959: require setting the environment variable {name} to 1",
        "tensor-model-parallel-size",
        advice=f"export {name}=1",
    )


def _mask_is_not_read(options: MegatronReading) -> Iterator[SettingProblem]:
    """Check for a mask from the data loader: Transformer Engine makes the causal mask itself and ignores it."""
    if not options.is_on("reset-attention-mask") or options.is_local or options.is_on("use-legacy-models"):
        return
    if options.has_any("spec", "yaml-cfg"):
        return
    yield _problem(
        options,
        "ignores",
        "--reset-attention-mask under Transformer Engine: packed documents attend to each other anyway",
        "0.15.0 megatron/core/models/gpt/gpt_layer_specs.py:145 (attn_mask_type causal); transformer-engine 2.5.0 "
        "dot_product_attention.py: attention_mask should be None for causal masks",
        "reset-attention-mask",
        advice="use --transformer-impl local, which reads the mask, or remove the option",
    )


def _single_precision_is_not_fused(options: MegatronReading) -> Iterator[SettingProblem]:
    """Check for an explicit request of flash attention in float32, which Transformer Engine computes without it."""
    is_flash = options.is_on("use-flash-attn") or options.get_text("attention-backend") == "flash"
    if not is_flash or options.is_open or options.is_local or options.has_any("bf16", "fp16", "use-legacy-models"):
        return
    message = "neither --bf16 nor --fp16: float32, for which Transformer Engine has neither flash nor fused attention"
    yield SettingProblem(
        "ignores",
        message,
        (TYPE_FILTER,),
        options.find_location("use-flash-attn", "attention-backend"),
        advice="add --bf16",
    )
