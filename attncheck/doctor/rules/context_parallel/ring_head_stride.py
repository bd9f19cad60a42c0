"""Ring attention's head stride must divide the model's key/value heads, not its query heads.

What it checks: whether some divisor of the number of query heads does not divide the number of key/value heads.
OpenRLHF's help requires a divisor of "the number of heads", which is wrong for grouped-query attention.

Why it matters: the first forward raises a bare AssertionError (`nheads_k % heads_k_stride == 0`).

What to do: use 1, which always works. Larger strides send fewer, larger messages and use more memory.

Source: ring_flash_attn 0.1.8, llama3_flash_attn_varlen.py; openrlhf 0.11.2, cli/train_sft.py; OpenRLHF#927.
"""

from attncheck.core.arithmetic import divisors
from attncheck.doctor.queries.models import is_ring_ruled_out
from attncheck.doctor.rules import Fix, Known, Model, Problem, Problems, Rule, Snapshot, about_model


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not snapshot.has("ring-flash-attn"):
        return
    if not isinstance(model.num_heads, Known) or not isinstance(model.num_kv_heads, Known):
        return
    strides = divisors(model.num_kv_heads.value)
    if set(divisors(model.num_heads.value)) <= set(strides) or len(strides) == 1 or is_ring_ruled_out(model):
        return
    listed = ", ".join(map(str, strides))
    stride = "--ds.ring_attn_head_stride 1" if snapshot.lists("openrlhf") else "heads_k_stride=1"
    yield Problem(
        message=f"heads_k_stride of ring attention must divide {model.num_kv_heads.value}: {listed}",
        evidence=(f"{model.num_heads.value} query heads share {model.num_kv_heads.value} key/value heads",),
        fixes=(Fix("a stride that always works", "setting", stride),),
        subject=model.model_type,
    )


RULE = Rule("ATN508", "note", check, needs=frozenset({"ring"}), general=True)
