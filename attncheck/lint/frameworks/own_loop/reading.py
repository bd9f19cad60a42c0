"""Reads, corrects and scales down a launch of a user's own script by the options that many scripts have in common."""

import itertools
from collections.abc import Mapping
from dataclasses import replace

from attncheck.lint.fields import (
    DROP,
    NOWHERE,
    PACKING_SWITCHES,
    Edit,
    Job,
    Known,
    Launch,
    Plan,
    Setting,
    Snapshot,
    SourceLocation,
    VersionCheck,
    Word,
    drop_switches,
    find_switches,
)
from attncheck.lint.fields import hugging_face as shared
from attncheck.lint.fields.cutting import (
    LEARNING_RATE,
    LENGTH_OPTIONS,
    MODEL_OPTIONS,
    UNDOCUMENTED,
    JobCut,
    Materials,
    cut_attention,
    edit_options,
    find_data_option,
    find_options,
    get_first_option,
    get_option,
    is_folder,
    is_number,
    list_stand_ins,
    point_to_materials,
    stand_in,
)
from attncheck.lint.programs.own_models import find_own_model, read_own_model
from attncheck.lint.programs.trainers import OWN_LOOP

OUTPUT_OPTIONS = (
    *("output_dir", "output_path", "output", "out_dir", "out", "save_dir", "save_path", "checkpoint_dir"),
    *("ckpt_dir", "ckpt_path", "ckpt", "work_dir", "logging_dir"),
)
RATE_OPTIONS = ("learning_rate", "lr", "max_lr")
LENGTH_OF_TRAINING = (
    *("num_train_epochs", "num_epochs", "epochs", "max_train_steps", "max_steps", "num_steps", "total_steps"),
    *("max_iters", "train_steps"),
)
BATCH_OPTIONS = (
    *("per_device_train_batch_size", "per_device_batch_size", "micro_batch_size", "train_batch_size", "batch_size"),
    *("batch", "bs", "bsz"),
)
ACCUMULATION_OPTIONS = (
    *("gradient_accumulation_steps", "gradient_accumulation", "accumulation_steps", "accumulate_grad_batches"),
    *("grad_accum_steps", "grad_accumulation_steps", "grad_accum", "accum_steps", "accum"),
)
WARM_UP_OPTIONS = ("num_warmup_steps", "warmup_steps", "warmup_iters", "warmup_ratio", "warmup")
ATTENTION_OPTIONS = ("attn_implementation", "attn_impl", "attention_implementation")


def _join_file(launch: Launch) -> Launch:
    """Return a launch with the keys of the configuration file that it names as options, each by its last name."""
    pairs = ((f"--{entry.name.rpartition('.')[2]}", entry.value) for entry in launch.entries if launch.words)
    words = (Word(text, NOWHERE, launch.words[0].location) for text in itertools.chain.from_iterable(pairs))
    return replace(launch, words=(*launch.words, *words))


def detect_trainer(launch: Launch) -> str:
    """Return "loop" if a Python script has the options of a training, its file has, or its source trains; or ""."""
    launch = _join_file(launch)
    program = launch.words[0].text if launch.words else ""
    is_module = any(word.text == "-m" for word in launch.launcher_words)
    is_script = program.endswith(".py") or (is_module and (program.isidentifier() or "." in program))
    trains = find_options(launch, (*RATE_OPTIONS, *LENGTH_OF_TRAINING)) or launch.trainers == OWN_LOOP
    if not is_script or not trains:
        return ""
    is_named = find_options(launch, MODEL_OPTIONS) or find_data_option(launch)
    return "loop" if is_named or (launch.trainers == OWN_LOOP and read_own_model(launch).is_language_model) else ""


def read_model_name(launch: Launch) -> str:
    """Return the model that the launch or its program names; "" if neither does."""
    named = get_first_option(_join_file(launch), MODEL_OPTIONS) or find_own_model(launch)
    return named or read_own_model(launch).literal


def read(launch: Launch, version: str, snapshot: Snapshot) -> Job:
    """Return the known facts of the job: its sizes, if they are options."""
    world_size = shared.read_world_size(launch)
    launch = _join_file(launch)
    plan = Plan(
        attn_implementation=get_first_option(launch, ATTENTION_OPTIONS),
        packing="padding",
        batch=_get_size(launch, BATCH_OPTIONS, 1),
        accumulation=_get_size(launch, ACCUMULATION_OPTIONS, 1),
        max_length=_get_size(launch, LENGTH_OPTIONS, 1024),
        environ=tuple(sorted(launch.environ.items())),
    )
    return Job(
        framework="script",
        version="",
        trainer="loop",
        plan=plan,
        model=read_model_name(launch),
        location=launch.words[0].location if launch.words else SourceLocation(launch.source.name),
        settings=tuple(
            Setting(name, get_option(launch, name), SourceLocation(launch.source.name), NOWHERE)
            for name in find_options(launch, RATE_OPTIONS)
        ),
        world_size=world_size,
        gpus=world_size,
        nodes=launch.nodes.value if isinstance(launch.nodes, Known) else 1,
    )


def _get_size(launch: Launch, names: tuple[str, ...], default: int) -> int:
    """Return the first of these options that is an integer above 0; `default` if there is none."""
    values = (get_option(launch, name) for name in find_options(launch, names))
    return next((int(value) for value in values if value.isdecimal() and int(value)), default)


def write(launch: Launch, job: Job, sets: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the edits of common options: the attention implementation, and the packing switch."""
    attention = sets.get("attn_implementation")
    values = dict.fromkeys(find_options(_join_file(launch), ATTENTION_OPTIONS), attention) if attention else {}
    dropped = [name for name, value in sets.items() if name in PACKING_SWITCHES and value == DROP]
    return (*edit_options(launch, values), *drop_switches(launch, dropped))


def format_plan(plan: Plan, is_at_least: VersionCheck) -> list[str]:
    """Return no lines: only the author of a loop knows its options."""
    return []


def cut(launch: Launch, job: Job, materials: Materials) -> JobCut | str:
    """Return the scaled-down launch of such a script, or why it is not rehearsed."""
    launch = _join_file(launch)
    options = point_to_materials(launch, materials)
    outputs = [name for name in find_options(launch, OUTPUT_OPTIONS) if is_folder(get_option(launch, name))]
    options |= dict.fromkeys(outputs[:1], materials.output)  # `effect_cuts` handles the others, each by its name
    options |= _limit_sizes(launch, BATCH_OPTIONS, materials.batch)
    options |= _limit_sizes(launch, ACCUMULATION_OPTIONS, materials.accumulation)
    options |= dict.fromkeys(find_options(launch, RATE_OPTIONS), LEARNING_RATE)
    options |= dict.fromkeys(find_options(launch, WARM_UP_OPTIONS), "0")
    attention = cut_attention(job, materials)
    return JobCut(
        attention.sets if find_options(launch, ATTENTION_OPTIONS) else {},
        "every",
        UNDOCUMENTED,
        environ=stand_in(materials),
        options=options,
        data=get_option(launch, find_data_option(launch)),
        emulates_flash_attn=attention.emulates_flash_attn,
        remarks=(*list_stand_ins(launch), *attention.remarks),
        corrections=tuple({name: DROP} for name, _ in find_switches(launch, PACKING_SWITCHES)),
    )


def _limit_sizes(launch: Launch, names: tuple[str, ...], limit: int) -> dict[str, str]:
    """Return the sizes that a launch sets, reduced to the limit."""
    values = {name: get_option(launch, name) for name in find_options(launch, names)}
    return {name: str(min(int(float(value)), limit)) for name, value in values.items() if is_number(value)}
