"""The installed flash-attn is too old for the model's logit soft-capping.

What it checks: the model's attn_logit_softcapping, and whether flash-attn is older than 2.6.0, the first release with
a softcap.

Why it matters: the softcap is dropped or refused ("This flash attention implementation does not support softcap").

What to do: install flash-attn 2.6.3 or newer, or use eager or flex_attention.

Source: flash-attn's README (2.6: softcapping); huggingface/transformers#32103; hiyouga/LLaMA-Factory#5079.
"""

from attncheck.doctor.fixes import install_packages, use_other_attention
from attncheck.doctor.knowledge.models import FLASH_SOFTCAP
from attncheck.doctor.queries import is_older, may_use
from attncheck.doctor.rules import Known, Model, Problem, Problems, Rule, Snapshot, about_model, need, only_if


@only_if(may_use, "flash_attention_2")  # gemma2 with eager applies its softcap
@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    version = snapshot.version("flash-attn")
    if not isinstance(model.softcap, Known) or not is_older(version, FLASH_SOFTCAP):
        return
    installed = need(version, "the version of flash-attn")
    upgrade = install_packages(snapshot, "flash-attn>=2.6.3", options=("--no-build-isolation",))
    yield Problem(
        message=f"flash-attn {installed} has no softcap, which {model.model_type} needs",
        evidence=(f"attn_logit_softcapping is {model.softcap.value:g}", f"flash-attn {installed}"),
        fixes=(upgrade, *use_other_attention(snapshot, model, "flash_attention_2", "sdpa")),
        subject=model.model_type,
    )


RULE = Rule("ATN311", "error", check, needs=frozenset({"flash"}))
