"""Cases for ATN707."""

from tests import snapshots as s

FIRES = {
    "flash alone": s.with_env(s.h200(), FLASH_ATTENTION_DETERMINISTIC="1"),
    "cuBLAS alone": s.with_env(s.h200(), CUBLAS_WORKSPACE_CONFIG=":4096:8"),
}
SILENT = {
    "both": s.with_env(s.h200(), FLASH_ATTENTION_DETERMINISTIC="1", CUBLAS_WORKSPACE_CONFIG=":4096:8"),
    "neither": s.h200(),
    "a cuBLAS value that ATN702 judges": s.with_env(
        s.h200(), FLASH_ATTENTION_DETERMINISTIC="1", CUBLAS_WORKSPACE_CONFIG=":0:0"
    ),
    "flash switched off on purpose": s.with_env(
        s.h200(), FLASH_ATTENTION_DETERMINISTIC="0", CUBLAS_WORKSPACE_CONFIG=":16:8"
    ),
    "cuBLAS tuned for memory": s.with_env(s.h200(), CUBLAS_WORKSPACE_CONFIG=":0:0"),
    "no flash-attn": s.with_env(s.without_packages(s.h200(), "flash-attn"), CUBLAS_WORKSPACE_CONFIG=":4096:8"),
    "laptop": s.with_env(s.laptop(), CUBLAS_WORKSPACE_CONFIG=":4096:8"),
}
