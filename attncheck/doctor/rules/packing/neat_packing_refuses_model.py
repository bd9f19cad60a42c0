"""LLaMA-Factory refuses neat packing for this model.

What it checks: the model's type against the two that LLaMA-Factory 0.9.5 refuses.

Why it matters: with `neat_packing: true`, the first batch raises "Neat packing is not supported for gemma4, gpt_oss
models for now."

What to do: leave neat_packing off for this model.

Source: llamafactory 0.9.5, data/collator.py.
"""

from attncheck.doctor.knowledge.padding import NEAT_PACKING_BY_POSITIONS, NEAT_PACKING_REFUSED_MODELS
from attncheck.doctor.queries.models import is_at_least
from attncheck.doctor.rules import Fix, Model, Problem, Problems, Rule, Snapshot, about_model


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if model.model_type not in NEAT_PACKING_REFUSED_MODELS:
        return
    if is_at_least(snapshot.version("llamafactory"), NEAT_PACKING_BY_POSITIONS):
        yield Problem(
            message=f"LLaMA-Factory refuses neat_packing for {model.model_type}",
            evidence=("its collator raises a ValueError at the first batch",),
            fixes=(Fix("leave it off", "setting", "neat_packing: false"),),
            subject=model.model_type,
        )


RULE = Rule("ATN411", "note", check, general=True)
