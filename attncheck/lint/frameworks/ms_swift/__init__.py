"""ms-swift: `swift sft`, `swift pt`, `swift rlhf`, `python -m swift.cli.sft`, and their YAML.

Names are those of the wheels 2.0.0 to 4.6.0. `swift` starts torchrun itself if NPROC_PER_NODE or NNODES is set
(cli/main.py:28). The weights have `torch_dtype`, or else the checkpoint's dtype. A float32 model is trained in mixed
float16 (arguments/base_args/model_args.py:128). Sequence parallelism is Ulysses over gcd(key/value heads, size) ranks
and a zigzag ring over the rest, only for flash_attention_2 and sdpa (sequence_parallel/sequence_parallel.py:272-276,
649). For `megatron sft` and similar commands only the sizes are read: Megatron has its own attention.
"""

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial

from attncheck.lint.fields import (
    Absent,
    Edit,
    Fact,
    Job,
    Key,
    Known,
    Launch,
    Plan,
    Precision,
    Setting,
    Snapshot,
    SourceLocation,
    UnknownSetting,
    Unreadable,
    collect_problems,
    find_change_release,
    find_closest_name,
    is_at_least,
    list_releases,
    read_requirements,
    value_or,
)
from attncheck.lint.frameworks import Framework, defer
from attncheck.lint.frameworks.ms_swift import tables as ms_swift
from attncheck.lint.frameworks.ms_swift.behaviour import BEHAVIOURS
from attncheck.lint.frameworks.ms_swift.changes import make_edits
from attncheck.lint.frameworks.ms_swift.megatron import build_megatron_job, read_megatron_settings
from attncheck.lint.frameworks.ms_swift.values import MsSwiftReading, field_name, find_command, read_settings

OWN_KEYS = frozenset(  # a file with `model` and one of these is ms-swift's
    {
        *("tuner_type", "train_type", "attn_impl", "rlhf_type"),
        *("packing_length", "padding_free", "sequence_parallel_size"),
    }
)
MEGATRON = "megatron"
MEGATRON_KEYS = frozenset(
    {"micro_batch_size", "tensor_model_parallel_size", "train_iters", "attention_backend", "train"}
)
DTYPE_PRECISIONS: Mapping[str, Precision] = {
    **dict.fromkeys(("bfloat16", "torch.bfloat16", "bf16"), "bf16"),
    **dict.fromkeys(("float16", "torch.float16", "fp16"), "fp16"),
    **dict.fromkeys(("float32", "torch.float32", "fp32"), "fp32"),
}
KEY_FIELDS: Mapping[Key, tuple[str, ...]] = {
    "attn_implementation": ("attn_impl", "use_flash_attn"),
    "packing": ("packing", "padding_free"),
    "precision": ("torch_dtype", "bf16", "fp16", "dtype"),
    "ring_size": ("sequence_parallel_size",),
    "tensor_parallel": ("deepspeed_autotp_size",),
    "deterministic": ("full_determinism",),
    "liger": ("use_liger_kernel", "use_liger"),
    "gradient_checkpointing": ("gradient_checkpointing",),
    "max_length": ("packing_length", "max_length"),
    "batch": ("per_device_train_batch_size", "batch_size"),
    "global_batch": ("gradient_accumulation_steps",),
    "padding_side": ("padding_side",),
}


SFT_ENTRIES = ("swift.arguments.sft_args:SftArguments", "swift.llm.argument.train_args:TrainArguments")
ENTRIES = {
    **dict.fromkeys(("sft", "pt"), SFT_ENTRIES),
    "rlhf": ("swift.arguments.rlhf_args:RLHFArguments", "swift.llm.argument.rlhf_args:RLHFArguments"),
}
MEGATRON_3 = "swift.megatron.argument."  # megatron/train/sft.py:29 of 3.12.0
MEGATRON_ENTRIES = {
    "sft": ("swift.megatron.arguments.sft_args:MegatronSftArguments", f"{MEGATRON_3}train_args:MegatronTrainArguments"),
    "pt": (
        "swift.megatron.arguments.pretrain_args:MegatronPretrainArguments",
        f"{MEGATRON_3}train_args:MegatronTrainArguments",
    ),
    "rlhf": (
        "swift.megatron.arguments.rlhf_args:MegatronRLHFArguments",
        f"{MEGATRON_3}rlhf_args:MegatronRLHFArguments",
    ),
}
# python -c "import swift; print(swift.__path__[0])" before /cli/sft.py
SCRIPT_OF_SWIFT = re.compile(r"\bimport\b[^;\n]*\bswift\b.*/cli/(\w+)\.py", re.DOTALL)


