"""With this transformers, DeepSpeed's Ulysses refuses the model because its keys and values have different head sizes.

What it checks: deepspeed on a model whose keys and values have different head sizes (multi-head latent attention),
and transformers 5.15.0 or newer, which pads values only after DeepSpeed's check.

Why it matters: the first forward raises an AssertionError on `key.shape == value.shape`.

What to do: train this model without Ulysses, or with transformers older than 5.15.0.

Source: deepspeed 0.19.8, runtime/sequence_parallel/ulysses_sp.py; transformers 5.15.0,
integrations/flash_attention.py.
"""

from attncheck.doctor.knowledge.models import V_PADDED_OUTSIDE_THE_MODEL
from attncheck.doctor.queries.models import is_at_least
from attncheck.doctor.rules import Fix, Known, Model, Problem, Problems, Rule, Snapshot, about_model


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not snapshot.has("deepspeed"):
        return
    if not isinstance(model.head_dim, Known) or not isinstance(model.v_head_dim, Known):
        return
    sizes = model.head_dim.value, model.v_head_dim.value
    if len(model.head_dims) != 1 or sizes[0] == sizes[1]:
        return
    if is_at_least(snapshot.version("transformers"), V_PADDED_OUTSIDE_THE_MODEL):
        yield Problem(
            message=f"DeepSpeed's Ulysses refuses {model.model_type}: head sizes {sizes[0]} and {sizes[1]}",
            evidence=("it asserts that keys and values have the same shape, before transformers pads them",),
            fixes=(Fix("do without Ulysses", "setting", "sequence_parallel_size: 1"),),
            subject=model.model_type,
            predicted=True,
        )


RULE = Rule("ATN512", "warning", check, needs=frozenset({"ulysses"}))
