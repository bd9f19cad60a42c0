"""Cases for ATN557."""

from tests import snapshots as s

TRANSFORMERS_5_23 = s.with_package(s.h200(), "transformers", "5.23.0")
FIRES = {"on": s.with_env(TRANSFORMERS_5_23, TRANSFORMERS_SDPA_FORCE_GQA="1")}
SILENT = {
    "a transformers that does not read it": s.with_env(
        s.with_package(TRANSFORMERS_5_23, "transformers", "5.22.0"), TRANSFORMERS_SDPA_FORCE_GQA="1"
    ),
    "a value it does not read": s.with_env(TRANSFORMERS_5_23, TRANSFORMERS_SDPA_FORCE_GQA="true"),
    "off": s.with_env(s.h200(), TRANSFORMERS_SDPA_FORCE_GQA="0"),
    "not set": s.h200(),
    "laptop": s.laptop(),
}
