"""Training and rollout frameworks: their distributions, and the releases in which they changed.

Source: wheels of openrlhf 0.11.2 and verl 0.9.1, read on 2026-11-21; the threads named at each entry.
"""

from typing import NamedTuple

from attncheck.doctor.needs import Need

_RL_WITH_FLASH: frozenset[Need] = frozenset({"flash", "rl"})


class FrameworkPackage(NamedTuple):
    """A framework as an installed distribution, and what its presence shows about the jobs that will run.

    `needs` are the needs of its jobs. `packs`: its collators keep packed documents apart. `ulysses`: its sequence
    parallelism distributes heads across ranks.
    """

    distribution: str
    needs: frozenset[Need] = frozenset()
    packs: bool = False
    ulysses: bool = False


FRAMEWORKS = (
    FrameworkPackage("openrlhf", needs=_RL_WITH_FLASH, packs=True),
    FrameworkPackage("verl", needs=_RL_WITH_FLASH, packs=True, ulysses=True),
    FrameworkPackage("trl", packs=True),
    FrameworkPackage("llamafactory", packs=True),
    FrameworkPackage("axolotl", packs=True),
    FrameworkPackage("ms-swift", packs=True, ulysses=True),
    FrameworkPackage("unsloth"),
    FrameworkPackage("vllm", needs=frozenset({"rl"})),
    FrameworkPackage("sglang", needs=frozenset({"rl"})),
)
FRAMEWORK_NAMES = tuple(framework.distribution for framework in FRAMEWORKS)
PACKING_FRAMEWORKS = tuple(framework.distribution for framework in FRAMEWORKS if framework.packs)
ULYSSES_FRAMEWORKS = tuple(framework.distribution for framework in FRAMEWORKS if framework.ulysses)
# The packages that a job of each framework imports: trl 1.16.0, verl 0.9.1 (its critics' value heads), openrlhf 0.11.2,
# llamafactory 0.9.5, ms_swift 4.6.0 and axolotl 0.19.0, every `import` of the wheels.
FRAMEWORKS_IMPORTED_BY: dict[str, tuple[str, ...]] = {
    "trl": (),
    "verl": ("trl",),
    "openrlhf": (),
    "llamafactory": ("trl",),
    "ms-swift": ("trl",),
    "axolotl": ("trl",),
}
# Distribution -> the needs of a job that imports it.
NEEDS_BY_PACKAGE: dict[str, frozenset[Need]] = {
    "ring-flash-attn": frozenset({"ring"}),
    "yunchang": frozenset({"ring", "ulysses"}),
    "liger-kernel": frozenset({"liger"}),
}
# Distribution -> the library that imports it, and the first release that does so only if the job uses it: transformers
# 4.53.3 (modeling_flash_attention_utils.py; 4.55.4 does not) and trl 0.23.0 (trainer/grpo_trainer.py; 1.16.0 does not).
# verl 0.9.1 imports all three (models/transformers/qwen2_vl.py, utils/experimental/torch_functional.py).
IMPORTED_LAZILY = {
    "flash-attn": ("transformers", "4.55.4"),
    "flash-attn-3": ("transformers", "4.55.4"),
    "liger-kernel": ("trl", "1.16"),
}
# Frameworks that train with transformers' Trainer; "transformers" is the user's own script that uses it.
TRAINER_FRAMEWORKS = frozenset({"transformers", "trl", "llamafactory", "axolotl", "ms-swift"})
# Distributions whose requirements of one another decide whether the attention stack works.
WATCHED_DISTRIBUTIONS = (
    *FRAMEWORK_NAMES,
    *("accelerate", "deepspeed", "flash-attn", "flash-attn-3", "flash-attn-4", "kernels", "liger-kernel", "peft"),
    *("ring-flash-attn", "torchaudio", "torchvision", "transformer-engine", "transformers", "xformers", "yunchang"),
)
# Further distributions whose version matters: a mismatch breaks attention, not an auxiliary tool.
RELEVANT_DISTRIBUTIONS = frozenset(WATCHED_DISTRIBUTIONS) | {
    "torch",
    "triton",
    "tokenizers",
    "huggingface-hub",
    "nvidia-cutlass-dsl",
    "ray",
}

# Distributions that provide the same modules; if one is installed, the others do not count as missing.
INTERCHANGEABLE_DISTRIBUTIONS = (
    ("opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless"),
    ("nvidia-ml-py", "pynvml"),
    ("onnxruntime", "onnxruntime-gpu"),
    ("pillow", "pillow-simd"),
    ("tensorboard", "tb-nightly"),
    ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x"),
)

# OpenRLHF itself sets NCCL_CUMEM_ENABLE=0 for vllm below this version; since this version the weight sync fails with it
# (openrlhf 0.11.2, trainer/ray/ppo_actor.py: "causes ncclCommInitRank to fail under NCCL 2.27+").
VLLM_NEEDS_CUMEM = "0.16"
NCCL_NEEDS_CUMEM = "2.27"
# verl raises "Transformers 4.53.* is bugged" for Qwen2-VL (verl 0.9.1, models/transformers/monkey_patch.py).
VERL_VLM_BUGGED = ">=4.53,<4.54"
# vllm below this version requires expandable segments to be off for sleep mode (wheels of vllm 0.16.0, 0.20.0, 0.20.1,
# device_allocator/cumem.py; vllm-project/vllm#14189, #40812).
VLLM_TOLERATES_EXPANDABLE = "0.20.1"
# Oldest transformers of DeepSpeed's UlyssesSPAttentionHF (DeepSpeed snapshot of 2026-08).
DEEPSPEED_ULYSSES_TRANSFORMERS = "4.51.3"
# Since this version no file of vllm contains the name VLLM_ATTENTION_BACKEND (wheels of vllm 0.14.1, which reads it in
# envs.py, 0.15.0, 0.16.0, 0.20.0, 0.29.0; vllm-project/vllm#32812).
VLLM_BACKEND_VARIABLE_OLD = "0.15"
