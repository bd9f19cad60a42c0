"""PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF disagree.

What it checks: whether both names of the allocator's settings are set, to different values.

Why it matters: torch uses one of them, and libraries that check for expandable segments (vllm, TRL) may read the
other. A setting then has no effect, or a guard misses it.

What to do: set both to the same value, or unset one.

Source: torch 2.13 (libc10 knows both names); huggingface/trl#5794; OpenRLHF/OpenRLHF#1274.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.queries.launch import locate_variables
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot, value_or

NEW_NAME, OLD_NAME = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"


def check(snapshot: Snapshot) -> Problems:
    new, old = value_or(snapshot.env(NEW_NAME), ""), value_or(snapshot.env(OLD_NAME), "")
    if not new or not old or _parse_settings(new) == _parse_settings(old):
        return
    yield Problem(
        message=f"{NEW_NAME} and {OLD_NAME} disagree",
        subject=NEW_NAME,
        evidence=(f"{NEW_NAME}={new}", f"{OLD_NAME}={old}"),
        fixes=(
            install.export_variable(OLD_NAME, new, title="set both to the same value"),
            install.unset_variable(OLD_NAME),
        ),
        locations=locate_variables(snapshot, NEW_NAME, OLD_NAME),
    )


def _parse_settings(text: str) -> frozenset[str]:
    return frozenset(part.strip().lower() for part in text.split(",") if part.strip())


RULE = Rule("ATN555", "warning", check)
