"""Cases for ATN707."""

from tests import snapshots as s

FIRES = {
    "flash alone": s.env(s.h200(), FLASH_ATTENTION_DETERMINISTIC="1"),
    "cuBLAS alone": s.env(s.h200(), CUBLAS_WORKSPACE_CONFIG=":4096:8"),
}
SILENT = {
    "both": s.env(s.h200(), FLASH_ATTENTION_DETERMINISTIC="1", CUBLAS_WORKSPACE_CONFIG=":4096:8"),
    "neither": s.h200(),
    "no flash-attn": s.env(s.without(s.h200(), "flash-attn"), CUBLAS_WORKSPACE_CONFIG=":4096:8"),
    "laptop": s.env(s.laptop(), CUBLAS_WORKSPACE_CONFIG=":4096:8"),
}