def detect_verb(launch: Launch) -> str:
    """Return the verb of a launch ("sft", "pt", "rlhf", "megatron"); "" if it does not use ms-swift."""
    if command := find_command(launch):
        verb = launch.words[1].text if len(launch.words) > 1 else ""
        if verb in ms_swift.RLHF_VERBS and command != MEGATRON:
            return "rlhf"
        return (MEGATRON if command == MEGATRON else verb) if verb in ms_swift.VERBS else ""
    if launch.words:
        first = launch.words[0].text.removesuffix(".py").replace("/", ".")
        if "swift.cli._megatron." in first:
            return MEGATRON
        own_verb = next((verb for verb in ms_swift.VERBS if first.endswith(f"swift.cli.{verb}")), "")
        installed = SCRIPT_OF_SWIFT.search(launch.words[0].text)
        own_verb = own_verb or (installed[1] if installed and installed[1] in ms_swift.VERBS else "")
        if launch.trainers is not None:
            return own_verb or _find_used_verb(launch.trainers)
        return own_verb or ms_swift.OLD_SCRIPTS.get(first.rsplit(".", 1)[-1], "")
    return _detect_verb_of_file(launch)


def _find_used_verb(names: Sequence[str]) -> str:
    """Return the only verb whose main function a program uses ("swift.llm.rlhf_main"); "" if it has another, or two."""
    texts = [name.rpartition(".")[2].lower() for name in names if name.startswith("swift.")]
    verbs = {verb for verb in ms_swift.VERBS for text in texts if text in (f"{verb}_main", f"swift{verb}")}
    return next(iter(verbs)) if len(verbs) == 1 else ""


def list_entries(launch: Launch) -> tuple[str, ...]:
    """Return the dataclass of a verb's options (3.8.0 llm/argument, 4.6.0 arguments; utils/utils.py `parse_args`).

    With `--ignore_args_error` any other option is only a warning (4.6.0 pipelines/base.py:36). `megatron rlhf --use_ray
    true --config FILE` starts another program (4.6.0 cli/_megatron/rlhf.py:18, ray/megatron/pipeline.py).
    """
    verb, is_megatron = detect_verb(launch), find_command(launch) == MEGATRON
    if verb == MEGATRON:
        verb = launch.words[1].text if is_megatron else launch.words[0].text.rpartition(".")[2] if launch.words else ""
        is_megatron = True
    starts_other = is_megatron and any(word.text == "--use_ray" for word in launch.words)
    if starts_other or read_settings(launch, verb, FRAMEWORK.newest).is_on("ignore_args_error"):
        return ()
    return (MEGATRON_ENTRIES if is_megatron else ENTRIES).get(verb, ())


def _detect_verb_of_file(launch: Launch) -> str:
    names = {entry.name.split(".")[0] for entry in launch.entries}
    if "model" not in names or not names & OWN_KEYS:
        return ""
    if names & MEGATRON_KEYS:
        return MEGATRON
    return "rlhf" if "rlhf_type" in names else "sft"


def detect_trainer(launch: Launch) -> str:
    """Return what a launch trains ("sft", "pt", "dpo", "grpo"); "" if it does not use ms-swift."""
    verb = detect_verb(launch)
    return read_settings(launch, verb, FRAMEWORK.newest).trainer if verb else ""


def read_model_name(launch: Launch) -> str:
    """Return the model that the launch names; "" if it names none."""
    settings = read_settings(launch, detect_verb(launch), FRAMEWORK.newest)
    names = (settings.get(field) for field in ("model", ms_swift.OLD_NAMES["model"], "ckpt_dir"))
    return next((name for name in names if isinstance(name, str) and name), "")


def read(launch: Launch, version: str, snapshot: Snapshot) -> Job:
    """Return the job as `version` reads it."""
    verb = detect_verb(launch)
    location = launch.words[0].location if launch.words else SourceLocation(launch.source.name)
    if verb == MEGATRON:
        return _read_megatron_job(launch, version, location)
    settings = read_settings(launch, verb, version, snapshot)
    world_size = _read_world_size(settings)
    return Job(
        framework="ms-swift",
        version=version,
        trainer=settings.trainer,
        plan=_build_plan(settings, world_size),
        model=read_model_name(launch),
        location=location,
        settings=tuple(item for item in settings.by_field.values() if item.name != "--config"),  # its command reads it
        unknown_settings=_find_unknown_settings(settings),
        problems=collect_problems(BEHAVIOURS, settings),
        world_size=world_size,
        gpus=world_size,
        nodes=launch.nodes.value if isinstance(launch.nodes, Known) else _read_count(settings, "NNODES"),
        tensor_parallel=settings.get_int("deepspeed_autotp_size"),
        scheme=_resolve_scheme(settings),
        hooked=_hooked_implementations(settings),
        packs_with=tuple(name for name in ms_swift.packing_implementations(version) if name != "flash_attn"),
        requires=read_requirements("ms_swift", version),
        reinforcement=settings.trainer in ("grpo", "gkd", "ppo") and settings.is_on("use_vllm"),
        locations={
            key: settings.find_location(*names)
            for key, names in KEY_FIELDS.items()
            if any(name in settings.by_field for name in names)
        },
        remarks=_format_remarks(settings),
    )


