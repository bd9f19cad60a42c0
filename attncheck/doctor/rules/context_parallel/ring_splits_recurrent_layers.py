"""Ring attention splits the model's recurrent layers into unconnected pieces.

What it checks: ring-flash-attn on a model with linear-attention, Mamba or convolution layers.

Why it matters: the error is silent. The ring connects only attention across the ranks' shards. A recurrent layer
starts from an empty state on each rank, so later shards know nothing about earlier ones. This is concluded from the
source, not measured.

What to do: do not use ring attention for this model.

Source: ring_flash_attn 0.1.8, adapters/hf_adapter.py (it replaces the attention function alone).
"""

from attncheck.doctor.fixes.model import disable_ring_attention
from attncheck.doctor.knowledge.models import RECURRENT_LAYERS
from attncheck.doctor.rules import Model, Problem, Problems, Rule, Snapshot, about_model


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not snapshot.has("ring-flash-attn"):
        return
    recurrent = [kind for kind in model.layer_types if kind in RECURRENT_LAYERS]
    if recurrent:
        yield Problem(
            message=f"ring attention splits the {len(recurrent)} recurrent layers of {model.model_type}",
            evidence=(f"layers of {', '.join(sorted(set(recurrent)))}; the ring carries keys and values only",),
            fixes=(disable_ring_attention(snapshot),),
            subject=model.model_type,
        )


RULE = Rule("ATN511", "warning", check, needs=frozenset({"ring"}))
