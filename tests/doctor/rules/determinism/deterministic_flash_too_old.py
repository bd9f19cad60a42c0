"""Cases for ATN701."""

from tests import snapshots as s

FIRES = {"2.4.0": s.with_env(s.with_package(s.h200(), "flash-attn", "2.4.0"), FLASH_ATTENTION_DETERMINISTIC="1")}
SILENT = {
    "2.4.1": s.with_env(s.with_package(s.h200(), "flash-attn", "2.4.1"), FLASH_ATTENTION_DETERMINISTIC="1"),
    "not requested": s.with_package(s.h200(), "flash-attn", "2.3.6"),
    "healthy": s.h200(),
    "laptop": s.laptop(),
}
