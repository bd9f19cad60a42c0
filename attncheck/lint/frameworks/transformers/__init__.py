"""A user's own script with transformers' TrainingArguments on its command line or in its file: run_clm.py, train.py.

It is tried after all other frameworks. The script's own options are unknown, except some common ones
(`--attn_implementation`, `--torch_dtype`). Only names that TrainingArguments had in some release are judged. Releases
4.28 to 5.23 (training_args.py): `evaluation_strategy` was removed in 4.51, some twenty names in 5.0, `logging_dir` and
`warmup_ratio` in 5.15. In 5.23 gradient_checkpointing has no default, so `--gradient_checkpointing` without a value is
refused.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial

from attncheck.lint.fields import (
    DROP,
    PACKING_SWITCHES,
    RENAMES,
    Edit,
    Job,
    Key,
    Known,
    Launch,
    Option,
    ParsedSettings,
    ParserOptions,
    Plan,
    Snapshot,
    SourceLocation,
    build_parser_options,
    drop_switches,
    edit_settings,
    find_refused_settings,
    find_unknown_arguments,
    find_unknown_settings,
    list_releases,
    parse_settings,
)
from attncheck.lint.fields import hugging_face as shared
from attncheck.lint.files.python import TRAINING_ARGUMENTS, read_settings_class
from attncheck.lint.frameworks import Framework, defer
from attncheck.lint.programs.own_models import find_own_model
from attncheck.lint.programs.paths import lacks_word
from attncheck.lint.programs.places import find_tree
from attncheck.lint.programs.trainers import OWN_LOSS

DATACLASSES = ("TrainingArguments", "Seq2SeqTrainingArguments")
TELLTALE_FIELDS = frozenset(  # one of these with per_device_train_batch_size identifies transformers' Trainer
    {"output_dir", "gradient_accumulation_steps", "num_train_epochs", "save_strategy", "save_steps", "logging_steps"}
    | {"lr_scheduler_type", "evaluation_strategy", "eval_strategy", "max_steps", "deepspeed", "fsdp", "bf16", "fp16"}
)
FILE_FIELDS = frozenset({"model_name_or_path", "output_dir"})  # one of these in a file on its own
SCRIPT_FIELDS = (  # options common to many scripts
    "model_name_or_path", "attn_implementation", "torch_dtype", "dtype", "block_size", "max_seq_length", "max_length",
    "model_max_length", "config", "dataset_name",
)  # fmt: skip
SCRIPT_OPTIONS = {name: Option("str", None) for name in SCRIPT_FIELDS}
KEY_FIELDS: Mapping[Key, tuple[str, ...]] = {
    "attn_implementation": ("attn_implementation",),
    "precision": ("bf16", "fp16", "dtype", "torch_dtype"),
    "deterministic": ("full_determinism",),
    "liger": ("use_liger_kernel",),
    "gradient_checkpointing": ("gradient_checkpointing", "activation_checkpointing"),
    "max_length": ("max_length", "max_seq_length", "model_max_length", "block_size"),
    "batch": ("per_device_train_batch_size",),
    "global_batch": ("gradient_accumulation_steps",),
}


def detect_trainer(launch: Launch) -> str:
    """Return "trainer" if a launch sets TrainingArguments, "loop" if the program has its own loop, otherwise "".

    A Trainer whose `compute_loss` the program replaces is "trainer with its own loss".
    """
    settings_class = read_settings_class(launch.file)
    if settings_class and settings_class not in TRAINING_ARGUMENTS:
        return ""
    if settings_class:
        return "trainer with its own loss" if launch.made.loss else "trainer"
    program = launch.words[0].text.rsplit("/", 1)[-1] if launch.words else ""
    if launch.trainers is not None:
        names = [name.rpartition(".")[2] for name in launch.trainers if name.startswith("transformers.")]
        trainer = "trainer with its own loss" if OWN_LOSS in launch.trainers else "trainer"
        return trainer if any(name.endswith("Trainer") for name in names) else "loop" if names else ""
    if "no_trainer" in program:  # a plain loop with accelerate, whose options have the same names
        return ""
    option_names = {
        word.text.split("=")[0][2:].replace("-", "_") for word in launch.words if word.text.startswith("--")
    }
    keys = option_names | {entry.name.split(".")[0] for entry in launch.entries}
    if not launch.words and (not keys & FILE_FIELDS or lacks_word(find_tree(launch), "TrainingArguments")):
        return ""  # settings of a script that fills in TrainingArguments itself, or of a loop
    return "trainer" if "per_device_train_batch_size" in keys and keys & TELLTALE_FIELDS else ""


def read_model_name(launch: Launch) -> str:
    """Return the model that the launch names; "" if it names none."""
    return _parse_settings(launch, FRAMEWORK.newest).get_known_text("model_name_or_path") or find_own_model(launch)


@cache
def _load_parser_options(version: str) -> ParserOptions:
    options = build_parser_options(("transformers", version, DATACLASSES))
    return replace(options, current={**SCRIPT_OPTIONS, **options.current})


def _parse_settings(launch: Launch, version: str) -> ParsedSettings:
    return parse_settings(launch, _load_parser_options(version), RENAMES)


def read(launch: Launch, version: str, snapshot: Snapshot) -> Job:
    """Return the job as `version` reads it; a setting unknown to it counts under its new name."""
    settings = _parse_settings(launch, version)
    parallelism = shared.read_parallelism(launch)
    world_size = shared.read_world_size(launch)
    plan = _build_plan(settings, launch, version, snapshot, parallelism)
    return Job(
        framework="transformers",
        version=version,
        trainer=detect_trainer(launch),
        plan=plan,
        model=settings.get_known_text("model_name_or_path") or find_own_model(launch),
        location=launch.words[0].location if launch.words else SourceLocation(launch.source.name),
        settings=tuple(setting.raw for setting in settings.all_settings),
        unknown_settings=(
            *find_unknown_settings(settings, {"transformers": version}, strict=False),
            *find_unknown_arguments(launch, {"transformers": version}, RENAMES),
        ),
        problems=(
            *find_refused_settings(settings, version),
            *shared.check_made_trainer(launch, snapshot, version, plan.accumulation),
            *(shared.check_data_parallel(launch, snapshot, version) if detect_trainer(launch) != "loop" else ()),
        ),
        world_size=world_size,
        gpus=world_size,
        nodes=launch.nodes.value if isinstance(launch.nodes, Known) else 1,
        tensor_parallel=parallelism.tp_size,
        scheme=parallelism.scheme,
        hooked=parallelism.hooked_implementations,
        locations=_find_locations(settings, parallelism),
        remarks=settings.describe_unresolved(),
    )


def _build_plan(
    settings: ParsedSettings, launch: Launch, version: str, snapshot: Snapshot, parallelism: shared.Parallelism
) -> Plan:
    lengths = (settings.get_int(name, 0) for name in KEY_FIELDS["max_length"])
    dtype = shared.read_dtype(launch, settings.get_text("dtype") or settings.get_text("torch_dtype"))
    return Plan(
        attn_implementation=settings.get_text("attn_implementation"),
        packing="padding",
        precision=shared.resolve_precision(snapshot, version, dtype, settings.is_on("bf16"), settings.is_on("fp16")),
        batch=max(settings.get_int("per_device_train_batch_size", 8), 1),
        accumulation=max(settings.get_int("gradient_accumulation_steps", 1), 1),
        max_length=next((length for length in lengths if length > 0), 1024),
        gradient_checkpointing=settings.is_on("gradient_checkpointing") or settings.is_on("activation_checkpointing"),
        liger=settings.is_on("use_liger_kernel"),
        deterministic=settings.is_on("full_determinism"),
        compile=settings.is_on("torch_compile"),
        ring_size=parallelism.ring_size,
        scheme="ulysses" if parallelism.scheme == "ulysses" else "llama3",
        environ=tuple(sorted(launch.environ.items())),
    )


def _find_locations(settings: ParsedSettings, parallelism: shared.Parallelism) -> dict[str, SourceLocation]:
    locations = {
        str(key): settings.find_location(*names) for key, names in KEY_FIELDS.items() if settings.has_any(*names)
    }
    return {**locations, "ring_size": parallelism.location} if parallelism.ring_size > 1 else locations


def write(launch: Launch, job: Job, sets: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the edits that rename `job.unknown_settings` and set `sets`, in the names of `job.version`.

    The script's own options can be changed only if the launch sets them.
    """
    settings = _parse_settings(launch, job.version)
    field_names = {
        str(key): next((name for name in names if settings.has_any(name)), names[0])
        for key, names in KEY_FIELDS.items()
    }
    del field_names["global_batch"], field_names["precision"]
    dtype = "dtype" if settings.has_any("dtype") else "torch_dtype"
    new_values = shared.translate_keys(sets, {**field_names, "dtype": dtype}, settings.has_any)
    known_values = {
        name: value
        for name, value in new_values.items()
        if name in settings.options.current and (name not in SCRIPT_OPTIONS or settings.has_any(name))
    }
    ring_edits = tuple(shared.resize_parallelism(launch, sets["ring_size"])) if "ring_size" in sets else ()
    dropped = [name for name, value in sets.items() if name in PACKING_SWITCHES and value == DROP]
    switch_edits = tuple(drop_switches(launch, dropped))
    return (*edit_settings(launch, settings, job.unknown_settings, known_values), *ring_edits, *switch_edits)


FRAMEWORK = Framework(
    "transformers",
    "transformers",
    "5.23.0",
    detect_trainer,
    read_model_name,
    read,
    write,
    defer("lint.frameworks.transformers.plan:format_plan"),
    cut=defer("lint.frameworks.transformers.rehearsal:cut"),
    general=True,
    releases=partial(list_releases, "transformers"),
    own_programs=("transformers.",),
)
