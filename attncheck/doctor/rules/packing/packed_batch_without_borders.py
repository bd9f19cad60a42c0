"""The installed trainer packs documents into a row without marking where each begins.

What it checks: `doctor --deep` makes the trainers of the installed TRL, LLaMA-Factory and ms-swift, and takes their
first batch, packed and padding-free, under each attention name. It looks for what separates the documents of a row:
position_ids that restart, cu_seqlens, seq_idx, a mask with blocks. With a launch, only that launch's trainer, layout
and attention are checked.

Why it matters: the error is silent. Without boundaries the documents of a row attend to each other. Which keys a
batch has depends on the release, the layout and the spelling of the attention's name.

What to do: use an attention, by its exact name, for which the batch marks the documents, or a newer release of the
trainer.

Source: the measurement (attncheck/doctor/experiments/worker/). Faults of this kind: huggingface/trl#3942.
"""

from collections.abc import Iterator

from attncheck.core.experiments import BatchMeasurement
from attncheck.doctor.fixes.install import install_packages, set_attn_implementation
from attncheck.doctor.queries.launch import (
    change_settings,
    describe_job,
    describe_layout,
    effective_attn_implementation,
    locate_settings,
)
from attncheck.doctor.rules import Fix, Job, Known, Problem, Problems, Rule, Snapshot, need

LAYOUT_NAMES = {"packing": "packed", "padding_free": "padding-free"}


def check(snapshot: Snapshot) -> Problems:
    batches = [item for item in snapshot.measurements.batches if item.layout in LAYOUT_NAMES]
    job = snapshot.job.value if isinstance(snapshot.job, Known) else None
    for trainer, layout in dict.fromkeys((item.trainer, item.layout) for item in batches):
        measured = [item for item in batches if (item.trainer, item.layout) == (trainer, layout) and not item.error]
        leaking = [item for item in measured if not item.separates and (job is None or _is_of_job(item, job))]
        if not leaking:
            continue
        separating = [item.attention for item in measured if item.separates]
        version = need(snapshot.package(trainer), trainer).version
        attentions = ", ".join(item.attention for item in leaking)
        yield Problem(
            message=(
                f"{trainer} {version} gives {LAYOUT_NAMES[layout]} rows no document boundaries under {attentions}: "
                "documents attend to each other"
            ),
            evidence=tuple(f"measured: {item.attention}: a batch has {', '.join(item.keys)}" for item in leaking[:3]),
            fixes=tuple(_iter_fixes(snapshot, trainer, separating)),
            subject=describe_job(job) if job is not None else f"{trainer} {version}",
            predicted=job is None,
            locations=locate_settings(job, "packing") if job is not None else (),
        )


def _is_of_job(item: BatchMeasurement, job: Job) -> bool:
    """Return whether a launch has this trainer, layout and attention, and its settings were not reported already."""
    is_reported = any(problem.consequence == "wrong" for problem in job.problems)
    is_packed = job.plan.packed and job.framework == item.trainer and job.trainer == "sft"
    layout = describe_layout(job)
    return (
        is_packed and not is_reported and layout == item.layout and effective_attn_implementation(job) == item.attention
    )


def _iter_fixes(snapshot: Snapshot, trainer: str, separating: list[str]) -> Iterator[Fix]:
    for name in separating[:1]:
        if isinstance(snapshot.job, Known):
            yield change_settings(f"use {name}", {"attn_implementation": name})
        else:
            yield set_attn_implementation(snapshot, name)
    if trainer == "trl":
        yield install_packages(snapshot, "trl>=0.23.1")
    elif not separating:
        yield Fix("do not pack", "setting", "packing: false")


RULE = Rule("ATN460", "error", check)
