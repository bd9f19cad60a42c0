"""Queries for rules about a launch: its job, the location of its settings, and fixes that change settings."""

from collections.abc import Mapping

from packaging.version import Version

from attncheck.core.findings import Fix
from attncheck.core.job import Job, Key
from attncheck.core.launch import Setting, SourceLocation
from attncheck.core.snapshot import Known, Snapshot, need, value_or
from attncheck.doctor.knowledge.frameworks import FRAMEWORKS_IMPORTED_BY, IMPORTED_LAZILY, NEEDS_BY_PACKAGE
from attncheck.doctor.knowledge.transformers import FLASH_DISTRIBUTIONS
from attncheck.doctor.memory import noted_by_answer
from attncheck.doctor.profile import needs_of_job

# Settings that do not change what a job computes; they may be set without asking the user.
SAFE_KEYS: frozenset[Key] = frozenset(
    {"attn_implementation", "heads_k_stride", "deterministic", "liger", "gradient_checkpointing"}
)


def require_job(snapshot: Snapshot) -> Job:
    """Return the launch's job. Raises `MissingFact` if no launch was given."""
    return need(snapshot.job, "the launch")


def change_settings(title: str, sets: Mapping[str, str]) -> Fix:
    """Return a fix that changes settings of the launch; its text is later filled with the framework's option names."""
    return Fix(title, "setting", "", "safe" if SAFE_KEYS.issuperset(sets) else "unsafe", sets=sets)


def locate_settings(job: Job, *keys: Key) -> tuple[SourceLocation, ...]:
    """Return where the launch sets `keys`; the launch's own location if it sets none of them."""
    locations = tuple(job.locations[key] for key in keys if key in job.locations)
    return locations or (job.location,)


def name_settings(job: Job) -> dict[str, Setting]:
    """Return the settings of a launch by their name in transformers' spelling: "eval_strategy"."""
    return {item.name.lstrip("-+").replace("-", "_"): item for item in job.settings}


def locate_variables(snapshot: Snapshot, *names: str) -> tuple[SourceLocation, ...]:
    """Return where the launch sets these environment variables; () without a launch or if it sets none."""
    variables = snapshot.job.value.variables if isinstance(snapshot.job, Known) else ()
    return tuple(variable.location for variable in variables if variable.name in names and variable.known)


def describe_job(job: Job) -> str:
    """Return the framework and the trainer of a launch as text, such as "openrlhf ppo"."""
    return f"{job.framework} {job.trainer}"


def effective_attn_implementation(job: Job) -> str:
    """Return the attn_implementation that will run; transformers uses sdpa if none is requested."""
    return job.plan.attn_implementation or "sdpa"


def describe_layout(job: Job) -> str:
    """Return the layout of the job's rows, as experiments name it: "padded", "packing", "padding_free"."""
    if not job.plan.packed:
        return "padded"
    return "padding_free" if job.plan.packing != "padding" and "packing" not in job.locations else "packing"


def requested_implementation(snapshot: Snapshot) -> str:
    """Return the attn_implementation that the launch requests, or else config.json; "" if neither names one."""
    if isinstance(snapshot.job, Known) and snapshot.job.value.plan.attn_implementation:
        return snapshot.job.value.plan.attn_implementation
    return value_or(snapshot.model.value.attn_implementation, "") if isinstance(snapshot.model, Known) else ""


def may_use(snapshot: Snapshot, *implementations: str) -> bool:
    """Return whether the job may run one of these implementations; a launch that requests a different one does not."""
    job = snapshot.job.value if isinstance(snapshot.job, Known) else None
    return job is None or effective_attn_implementation(job) in implementations


@noted_by_answer
def may_import(snapshot: Snapshot, distribution: str) -> bool:
    """Return whether the job may import an installed package; a broken package that it never imports is harmless.

    A launch of a framework imports no other framework and no package for features that it does not use. The exception
    is a package that a library it uses imports in every job. For the user's own script, or without a launch, anything
    may be imported.
    """
    job = snapshot.job.value if isinstance(snapshot.job, Known) else None
    if job is None or job.framework not in FRAMEWORKS_IMPORTED_BY:
        return True
    if distribution in FRAMEWORKS_IMPORTED_BY:
        return distribution in (job.framework, *FRAMEWORKS_IMPORTED_BY[job.framework])
    if _is_imported_eagerly(snapshot, job, distribution):
        return True
    if distribution in FLASH_DISTRIBUTIONS.values():
        return _may_load_flash(job, distribution)
    return distribution not in NEEDS_BY_PACKAGE or bool(NEEDS_BY_PACKAGE[distribution] & needs_of_job(job))


def _is_imported_eagerly(snapshot: Snapshot, job: Job, distribution: str) -> bool:
    """Return whether the framework, or the installed release of a library, imports it in every job."""
    if distribution not in IMPORTED_LAZILY:
        return False
    library, since = IMPORTED_LAZILY[distribution]
    version = snapshot.version(library)
    return job.framework == "verl" or (isinstance(version, Known) and version.value < Version(since))


def _may_load_flash(job: Job, distribution: str) -> bool:
    """Return whether the job's attn_implementation may load the distribution, or the job imports it."""
    name = job.plan.attn_implementation
    is_another = "/" in name or FLASH_DISTRIBUTIONS.get(name, distribution) != distribution
    imports_itself = distribution == "flash-attn" and ("flash_attn" in job.imports or "ring" in needs_of_job(job))
    return not is_another or imports_itself


def may_use_flash(snapshot: Snapshot) -> bool:
    """Return whether the job may run on a flash kernel from any package or repository."""
    job = snapshot.job.value if isinstance(snapshot.job, Known) else None
    return job is None or "flash" in effective_attn_implementation(job)


def count_job_gpus(snapshot: Snapshot, job: Job) -> int | None:
    """Return how many GPUs the job's nodes have, if each node is like this machine; None if unknown."""
    if isinstance(snapshot.devices, Known):
        return len(snapshot.visible_devices()) * job.nodes
    return None
