"""Cases for ATN169."""

from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_extension(name: str, module: str, **binary: object) -> Snapshot:
    """Return the machine (CUDA 13) with a package whose extension needs CUDA 12's runtime."""
    fields = {"needed": ("libcudart.so.12",), "unresolved": ("libcudart.so.12",), **binary}
    return s.with_binary(s.with_package(s.h200(), name, "1.5.2"), module, distribution=name, **fields)


CAUSAL_CONV = with_extension("causal-conv1d", "causal_conv1d_cuda")
MESSAGE = "libcudart.so.12: cannot open shared object file: No such file or directory"

FIRES = {
    "causal-conv1d of CUDA 12": CAUSAL_CONV,
    "the import says so": s.with_import(
        CAUSAL_CONV, "causal_conv1d_cuda", "raised", exception="ImportError", message=MESSAGE
    ),
    "vllm": with_extension("vllm", "vllm._C"),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "it was imported": s.with_import(CAUSAL_CONV, "causal_conv1d_cuda"),
    "its runtime is there": with_extension("vllm", "vllm._C", unresolved=()),
    "another failure": s.with_import(CAUSAL_CONV, "causal_conv1d_cuda", "raised", message="undefined symbol: f"),
    "it loads its own": with_extension("transformer-engine-torch", "transformer_engine_torch"),
    "xformers: ATN167": with_extension("xformers", "xformers._C"),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names the library."""
    return "needs libcudart.so.12" in finding and "install" in finding
