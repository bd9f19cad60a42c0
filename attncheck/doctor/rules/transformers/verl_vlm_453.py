"""verl refuses Qwen2-VL under transformers 4.53.

What it checks: verl with transformers 4.53.x, if the named model is Qwen2-VL or Qwen2.5-VL, or no model is named.

Why it matters: verl's patch stops with "Transformers 4.53.* is bugged. Use transformers 4.54.0 or later."

What to do: install a transformers other than 4.53 that verl's own pin allows.

Source: verl 0.9.1, `verl/models/transformers/monkey_patch.py` lines 396-400.
"""

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.frameworks import VERL_VLM_BUGGED
from attncheck.doctor.queries import requirements
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot, need


def check(snapshot: Snapshot) -> Problems:
    if not snapshot.has("verl") or not snapshot.has("transformers"):
        return
    transformers = need(snapshot.version("transformers"), "transformers' version")
    model = snapshot.model.value.model_type if isinstance(snapshot.model, Known) else "qwen2_vl"
    if not requirements.is_version_allowed(VERL_VLM_BUGGED, transformers) or model not in ("qwen2_vl", "qwen2_5_vl"):
        return
    transformers_requirements = requirements.resolve_transformers(snapshot, ">=4.54")
    verl = need(snapshot.package("verl"), "verl").version
    yield Problem(
        message=f"verl {verl} refuses Qwen2-VL under transformers {transformers}: 4.53 has a bug",
        subject=f"transformers {transformers}",
        evidence=("static lane: verl raises for 4.53.x",),
        fixes=(install.install_packages(snapshot, *transformers_requirements, allows=("transformers>=4.54",)),)
        if transformers_requirements
        else (),
    )


RULE = Rule("ATN160", "warning", check, needs=frozenset({"rl"}))
