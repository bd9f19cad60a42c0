"""DeepSpeed's Ulysses sequence parallelism needs a newer transformers.

What it checks: transformers below 4.51.3 if accelerate's variables request sequence parallelism
(PARALLELISM_CONFIG_SP_SIZE above 1) with DeepSpeed installed.

Why it matters: DeepSpeed's UlyssesSPAttentionHF registers itself in transformers' table of attention functions in a
way that older releases do not support, and refuses them.

What to do: install transformers 4.51.3 or newer.

Source: DeepSpeed (2026-08), `deepspeed/runtime/sequence_parallel/ulysses_sp.py`, which names 4.51.3.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.frameworks import DEEPSPEED_ULYSSES_TRANSFORMERS
from attncheck.doctor.queries import locate_variables, requirements
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot, Version, need, value_or


def check(snapshot: Snapshot) -> Problems:
    size = value_or(snapshot.env("PARALLELISM_CONFIG_SP_SIZE"), "")
    if not snapshot.has("deepspeed") or not snapshot.has("transformers") or not size.isdecimal() or int(size) < 2:
        return
    transformers = need(snapshot.version("transformers"), "transformers' version")
    if transformers >= Version(DEEPSPEED_ULYSSES_TRANSFORMERS):
        return
    transformers_requirements = requirements.resolve_transformers(snapshot, f">={DEEPSPEED_ULYSSES_TRANSFORMERS}")
    allows = (f"transformers>={DEEPSPEED_ULYSSES_TRANSFORMERS}",)
    yield Problem(
        message=f"DeepSpeed's Ulysses needs transformers {DEEPSPEED_ULYSSES_TRANSFORMERS}; {transformers} is installed",
        subject=f"transformers {transformers}",
        evidence=(f"PARALLELISM_CONFIG_SP_SIZE={size}",),
        fixes=(install.install_packages(snapshot, *transformers_requirements, allows=allows),)
        if transformers_requirements
        else (),
        locations=locate_variables(snapshot, "PARALLELISM_CONFIG_SP_SIZE"),
    )


RULE = Rule("ATN164", "warning", check)
