"""Modules of modified OpenRLHF trees: `openrlhf.cli.train_sft_dev`, `openrlhf.cli.train_ebft_ray`.

No release has them (names/openrlhf.json lists the parsers of 0.5.0 to 0.11.2). If the name begins with one trainer's
name and contains no other's, the launch uses that trainer with its own names. Otherwise only names common to all
parsers are read.
"""

import re
from dataclasses import replace

from attncheck.lint import arguments
from attncheck.lint.fields import Absent, Job, Known, Launch, Plan, Setting, SourceLocation
from attncheck.lint.frameworks.openrlhf import names

TRAINER_MODULE = re.compile(r"(?:.*/)?openrlhf[./]cli[./]train_(\w+?)(?:\.py)?|(?:.*/)?train_(ppo_ray)\.py")
# examples/train_dpo.py before 0.3 or train.train_sft, if it imports OpenRLHF; src.cli.train_sft, if src is a copy of it
TRAINER_SCRIPT = re.compile(r"(?:.*[/.])?train_(\w+?)(?:\.py)?")
PACKAGES = ("openrlhf.", "openllama2.")  # OpenRLHF was OpenLLaMA2 until 2023
MODEL_OPTIONS = ("pretrain", "model.model_name_or_path", "actor.model_name_or_path")
IMPLEMENTATION_OPTIONS = ("attn_implementation", "ds.attn_implementation")


def read_module_name(launch: Launch) -> str:
    """Return the name after "train_" of the module that a launch starts ("sft_dev"); "" if there is none."""
    text = launch.words[0].text if launch.words else ""
    is_user = any(name.startswith(PACKAGES) for name in launch.trainers or ())
    match = TRAINER_MODULE.fullmatch(text) or (TRAINER_SCRIPT.fullmatch(text) if is_user else None)
    return next(filter(None, match.groups())) if match else ""


def guess_trainer(module_name: str) -> str:
    """Return the trainer of a module ("sft_dev" is sft's); the module's own name if that is not certain."""
    trainers = names.list_trainers()
    parts = [part for part in module_name.split("_") if part in trainers]
    return parts[0] if len(parts) == 1 and module_name.split("_")[0] == parts[0] else module_name


def is_fork(module_name: str) -> bool:
    """Return whether no release has a module of this name."""
    return bool(module_name) and f"openrlhf.cli.train_{module_name}" not in list_own_modules()


def list_own_modules() -> tuple[str, ...]:
    """Return the training modules of all releases."""
    return tuple(f"openrlhf.cli.train_{names.TRAINER_FILES.get(trainer, trainer)}" for trainer in names.list_trainers())


def describe_fork(module_name: str, trainer: str) -> str:
    """Return the remark on a module that is in no release."""
    reading = f"read as {trainer}" if trainer in names.list_trainers() else "only its attention and model are read"
    return f"no release of openrlhf has cli/train_{module_name}.py: {reading}, and names that it may add are not judged"


def find_model(launch: Launch) -> str:
    """Return the model as the launch names it; "" if it names none."""
    values = {setting.name.lstrip("-"): setting.value for setting in _parse_options(launch)}
    return next((values[name] for name in MODEL_OPTIONS if values.get(name)), "")


def read_job(launch: Launch, version: str, module_name: str) -> Job:
    """Return the known parts of a job whose trainer is in no release."""
    settings = _parse_options(launch)
    values = {setting.name.lstrip("-"): setting for setting in settings}
    written = [values[name].value for name in IMPLEMENTATION_OPTIONS if name in values and values[name].known]
    implementation = written[0] if written else "flash_attention_2" if "flash_attn" in values else ""
    return Job(
        "openrlhf",
        version,
        module_name,
        plan=Plan(implementation, packing="padding", accumulation=1, environ=tuple(sorted(launch.environ.items()))),
        model=find_model(launch),
        location=launch.words[0].location if launch.words else SourceLocation(launch.source.name),
        settings=settings,
        world_size=Absent("the program's own code sets the number of training processes"),
        nodes=launch.nodes.value if isinstance(launch.nodes, Known) else 1,
        unknown=("precision", "packing", "accumulation"),
        remarks=(describe_fork(module_name, module_name),),
    )


def leave_open(job: Job, module_name: str) -> Job:
    """Return a job without the facts that only a release can state: packages, ring, GPUs."""
    gpus = Absent(f"cli/train_{module_name}.py sets its number of GPUs")
    remarks = (describe_fork(module_name, job.trainer), *job.remarks)
    plan = replace(job.plan, shims=())
    return replace(
        job, plan=plan, scheme="", requires=(), imports=(), hooked=(), packs_with=(), gpus=gpus, remarks=remarks
    )


def _parse_options(launch: Launch) -> tuple[Setting, ...]:
    return arguments.parse_options(launch.words[1:], lambda _: "many", launch.source)
