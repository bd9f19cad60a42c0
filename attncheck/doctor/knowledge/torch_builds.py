"""The CUDA builds of torch for Linux x86_64 on PyTorch's own index.

Source: pytorch/pytorch, .github/scripts/generate_binary_build_matrix.py (CUDA_ARCHES) of the releases, as tabulated on
2026-08-29 by a public compatibility table that checks the URL of each wheel; read 2026-11-21. cu126 lacks code for
Blackwell, which was added in CUDA 12.8; CUDA 13 dropped everything before sm_75 (NVIDIA CUDA 13.0 release notes).
"""

INDEX_URL = "https://download.pytorch.org/whl"

# torch's minor version -> its builds, newest CUDA first. "" is for a release that is not listed.
CUDA_TAGS_BY_TORCH: dict[str, tuple[str, ...]] = {
    "": ("cu130", "cu126"),
    "2.6": ("cu126", "cu124", "cu118"),
    "2.7": ("cu128", "cu126", "cu118"),
    "2.8": ("cu129", "cu128", "cu126"),
    "2.9": ("cu130", "cu128", "cu126"),
    "2.10": ("cu130", "cu129", "cu128", "cu126"),
    "2.11": ("cu130", "cu129", "cu128", "cu126"),
    "2.12": ("cu130", "cu126"),
    "2.13": ("cu130", "cu129", "cu126"),
    "2.14": ("cu130", "cu126"),
}
