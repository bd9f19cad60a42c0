"""sdpa silently drops the model's logit soft-capping.

What it checks: attn_logit_softcapping of the model, and whether this transformers accepts sdpa for it. Before 5.21.0
it does, and silently drops the softcap.

Why it matters: sdpa is transformers' default, so the model trains with different attention scores from those it was
pretrained with. The result is NaN gradients, a wrong loss, or lower quality without an error.

What to do: request flash_attention_2 (flash-attn 2.6.0 or newer), flex_attention or eager.

Source: transformers 5.17.0 and 5.20.2 (integrations/sdpa_attention.py has no softcap) and 5.21.0 (it raises);
huggingface/transformers#32309.
"""

from attncheck.doctor.fixes.model import use_other_attention
from attncheck.doctor.knowledge.models import SDPA_REFUSES_SOFTCAP
from attncheck.doctor.queries import may_use, transformers_answer
from attncheck.doctor.rules import Known, Model, Problem, Problems, Rule, Snapshot, Version, about_model, need, only_if


@only_if(may_use, "sdpa")  # the launch requests a different attention
@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not isinstance(model.softcap, Known) or transformers_answer(model, "sdpa") not in ("", None):
        return
    version = need(snapshot.version("transformers"), "the version of transformers")
    if version >= Version(SDPA_REFUSES_SOFTCAP):
        return
    yield Problem(
        message=f"sdpa of transformers {version} drops the softcap of {model.model_type}",
        evidence=(
            f"attn_logit_softcapping is {model.softcap.value:g}",
            f"sdpa refuses a softcap since transformers {SDPA_REFUSES_SOFTCAP}; {version} drops it",
        ),
        fixes=use_other_attention(snapshot, model, "sdpa"),
        subject=model.model_type,
    )


RULE = Rule("ATN310", "warning", check)
