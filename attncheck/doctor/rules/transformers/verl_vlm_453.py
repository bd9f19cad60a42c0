"""verl refuses Qwen2-VL under transformers 4.53.

What it checks: verl with transformers 4.53.x, if the named model is Qwen2-VL or Qwen2.5-VL, or no model is named. The
model of a launch that is not available counts by its name.

Why it matters: verl's patch stops with "Transformers 4.53.* is bugged. Use transformers 4.54.0 or later."

What to do: install a transformers other than 4.53 that verl's own pin allows.

Source: verl 0.9.1, `verl/models/transformers/monkey_patch.py` lines 396-400.
"""

import re

from attncheck.doctor.fixes import install
from attncheck.doctor.knowledge.frameworks import VERL_VLM_BUGGED
from attncheck.doctor.queries import requirements
from attncheck.doctor.rules import Known, Problem, Problems, Rule, Snapshot, need, only_if

QWEN_VISION = re.compile(r"qwen-?2(?:\.5)?-?vl", re.IGNORECASE)


@only_if(Snapshot.has, "verl")
@only_if(Snapshot.has, "transformers")
def check(snapshot: Snapshot) -> Problems:
    transformers = need(snapshot.version("transformers"), "transformers' version")
    if isinstance(snapshot.model, Known):
        model = snapshot.model.value.model_type
    else:
        is_other = isinstance(snapshot.job, Known) and not QWEN_VISION.search(snapshot.job.value.model)
        model = "" if is_other else "qwen2_vl"
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
