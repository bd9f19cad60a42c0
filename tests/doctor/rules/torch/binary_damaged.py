"""Cases for ATN129."""

from dataclasses import replace

from attncheck.core.facts import Absent
from tests import snapshots as s

STATIC = replace(s.h200(), imports=Absent("not asked"))
LIBRARY = replace(
    STATIC,
    binaries=tuple(
        replace(b, problem="truncated") if b.path.endswith("libtorch_cpu.so") else b for b in STATIC.binaries
    ),
)
CAUSAL = s.package(s.h200(), "causal-conv1d", "1.5.0")
BAD = "damaged: an address outside every segment"
OTHER = "built for cpython-311, this is cpython-312"
FIRES = {
    "a library of torch": LIBRARY,
    "flash-attn's extension": s.binary(STATIC, "flash_attn_2_cuda", problem=BAD),
    "and the import fails": s.imported(
        s.binary(CAUSAL, "causal_conv1d_cuda", distribution="causal-conv1d", problem="truncated"),
        "causal_conv1d_cuda",
        "raised",
        exception="ImportError",
        message="file too short",
    ),
}
SILENT = {
    "torch cannot be imported: ATN102": s.imported(LIBRARY, "torch", "died", signal="SIGBUS"),
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "it imports": s.binary(s.h200(), "flash_attn_2_cuda", problem="truncated"),
    "torch imports": replace(LIBRARY, imports=s.h200().imports),
    "for another Python: ATN107": s.binary(STATIC, "flash_attn_2_cuda", problem=OTHER),
}
