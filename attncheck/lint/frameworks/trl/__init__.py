"""TRL: `trl sft`, its scripts and examples, and the YAML of `--config`, releases 0.9.6 to 1.16.0.

The reading of options is described in scripts/utils.py `TrlParser` and attncheck/lint/fields/names.py. `trl sft` passes
unknown options to `accelerate launch` (1.16.0 cli/commands/training.py:58-71), which refuses those that it does not
know. A user's script may have its own dataclasses, so only names that some release had are judged there.

Weights are loaded in `dtype`, which is float32 by default since 0.27 (trainer/model_config.py). `bf16` turns on
autocast over them; since 0.19 it is on unless fp16 is (0.19.1 trainer/sft_config.py, 1.16.0 trainer/base_config.py).
"""

import json
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
    find_unknown_arguments,
    find_unknown_settings,
    list_releases,
    parse_settings,
    read_requirements,
)
from attncheck.lint.fields import hugging_face as shared
from attncheck.lint.frameworks import Framework, defer
from attncheck.lint.frameworks.trl import tables
from attncheck.lint.frameworks.trl.behaviour import BEHAVIOURS, POSITIONS_ALWAYS_SINCE, LaunchReading
from attncheck.lint.programs.own_models import find_own_model

KEY_FIELDS: Mapping[Key, tuple[str, ...]] = {
    "attn_implementation": ("attn_implementation",),
    "packing": ("packing",),
    "precision": ("dtype", "torch_dtype", "bf16", "fp16"),
    "liger": ("use_liger_kernel", "use_liger", "use_liger_loss"),
    "gradient_checkpointing": ("gradient_checkpointing", "activation_checkpointing"),
    "deterministic": ("full_determinism",),
    "max_length": ("max_length", "max_seq_length"),
    "batch": ("per_device_train_batch_size",),
    "global_batch": ("gradient_accumulation_steps",),
}
LEFT_PADDED_TRAINERS = ("grpo", "rloo", "ppo", "online_dpo", "distillation")  # prompts are padded on the left

LENIENT_FILES = (
    "trl 0.18.2 scripts/utils.py:203-216: `TrlParser` drops the keys of the file that no class has, until 0.19"
)


def detect_trainer(launch: Launch) -> str:
    """Return TRL's trainer that a launch starts ("sft", "dpo", "grpo"); "" if it starts none."""
    return tables.detect_trainer(launch)


def read_model_name(launch: Launch) -> str:
    """Return the model that the launch names; "" if it names none."""
    settings = _parse_settings(launch, detect_trainer(launch), FRAMEWORK.newest, list_releases("transformers")[-1])
    return settings.get_known_text("model_name_or_path") or find_own_model(launch)


def _parse_settings(launch: Launch, trainer: str, version: str, transformers: str) -> ParsedSettings:
    is_trl_command = tables.is_trl_command(launch)
    options = tables.load_parser_options(trainer, version, transformers)
    # Options unknown to the trainer go to accelerate; options known to both are the trainer's (commands/training.py).
    launcher_options = set(tables.read_launcher_options() if is_trl_command else ()) - set(options.current)
    ignored = {"config", "env", *launcher_options}
    return parse_settings(launch, options, tables.RENAMES, 2 if is_trl_command else 1, ignored)


def _read_launch(launch: Launch, version: str, snapshot: Snapshot) -> tuple[LaunchReading, Fact[int]]:
    trainer = detect_trainer(launch)
    transformers = shared.resolve_versions(snapshot, "trl", version, tables.CONTEMPORARY_TRANSFORMERS)["transformers"]
    settings = _parse_settings(launch, trainer, version, transformers)
    world_size = _read_world_size(launch)
    ranks = world_size.value if isinstance(world_size, Known) else None
    parallelism = shared.read_parallelism(launch)
    return LaunchReading(launch, snapshot, trainer, version, transformers, settings, parallelism, ranks), world_size


def _read_world_size(launch: Launch) -> Fact[int]:
    """Return how many ranks train, from the launcher; `trl sft` is a launcher itself, with accelerate's options."""
    if not tables.is_trl_command(launch):
        return shared.read_world_size(launch)
    options = {entry.name: entry.value for entry in launch.entries}
    for index, word in enumerate(launch.words):
        name, equals, value = word.text.partition("=")
        if name.startswith("--"):
            following = launch.words[index + 1].text if index + 1 < len(launch.words) else ""
            options[name[2:].replace("-", "_")] = value if equals else following
    count = options.get("num_processes", "")
    if count.isascii() and count.isdecimal() and int(count[:7]) > 0:
        return Known(int(count[:7]))
    if options.get("accelerate_config") in tables.SHIPPED_PROCESSES:
        return Known(tables.SHIPPED_PROCESSES[options["accelerate_config"]])
    return Absent("accelerate uses all GPUs that it finds, or those of its configuration")


