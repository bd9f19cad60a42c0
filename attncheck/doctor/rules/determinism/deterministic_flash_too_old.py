"""This flash-attn is too old for the requested deterministic backward.

What it checks: FLASH_ATTENTION_DETERMINISTIC=1 with flash-attn older than 2.4.1.

Why it matters: flash-attn 2.4.1 added the keyword `deterministic`. Before that, transformers warns and drops the
request, or the call raises TypeError.

What to do: install flash-attn 2.4.1 or newer.

Source: transformers 5.17.0 `modeling_flash_attention_utils.py` (reads the variable and passes the keyword if the
function takes it); Dao-AILab/flash-attention README, "2.4.1"; verl#2581.
"""

from attncheck.doctor.fixes import install, missing_dependencies
from attncheck.doctor.queries.launch import locate_variables
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot, Version, need

FIRST_DETERMINISTIC = Version("2.4.1")


def check(snapshot: Snapshot) -> Problems:
    if snapshot.env("FLASH_ATTENTION_DETERMINISTIC") != Known("1") or not snapshot.has("flash-attn"):
        return
    version = need(snapshot.version("flash-attn"), "flash-attn's version")
    if version < FIRST_DETERMINISTIC:
        yield Problem(
            message=f"FLASH_ATTENTION_DETERMINISTIC=1 does nothing: flash-attn {version} has no deterministic backward",
            subject=f"flash-attn {version}",
            evidence=("environment: FLASH_ATTENTION_DETERMINISTIC=1", f"flash-attn {version}, older than 2.4.1"),
            fixes=(
                install.install_packages(
                    snapshot,
                    "flash-attn==2.8.3",
                    *missing_dependencies(snapshot),
                    options=("--no-build-isolation", "--no-deps", "--no-cache-dir"),
                ),
            ),
            locations=locate_variables(snapshot, "FLASH_ATTENTION_DETERMINISTIC"),
        )


RULE = Rule("ATN701", "error", check)
