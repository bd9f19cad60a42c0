"""Ring attention is causal only, but the model or a part of it is not causal.

What it checks: ring-flash-attn on an encoder, an encoder-decoder, or a model with a vision or audio tower.

Why it matters: the first forward raises "AssertionError: only causal attention is supported yet." One
attn_implementation applies to every part, and the adapter replaces flash attention for all of them. A tower only
matters to jobs that use it.

What to do: give the towers another implementation: attn_implementation={"text_config": "flash_attention_2",
"vision_config": "sdpa"}. Do not use ring attention for encoders.

Source: ring_flash_attn 0.1.8, adapters/hf_adapter.py (`assert causal`); transformers 5.23.0, configuration_utils.py
(a dictionary of attn_implementation by sub-config).
"""

from attncheck.doctor.fixes.model import disable_ring_attention
from attncheck.doctor.queries.models import is_ring_ruled_out, refuses_implementation
from attncheck.doctor.rules import Fix, Model, Problem, Problems, Rule, Snapshot, about_model


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not snapshot.has("ring-flash-attn") or (model.causal and not model.towers):
        return
    if not model.causal and not refuses_implementation(model, "flash_attention_2"):
        yield Problem(
            message=f"ring attention is causal only, but {model.model_type} attends in both directions",
            evidence=("ring-flash-attn asserts causal attention",),
            fixes=(disable_ring_attention(snapshot),),
            subject=model.model_type,
        )
        return
    if is_ring_ruled_out(model):
        return
    tower_settings = ", ".join(f'"{tower.name}": "sdpa"' for tower in model.towers)
    yield Problem(
        message=(f"ring attention is causal only, but the {model.towers[0].name} of {model.model_type} is not"),
        evidence=tuple(f"{tower.name}: {tower.num_heads} heads of {tower.head_dim}" for tower in model.towers),
        fixes=(
            Fix(
                "use sdpa for the towers",
                "setting",
                f'attn_implementation={{"text_config": "flash_attention_2", {tower_settings}}}',
            ),
        ),
        subject=model.model_type,
        predicted=True,
    )


RULE = Rule("ATN506", "error", check, needs=frozenset({"ring"}))
