"""TRL: `trl sft`, its scripts and examples, and the YAML of `--config`, releases 0.9.6 to 1.16.0.

How options are read: scripts/utils.py `TrlParser` and attncheck/lint/fields/names.py. `trl sft` hands what it
does not know to `accelerate launch` (1.16.0 cli/commands/training.py:58-71), which refuses what it does not know
either; a user's script may have dataclasses of its own, so that of it only names that some release had are judged.
Weights are loaded in `dtype`, float32 by default from 0.27 on (trainer/model_config.py); `bf16`, on unless fp16 is
since 0.19 (0.19.1 trainer/sft_config.py, 1.16.0 trainer/base_config.py), makes that autocast.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from attncheck.core.facts import Absent, Fact, Known
from attncheck.core.job import Job, Key
from attncheck.core.launch import Edit, Launch, SourceLocation
from attncheck.core.plan import Packing, Plan, Precision
from attncheck.core.snapshot import Snapshot
from attncheck.lint.fields import hugging_face as shared
from attncheck.lint.fields.changes import edits
from attncheck.lint.fields.releases import requires, versions
from attncheck.lint.fields.values import Settings, refused, settings, unknown
from attncheck.lint.frameworks import Framework
from attncheck.lint.frameworks.trl import tables as known
from attncheck.lint.frameworks.trl.behaviour import POSITIONS_ALWAYS, Reading, objections
from attncheck.lint.frameworks.trl.plan import plan_settings

PARSER = "transformers 5.23.0 hf_argparser.py, _parse_dataclass_field; trl 1.16.0 scripts/_hf_argparser.py"
KEYS: Mapping[Key, tuple[str, ...]] = {
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
LEFT = ("grpo", "rloo", "ppo", "online_dpo", "distillation")  # prompts are padded on the left


def trainer(launch: Launch) -> str:
    """Return TRL's trainer that a launch starts ("sft", "dpo", "grpo"), "" where it starts none."""
    return known.trainer(launch)


def model(launch: Launch) -> str:
    """Return the model as written, "" where none is."""
    found = _settings(launch, trainer(launch), FRAMEWORK.newest, versions("transformers")[-1])
    return found.text("model_name_or_path") or ""


def _settings(launch: Launch, kind: str, version: str, transformers: str) -> Settings:
    own = known.command(launch)
    free = {"config", "env", *(known.launcher() if own else ())}
    return settings(launch, known.parser(kind, version, transformers), known.RENAMED, 2 if own else 1, free)


def _reading(launch: Launch, version: str, snapshot: Snapshot) -> tuple[Reading, Fact[int]]:
    kind = trainer(launch)
    transformers = shared.versions(snapshot, "trl", version, known.CONTEMPORARY)["transformers"]
    found = _settings(launch, kind, version, transformers)
    world = _world(launch)
    ranks = world.value if isinstance(world, Known) else None
    return Reading(launch, snapshot, kind, version, transformers, found, shared.parallel(launch), ranks), world


def _world(launch: Launch) -> Fact[int]:
    """Return how many ranks train: those of the launcher; `trl sft` is one itself, with accelerate's options."""
    if not known.command(launch):
        return shared.world(launch)
    options = {entry.name: entry.value for entry in launch.entries}
    for at, word in enumerate(launch.words):
        name, equals, value = word.text.partition("=")
        if name.startswith("--"):
            following = launch.words[at + 1].text if at + 1 < len(launch.words) else ""
            options[name[2:].replace("-", "_")] = value if equals else following
    count = options.get("num_processes", "")
    if count.isascii() and count.isdigit() and int(count[:7]) > 0:
        return Known(int(count[:7]))
    if options.get("accelerate_config") in known.SHIPPED:
        return Known(known.SHIPPED[options["accelerate_config"]])
    return Absent("accelerate takes the GPUs that it finds, or those of its own configuration")


def read(launch: Launch, version: str, snapshot: Snapshot) -> Job:
    """Return the job as `version` reads it; a setting that it does not know counts under its new name."""
    reading, world = _reading(launch, version, snapshot)
    found = reading.settings
    at_hand = {"trl": version, "transformers": reading.transformers}
    return Job(
        framework="trl",
        version=version,
        trainer=reading.trainer,
        plan=_plan(reading),
        model=found.text("model_name_or_path") or "",
        location=launch.words[0].location if launch.words else SourceLocation(launch.source.name),
        settings=tuple(one.setting for one in found.every),
        unknown_settings=tuple(unknown(found, at_hand, known.strict(launch))),
        problems=(*refused(found, PARSER), *objections(reading)),
        world_size=world,
        gpus=world,
        nodes=launch.nodes.value if isinstance(launch.nodes, Known) else 1,
        tensor_parallel=reading.parallel.tensor,
        scheme=reading.parallel.scheme,
        hooked=reading.parallel.hooked,
        requires=requires("trl", version),
        reinforcement=reading.trainer in ("grpo", "rloo", "online_dpo") and found.on("use_vllm"),
        locations=_places(reading),
        remarks=_remarks(reading),
    )


