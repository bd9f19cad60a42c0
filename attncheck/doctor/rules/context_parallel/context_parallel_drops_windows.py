"""accelerate's context parallelism trains the model's windowed layers without their windows.

What it checks: accelerate 1.10.0 to 1.14 on a model with sliding-window or chunked layers.

Why it matters: with `cp_size` above 1 the attention mask is dropped, so every layer becomes plain causal attention.
Later releases refuse such models for this reason.

What to do: use Ulysses, or train this model without context parallelism. accelerate 1.15.0 or newer refuses instead
of training wrongly.

Source: accelerate 1.10.0 to 1.15.0, big_modeling.py (`_attach_context_parallel_hooks`); huggingface/accelerate#4177.
"""

from attncheck.doctor.fixes.install import install_packages
from attncheck.doctor.knowledge.models import ACCELERATE_CONTEXT_PARALLEL
from attncheck.doctor.queries.models import is_at_least, is_older
from attncheck.doctor.rules import Fix, Known, Model, Problem, Problems, Rule, Snapshot, about_model, need

WINDOWED_LAYERS = frozenset({"sliding_attention", "chunked_attention"})


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    dropped_since, refuses_since = ACCELERATE_CONTEXT_PARALLEL
    version = snapshot.version("accelerate")
    if not is_at_least(version, dropped_since) or not is_older(version, refuses_since):
        return
    windowed_layers = sum(kind in WINDOWED_LAYERS for kind in model.layer_types)
    if not windowed_layers:
        return
    yield Problem(
        message=f"accelerate {need(version, 'accelerate')} drops the windows of {model.model_type} with cp_size > 1",
        evidence=(f"{windowed_layers} of {len(model.layer_types)} layers have a window or a chunk",),
        fixes=(
            _disable_context_parallel(snapshot),
            install_packages(snapshot, f"accelerate>={refuses_since}", title="install an accelerate that refuses this"),
        ),
        subject=model.model_type,
    )


def _disable_context_parallel(snapshot: Snapshot) -> Fix:
    title = "train without context parallelism"
    if isinstance(snapshot.job, Known):
        return Fix(title, "setting", "", "unsafe", sets={"ring_size": "1"})
    return Fix(title, "setting", "parallelism_config_cp_size: 1  # in accelerate's configuration")


RULE = Rule("ATN510", "warning", check, needs=frozenset({"context_parallel"}))
