"""axolotl: `axolotl train cfg.yaml`, `accelerate launch -m axolotl.cli.train cfg.yaml`, or the YAML file alone.

Names are those of the releases 0.8.0 to 0.19.0. Options of the command override the file's keys (cli/config.py:252 of
0.19.0). A packed batch is one row of micro_batch_size × sequence_len tokens if the implementation takes cu_seqlens,
otherwise rows of sequence_len (core/builders/causal.py:278, core/trainers/base.py:156). Weights have the precision of
training (utils/config/__init__.py:136, `resolve_dtype`).
"""

from collections.abc import Mapping
from functools import partial

from attncheck.lint.fields import (
    NULL_WORDS,
    RING_NAMES,
    Absent,
    CrossEntropy,
    Edit,
    Fact,
    Job,
    Key,
    Known,
    Launch,
    Packing,
    Plan,
    Precision,
    Snapshot,
    SourceLocation,
    UnknownSetting,
    collect_problems,
    find_change_release,
    find_closest_name,
    is_true,
    list_releases,
    read_fields,
    read_requirements,
)
from attncheck.lint.frameworks import Framework, defer
from attncheck.lint.frameworks.axolotl import tables as axolotl
from attncheck.lint.frameworks.axolotl.behaviour import BEHAVIOURS, uses_flash_4
from attncheck.lint.frameworks.axolotl.changes import make_edits
from attncheck.lint.frameworks.axolotl.values import AxolotlReading, read_settings

TRAIN_MODULES = ("axolotl.cli.train", "axolotl/cli/train.py")
OWN_KEYS = frozenset(  # a file with `base_model` and one of these keys is axolotl's
    {
        *("micro_batch_size", "sequence_len", "sample_packing", "attn_implementation", "flash_attention", "adapter"),
        *("sdp_attention", "pretraining_dataset", "rl", "pad_to_sequence_len", "context_parallel_size", "num_epochs"),
    }
)
KEY_FIELDS: Mapping[Key, tuple[str, ...]] = {
    "attn_implementation": ("attn_implementation", *axolotl.FLAG_IMPLEMENTATIONS),
    "packing": ("sample_packing",),
    "precision": ("bf16", "bfloat16", "fp16", "float16"),
    "ring_size": ("context_parallel_size", "sequence_parallel_degree"),
    "heads_k_stride": ("heads_k_stride",),
    "tensor_parallel": ("tensor_parallel_size",),
    "liger": ("plugins",),
    "gradient_checkpointing": ("gradient_checkpointing",),
    "max_length": ("sequence_len",),
    "batch": ("micro_batch_size",),
    "global_batch": ("batch_size", "gradient_accumulation_steps"),
}


def detect_trainer(launch: Launch) -> str:
    """Return what a launch trains ("sft", "dpo", "pt"); "" if it does not use axolotl."""
    words = [word.text for word in launch.words]
    if words[:2] == ["axolotl", "train"] or (words and words[0].endswith(TRAIN_MODULES)):
        return _detect_kind(launch)
    if words:
        return ""
    names = {entry.name.split(".")[0] for entry in launch.entries}
    return _detect_kind(launch) if "base_model" in names and names & OWN_KEYS else ""


def list_entries(launch: Launch) -> tuple[str, ...]:
    """Return the schema of axolotl's keys; before 0.7.0 it had another place (utils/config/models/input)."""
    return (
        "axolotl.utils.schemas.config:AxolotlInputConfig",
        "axolotl.utils.config.models.input.v0_4_1:AxolotlInputConfig",
    )


def _detect_kind(launch: Launch) -> str:
    settings = read_settings(launch, FRAMEWORK.newest)
    rl = settings.get("rl")
    if isinstance(rl, str) and rl:
        return rl
    if settings.is_on("reward_model") or settings.is_on("process_reward_model"):
        return "rm"
    return "pt" if settings.get("pretraining_dataset") else "sft"


def read_model_name(launch: Launch) -> str:
    """Return the model that the launch names; "" if it names none."""
    name = read_settings(launch, FRAMEWORK.newest).get("base_model")
    return name if isinstance(name, str) else ""