def read(launch: Launch, version: str, snapshot: Snapshot) -> Job:
    """Return the job as `version` reads it; a setting unknown to it counts under its new name."""
    reading, world_size = _read_launch(launch, version, snapshot)
    settings = reading.settings
    passes_on = tables.is_trl_command(launch) and reading.trainer == "sft"  # to accelerate, which refuses: cli.py:123
    is_lenient = not passes_on and not reading.is_at_least("0.19")
    versions_at_hand = {"trl": version, "transformers": reading.transformers}
    is_assumed = not isinstance(snapshot.version("transformers"), Known)
    known_versions = {"trl": version} if is_assumed else versions_at_hand
    plan = _build_plan(reading)
    return Job(
        framework="trl",
        version=version,
        trainer=reading.trainer,
        plan=plan,
        model=settings.get_known_text("model_name_or_path") or find_own_model(launch),
        location=launch.words[0].location if launch.words else SourceLocation(launch.source.name),
        settings=tuple(setting.raw for setting in settings.all_settings),
        unknown_settings=(
            *(
                replace(unknown, dropped=LENIENT_FILES)
                if is_lenient and not unknown.name.startswith("-") and not unknown.location.source.endswith(".py")
                else unknown
                for unknown in find_unknown_settings(settings, versions_at_hand, tables.is_checked(launch))
            ),
            *find_unknown_arguments(launch, known_versions, tables.RENAMES),
        ),
        problems=(
            *find_refused_settings(settings, reading.transformers, tables.is_own_program(launch)),
            *collect_problems(BEHAVIOURS, reading),
            *shared.check_made_trainer(launch, snapshot, reading.transformers, plan.accumulation),
        ),
        world_size=world_size,
        gpus=world_size,
        nodes=launch.nodes.value if isinstance(launch.nodes, Known) else 1,
        tensor_parallel=reading.parallelism.tp_size,
        scheme=reading.parallelism.scheme,
        hooked=reading.parallelism.hooked_implementations,
        requires=read_requirements("trl", version),
        reinforcement=reading.trainer in ("grpo", "rloo", "online_dpo") and settings.is_on("use_vllm"),
        locations=_find_locations(reading),
        remarks=_format_remarks(reading),
    )


def _build_plan(reading: LaunchReading) -> Plan:
    settings = reading.settings
    max_length = settings.get_int("max_length", 0) or settings.get_int("max_seq_length", 0)
    rows = max(settings.get_int("per_device_train_batch_size", 8), 1)
    return Plan(
        attn_implementation=_resolve_implementation(settings),
        packing=_resolve_packing(reading),
        padding_side="left" if reading.trainer in LEFT_PADDED_TRAINERS else "right",
        precision=_resolve_precision(reading),
        batch=1 if reading.flattened else rows,
        accumulation=max(settings.get_int("gradient_accumulation_steps", 1), 1),
        max_length=(max_length or 1024) * (rows if reading.flattened and reading.packed else 1),
        gradient_checkpointing=settings.is_on("gradient_checkpointing") or settings.is_on("activation_checkpointing"),
        liger=any(settings.is_on(name) for name in KEY_FIELDS["liger"]),
        cross_entropy="chunked" if reading.trainer == "sft" and reading.is_at_least("1.15") else "torch",
        deterministic=settings.is_on("full_determinism"),
        compile=settings.is_on("torch_compile"),
        ring_size=reading.parallelism.ring_size,
        scheme="ulysses" if reading.parallelism.scheme == "ulysses" else "llama3",
        environ=tuple(sorted(merge_environ(reading.launch).items())),
    )


def merge_environ(launch: Launch) -> dict[str, str]:
    """Return the job's variables: the launch's, and those under `env:` in the file."""
    file_environ = {entry.name[4:]: entry.value for entry in launch.entries if entry.name.startswith("env.")}
    return {**launch.environ, **file_environ}


