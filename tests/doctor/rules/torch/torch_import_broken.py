"""Cases for ATN102."""

from tests import snapshots as s

FIRES = {
    "a library is missing": s.with_import(
        s.h200(),
        "torch",
        "raised",
        exception="ImportError",
        message="libcudnn.so.9: cannot open shared object file: No such file or directory",
    ),
    "another nvJitLink on LD_LIBRARY_PATH": s.with_env(
        s.with_import(
            s.h200(),
            "torch",
            "raised",
            exception="ImportError",
            message="libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12",
        ),
        LD_LIBRARY_PATH="/usr/local/cuda-12.1/lib64",
    ),
    "it dies": s.with_import(s.h200(), "torch", "died", signal="SIGSEGV"),
    "it hangs": s.with_import(s.h200(), "torch", "hung", seconds=60.0),
}
SILENT = {
    "the recorded machine": s.h200(),
    "the laptop": s.laptop(),
    "not tried": s.with_import(s.h200(), "torch", "skipped"),
    "not installed is ATN101": s.with_import(
        s.without_packages(s.h200(), "torch"), "torch", "raised", message="No module"
    ),
}


def says(finding: str) -> bool:
    """Return whether the finding's text names what the user must know."""
    cause = any(word in finding for word in ("libcudnn.so.9 is not found", "nvJitLink", "SIGSEGV", "after 60 s"))
    return cause and "torch==2.11.0+cu130" in finding and "force-reinstall" in finding
