"""Cases for ATN704."""

from tests import snapshots as s

RLHF = s.with_env(s.with_package(s.h200(), "openrlhf", "0.11.2"), CUBLAS_WORKSPACE_CONFIG=":4096:8")
FIRES = {
    "4.54.0": s.with_package(RLHF, "transformers", "4.54.0"),
    "5.15.0": s.with_package(RLHF, "transformers", "5.15.0"),
}
SILENT = {
    "determinism is not requested": s.with_package(
        s.with_package(s.h200(), "openrlhf", "0.11.2"), "transformers", "5.15.0"
    ),
    "the variable is set": s.with_env(
        s.with_package(RLHF, "transformers", "5.15.0"), FLASH_ATTENTION_DETERMINISTIC="1"
    ),
    "4.53.3": s.with_package(RLHF, "transformers", "4.53.3"),
    "no OpenRLHF": s.h200(),
    "laptop": s.laptop(),
}