def _resolve_implementation(settings: ParsedSettings) -> str:
    """Return the implementation in the settings; model_init_kwargs overrides the option (scripts/sft.py)."""
    option = settings.get_text("attn_implementation")
    nested = settings.by_field.get("model_init_kwargs.attn_implementation")
    try:
        kwargs = json.loads(settings.get_text("model_init_kwargs") or "{}")
    except ValueError:
        kwargs = {}
    inner = kwargs.get("attn_implementation") if isinstance(kwargs, dict) else None
    return str(inner or (nested.value if nested else "") or option)


def _resolve_packing(reading: LaunchReading) -> Packing:
    """Return how the documents of a row are separated; "mask_2d" if they are not, which is a problem."""
    if reading.isolates_documents:
        return "cu_seqlens" if reading.is_at_least("1.16") else "position_ids"
    if reading.flattened and reading.is_at_least(POSITIONS_ALWAYS_SINCE) and not reading.packed:
        return "position_ids"
    return "mask_2d" if reading.packed or reading.flattened else "padding"


def _resolve_precision(reading: LaunchReading) -> Precision:
    settings = reading.settings
    dtype = shared.read_dtype(reading.launch, settings.get_text("dtype") or settings.get_text("torch_dtype"))
    is_on_by_default = "bf16" in settings.options.current and settings.options.current["bf16"].kind == "bool?"
    bf16 = not settings.is_on("fp16") if is_on_by_default and not settings.get_text("bf16") else settings.is_on("bf16")
    return shared.resolve_precision(reading.snapshot, reading.transformers, dtype, bf16, settings.is_on("fp16"))


def _find_locations(reading: LaunchReading) -> dict[str, SourceLocation]:
    locations = {
        str(key): reading.settings.find_location(*names)
        for key, names in KEY_FIELDS.items()
        if reading.settings.has_any(*names)
    }
    return {**locations, "ring_size": reading.parallelism.location} if reading.parallelism.ring_size > 1 else locations


def _format_remarks(reading: LaunchReading) -> tuple[str, ...]:
    remarks = reading.settings.describe_unresolved()
    if tables.read_dataclasses(reading.trainer, reading.version):
        return remarks
    release = tables.find_config_release(reading.trainer, reading.version)
    if release != reading.version:
        config = tables.TRAINER_CONFIGS[reading.trainer]
        return (
            *remarks,
            f"trl {reading.version} has no {config}: using the names of {release}, the nearest release that has it",
        )
    if tables.is_own_program(reading.launch):
        return (*remarks, f"trl {reading.version} has no script {reading.trainer}; using the nearest release's names")
    return remarks


def write(launch: Launch, job: Job, sets: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the edits that rename `job.unknown_settings` and set `sets`, in the names of `job.version`."""
    settings = _parse_settings(launch, job.trainer, job.version, list_releases("transformers")[-1])
    new_values = shared.translate_keys(sets, _field_names(settings), settings.has_any)
    if sets.get("packing") == "off" and settings.is_on("padding_free"):  # this joins the rows of a batch too
        new_values["padding_free"] = "false"
        if not settings.is_on("packing"):
            new_values.pop("packing", None)
    ring_edits = tuple(shared.resize_parallelism(launch, sets["ring_size"])) if "ring_size" in sets else ()
    known_values = {name: value for name, value in new_values.items() if name in settings.options.current}
    return (*edit_settings(launch, settings, job.unknown_settings, known_values), *ring_edits)


def _field_names(settings: ParsedSettings) -> dict[str, str]:
    """Return `Key` -> the release's field, for those that have one."""
    options = settings.options.current
    field_names = {str(key): next((name for name in names if name in options), "") for key, names in KEY_FIELDS.items()}
    del field_names["global_batch"], field_names["precision"]
    if "bf16" in options and options["bf16"].kind == "bool?":
        field_names["bf16"] = "bf16"
    return {**field_names, "dtype": "dtype" if "dtype" in options else "torch_dtype"}


FRAMEWORK = Framework(
    "trl",
    "trl",
    "1.16.0",
    detect_trainer,
    read_model_name,
    read,
    write,
    defer("lint.frameworks.trl.plan:format_plan"),
    cut=defer("lint.frameworks.trl.rehearsal:cut"),
    releases=partial(list_releases, "trl"),
    requires=partial(read_requirements, "trl"),
    entries=tables.list_entries,
    own_programs=("trl", "trl."),
    style="dataclasses",
)