def _read_megatron_job(launch: Launch, version: str, location: SourceLocation) -> Job:
    remark = "of megatron's arguments only the sizes are read; its attention is not judged"
    settings = read_settings(launch, MEGATRON, version)
    nodes = launch.nodes.value if isinstance(launch.nodes, Known) else _read_count(settings, "NNODES")
    model = read_model_name(launch)
    job = Job("ms-swift", version, MEGATRON, model=model, location=location, nodes=nodes, remarks=(remark,))
    is_stated = bool(launch.launchers) or any(name in settings.environ for name in ("NPROC_PER_NODE", "NNODES"))
    world_size = _read_world_size(settings) if is_stated else Absent("the launch does not set NPROC_PER_NODE")
    return build_megatron_job(job, launch, read_megatron_settings(launch, 2 if find_command(launch) else 1), world_size)


def _read_world_size(settings: MsSwiftReading) -> Fact[int]:
    """Return how many processes train: those of a launcher, or of the torchrun that `swift` starts."""
    launch = settings.launch
    if isinstance(launch.nodes, Known) and isinstance(launch.processes, Known):
        return Known(launch.nodes.value * launch.processes.value)
    counts = [settings.environ.get(name) for name in ("NPROC_PER_NODE", "NNODES")]
    if any(text is not None and not text.isdecimal() for text in counts):
        return Unreadable("NPROC_PER_NODE and NNODES are known only at run time")
    if find_command(launch):
        return Known(_read_count(settings, "NPROC_PER_NODE") * _read_count(settings, "NNODES"))
    if any(counts):
        return Known(_read_count(settings, "NPROC_PER_NODE") * _read_count(settings, "NNODES"))
    return (
        Absent("the launch does not set the number of training processes") if not launch.launchers else launch.processes
    )


def _read_count(settings: MsSwiftReading, name: str) -> int:
    text = settings.environ.get(name, "")
    return max(int(text[:6]), 1) if text.isdecimal() else 1


def _build_plan(settings: MsSwiftReading, world_size: Fact[int]) -> Plan:
    rows, max_length = settings.rows, _read_max_length(settings)
    if settings.packed:  # the rows of a batch are joined into one (template/base.py:2074)
        rows, max_length = 1, rows * max_length
    pads_left = settings.get("padding_side") == "left" or settings.trainer in ms_swift.LEFT_PADDED_TRAINERS
    return Plan(
        attn_implementation=settings.implementation,
        packing="position_ids" if settings.packed else "padding",
        padding_side="left" if pads_left else "right",
        precision=_resolve_precision(settings),
        batch=rows,
        accumulation=_count_accumulation_steps(settings, world_size),
        max_length=max_length,
        gradient_checkpointing=settings.is_on("gradient_checkpointing"),
        liger=settings.is_on("use_liger_kernel") or settings.is_on("use_liger"),
        deterministic=settings.is_on("full_determinism"),
        compile=settings.is_on("torch_compile"),
        ring_size=settings.sequence_parallel_size,
        scheme="ulysses" if _resolve_scheme(settings) != "llama3" else "llama3",
        heads_k_stride=2 if _resolve_scheme(settings) == "llama3" else 1,
        environ=tuple(sorted(settings.environ.items())),
    )


def _read_max_length(settings: MsSwiftReading) -> int:
    default_length = value_or(settings.model.max_position_embeddings, 512) if settings.model is not None else 512
    max_length = settings.get_int("max_length", default_length)
    return settings.get_int("packing_length", max_length) if settings.is_on("packing") else max_length


def _resolve_precision(settings: MsSwiftReading) -> Precision:
    """Return the precision of the weights; "autocast" if bfloat16 computes with float32 weights."""
    requested_dtype = str(settings.get("torch_dtype") or settings.get("dtype") or "")
    requested_dtype = "" if requested_dtype == "AUTO" else requested_dtype
    checkpoint_dtype = value_or(settings.model.dtype, "bfloat16") if settings.model is not None else "bfloat16"
    weights = DTYPE_PRECISIONS.get(requested_dtype or checkpoint_dtype, "bf16")
    if weights != "fp32":
        return weights
    if settings.is_on("bf16"):
        return "autocast"
    return "fp32" if settings.get("fp16") is False else "fp16"


