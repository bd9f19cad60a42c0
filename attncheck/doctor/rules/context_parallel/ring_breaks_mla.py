"""With this transformers, ring attention fails because the model's keys and values have different head sizes.

What it checks: ring-flash-attn on a model whose keys and values have different head sizes (multi-head latent
attention: 192 and 128), and transformers 5.15.0 or newer. Earlier, each such model padded its values itself. Since
5.15.0 transformers' flash attention function does so, and ring-flash-attn replaces that function.

Why it matters: the first forward raises a shape error in the buffers that carry keys and values around the ring.

What to do: do not use ring attention for this model with this transformers.

Source: transformers 5.14.1 (models/deepseek_v3/modeling_deepseek_v3.py, `F.pad(value_states`) and 5.15.0
(integrations/flash_attention.py); ring_flash_attn 0.1.8, llama3_flash_attn_varlen.py.
"""

from attncheck.doctor.fixes.model import disable_ring_attention
from attncheck.doctor.knowledge.models import V_PADDED_OUTSIDE_THE_MODEL
from attncheck.doctor.queries.models import is_at_least
from attncheck.doctor.rules import Known, Model, Problem, Problems, Rule, Snapshot, about_model, need


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not snapshot.has("ring-flash-attn"):
        return
    if not isinstance(model.head_dim, Known) or not isinstance(model.v_head_dim, Known):
        return
    sizes = model.head_dim.value, model.v_head_dim.value
    version = snapshot.version("transformers")
    if len(model.head_dims) != 1 or sizes[0] == sizes[1] or not is_at_least(version, V_PADDED_OUTSIDE_THE_MODEL):
        return
    yield Problem(
        message=f"ring attention fails on {model.model_type}: keys have head size {sizes[0]}, values {sizes[1]}",
        evidence=(
            f"transformers {need(version, 'transformers')} pads values in the function that ring attention replaces",
        ),
        fixes=(disable_ring_attention(snapshot),),
        subject=model.model_type,
        predicted=True,
    )


RULE = Rule("ATN507", "error", check, needs=frozenset({"ring"}))
