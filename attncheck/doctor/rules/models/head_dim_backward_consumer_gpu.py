"""flash-attn's backward does not support this head size on a GPU with little shared memory.

What it checks: a head size above 192 on sm_86, sm_89 or sm_12x, which have 99 KiB of shared memory per block, with
flash-attn before 2.5.5. With 2.5.5 or newer, whether the model has attention dropout, which is still not supported
there.

Why it matters: the first backward raises "FlashAttention backward for head dim > 192 requires A100/A800 or H100/H800".

What to do: install flash-attn 2.5.5 or newer and set attention_dropout to 0, or use sdpa.

Source: flash-attn 2.8.3, README ("head dim 256 backward now works on consumer GPUs (if there's no dropout) as of
flash-attn 2.5.5"); Dao-AILab/flash-attention#328.
"""

from attncheck.doctor.fixes import install_packages, use_other_attention
from attncheck.doctor.knowledge.models import SMALL_SHARED_MEMORY, WIDE_BACKWARD_ON_CONSUMER_GPUS
from attncheck.doctor.queries import is_older, may_use, refuses_implementation
from attncheck.doctor.rules import Fix, Known, Model, Problem, Problems, Rule, Snapshot, about_model, only_if, value_or


@only_if(may_use, "flash_attention_2")  # the launch requests a different attention
@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    version = snapshot.version("flash-attn")
    if not 192 < max(model.head_dims, default=0) <= 256 or refuses_implementation(model, "flash_attention_2"):
        return
    dropout = value_or(model.attention_dropout, 0.0)
    is_old = is_older(version, WIDE_BACKWARD_ON_CONSUMER_GPUS)
    small_gpus = [
        gpu for gpu in snapshot.visible_devices() if value_or(gpu.compute_capability, (0, 0)) in SMALL_SHARED_MEMORY
    ]
    if not small_gpus or not isinstance(version, Known) or not (is_old or dropout):
        return
    cause = f"flash-attn {version.value}" if is_old else f"attention_dropout {dropout:g}"
    upgrade = install_packages(
        snapshot, f"flash-attn>={WIDE_BACKWARD_ON_CONSUMER_GPUS}", options=("--no-build-isolation",)
    )
    no_dropout = Fix("train without attention dropout", "setting", "attention_dropout=0.0")
    yield Problem(
        message=f"no backward for head_dim {max(model.head_dims)} on {small_gpus[0].sm} with {cause}",
        evidence=(f"cuda:{small_gpus[0].index} is {small_gpus[0].sm}", f"flash-attn {version.value}"),
        fixes=(upgrade if is_old else no_dropout, *use_other_attention(snapshot, model, "flash_attention_2")),
        subject=model.model_type,
        predicted=True,
    )


RULE = Rule("ATN315", "error", check, needs=frozenset({"flash"}))
