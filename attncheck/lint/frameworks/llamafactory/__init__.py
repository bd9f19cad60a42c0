"""LLaMA-Factory 0.9.0 to 0.9.5: `llamafactory-cli train x.yaml key=value`, `train.py --…`, or the file alone.

Words of the form key=value override the file's keys (0.9.5 hparams/parser.py:82-93, OmegaConf). Names that no dataclass
has are refused unless ALLOW_EXTRA_ARGS is set. Trainable weights are float32 unless pure_bf16 is set
(model/adapter.py:325); the frozen weights of LoRA have the precision of training. Checkpointing is on by default
(checkpointing.py).
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from attncheck.lint.fields import (
    Absent,
    Edit,
    Fact,
    Job,
    Key,
    Known,
    Launch,
    Packing,
    ParsedSettings,
    Plan,
    Precision,
    Snapshot,
    SourceLocation,
    collect_problems,
    edit_settings,
    find_refused_settings,
    find_unknown_settings,
    list_releases,
    parse_settings,
    read_requirements,
)
from attncheck.lint.fields import hugging_face as shared
from attncheck.lint.frameworks import Framework, defer
from attncheck.lint.frameworks.llamafactory import tables
from attncheck.lint.frameworks.llamafactory.behaviour import BEHAVIOURS, LaunchReading
from attncheck.lint.frameworks.llamafactory.registered import list_templates, undefined_dataset, unregistered_template

CHECKS = (*BEHAVIOURS, undefined_dataset, unregistered_template)
TRUE_VALUES = ("1", "true", "y")
KEY_FIELDS: Mapping[Key, tuple[str, ...]] = {
    "attn_implementation": ("flash_attn",),
    "packing": ("neat_packing", "packing"),
    "precision": ("pure_bf16", "bf16", "fp16"),
    "deterministic": ("full_determinism",),
    "liger": ("enable_liger_kernel",),
    "gradient_checkpointing": ("disable_gradient_checkpointing",),
    "max_length": ("cutoff_len",),
    "batch": ("per_device_train_batch_size",),
    "global_batch": ("gradient_accumulation_steps",),
}


def detect_trainer(launch: Launch) -> str:
    """Return the stage that a launch trains ("sft", "dpo", "pt"); "" if it does not use LLaMA-Factory."""
    if not tables.is_own_launch(launch):
        return ""
    return _parse_settings(launch, FRAMEWORK.newest, list_releases("transformers")[-1]).get_text("stage") or "sft"


def read_model_name(launch: Launch) -> str:
    """Return the model that the launch names; "" if it names none."""
    return (
        _parse_settings(launch, FRAMEWORK.newest, list_releases("transformers")[-1]).get_known_text(
            "model_name_or_path"
        )
        or ""
    )


def _parse_settings(launch: Launch, version: str, transformers: str) -> ParsedSettings:
    options = tables.load_parser_options(version, transformers)
    return parse_settings(launch, options, tables.RENAMES, 2 if tables.is_cli_command(launch) else 1)


def _read_launch(launch: Launch, version: str, snapshot: Snapshot) -> LaunchReading:
    versions_at_hand = shared.resolve_versions(snapshot, "llamafactory", version, tables.CONTEMPORARY_TRANSFORMERS)
    transformers = versions_at_hand["transformers"]
    return LaunchReading(launch, snapshot, version, transformers, _parse_settings(launch, version, transformers))


def read(launch: Launch, version: str, snapshot: Snapshot) -> Job:
    """Return the job as `version` reads it; a setting unknown to it counts under its new name."""
    reading = _read_launch(launch, version, snapshot)
    settings = reading.settings
    nodes, world_size = _count_nodes_and_ranks(reading)
    versions_at_hand = {"llamafactory": version, "transformers": reading.transformers}
    allows_extra = (launch.environ.get("ALLOW_EXTRA_ARGS") or "").lower() in TRUE_VALUES
    is_own = bool(list_templates(reading))  # the tree's registry was read
    return Job(
        framework="llamafactory",
        version=version,
        trainer=reading.stage,
        plan=_build_plan(reading),
        model=settings.get_known_text("model_name_or_path"),
        location=launch.words[0].location if launch.words else SourceLocation(launch.source.name),
        settings=tuple(setting.raw for setting in settings.all_settings),
        unknown_settings=tuple(
            replace(unknown, proof=tables.DATASET_KEYS_PROOF) if unknown.name in tables.DATASET_KEYS else unknown
            for unknown in find_unknown_settings(settings, versions_at_hand, strict=not allows_extra)
        ),
        problems=(
            *(
                own
                for own in find_refused_settings(settings, reading.transformers)
                if not (is_own and own.is_registered)
            ),
            *collect_problems(CHECKS, reading),
        ),
        world_size=world_size,
        gpus=world_size,
        nodes=nodes,
        requires=read_requirements("llamafactory", version),
        locations={
            str(key): reading.settings.find_location(*names)
            for key, names in KEY_FIELDS.items()
            if settings.has_any(*names)
        },
        remarks=_format_remarks(reading),
    )


def _count_nodes_and_ranks(reading: LaunchReading) -> tuple[int, Fact[int]]:
    """Return the numbers of nodes and ranks: the launcher's, or those of torchrun started by the CLI (launcher.py)."""
    launch = reading.launch
    if launch.words and not tables.is_cli_command(launch):
        return (launch.nodes.value if isinstance(launch.nodes, Known) else 1), shared.read_world_size(launch)
    environ = launch.environ
    if (environ.get("USE_RAY") or "").lower() in TRUE_VALUES:
        return 1, Known(max(reading.settings.get_int("ray_num_workers", 1), 1))
    nodes = _parse_count(environ.get("NNODES", "")) or 1
    visible = environ.get("CUDA_VISIBLE_DEVICES", "")
    local_gpus = visible.count(",") + 1 if visible else len(reading.snapshot.visible_devices())
    ranks_per_node = _parse_count(environ.get("NPROC_PER_NODE", "")) or local_gpus
    if not ranks_per_node:
        return nodes, Absent("llamafactory-cli starts one process for each GPU that it finds")
    return nodes, Known(nodes * ranks_per_node)


