"""Cases for ATN225."""

from __future__ import annotations

from tests import snapshots as s

KERNELS = s.with_package(s.with_package(s.h200(), "transformers", "5.5.0"), "kernels", "0.12.3")
RTX_5090 = s.with_gpus(KERNELS, (12, 0))
FLASH_3 = {"attn_implementation": "kernels-community/flash-attn3"}

FIRES = {
    "flash-attn3 on sm_120": s.with_job(RTX_5090, FLASH_3),
    "a B200": s.with_job(s.with_gpus(KERNELS, (10, 0)), FLASH_3),
    "vllm-flash-attn3 with a version": s.with_job(
        RTX_5090, {"attn_implementation": "kernels-community/vllm-flash-attn3@v1"}
    ),
    "the kernel of a flash_attention_3 that is not installed": s.with_job(
        s.without_packages(RTX_5090, "flash-attn", "flash-attn-3"), {"attn_implementation": "flash_attention_3"}
    ),
    "flash-attn2 on a V100": s.with_job(
        s.with_gpus(KERNELS, (7, 0)), {"attn_implementation": "kernels-community/flash-attn2"}
    ),
}
SILENT = {
    "flash-attn3 on an H200": s.with_job(KERNELS, FLASH_3),
    "flash-attn3 on an RTX 4090": s.with_job(s.with_gpus(KERNELS, (8, 9)), FLASH_3),
    "flash-attn2 on sm_121": s.with_job(
        s.with_gpus(KERNELS, (12, 1)), {"attn_implementation": "kernels-community/flash-attn2"}
    ),
    "a kernel that was not read": s.with_job(RTX_5090, {"attn_implementation": "someone/flash-attn9"}),
    "flash-attn is installed": s.with_job(RTX_5090, {"attn_implementation": "flash_attention_2"}),
    "the recorded machine": s.h200(),
}
