"""Cases for ATN129."""

from dataclasses import replace

from attncheck.core.facts import Absent
from tests import snapshots as s

NOT_IMPORTED = replace(s.h200(), imports=Absent("not asked"))
TRUNCATED_LIBRARY = replace(
    NOT_IMPORTED,
    binaries=tuple(
        replace(b, problem="truncated") if b.path.endswith("libtorch_cpu.so") else b for b in NOT_IMPORTED.binaries
    ),
)
CAUSAL_CONV1D = s.with_package(s.h200(), "causal-conv1d", "1.5.0")
DAMAGE = "damaged: an address outside every segment"
FOREIGN_PYTHON = "built for cpython-311, this is cpython-312"
FIRES = {
    "a library of torch": TRUNCATED_LIBRARY,
    "flash-attn's extension": s.with_binary(NOT_IMPORTED, "flash_attn_2_cuda", problem=DAMAGE),
    "and the import fails": s.with_import(
        s.with_binary(CAUSAL_CONV1D, "causal_conv1d_cuda", distribution="causal-conv1d", problem="truncated"),
        "causal_conv1d_cuda",
        "raised",
        exception="ImportError",
        message="file too short",
    ),
}
SILENT = {
    "torch cannot be imported: ATN102": s.with_import(TRUNCATED_LIBRARY, "torch", "died", signal="SIGBUS"),
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "it imports": s.with_binary(s.h200(), "flash_attn_2_cuda", problem="truncated"),
    "torch imports": replace(TRUNCATED_LIBRARY, imports=s.h200().imports),
    "for another Python: ATN107": s.with_binary(NOT_IMPORTED, "flash_attn_2_cuda", problem=FOREIGN_PYTHON),
}
