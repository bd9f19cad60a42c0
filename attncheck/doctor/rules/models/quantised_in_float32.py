"""The 4-bit checkpoint computes in float32, which flash attention does not support.

What it checks: bnb_4bit_compute_dtype in the quantization_config of config.json. Without it, bitsandbytes uses
float32.

Why it matters: every linear layer returns float32, and so do queries, keys and values: "FlashAttention only support
fp16 and bf16 data type", or a cast with a warning in every layer. ring-flash-attn reads the dtype from the first
nn.Linear, which is the wrong one. It is also several times slower.

What to do: compute in bfloat16.

Source: transformers 5.23.0, utils/quantization_config.py (`BitsAndBytesConfig`: "self.bnb_4bit_compute_dtype =
torch.float32" if it is None); ring_flash_attn 0.1.8, adapters/hf_adapter.py; unslothai/unsloth#1154. Run with
5.17.0: the configuration without the field holds torch.float32, with it torch.bfloat16
(tests/doctor/test_quantised.py).
"""

from attncheck.doctor.queries import may_use_flash, refuses_implementation
from attncheck.doctor.rules import Fix, Known, Model, Problem, Problems, Rule, Snapshot, about_model

CALL = 'BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)'


@about_model
def check(snapshot: Snapshot, model: Model) -> Problems:
    if not may_use_flash(snapshot) or refuses_implementation(model, "flash_attention_2"):
        return
    if model.quantised_dtype != Known("float32"):
        return
    yield Problem(
        message=(
            f"the 4-bit layers of {model.source} compute in float32, but flash attention needs float16 or bfloat16"
        ),
        evidence=("static lane: bnb_4bit_compute_dtype in config.json; float32 by default",),
        fixes=(
            Fix("compute in bfloat16", "edit", f"quantization_config={CALL}"),
            Fix("or in config.json", "edit", 'config.json: "bnb_4bit_compute_dtype": "bfloat16"'),
        ),
        subject=model.source,
        predicted=True,
    )


RULE = Rule("ATN355", "warning", check, needs=frozenset({"flash"}))
