"""Compiling flash-attn would run out of memory.

What it checks: MAX_JOBS times 7 GiB per job against the free memory or a container's limit, and whether at least 7
GiB are free. This is checked only if flash-attn must be compiled.

Why it matters: the compiler is killed ("Killed signal terminated program cc1plus", "ninja: build stopped", exit 137)
after an hour's work. setup.py limits the number of jobs only if MAX_JOBS is not set, and does not know a container's
limit.

What to do: set MAX_JOBS to the value in the finding, with NVCC_THREADS=1.

Source: `NinjaBuildExtension` in setup.py of flash-attn 2.8.3; attncheck/doctor/knowledge/flash_attn_build.py (measured:
up to 6.6 GiB a job and architecture); Dao-AILab/flash-attention#945, #391, #1549, #347.
"""

from attncheck.doctor.fixes import (
    available_memory_gib,
    install,
    max_compile_jobs,
    missing_build_tools,
    needs_source_build,
)
from attncheck.doctor.knowledge.flash_attn_build import GIB_PER_JOB
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot, value_or


def check(snapshot: Snapshot) -> Problems:
    memory = available_memory_gib(snapshot)
    if not memory or not needs_source_build(snapshot) or missing_build_tools(snapshot):
        return
    max_jobs = value_or(snapshot.env("MAX_JOBS"), "")
    if max_jobs.isdecimal() and int(max_jobs) > max(1, memory // GIB_PER_JOB):
        message = f"MAX_JOBS={max_jobs} would take about {int(max_jobs) * GIB_PER_JOB} GiB to compile flash-attn"
    elif memory < GIB_PER_JOB:
        message = f"compiling flash-attn takes about {GIB_PER_JOB} GiB even with one job"
    else:
        return
    yield Problem(
        message=f"{message}; only {memory} GiB are free",
        subject="flash-attn",
        evidence=(f"memory: {memory} GiB available, within the container's limit", "no published wheel is compatible"),
        fixes=(
            install.export_variable("MAX_JOBS", str(max_compile_jobs(snapshot))),
            install.export_variable("NVCC_THREADS", "1"),
        ),
    )


RULE = Rule("ATN111", "warning", check, needs=frozenset({"flash"}))