def _count_accumulation_steps(settings: MsSwiftReading, world_size: Fact[int]) -> int:
    """Return gradient_accumulation_steps; the default makes a step of 16 rows (trainers/arguments.py:285)."""
    rows = settings.rows
    ranks = world_size.value if isinstance(world_size, Known) else 1
    return settings.get_int("gradient_accumulation_steps", max(1, math.ceil(16 / rows / ranks)))


def _resolve_scheme(settings: MsSwiftReading) -> str:
    if settings.sequence_parallel_size < 2:
        return ""
    if settings.uses_xtuner:
        return "xtuner"
    if not settings.is_at_least(ms_swift.DERIVED_RING_SINCE):
        return "llama3" if settings.uses_ring_variable else "ulysses"
    return "ring" if settings.zigzag_ring_size > 1 else "ulysses"


def _hooked_implementations(settings: MsSwiftReading) -> tuple[str, ...]:
    if settings.sequence_parallel_size < 2 or settings.uses_xtuner:
        return ()
    return ("flash_attention_2",) if _resolve_scheme(settings) != "ulysses" else ("flash_attention_2", "sdpa")


def _find_unknown_settings(settings: MsSwiftReading) -> tuple[UnknownSetting, ...]:
    """Return the settings unknown to the release: argparse returns them, and ms-swift raises (pipelines/base.py:43)."""
    known_names = ms_swift.read_option_rows(settings.version, settings.verb == "rlhf")
    if "output_dir" not in known_names:  # without transformers' names, nothing can be judged
        return ()
    if settings.is_on("ignore_args_error"):  # a warning instead (llm/base.py:30 of 3.0.0, utils/run_utils.py of 2.x)
        return ()
    unknown = []
    for setting in settings.unknown:
        name = field_name(setting.name, known_names).split(".")[0]
        if setting.name == "--config" or (not setting.known and setting.name.startswith("$")):
            continue
        is_option = setting.name.startswith("-")
        new_names = _format_new_name(settings, setting)
        changes = (find_change_release("ms_swift", part, name, settings.version) for part in ("names", "rlhf"))
        since = max(changes, key=len)
        closest = "" if new_names or since else find_closest_name(name, known_names)
        near = f"--{closest}" if closest and is_option else closest
        unknown.append(UnknownSetting(setting.name, setting.location, new_names, since, near))
    return tuple(unknown)


def _format_new_name(settings: MsSwiftReading, setting: Setting) -> tuple[str, ...]:
    """Return the release's name for a setting, with its value if that changes too; () if it has no such setting."""
    if setting not in settings.renamed:
        return ()
    name, value = settings.renamed[setting]
    is_option = setting.name.startswith("-")
    name = f"--{name}" if is_option else name
    if not setting.known or value == (setting.value or value):
        return (name,)
    return (f"{name} {value}" if is_option else f"{name}: {value}",)


def _format_remarks(settings: MsSwiftReading) -> tuple[str, ...]:
    unresolved = [setting for setting in settings.by_field.values() if not setting.known]
    remarks = [
        f"{setting.name} {setting.value}".strip() + ": its value is known only at run time" for setting in unresolved
    ]
    if settings.is_on("packing") and not settings.is_at_least(ms_swift.PACKED_POSITIONS_SINCE):
        remarks.append(f"packing: before {ms_swift.PACKED_POSITIONS_SINCE} packed documents attend to each other")
    size = settings.sequence_parallel_size
    if size > 1 and settings.model is None and is_at_least(settings.version, ms_swift.DERIVED_RING_SINCE):
        remarks.append(
            f"sequence_parallel_size {size} is treated as Ulysses only, because the model's heads are unknown"
        )
    return tuple(remarks)


def write(launch: Launch, job: Job, sets: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the edits that rename `job.unknown_settings` and set `sets`, in the names of `job.version`."""
    return make_edits(launch, detect_verb(launch), job, sets)


FRAMEWORK = Framework(
    "ms-swift",
    "ms-swift",
    "4.6.0",
    detect_trainer,
    read_model_name,
    read,
    write,
    defer("lint.frameworks.ms_swift.plan:format_plan"),
    cut=defer("lint.frameworks.ms_swift.rehearsal:cut"),
    entries=list_entries,
    releases=partial(list_releases, "ms_swift"),
    requires=partial(read_requirements, "ms_swift"),
    own_programs=("swift", "megatron", "swift."),
)
