"""flash-attn-4 does not support the model's head size on this GPU.

What it checks: the model's head sizes of q/k and v against what flash-attn-4 accepts: 8 to 256 on sm_90; on sm_100 and
sm_110 up to 128, or (192, 128), or (256, 256).

Why it matters: flash_attention_4 stops with "(head_dim, head_dim_v)=… is not supported", at the first forward.

What to do: use flash_attention_2 or sdpa for this model.

Source: flash_attn_4 4.0.0b36, flash_attn/cute/interface.py (`_validate_head_dims`).
"""

from attncheck.doctor.fixes.model import use_other_attention
from attncheck.doctor.queries import may_use, refuses_implementation
from attncheck.doctor.rules import Model, Problem, Problems, Rule, Snapshot, about_model, only_if, value_or


@only_if(may_use, "flash_attention_4")  # the launch requests a different attention
@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not snapshot.has("flash-attn-4") or refuses_implementation(model, "flash_attention_4"):
        return
    for device in snapshot.visible_devices():
        major = value_or(device.compute_capability, (0, 0))[0]
        for head_dim in model.head_dims:
            v_head_dim = value_or(model.v_head_dim, head_dim) if len(model.head_dims) == 1 else head_dim
            if not _is_head_dim_supported(major, head_dim, v_head_dim):
                yield Problem(
                    message=f"flash-attn-4 does not support head sizes ({head_dim}, {v_head_dim}) on {device.sm}",
                    evidence=(
                        f"cuda:{device.index} is {device.sm}",
                        f"{model.model_type}: head_dim {head_dim}, v {v_head_dim}",
                    ),
                    fixes=use_other_attention(snapshot, model, "flash_attention_4"),
                    subject=model.model_type,
                )
                return


def _is_head_dim_supported(major: int, head_dim: int, v_head_dim: int) -> bool:
    if major == 9:
        return 8 <= head_dim <= 256 and 8 <= v_head_dim <= 256
    if major in (10, 11):
        return (8 <= head_dim <= 128 and 8 <= v_head_dim <= 128) or (head_dim, v_head_dim) in ((192, 128), (256, 256))
    return True


RULE = Rule("ATN323", "warning", check, needs=frozenset({"flash"}))
