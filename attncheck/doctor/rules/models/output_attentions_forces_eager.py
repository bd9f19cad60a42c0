"""config.json requests attention weights, which only eager attention returns.

What it checks: output_attentions in config.json.

Why it matters: sdpa and flash attention return None with one warning, or transformers falls back to eager, whose
memory grows with the square of the length.

What to do: set it to false. If you need the weights, request them in a single short call with
attn_implementation="eager".

Source: transformers 5.23.0, integrations/flash_attention.py and sdpa_attention.py ("does not support
`output_attentions=True`").
"""

from attncheck.doctor.rules import Fix, Model, Problem, Problems, Rule, Snapshot, about_model


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not model.output_attentions:
        return
    yield Problem(
        message=f"output_attentions is true in the configuration of {model.source}: only eager attention returns them",
        evidence=("static lane: config.json",),
        fixes=(Fix("leave them out", "setting", "model.config.output_attentions = False"),),
        subject=model.source,
    )


RULE = Rule("ATN321", "warning", check)