def read(launch: Launch, version: str, snapshot: Snapshot) -> Job:
    """Return the job as `version` reads it."""
    settings = read_settings(launch, version, snapshot)
    world_size = _read_world_size(launch)
    isolating = axolotl.isolating_implementations(version)
    scheme = {"varlen_llama3": "llama3", "batch_ring": "ring"}.get(settings.ring_function, "llama3")
    return Job(
        framework="axolotl",
        version=version,
        trainer=detect_trainer(launch),
        plan=_build_plan(settings, launch),
        model=read_model_name(launch),
        location=launch.words[0].location if launch.words else SourceLocation(launch.source.name),
        settings=(*launch.entries, *settings.command_options),
        unknown_settings=_find_unknown_settings(settings),
        problems=collect_problems(BEHAVIOURS, settings),
        world_size=world_size,
        gpus=world_size,
        nodes=launch.nodes.value if isinstance(launch.nodes, Known) else 1,
        tensor_parallel=settings.get_int("tensor_parallel_size"),
        scheme=scheme if settings.ring_size > 1 else "",
        hooked=("flash_attention_2",) if settings.ring_size > 1 else (),
        packs_with=isolating,
        requires=read_requirements("axolotl", version),
        imports=("ring_flash_attn",) if settings.ring_size > 1 else (),
        reinforcement=str(settings.get("rl")) in ("grpo", "gdpo", "ebft") and settings.is_on("trl.use_vllm"),
        locations={
            key: settings.find_location(*names)
            for key, names in KEY_FIELDS.items()
            if any(name in settings.by_field for name in names)
        },
        remarks=_format_remarks(settings, launch),
    )


def _read_world_size(launch: Launch) -> Fact[int]:
    """Return how many processes train, from the launcher; `axolotl train` reads it from accelerate's configuration."""
    if isinstance(launch.nodes, Known) and isinstance(launch.processes, Known):
        return Known(launch.nodes.value * launch.processes.value)
    if not launch.launchers:
        return Absent("accelerate uses all GPUs that it finds, or those of its configuration")
    return launch.nodes if not isinstance(launch.nodes, Known) else launch.processes


def _build_plan(settings: AxolotlReading, launch: Launch) -> Plan:
    rows, max_length = settings.get_int("micro_batch_size"), settings.get_int("sequence_len", 512)
    if settings.packed and not settings.real_batches:
        rows, max_length = 1, rows * max_length
    return Plan(
        attn_implementation="flash_attention_4"
        if uses_flash_4(settings) and settings.is_at_least(axolotl.FLASH_4_NAMED_SINCE)
        else settings.implementation,
        packing=_resolve_packing(settings),
        padding_side="left" if _pads_left(settings) else "right",
        precision=_resolve_precision(settings),
        batch=rows,
        accumulation=_count_accumulation_steps(settings),
        max_length=max_length,
        gradient_checkpointing=settings.is_on("gradient_checkpointing"),
        liger=settings.uses_liger,
        cross_entropy=_resolve_cross_entropy(settings),
        compile=is_true(settings.get("torch_compile")),
        ring_size=settings.ring_size,
        heads_k_stride=settings.get_int("heads_k_stride"),
        environ=tuple(sorted(launch.environ.items())),
        # since 0.17.0, utils/schemas/validation.py:1838 of 0.19.0 restores the name; 0.16.1 does not
        shims=(RING_NAMES,) if settings.ring_size > 1 and settings.is_at_least("0.17.0") else (),
    )


def _resolve_packing(settings: AxolotlReading) -> Packing:
    """Return how a row's documents are separated; if the mask is kept, transformers ignores their boundaries."""
    if not settings.packed:
        return "padding"
    if not settings.isolates_documents:
        return "mask_2d"
    keeps_mask = not settings.is_at_least(axolotl.DROPS_MASK_SINCE)
    return "mask_4d" if settings.implementation == "flex_attention" and keeps_mask else "position_ids"


