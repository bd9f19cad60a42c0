"""A script of one's own with transformers' TrainingArguments on its command line or in its file: run_clm.py, train.py.

Asked after all other frameworks. The script's own options are not known, but that some are called alike in many
(`--attn_implementation`, `--torch_dtype`); only names that TrainingArguments of some release had are judged. Releases
4.40 to 5.23 (training_args.py): `evaluation_strategy` went in 4.51, a score of names in 5.0, `logging_dir` and
`warmup_ratio` in 5.15; in 5.23 gradient_checkpointing has no default, so that `--gradient_checkpointing` alone is
refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from attncheck.core.facts import Known
from attncheck.core.job import Job, Key
from attncheck.core.launch import Edit, Launch, SourceLocation
from attncheck.core.plan import Plan
from attncheck.core.snapshot import Snapshot
from attncheck.lint.fields import hugging_face as shared
from attncheck.lint.fields.changes import edits
from attncheck.lint.fields.names import Names, Option, names
from attncheck.lint.fields.values import Settings, refused, settings, unknown
from attncheck.lint.frameworks import Framework
from attncheck.lint.frameworks.transformers.plan import plan_settings

PARSER = "transformers 5.23.0 hf_argparser.py:214-247, _parse_dataclass_field"
CLASSES = ("TrainingArguments", "Seq2SeqTrainingArguments")
RENAMED: Mapping[str, tuple[str, ...]] = {
    "evaluation_strategy": ("eval_strategy",),  # 4.46.3 training_args.py; gone in 4.51
    "no_cuda": ("use_cpu",),  # 4.57.6
    "group_by_length": ("train_sampling_strategy=group_by_length",),  # 5.1.0, 5.2.0
    "warmup_ratio": ("warmup_steps",),  # a share below 1 since 5.0.0
    "per_gpu_train_batch_size": ("per_device_train_batch_size",),
    "per_gpu_eval_batch_size": ("per_device_eval_batch_size",),
    "push_to_hub_token": ("hub_token",),
    "push_to_hub_model_id": ("hub_model_id",),
    "half_precision_backend": (),
}
SPEAKING = frozenset(  # one of these beside per_device_train_batch_size, and it is transformers' Trainer
    {"output_dir", "gradient_accumulation_steps", "num_train_epochs", "save_strategy", "save_steps", "logging_steps"}
    | {"lr_scheduler_type", "evaluation_strategy", "eval_strategy", "max_steps", "deepspeed", "fsdp", "bf16", "fp16"}
)
SHARED = (  # options of the scripts that many call alike
    "model_name_or_path", "attn_implementation", "torch_dtype", "dtype", "block_size", "max_seq_length", "max_length",
    "model_max_length", "config", "dataset_name",
)  # fmt: skip
OWN = {name: Option("str", None) for name in SHARED}
KEYS: Mapping[Key, tuple[str, ...]] = {
    "attn_implementation": ("attn_implementation",),
    "precision": ("bf16", "fp16", "dtype", "torch_dtype"),
    "deterministic": ("full_determinism",),
    "liger": ("use_liger_kernel",),
    "gradient_checkpointing": ("gradient_checkpointing", "activation_checkpointing"),
    "max_length": ("max_length", "max_seq_length", "model_max_length", "block_size"),
    "batch": ("per_device_train_batch_size",),
    "global_batch": ("gradient_accumulation_steps",),
}


def trainer(launch: Launch) -> str:
    """Return "trainer" where a launch sets TrainingArguments, else ""."""
    program = launch.words[0].text.rsplit("/", 1)[-1] if launch.words else ""
    if "no_trainer" in program:  # accelerate's bare loop, with options of the same names
        return ""
    said = {word.text.split("=")[0][2:].replace("-", "_") for word in launch.words if word.text.startswith("--")}
    keys = said | {entry.name.split(".")[0] for entry in launch.entries}
    return "trainer" if "per_device_train_batch_size" in keys and keys & SPEAKING else ""


def model(launch: Launch) -> str:
    """Return the model as written, "" where none is."""
    return _settings(launch, FRAMEWORK.newest).text("model_name_or_path") or ""


@cache
def _names(version: str) -> Names:
    found = names(("transformers", version, CLASSES))
    return replace(found, here={**OWN, **found.here})


def _settings(launch: Launch, version: str) -> Settings:
    return settings(launch, _names(version), RENAMED)


def read(launch: Launch, version: str, snapshot: Snapshot) -> Job:
    """Return the job as `version` reads it; a setting that it does not know counts under its new name."""
    found = _settings(launch, version)
    parallel = shared.parallel(launch)
    world = shared.world(launch)
    return Job(
        framework="transformers",
        version=version,
        trainer=trainer(launch),
        plan=_plan(found, launch, version, snapshot, parallel),
        model=found.text("model_name_or_path") or "",
        location=launch.words[0].location if launch.words else SourceLocation(launch.source.name),
        settings=tuple(one.setting for one in found.every if one.name),
        unknown_settings=tuple(unknown(found, {"transformers": version}, strict=False)),
        problems=tuple(refused(found, PARSER)),
        world_size=world,
        gpus=world,
        nodes=launch.nodes.value if isinstance(launch.nodes, Known) else 1,
        tensor_parallel=parallel.tensor,
        scheme=parallel.scheme,
        hooked=parallel.hooked,
        locations=_places(found, parallel),
        remarks=found.remarks(),
    )


def _plan(found: Settings, launch: Launch, version: str, snapshot: Snapshot, parallel: shared.Parallel) -> Plan:
    lengths = (found.number(name, 0) for name in KEYS["max_length"])
    dtype = found.text("dtype") or found.text("torch_dtype")
    return Plan(
        attn_implementation=found.text("attn_implementation") or "",
        packing="padding",
        precision=shared.precision(snapshot, version, dtype, found.on("bf16"), found.on("fp16")),
        batch=max(found.number("per_device_train_batch_size", 8), 1),
        accumulation=max(found.number("gradient_accumulation_steps", 1), 1),
        max_length=next((length for length in lengths if length > 0), 1024),
        gradient_checkpointing=found.on("gradient_checkpointing") or found.on("activation_checkpointing"),
        liger=found.on("use_liger_kernel"),
        deterministic=found.on("full_determinism"),
        compile=found.on("torch_compile"),
        ring_size=parallel.size,
        scheme="ulysses" if parallel.scheme == "ulysses" else "llama3",
        environ=tuple(sorted(launch.environ.items())),
    )


def _places(found: Settings, parallel: shared.Parallel) -> dict[str, SourceLocation]:
    places = {str(key): found.place(*names) for key, names in KEYS.items() if found.written(*names)}
    return {**places, "ring_size": parallel.place} if parallel.size > 1 else places


def write(launch: Launch, job: Job, sets: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the edits that rename what is in `job.unknown` and set `sets`, in the names of `job.version`.

    Of the script's own options only those that are written can be set.
    """
    found = _settings(launch, job.version)
    fields = {str(key): next((name for name in names if found.written(name)), names[0]) for key, names in KEYS.items()}
    del fields["global_batch"], fields["precision"]
    dtype = "dtype" if found.written("dtype") else "torch_dtype"
    wanted = shared.asked(sets, {**fields, "dtype": dtype}, found.written)
    here = {
        name: value
        for name, value in wanted.items()
        if name in found.names.here and (name not in OWN or found.written(name))
    }
    ring = tuple(shared.resized(launch, sets["ring_size"])) if "ring_size" in sets else ()
    return (*edits(launch, found, job.unknown_settings, here), *ring)


FRAMEWORK = Framework(
    "transformers", "transformers", "5.23.0", trainer, model, read, write, plan_settings, general=True
)
