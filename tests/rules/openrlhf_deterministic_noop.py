"""Cases for ATN704."""

from tests import snapshots as s

RLHF = s.package(s.h200(), "openrlhf", "0.11.2")
FIRES = {"4.54.0": s.package(RLHF, "transformers", "4.54.0"), "5.15.0": s.package(RLHF, "transformers", "5.15.0")}
SILENT = {"4.53.3": s.package(RLHF, "transformers", "4.53.3"), "no OpenRLHF": s.h200(), "laptop": s.laptop()}