def _plan(r: Reading) -> Plan:
    found = r.settings
    length = found.number("max_length", 0) or found.number("max_seq_length", 0)
    rows = max(found.number("per_device_train_batch_size", 8), 1)
    return Plan(
        attn_implementation=_implementation(found),
        packing=_packing(r),
        padding_side="left" if r.trainer in LEFT else "right",
        precision=_precision(r),
        batch=1 if r.flattened else rows,
        accumulation=max(found.number("gradient_accumulation_steps", 1), 1),
        max_length=(length or 1024) * (rows if r.flattened and r.packed else 1),
        gradient_checkpointing=found.on("gradient_checkpointing") or found.on("activation_checkpointing"),
        liger=any(found.on(name) for name in KEYS["liger"]),
        cross_entropy="chunked" if r.trainer == "sft" and r.since("1.15") else "torch",
        deterministic=found.on("full_determinism"),
        compile=found.on("torch_compile"),
        ring_size=r.parallel.size,
        scheme="ulysses" if r.parallel.scheme == "ulysses" else "llama3",
        environ=tuple(sorted(launch_environ(r.launch).items())),
    )


def launch_environ(launch: Launch) -> dict[str, str]:
    """Return the variables of the job: the launch's own, and those under `env:` of the file."""
    own = {entry.name[4:]: entry.value for entry in launch.entries if entry.name.startswith("env.")}
    return {**launch.environ, **own}


def _implementation(found: Settings) -> str:
    """Return the implementation asked for: that of model_init_kwargs goes over the option (scripts/sft.py)."""
    asked = found.text("attn_implementation") or ""
    nested = found.given.get("model_init_kwargs.attn_implementation")
    try:
        kwargs = json.loads(found.text("model_init_kwargs") or "{}")
    except ValueError:
        kwargs = {}
    inner = kwargs.get("attn_implementation") if isinstance(kwargs, dict) else None
    return str(inner or (nested.value if nested else "") or asked)


def _packing(r: Reading) -> Packing:
    """Return how documents of a row are told apart: "mask_2d" where nothing does, which an objection says."""
    if r.isolated:
        return "cu_seqlens" if r.since("1.16") else "position_ids"
    if r.flattened and r.since(POSITIONS_ALWAYS) and not r.packed:
        return "position_ids"
    return "mask_2d" if r.packed or r.flattened else "padding"


def _precision(r: Reading) -> Precision:
    found = r.settings
    dtype = found.text("dtype") or found.text("torch_dtype")
    default = "bf16" in found.names.here and found.names.here["bf16"].kind == "bool?"
    bf16 = not found.on("fp16") if default and found.text("bf16") is None else found.on("bf16")
    return shared.precision(r.snapshot, r.transformers, dtype, bf16, found.on("fp16"))


def _places(r: Reading) -> dict[str, SourceLocation]:
    places = {str(key): r.place(*names) for key, names in KEYS.items() if r.settings.written(*names)}
    return {**places, "ring_size": r.parallel.place} if r.parallel.size > 1 else places


def _remarks(r: Reading) -> tuple[str, ...]:
    if known.strict(r.launch) and not known.classes(r.trainer, r.version):
        return (*r.settings.remarks(), f"trl {r.version} has no script {r.trainer}; the nearest names were taken")
    return r.settings.remarks()


def write(launch: Launch, job: Job, sets: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the edits that rename what is in `job.unknown` and set `sets`, in the names of `job.version`."""
    found = _settings(launch, job.trainer, job.version, versions("transformers")[-1])
    wanted = shared.asked(sets, _fields(found), found.written)
    ring = tuple(shared.resized(launch, sets["ring_size"])) if "ring_size" in sets else ()
    here = {name: value for name, value in wanted.items() if name in found.names.here}
    return (*edits(launch, found, job.unknown_settings, here), *ring)


def _fields(found: Settings) -> dict[str, str]:
    """Return what the release calls each setting that every framework has."""
    here = found.names.here
    fields = {str(key): next((name for name in names if name in here), "") for key, names in KEYS.items()}
    del fields["global_batch"], fields["precision"]
    if "bf16" in here and here["bf16"].kind == "bool?":
        fields["bf16"] = "bf16"
    return {**fields, "dtype": "dtype" if "dtype" in here else "torch_dtype"}


FRAMEWORK = Framework("trl", "trl", "1.16.0", trainer, model, read, write, plan_settings)