def _parse_count(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else 0


def _build_plan(reading: LaunchReading) -> Plan:
    settings = reading.settings
    return Plan(
        attn_implementation=reading.implementation,
        packing=_resolve_packing(reading),
        positions="running" if reading.packed and reading.stage == "pt" else "reset",
        padding_side="left" if reading.stage == "ppo" else "right",
        precision=_resolve_precision(reading),
        batch=reading.batch,
        accumulation=max(settings.get_int("gradient_accumulation_steps", 1), 1),
        max_length=settings.get_int("cutoff_len", 2048),
        gradient_checkpointing=not settings.is_on("disable_gradient_checkpointing"),
        liger=settings.is_on("enable_liger_kernel"),
        deterministic=settings.is_on("full_determinism"),
        compile=settings.is_on("torch_compile"),
        environ=tuple(sorted(reading.launch.environ.items())),
    )


def _resolve_packing(reading: LaunchReading) -> Packing:
    """Return how the documents of a row are separated; "mask_2d" if they are not, which is a problem."""
    if not reading.packed:
        return "padding"
    if reading.neat_packing and reading.implementation != "flash_attention_2":
        return "mask_4d"  # data/collator.py:524
    return "mask_2d" if reading.mixes_documents else "position_ids"


def _resolve_precision(reading: LaunchReading) -> Precision:
    settings = reading.settings
    if settings.is_on("pure_bf16"):
        return "bf16"
    if settings.is_on("fp16"):
        return "fp16"
    if settings.is_on("bf16"):
        is_frozen = (settings.get_text("finetuning_type") or "lora") in ("lora", "oft")
        return "bf16" if is_frozen else "autocast"
    return "fp32"


def _format_remarks(reading: LaunchReading) -> tuple[str, ...]:
    if reading.launch.words and reading.launch.file is None and not reading.settings.all_settings:
        return ("the configuration file was not read, so LLaMA-Factory's defaults are assumed",)
    return reading.settings.describe_unresolved()


def write(launch: Launch, job: Job, sets: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the edits that rename `job.unknown_settings` and set `sets`, in the names of `job.version`."""
    settings = _parse_settings(launch, job.version, list_releases("transformers")[-1])
    field_names = {"max_length": "cutoff_len", "batch": "per_device_train_batch_size", "liger": "enable_liger_kernel"}
    field_names["deterministic"] = "full_determinism"
    untranslated = {key: value for key, value in sets.items() if key not in TRANSLATED_KEYS}
    new_values = shared.translate_keys(untranslated, field_names, settings.has_any)
    for key, value in sets.items():
        if key in TRANSLATED_KEYS:
            new_values |= _translate_key(key, value, settings)
    known_values = {name: value for name, value in new_values.items() if name in settings.options.current}
    has_options = any(setting.is_option for setting in settings.all_settings) or not launch.words
    return edit_settings(launch, settings, job.unknown_settings, known_values, "--" if has_options else "=")


TRANSLATED_KEYS = ("attn_implementation", "packing", "gradient_checkpointing", "precision")


def _translate_key(key: str, value: str, settings: ParsedSettings) -> dict[str, str]:
    """Return LLaMA-Factory's name and value for a setting; {} if it has none."""
    if key == "attn_implementation":
        return {"flash_attn": tables.FLASH_ATTN_VALUES[value]} if value in tables.FLASH_ATTN_VALUES else {}
    if key == "gradient_checkpointing":
        return {"disable_gradient_checkpointing": "false" if value == "on" else "true"}
    if key == "packing":
        on = "true" if value == "on" else "false"
        neat_packing = {"neat_packing": on} if value == "on" or settings.has_any("neat_packing") else {}
        return {"packing": on, **neat_packing}
    pure_bf16 = {"pure_bf16": "false"} if settings.is_on("pure_bf16") else {}
    if value == "bf16":
        return {} if pure_bf16 else {"bf16": "true", **({"fp16": "false"} if settings.is_on("fp16") else {})}
    fp16 = {"fp16": "true"} if value == "fp16" else {"fp16": "false"} if settings.is_on("fp16") else {}
    return {**pure_bf16, **fp16, **({"bf16": "false"} if settings.is_on("bf16") else {})}


FRAMEWORK = Framework(
    "llamafactory",
    "llamafactory",
    "0.9.5",
    detect_trainer,
    read_model_name,
    read,
    write,
    defer("lint.frameworks.llamafactory.plan:format_plan"),
    cut=defer("lint.frameworks.llamafactory.rehearsal:cut"),
    entries=tables.list_entries,
    releases=partial(list_releases, "llamafactory"),
    requires=partial(read_requirements, "llamafactory"),
    own_programs=("llamafactory-cli", "lmf", "llamafactory."),
)
