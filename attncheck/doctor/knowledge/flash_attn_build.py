"""Requirements of a flash-attn 2 source build: compilers, memory and time.

Sources, read 2026-11-21: setup.py of the source distributions of flash-attn 2.8.3, 2.8.3.post1 and 2.8.3.post2 (PyPI).
They show the 72 .cu files, FLASH_ATTN_CUDA_ARCHS (by default "80;90;100;120"; 100 and 120 need nvcc 12.8), and nvcc
11.7 as the oldest. They import packaging, wheel and torch at the top, and psutil only without MAX_JOBS. The number of
jobs is otherwise min(cores / 2, free memory / 9 GB). 2.8.3.post2 computes an offset of the backward pass in 64 bits
that overflows in 2.8.3 and post1 (csrc/flash_attn/src/flash_bwd_kernel.h).

All of them compile with -std=c++17. torch 2.14's ATen.h rejects anything older than C++20 (pytorch/pytorch#178150), and
torch does not change a standard that is given. Therefore no release on PyPI builds with it;
Dao-AILab/flash-attention#2879, merged in September 2026, is only on its main branch.

Measured on 16 cores of an H200 host, nvcc 13.0, torch 2.11, flash-attn 2.8.3, the bf16 half of the files: 73 to 236 s
of processor time per file for sm_90 alone, 140 s on average, the slowest done after 275 s; 3.6 to 6.6 GiB for each
architecture compiled at once. Two files for four architectures took 2.9 and about 4 times as long. A whole build for
sm_90 took 445 s on 128 cores, which agrees with these numbers.
"""

SOURCE_VERSION = "2.8.3.post2"  # the best source distribution on PyPI
# The source distributions to try, in this order, if another package pins one.
CANDIDATE_VERSIONS = ("2.8.3.post2", "2.8.3.post1", "2.8.3", "2.8.1", "2.7.4.post1")
CU12_WHEEL_ONLY = ("2.8.3", "2.8.2", "2.8.1")  # releases whose setup.py requests a cu12 wheel under CUDA 13 too
NEEDS_CXX20 = (2, 14)  # the first torch that PyPI's releases cannot be built against
MAIN_BRANCH = "git+https://github.com/Dao-AILab/flash-attention@main"

SOURCE_FILES = 72
SECONDS_PER_FILE = 140  # processor time of one core, per architecture
SLOWEST_FILE_SECONDS = 275
GIB_PER_JOB = 7  # with NVCC_THREADS=1; setup.py assumes 9
NVCC_FOR_BLACKWELL = "12.8"

# First transformers version -> oldest flash-attn that it accepts for flash_attention_2 (is_flash_attn_2_available in
# utils/import_utils.py of the wheels 4.57.6 and 5.17.0).
MINIMUM_FOR_TRANSFORMERS: dict[str, str] = {"4.43": "2.1.0", "5.0": "2.3.3"}

# Compute capability -> the entry of FLASH_ATTN_CUDA_ARCHS whose code runs there. Within a major version, code for a
# lower minor version runs on a higher one.
ARCHITECTURES: dict[int, str] = {8: "80", 9: "90", 10: "100", 12: "120"}
