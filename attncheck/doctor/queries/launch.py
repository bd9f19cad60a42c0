"""Queries of the rules about a launch: its job, where its settings stand, and settings as fixes."""

from __future__ import annotations

from collections.abc import Mapping

from packaging.version import Version

from attncheck.core.facts import Known, need, value_or
from attncheck.core.findings import Fix
from attncheck.core.job import Job, Key
from attncheck.core.launch import SourceLocation
from attncheck.core.snapshot import Snapshot
from attncheck.doctor.profile import uses_package

# Settings that do not change what a job computes: they may be set without asking the user.
SAFE_KEYS: frozenset[Key] = frozenset(
    {"attn_implementation", "heads_k_stride", "deterministic", "liger", "gradient_checkpointing"}
)

# Distribution -> the library that imports it, and from which release on only where the job uses it.
IMPORTED_LAZILY = {
    "flash-attn": ("transformers", "4.55.4"),
    "flash-attn-3": ("transformers", "4.55.4"),
    "liger-kernel": ("trl", "1.16"),
}


def require_job(snapshot: Snapshot) -> Job:
    """Return the launch's job. Raises `MissingFact` where no launch was given."""
    return need(snapshot.job, "the launch")


def change_settings(title: str, sets: Mapping[str, str]) -> Fix:
    """Return the fix that changes settings of the launch; its text is filled in with the framework's option names."""
    return Fix(title, "setting", "", "safe" if SAFE_KEYS.issuperset(sets) else "unsafe", sets=sets)


def locate_settings(job: Job, *keys: Key) -> tuple[SourceLocation, ...]:
    """Return where the settings `keys` stand in the launch; the launch's own location where none does."""
    locations = tuple(job.locations[key] for key in keys if key in job.locations)
    return locations or (job.location,)


def locate_variables(snapshot: Snapshot, *names: str) -> tuple[SourceLocation, ...]:
    """Return where the launch sets these environment variables; () without a launch, and where it does not."""
    variables = snapshot.job.value.variables if isinstance(snapshot.job, Known) else ()
    return tuple(variable.location for variable in variables if variable.name in names and variable.known)


def describe_job(job: Job) -> str:
    """Return the launch as "framework trainer": "openrlhf ppo"."""
    return f"{job.framework} {job.trainer}"


def effective_attn_implementation(job: Job) -> str:
    """Return the attn_implementation that will run: transformers takes sdpa where none is requested."""
    return job.plan.attn_implementation or "sdpa"


def requested_implementation(snapshot: Snapshot) -> str:
    """Return the attn_implementation that the launch asks for, or else config.json; "" where neither names one."""
    if isinstance(snapshot.job, Known) and snapshot.job.value.plan.attn_implementation:
        return snapshot.job.value.plan.attn_implementation
    return value_or(snapshot.model.value.attn_implementation, "") if isinstance(snapshot.model, Known) else ""


def may_use(snapshot: Snapshot, *implementations: str) -> bool:
    """Return whether the job may run one of these implementations: a launch that asks for another one does not."""
    job = snapshot.job.value if isinstance(snapshot.job, Known) else None
    return job is None or effective_attn_implementation(job) in implementations


def may_import(snapshot: Snapshot, distribution: str) -> bool:
    """Return whether the job may import an installed package: all may be, where no launch is known.

    Older releases imported flash-attn and liger-kernel whatever the job, as their modules were imported: transformers
    4.53.3 (modeling_flash_attention_utils.py; 4.55.4 does not) and trl 0.23.0 (trainer/grpo_trainer.py; 1.16.0 does
    not); verl 0.9.1 does (models/transformers/qwen2_vl.py, utils/experimental/torch_functional.py).
    """
    if not isinstance(snapshot.job, Known):
        return True
    library, since = IMPORTED_LAZILY.get(distribution, ("", ""))
    version = snapshot.version(library) if library else None
    is_eager = isinstance(version, Known) and version.value < Version(since)
    if library and (is_eager or snapshot.job.value.framework == "verl"):
        return True
    return uses_package(snapshot.job.value, distribution)


def may_use_flash(snapshot: Snapshot) -> bool:
    """Return whether the job may run on a flash kernel, of whichever package or repository."""
    job = snapshot.job.value if isinstance(snapshot.job, Known) else None
    return job is None or "flash" in effective_attn_implementation(job)


def count_job_gpus(snapshot: Snapshot, job: Job) -> int | None:
    """Return how many GPUs the job's nodes have, each assumed to be like this machine; None where not known."""
    if isinstance(snapshot.devices, Known):
        return len(snapshot.visible_devices()) * job.nodes
    return None
