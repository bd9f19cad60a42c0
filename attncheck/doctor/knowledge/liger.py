"""liger-kernel releases and the transformers that they work with.

Source: the wheels of liger_kernel 0.5.10 to 0.8.5 (`liger_kernel/transformers/monkey_patch.py`,
MIN_SUPPORTED_TRANSFORMERS_VERSION; `model/qwen2_vl.py`), read on 2026-11-21; hiyouga/LLaMA-Factory#9387 and
linkedin/Liger-Kernel#827 for the effect of an outdated forward.
"""

from packaging.version import Version

# First liger-kernel version -> transformers with which its patches can be imported (before 0.7: unguarded).
TRANSFORMERS_BY_LIGER: dict[str, str] = {"0.7.0": ">=4.52.0", "0.8.5": ">=5.0.0"}
# The newest liger-kernel that still patches transformers 4.52 to 4.57.
LAST_FOR_TRANSFORMERS_4 = "0.8.4"
BEFORE_TRANSFORMERS_4_52 = "0.5.10"  # released in the same months as transformers 4.51; not run together here
# Since this transformers, Qwen2-VL is called with mm_token_type_ids; liger's replacement of its forward accepts it
# since this liger-kernel. The first version is from threads, the second from the wheels.
MM_TOKEN_TYPE_IDS = ("5.3.0", "0.8.0")

# A release -> its fault, and the release without it.
BROKEN_RELEASES: dict[str, tuple[str, str]] = {
    "0.6.3": ("evaluation under torch.no_grad() raises UnboundLocalError in its fused loss", "0.6.4"),
}

# Model types that a release patches and earlier ones did not (MODEL_TYPE_TO_APPLY_LIGER_FN in
# transformers/monkey_patch.py of the wheels 0.5.2, 0.5.5, 0.5.8, 0.5.10, 0.6.0, 0.6.2, 0.6.4, 0.7.0 and 0.8.0 to 0.8.5;
# none of them removed one). A release between two that were read may already have the later one's types.
MODEL_TYPES: dict[str, str] = {
    "0.5.2": "gemma gemma2 llama mistral mixtral mllama mllama_text_model phi3 qwen2 qwen2_vl",
    "0.5.5": "granite olmo2 qwen2_5_vl",
    "0.5.8": "gemma3 gemma3_text llava paligemma",
    "0.5.10": "glm4 qwen3 qwen3_moe",
    "0.6.0": "llama4 llama4_text qwen2_5_vl_text qwen2_vl_text",
    "0.6.2": "glm4v smollm3",
    "0.6.4": "falcon_h1 glm4v_moe hunyuan_v1_dense hunyuan_v1_moe internvl olmo3 qwen3_next qwen3_vl qwen3_vl_moe "
    "qwen3_vl_moe_text qwen3_vl_text smolvlm",
    "0.7.0": "exaone4 gpt_oss pixtral",
    "0.8.0": "gemma4_text ministral nemotron qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text",
    "0.8.1": "deepseek_v4 gemma4",
    "0.8.3": "muse_glimmer",
    "0.8.4": "deepseek_v3",
    "0.8.5": "deepseek_v2",
}
LAST_RELEASE_READ = "0.8.5"  # the newest release that was read
RELEASES_READ = "0.5.2 0.5.5 0.5.8 0.5.10 0.6.0 0.6.2 0.6.4 0.7.0 0.8.0 0.8.1 0.8.2 0.8.3 0.8.4 0.8.5"


def choose_release(transformers: Version) -> str:
    """Return the newest liger-kernel that was read and whose patches can be imported with this transformers."""
    if transformers >= Version("5.0"):
        return LAST_RELEASE_READ
    return LAST_FOR_TRANSFORMERS_4 if transformers >= Version("4.52") else BEFORE_TRANSFORMERS_4_52


def lacks_kernels_for(version: Version, model_type: str) -> bool:
    """Return whether this liger-kernel is known to lack kernels for `model_type`; False for a newer, unread release."""
    if not Version("0.5.2") <= version <= Version(LAST_RELEASE_READ):
        return False
    later_releases = [since for since in MODEL_TYPES if Version(since) > version]
    next_read = later_releases[0] if later_releases else ""  # a release between two that were read may have its types
    was_read = str(version) in RELEASES_READ.split()
    known = [since for since in MODEL_TYPES if since not in later_releases or (since == next_read and not was_read)]
    return all(model_type not in MODEL_TYPES[since].split() for since in known)
