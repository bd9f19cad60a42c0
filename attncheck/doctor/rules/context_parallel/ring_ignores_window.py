"""Ring attention runs the model's sliding-window layers with the wrong window.

What it checks: ring-flash-attn on a model with a sliding-window layer.

Why it matters: the error is silent. The adapter compares the window with the length of the local shard. If a shard is
shorter than the window, those layers attend to everything. Otherwise the window is one token wider than in
transformers since 4.56.0. The loss is finite but wrong.

What to do: use Ulysses for this model (verl, DeepSpeed ALST), or train without sequence parallelism.

Source: ring_flash_attn 0.1.8, adapters/hf_adapter.py (`key_states.shape[1] > sliding_window`, `window_size`);
transformers 4.56.0, modeling_flash_attention_utils.py (`sliding_window - 1`), huggingface/transformers#40163.
"""

from attncheck.doctor.fixes.model import disable_ring_attention
from attncheck.doctor.queries.models import is_ring_ruled_out
from attncheck.doctor.rules import Known, Model, Problem, Problems, Rule, Snapshot, about_model, value_or


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not isinstance(model.sliding_window, Known) or not snapshot.has("ring-flash-attn"):
        return
    max_length = value_or(model.max_position_embeddings, 0)
    if is_ring_ruled_out(model) or 0 < max_length <= model.sliding_window.value:
        return
    windowed_layers = sum(kind == "sliding_attention" for kind in model.layer_types)
    window = model.sliding_window.value
    yield Problem(
        message=f"ring attention ignores the window of {window} in {windowed_layers} layers of {model.model_type}",
        evidence=("the adapter applies it only if one rank's shard is longer, and then one token too wide",),
        fixes=(disable_ring_attention(snapshot),),
        subject=model.model_type,
    )


RULE = Rule("ATN501", "error", check, needs=frozenset({"ring"}))
