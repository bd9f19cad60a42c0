"""TRL's warning about packing with this Hub kernel is wrong: it compares the name including the revision.

What it checks: a TRL launch, before release 1.13.0, that packs or trains padding-free with a Hub flash kernel whose
name has a revision ("@v2") or a kernel (":name").

Why it matters: TRL says that other implementations "may lead to cross-contamination between samples"; users turn
packing off because of it. The kernel behind a pinned name is the same, and documents stay separate.

What to do: leave the launch unchanged, or update TRL to 1.13.0 or newer, which compares only the name before "@" and
":".

Source: trl 1.5.0 to 1.12.0 trainer/sft_trainer.py (`model.config._attn_implementation in FLASH_ATTENTION_VARIANTS`),
1.13.0, which splits the name; huggingface/trl#6984.
"""

import re

from packaging.version import InvalidVersion, Version

from attncheck.doctor.queries.launch import describe_job, locate_settings
from attncheck.doctor.rules import Fix, Job, Problem, Problems, Rule, Snapshot, about_job

PINNED_FLASH = re.compile(r"kernels-community/[\w-]*flash-attn\d[@:]", re.ASCII)
SPLITS_NAMES_SINCE = Version("1.13.0")
LIST_SINCE = Version("0.23.0")


@about_job
def check(snapshot: Snapshot, job: Job) -> Problems:
    implementation = job.plan.attn_implementation
    if job.framework != "trl" or not job.plan.packed or not PINNED_FLASH.match(implementation):
        return
    try:
        version = Version(job.version)
    except InvalidVersion:
        return
    if LIST_SINCE <= version < SPLITS_NAMES_SINCE:
        yield Problem(
            message=(f"TRL {job.version} will warn that {implementation} may mix packed documents, but it does not"),
            evidence=("trl 1.5.0 trainer/sft_trainer.py:1112: the whole name is looked up, including its revision",),
            fixes=(Fix("leave packing on, or update TRL", "advice", "pip install 'trl>=1.13'"),),
            subject=describe_job(job),
            locations=locate_settings(job, "attn_implementation"),
        )


RULE = Rule("ATN456", "note", check, needs=frozenset({"job"}))