def _pads_left(settings: AxolotlReading) -> bool:
    """Return whether rows are padded on the left: unpacked Mistral with flash attention (loaders/tokenizer.py:207)."""
    model = settings.snapshot.model if settings.snapshot is not None else None
    is_mistral = "mistral" in str(settings.get("base_model")).lower().rsplit("/", 1)[-1]
    if isinstance(model, Known):
        is_mistral = is_mistral or model.value.model_type == "mistral"
    return is_mistral and settings.implementation == "flash_attention_2" and not settings.packed


def _resolve_precision(settings: AxolotlReading) -> Precision:
    """Return the precision of the weights; "auto" selects bfloat16 wherever torch supports it, even if emulated."""
    if settings.get("bf16") == "auto" and not settings.is_on("fp16"):
        return "bf16"
    if (settings.is_on("bf16") and settings.get("bf16") != "auto") or settings.is_on("bfloat16"):
        return "bf16"
    return "fp16" if settings.is_on("fp16") or settings.is_on("float16") or settings.is_on("load_in_8bit") else "fp32"


def _count_accumulation_steps(settings: AxolotlReading) -> int:
    steps = settings.get_int("gradient_accumulation_steps", 0)
    return steps or max(1, settings.get_int("batch_size") // settings.get_int("micro_batch_size"))


def _resolve_cross_entropy(settings: AxolotlReading) -> CrossEntropy:
    if settings.is_on("flash_attn_cross_entropy"):
        return "flash_attn"
    return "chunked" if settings.is_on("chunked_cross_entropy") else "torch"


def _find_unknown_settings(settings: AxolotlReading) -> tuple[UnknownSetting, ...]:
    """Return the settings that the release does not know; keys of the file with a value are dropped silently."""
    known_names = read_fields("axolotl", "names", settings.version)
    has_foreign_plugin = any(not plugin.startswith("axolotl.integrations.") for plugin in settings.plugins)
    unknown = []
    for name, setting in settings.by_field.items():
        top = name.split(".")[0]
        is_key = not setting.name.startswith("--")
        if is_key and setting.value.strip().lower() in NULL_WORDS:  # dropping it changes nothing
            continue
        if top in known_names or axolotl.find_plugin(settings.version, top) or top.startswith(("_", "x-")):
            continue
        since = find_change_release("axolotl", "names", top, settings.version)
        new_names = axolotl.find_new_names(top, setting.value, known_names)
        if since or new_names or not has_foreign_plugin:
            closest = "" if since or new_names else find_closest_name(top, known_names)
            is_read = top in axolotl.READ_BY_VALIDATORS or not settings.is_at_least(list_releases("axolotl")[0])
            dropped = axolotl.DROPS_UNKNOWN_KEYS if is_key and not is_read else ""
            unknown.append(UnknownSetting(setting.name, setting.location, new_names, since, closest, dropped))
    return tuple(unknown)


def _format_remarks(settings: AxolotlReading, launch: Launch) -> tuple[str, ...]:
    unresolved = [setting for setting in settings.by_field.values() if not setting.known]
    remarks = [
        f"{setting.name} {setting.value}".strip() + ": its value is known only at run time" for setting in unresolved
    ]
    if launch.words and launch.file is None:
        remarks.append("the configuration file was not read, so axolotl's defaults are assumed")
    return tuple(remarks)


def write(launch: Launch, job: Job, sets: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the edits that rename `job.unknown_settings` and set `sets`, in the names of `job.version`."""
    return make_edits(launch, job, sets)


FRAMEWORK = Framework(
    "axolotl",
    "axolotl",
    "0.19.0",
    detect_trainer,
    read_model_name,
    read,
    write,
    defer("lint.frameworks.axolotl.plan:format_plan"),
    cut=defer("lint.frameworks.axolotl.rehearsal:cut"),
    entries=list_entries,
    releases=partial(list_releases, "axolotl"),
    requires=partial(read_requirements, "axolotl"),
    own_programs=("axolotl", "axolotl."),
)
