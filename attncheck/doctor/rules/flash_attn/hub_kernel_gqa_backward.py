"""The Hub's flash-attn kernel that would be used fails in backward for grouped-query attention.

What it checks: whether flash_attention_2 would be replaced by version 3 of `kernels-community/flash-attn2`
(transformers 5.16 to 5.21, or later with torch below 2.10) for a model with fewer kv heads than heads.

Why it matters: forward works, but the first backward stops with a dispatcher error that names `aten::sum`. This is a
prediction: some builds were fixed later, and nothing was run here.

What to do: pin version 2 of the kernel, install flash-attn, or use sdpa.

Source: transformers 5.16.0-5.17.0, `integrations/hub_kernels.py` (_FLASH_ATTN_KERNEL_VERSION_MAPPING), 5.18.0-5.23.0,
`modeling_flash_attention_utils.py`;
huggingface/kernels-community#1085, #1082; huggingface/trl#6979.
"""

from attncheck.doctor.fixes import install, install_flash_attn_package
from attncheck.doctor.queries.hub_fallback import find_hub_fallback
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot, need


def check(snapshot: Snapshot) -> Problems:
    kernel = find_hub_fallback(snapshot)
    if kernel is None or kernel.version != "3":
        return
    model = need(snapshot.model, "the model")
    heads, kv_heads = need(model.num_heads, "its heads"), need(model.num_kv_heads, "its kv heads")
    if kv_heads >= heads:
        return
    yield Problem(
        message=f"{kernel} is reported to fail in backward for {heads} heads with {kv_heads} kv heads",
        subject=model.model_type,
        evidence=("flash-attn is not installed, so flash_attention_2 becomes this kernel",),
        fixes=(
            install.set_attn_implementation(snapshot, f"{kernel.repository}@v2"),
            *install_flash_attn_package(snapshot),
        ),
        predicted=True,
    )


RULE = Rule("ATN159", "error", check, needs=frozenset({"flash"}))
