"""flash-attn-4 is installed without flash-attn, but verl imports flash-attn.

What it checks: whether flash-attn-4 and verl are installed, but not flash-attn.

Why it matters: flash-attn-4 contains only `flash_attn.cute`; `from flash_attn.bert_padding import …` raises "No
module named 'flash_attn.bert_padding'" and `from flash_attn import flash_attn_func` "cannot import name … (unknown
location)". transformers' flash_attention_4 does work. ATN146 reports this for OpenRLHF, and ATN142 for
ring-flash-attn.

What to do: install flash-attn 2, then flash-attn-4 over it if that is used.

Source: flash_attn_4 4.0.0b36 wheel (RECORD); verl 0.9.1, `utils/model.py` and `pyproject.toml`.
"""

from attncheck.doctor.fixes.flash_attn import describe_wheel_tags, flash_attn_fixes
from attncheck.doctor.queries import may_import, need_torch
from attncheck.doctor.rules import MissingFact, Problem, Problems, Rule, Snapshot, need, only_if


@only_if(Snapshot.has, "flash-attn-4")
@only_if(Snapshot.has, "verl")
def check(snapshot: Snapshot) -> Problems:
    if snapshot.has("flash-attn"):
        return
    if any(snapshot.has(name) and may_import(snapshot, name) for name in ("openrlhf", "ring-flash-attn")):
        raise MissingFact("OpenRLHF and ring-flash-attn need flash-attn too", ("ATN142", "ATN146", "ATN452"))
    need_torch(snapshot)
    version = need(snapshot.package("flash-attn-4"), "flash-attn-4").version
    yield Problem(
        message=f"flash-attn-4 {version} does not contain the flash_attn module that verl imports",
        subject=f"flash-attn-4 {version}",
        evidence=("static lane: flash-attn was not found", f"this environment: {describe_wheel_tags(snapshot)}"),
        fixes=flash_attn_fixes(snapshot),
    )


RULE = Rule("ATN114", "warning", check, needs=frozenset({"flash"}))
