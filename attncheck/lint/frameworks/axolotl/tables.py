"""What axolotl calls its settings in each release, and what each release can do.

Source: the wheels and sdists of axolotl 0.8.0 to 0.19.0: utils/schemas/{config,validation,enums}.py, loaders/,
core/builders/causal.py; the names themselves are `names/axolotl.json`.
"""

from __future__ import annotations

from collections.abc import Mapping

from attncheck.lint.fields.releases import fields, reaches

NAMED = "0.17.0"  # attn_implementation decides; the booleans are deprecated (utils/schemas/config.py:1569 of 0.19.0)
PASSED_ON = "0.12.0"  # attn_implementation is known and given to transformers alone (loaders/model.py:606 of 0.12.2)
CONTEXT_PARALLEL = "0.12.0"  # context_parallel_size; sequence_parallel_degree before, still read after
SHIFTED_BESIDE_FLASH = "0.15.0"  # s2_attention; before, it was refused beside a boolean (validation.py:165)
RING_FUNCTIONS = "0.9.0"  # ring_attn_func; before, llama3 alone
DROPS_MASK = "0.11.0"  # of packed rows, for flash, xformers and flex (core/builders/causal.py:248 of 0.11.0)
DROPS_MASK_FOR_SDPA = "0.18.0"  # attn_decontaminates_packing (core/builders/causal.py:275 of 0.18.0)
FLASH_4 = "0.16.0"  # put in the place of flash-attn where it is usable (monkeypatch/attention/flash_attn_4.py)
FLASH_4_NAMED = "0.19.0"  # as attn_implementation, and never under a ring (loaders/model.py:857)

# utils/schemas/enums.py of 0.19.0: LEGACY_ATTN_FLAG_TO_IMPL, in its order of priority.
BOOLEANS: Mapping[str, str] = {
    "xformers_attention": "xformers",
    "sage_attention": "sage",
    "flex_attention": "flex_attention",
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
}
# loaders/model.py:627-647 of 0.16.1: the first that is on; sage runs under flash_attention_2's name.
OLD_ORDER = ("flex_attention", "flash_attention", "xformers_attention", "sdp_attention", "sage_attention")
SWITCHES: Mapping[str, str] = {name: flag for flag, name in BOOLEANS.items()}
SHORT: Mapping[str, str] = {"flash": "flash_attention_2", "flex": "flex_attention", "sdp": "sdpa"}
CANONICAL = frozenset(
    {*BOOLEANS.values(), "flash_attention_3", "flash_attention_4", "flash_attention_torch", "fp8"}
)  # CANONICAL_ATTN_IMPLS
SEPARATES = frozenset(  # ATTN_IMPLS_SUPPORTING_PACKING
    {
        *("flash_attention_2", "flash_attention_3", "flash_attention_4", "flash_attention_torch", "flex_attention"),
        *("xformers", "sage"),
        *("kernels-community/flash-attn2", "kernels-community/flash-attn3", "kernels-community/sage-attention"),
    }
)
SAGE_RUNS_ON = ((8, 0), (8, 6), (8, 9), (9, 0), (12, 0))  # utils/schemas/config.py:1886
# Names that went, and what took their place (utils/schemas/validation.py:61 of 0.19.0 says so).
RENAMED: Mapping[str, str] = {
    "unsloth_lora_mlp": "lora_mlp_kernel",
    "unsloth_lora_qkv": "lora_qkv_kernel",
    "unsloth_lora_o": "lora_o_kernel",
}
LIGER_PLUGIN = "axolotl.integrations.liger.LigerPlugin"
CUT_PLUGIN = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"


def separating(version: str) -> tuple[str, ...]:
    """Return the implementations under which a release keeps packed documents apart."""
    if reaches(version, NAMED):
        more = ("sdpa", "eager") if reaches(version, DROPS_MASK_FOR_SDPA) else ()
        return (*sorted(SEPARATES), *more)
    return ("flash_attention_2", "flex_attention", "xformers")


def separates(version: str, implementation: str) -> bool:
    """Say whether a release keeps packed documents apart under an implementation; a revision after "@" is no matter."""
    return implementation.split(":")[0].split("@")[0].strip() in separating(version)


def plugin_of(version: str, name: str) -> str:
    """Return the folder of the plugin that a setting belongs to, "" where no plugin of the release has it."""
    return next((each.split(":")[0] for each in fields("axolotl", "plugins", version) if each.endswith(f":{name}")), "")


def now(version: str, name: str, text: str, here: Mapping[str, object]) -> tuple[str, ...]:
    """Return what a name of another release is called in this one, with its value; () where it has none."""
    if name in RENAMED and RENAMED[name] in here:
        return (f"{RENAMED[name]}: {text}",)
    if name == "context_parallel_size" and "sequence_parallel_degree" in here:
        return (f"sequence_parallel_degree: {text}",)
    if name == "attn_implementation" and text in SWITCHES and SWITCHES[text] in here:
        return (f"{SWITCHES[text]}: true",)
    if name in BOOLEANS and "attn_implementation" in here and text.lower() == "true":
        return (f"attn_implementation: {BOOLEANS[name]}",)
    return ()
