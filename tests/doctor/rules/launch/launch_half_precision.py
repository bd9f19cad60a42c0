"""Cases for ATN451."""

from tests import snapshots as s

V100 = s.with_gpus(s.h200(), (7, 0), name="Tesla V100")
FIRES = {"bf16 on V100": s.with_job(V100), "autocast on V100": s.with_job(V100, {"precision": "autocast"})}
SILENT = {
    "no launch": V100,
    "fp16": s.with_job(V100, {"precision": "fp16"}),
    "H200": s.with_job(s.h200()),
    "no GPU": s.with_job(s.laptop()),
}


def says(findings: str) -> bool:
    """Return whether the GPU and a fix are named."""
    return "Tesla V100" in findings and "'precision': 'fp16'" in findings
